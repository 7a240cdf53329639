"""Encoders in a unit: vectors are those of transformers, a text at a time."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification

from muxcluster.config.facts import read_facts
from muxcluster.core.errors import LoadError
from muxcluster.core.unitspec import UnitSpec
from muxcluster.demo.models import build_model
from muxcluster.engine.load.backends import load
from tests.engine.embedding_units import TOLERANCE, embed, with_a_worker_killed
from tests.engine.fakes import Sink
from tests.engine.units import check_nothing_leaks, prompts, running, spec_of
from tests.models import model_spec
from tests.oracles import EmbeddingOracle

pytestmark = pytest.mark.usefixtures("fast_children")

SIZE, VOCAB, LONGEST = 64, 320, 130
FIELDS: Mapping[str, Mapping[str, Any]] = {
    "bert": {},
    "xlm-roberta": {"max_position_embeddings": LONGEST + 2, "pad_token_id": 1},
    "mpnet": {"max_position_embeddings": LONGEST + 2, "pad_token_id": 1},
    "distilbert": {"dim": SIZE, "n_layers": 2, "n_heads": 4, "hidden_dim": 96},
    "electra": {"embedding_size": 32},
    "modernbert": {"local_attention": 16, "global_attn_every_n_layers": 2, "pad_token_id": 0},
}


def encoder(directory: Path, kind: str, auto: Any = AutoModel, **more: Any) -> Path:
    """A tiny random model of a class; more: fields of its configuration."""
    fields = {
        "vocab_size": VOCAB,
        "hidden_size": SIZE,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 96,
        "max_position_embeddings": LONGEST,
    }
    if kind == "distilbert":
        fields = {"vocab_size": VOCAB, "max_position_embeddings": LONGEST}
    model = auto.from_config(AutoConfig.for_model(kind, **fields | FIELDS[kind] | more))
    generator = torch.Generator().manual_seed(len(kind))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            is_scale = "norm" in name.lower() and name.endswith("weight")
            parameter.copy_(1 + 0.1 * noise if is_scale else 0.2 * noise)
    model.save_pretrained(directory)
    return directory


@pytest.fixture(scope="module")
def encoders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("encoders")
    return {kind: encoder(root / kind, kind) for kind in FIELDS}


def unit_of(paths: Mapping[str, Path], *others: Path, **options: str) -> UnitSpec:
    """A unit of encoders, which pool by mean and by the first token in turn, and other models."""
    spec = spec_of([*paths.values(), *others], **options)
    models = list(spec.models)
    for place, name in enumerate(paths):
        models[place] = replace(
            models[place],
            backend="encoder",
            embedding_size=SIZE,
            pooling=("mean", "cls")[place % 2],
            max_model_len=read_facts(paths[name]).max_context,
            prefix_caching=False,
        )
    return replace(spec, models=tuple(models))


def texts_of(spec: UnitSpec) -> dict[str, list[int]]:
    """Token ids of texts of each encoder: short, longer than a job, of the longest length."""
    asked: dict[str, list[int]] = {}
    for model in (each for each in spec.models if each.embedding_size):
        assert model.max_model_len == LONGEST
        found = prompts(model.name, 6, VOCAB - 3, longest=LONGEST)
        asked |= {key: [token + 3 for token in tokens] for key, tokens in found.items()}
        asked[f"{model.name}/one"] = [7]
        asked[f"{model.name}/full"] = [5 + i % 50 for i in range(LONGEST)]
    return asked


def check_vectors(sink: Sink, spec: UnitSpec, asked: Mapping[str, list[int]]) -> None:
    pooling = {model.name: model.pooling for model in spec.models}
    oracles = {
        model.name: EmbeddingOracle(Path(model.path))
        for model in spec.models
        if model.name in FIELDS
    }
    for request_id, tokens in asked.items():
        name = request_id.partition("/")[0]
        vector = np.frombuffer(sink.vectors[request_id], dtype=np.float32).astype(np.float64)
        expected = oracles[name].embed(tokens, pooling=pooling[name])
        difference = np.abs(vector / np.linalg.norm(vector) - expected).max()
        assert difference < TOLERANCE, f"{request_id} differs by {difference}"


def test_all_kinds_beside_a_chat_model_and_with_a_worker_killed_in_a_job(
    encoders: Mapping[str, Path], tmp_path: Path
) -> None:
    chat = build_model(tmp_path / "llama", "llama", seed=9)
    spec = unit_of(encoders, chat)
    texts = texts_of(spec)
    with with_a_worker_killed(spec, texts, chat) as (_, sink):
        check_vectors(sink, spec, texts)


def test_in_mixed_jobs_of_one_process(encoders: Mapping[str, Path]) -> None:
    two = {kind: encoders[kind] for kind in ("bert", "modernbert")}
    spec = unit_of(two, lane="mixed", partition="none")
    texts = texts_of(spec)
    with running(spec) as (unit, sink):
        embed(unit, texts)
        sink.wait_for_ends(len(texts))
        check_vectors(sink, spec, texts)
        check_nothing_leaks(unit)


@pytest.mark.parametrize("kind", ["xlm-roberta", "mpnet", "distilbert", "modernbert"])
def test_scores_of_cross_encoders(tmp_path: Path, kind: str) -> None:
    path = encoder(tmp_path / kind, kind, AutoModelForSequenceClassification, num_labels=1)
    spec = unit_of({kind: path}, lane="mixed", partition="none")
    scoring = replace(spec.models[0], pooling="score", embedding_size=1)
    spec = replace(spec, models=(scoring,))
    texts = texts_of(spec)
    oracle = AutoModelForSequenceClassification.from_pretrained(path).eval()
    with running(spec) as (unit, sink):
        embed(unit, texts)
        sink.wait_for_ends(len(texts))
        for request_id, tokens in texts.items():
            ids = torch.tensor([tokens])
            with torch.inference_mode():
                expected = oracle(input_ids=ids, attention_mask=torch.ones_like(ids)).logits
            found = np.frombuffer(sink.vectors[request_id], dtype=np.float32)
            assert found.shape == (1,)
            assert abs(found[0] - expected.item()) < 1e-4 * max(1.0, abs(expected.item()))


def test_a_checkpoint_without_a_layer_is_refused(
    encoders: Mapping[str, Path], tmp_path: Path
) -> None:
    config = AutoConfig.from_pretrained(encoders["bert"], num_hidden_layers=1)
    AutoModel.from_config(config).save_pretrained(tmp_path / "bert")
    text = (encoders["bert"] / "config.json").read_text()
    (tmp_path / "bert" / "config.json").write_text(text)
    spec = model_spec(tmp_path / "bert", "bert", backend="encoder", embedding_size=SIZE)
    with pytest.raises(LoadError, match="lacks tensor encoder.layer.1"):
        load(replace(spec, pooling="mean"), "cpu")


def test_dummy_weights_follow_the_seed(encoders: Mapping[str, Path]) -> None:
    spec = model_spec(encoders["bert"], "bert", backend="encoder", embedding_size=SIZE)
    tokens, is_token = torch.tensor([[5, 6, 7]]), torch.ones(1, 3, dtype=torch.bool)

    def vector(seed: int) -> torch.Tensor:
        found: Any = load(replace(spec, pooling="mean", load_format="dummy", seed=seed), "cpu")
        return found.embed(tokens, is_token)

    assert torch.equal(vector(1), vector(1))
    assert not torch.equal(vector(1), vector(2))
