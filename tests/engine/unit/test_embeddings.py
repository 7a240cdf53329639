"""Embedding models in a unit: vectors are those of transformers, whatever runs beside or dies."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from transformers import AutoModel

from muxcluster.core.errors import LoadError
from muxcluster.core.events import FinishReason
from muxcluster.core.unitspec import UnitSpec
from muxcluster.demo.models import build_model
from muxcluster.engine.load.backends import load
from muxcluster.engine.residency.executor import ResidencyExecutor
from muxcluster.engine.steps.device.captures import CallAgain
from muxcluster.engine.steps.runner import UnitRunner
from muxcluster.engine.unit import in_process
from tests.engine.embedding_units import TOLERANCE, embed, with_a_worker_killed
from tests.engine.fakes import Sink
from tests.engine.gpu.conftest import fake_control
from tests.engine.gpu.test_mps_workers import WORKERS, ShareRecorder
from tests.engine.parallel.ranks import over_ranks
from tests.engine.residency.moved import in_turns
from tests.engine.units import (
    check_nothing_leaks,
    prompts,
    running,
    spec_of,
)
from tests.models import model_spec
from tests.oracles import EmbeddingOracle

pytestmark = pytest.mark.usefixtures("fast_children")

EMBEDDERS = {"qwen3": {}, "mistral": {}, "opt": {"head_dim": 64, "word_embed_proj_dim": 256}}
"""Merged products with norms of heads; sliding windows; transformers' own layers."""


@pytest.fixture(scope="module")
def embedders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Directories of models without an output layer, as their authors publish them."""
    root = tmp_path_factory.mktemp("embedders")
    found = {}
    for seed, (family, fields) in enumerate(EMBEDDERS.items()):
        path = build_model(root / family, family, seed=seed, **fields)
        AutoModel.from_pretrained(path).save_pretrained(path)
        found[family] = path
    return found


@pytest.fixture(scope="module")
def vectors_of(embedders: Mapping[str, Path]) -> Mapping[str, EmbeddingOracle]:
    return {name: EmbeddingOracle(path) for name, path in embedders.items()}


def unit_of(embedders: Mapping[str, Path], *others: Path, **options: str) -> UnitSpec:
    """A unit of the embedding models and other models."""
    spec = spec_of([*embedders.values(), *others], **options)
    sizes = {name: model_size(path) for name, path in embedders.items()}
    models = [replace(each, embedding_size=sizes.get(each.name, 0)) for each in spec.models]
    return replace(spec, models=tuple(models))


def model_size(directory: Path) -> int:
    return int(AutoModel.from_pretrained(directory).config.hidden_size)


def texts_of(spec: UnitSpec, names: Sequence[str]) -> dict[str, list[int]]:
    """Token ids of texts of each model: with a common beginning, cut into chunks, of one token."""
    asked: dict[str, list[int]] = {}
    for model in (each for each in spec.models if each.name in names):
        asked |= prompts(model.name, 3, model.vocab_size, shared=20)
        asked |= prompts(model.name, 2, model.vocab_size, longest=200, seed=1)
        asked[f"{model.name}/one"] = [7]
        asked[f"{model.name}/full"] = [5] * model.max_model_len
    return asked


def check_vectors(
    sink: Sink, asked: Mapping[str, list[int]], vectors_of: Mapping[str, EmbeddingOracle]
) -> None:
    for request_id, tokens in asked.items():
        assert sink.reason(request_id) is FinishReason.LENGTH
        vector = np.frombuffer(sink.vectors[request_id], dtype=np.float32).astype(np.float64)
        expected = vectors_of[request_id.partition("/")[0]].embed(tokens)
        difference = np.abs(vector / np.linalg.norm(vector) - expected).max()
        assert difference < TOLERANCE, f"{request_id} differs by {difference}"


def test_beside_a_chat_model_and_with_a_worker_killed_in_a_job(
    embedders: Mapping[str, Path], vectors_of: Mapping[str, EmbeddingOracle], tmp_path: Path
) -> None:
    chat = build_model(tmp_path / "llama", "llama", seed=9)
    two = {name: embedders[name] for name in ("qwen3", "mistral")}
    spec = unit_of(two, chat)
    texts = texts_of(spec, list(two))
    with with_a_worker_killed(spec, texts, chat) as (unit, sink):
        check_vectors(sink, texts, vectors_of)
        # again: of each text but one token, and what its last block lacks, is in the prefix cache
        sink.clear()
        embed(unit, texts)
        sink.wait_for_ends(len(texts))
        check_vectors(sink, texts, vectors_of)
        cached = [end.finished.num_cached_tokens for end in sink.ends.values() if end.finished]
        assert max(cached) > 100


@pytest.mark.parametrize("has_recorded_steps", [False, True])
def test_in_mixed_jobs_of_one_process(
    embedders: Mapping[str, Path],
    vectors_of: Mapping[str, EmbeddingOracle],
    has_recorded_steps: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With recorded steps: as on a GPU, where the host's part is another."""
    if has_recorded_steps:
        monkeypatch.setattr(in_process, "UnitRunner", partial(UnitRunner, capture=CallAgain()))
    spec = unit_of(embedders, lane="mixed", partition="none")
    texts = texts_of(spec, list(embedders))
    with running(spec) as (unit, sink):
        embed(unit, texts)
        sink.wait_for_ends(len(texts))
        check_vectors(sink, texts, vectors_of)
        check_nothing_leaks(unit)


def test_quantised_when_loaded(
    embedders: Mapping[str, Path], vectors_of: Mapping[str, EmbeddingOracle]
) -> None:
    """Near the vectors of the whole weights, as answers of quantised models are."""
    spec = unit_of({"qwen3": embedders["qwen3"]}, lane="mixed", partition="none")
    (model,) = spec.models
    spec = replace(spec, models=(replace(model, quantize="int8"),))
    texts = texts_of(spec, ["qwen3"])
    with running(spec) as (unit, sink):
        embed(unit, texts)
        sink.wait_for_ends(len(texts))
        for request_id, tokens in texts.items():
            vector = np.frombuffer(sink.vectors[request_id], dtype=np.float32).astype(np.float64)
            cosine = vector @ vectors_of["qwen3"].embed(tokens) / np.linalg.norm(vector)
            assert 0.99 < cosine < 1 - 1e-7


def test_over_two_ranks(
    embedders: Mapping[str, Path], vectors_of: Mapping[str, EmbeddingOracle]
) -> None:
    """Each rank loads its part tensor by tensor, and none has an output layer."""
    alone = {"qwen3": embedders["qwen3"]}
    spec = over_ranks(unit_of(alone, lane="mixed"))
    texts = texts_of(spec, ["qwen3"])
    with running(spec) as (unit, sink):
        embed(unit, texts)
        sink.wait_for_ends(len(texts))
        check_vectors(sink, texts, vectors_of)
        check_nothing_leaks(unit)


@pytest.mark.slow
def test_workers_that_map_the_owners_memory(
    embedders: Mapping[str, Path],
    vectors_of: Mapping[str, EmbeddingOracle],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As on a GPU under MPS: workers make the models anew, without data and output layers."""
    fake_control(tmp_path, monkeypatch)
    two = {name: embedders[name] for name in ("qwen3", "opt")}
    spec = replace(unit_of(two), workers=WORKERS, num_threads=2)
    texts = texts_of(spec, list(two))
    executor = ShareRecorder(spec)
    with running(spec, executor) as (unit, sink):
        embed(unit, texts)
        sink.wait_for_ends(len(texts))
        check_vectors(sink, texts, vectors_of)
        assert executor.misfortunes == []


def test_in_memory_for_one_of_two(
    embedders: Mapping[str, Path], vectors_of: Mapping[str, EmbeddingOracle]
) -> None:
    """Each model is loaded again by what its first load has shown."""
    two = {name: embedders[name] for name in ("qwen3", "opt")}
    spec = in_turns(unit_of(two), 1)
    texts = texts_of(spec, list(two))
    with running(spec, ResidencyExecutor(spec)) as (unit, sink):
        for num_ended, name in enumerate(("qwen3", "opt", "qwen3", "opt")):
            sink.clear()
            mine = {key: value for key, value in texts.items() if key.startswith(name)}
            embed(unit, mine)
            sink.wait_for_ends(len(mine))
            check_vectors(sink, mine, vectors_of)
            assert sum(each.num_wakes for each in unit.stats().models) >= num_ended


def test_a_vector_that_is_not_finite_ends_its_own_request_alone(
    embedders: Mapping[str, Path], vectors_of: Mapping[str, EmbeddingOracle], tmp_path: Path
) -> None:
    model = AutoModel.from_pretrained(embedders["qwen3"])
    model.embed_tokens.weight.data[300] = np.nan
    bad = tmp_path / "qwen3"
    model.save_pretrained(bad)
    spec = unit_of({"qwen3": bad}, lane="mixed", partition="none")
    texts = {"qwen3/good": [1, 2, 3], "qwen3/bad": [1, 300, 3], "qwen3/too": [4, 5]}
    with running(spec) as (unit, sink):
        embed(unit, texts)
        sink.wait_for_ends(3)
        end = sink.ends["qwen3/bad"].finished
        assert end is not None and end.code == "non_finite_logits"
        assert "qwen3/bad" not in sink.vectors
        check_vectors(sink, {k: v for k, v in texts.items() if k != "qwen3/bad"}, vectors_of)


@pytest.mark.parametrize(
    ("family", "reason"),
    [("gemma2", "changes its hidden states"), ("bloom", "only the paged backend")],
)
def test_models_whose_hidden_states_cannot_be_had_are_refused(
    tmp_path: Path, family: str, reason: str
) -> None:
    path = build_model(tmp_path / family, family)
    spec = model_spec(path, family, embedding_size=128)
    with pytest.raises(LoadError, match=reason):
        load(spec, "cpu")


def test_a_model_of_another_width_is_refused(embedders: Mapping[str, Path]) -> None:
    spec = model_spec(embedders["qwen3"], "qwen3", embedding_size=8)
    with pytest.raises(LoadError, match="have 160 numbers, not 8"):
        load(spec, "cpu")
