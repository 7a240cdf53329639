"""Chats with images in units: tokens are those of Hugging Face, however jobs cut the prompts."""

import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from muxcluster.core.errors import LoadError
from muxcluster.core.job import JobResult
from muxcluster.core.request import Request, ServiceClass
from muxcluster.core.unitspec import AdapterSpec, ModelSpec, UnitSpec
from muxcluster.demo.models import build_model
from muxcluster.engine.load.backends import load
from muxcluster.engine.processes.executor import ProcessExecutor
from muxcluster.engine.steps.device.captures import CallAgain
from muxcluster.engine.steps.runner import UnitRunner
from muxcluster.engine.unit import in_process
from muxcluster.engine.unit.unit import Unit
from tests.blocks import only_with
from tests.engine.gpu.conftest import fake_control
from tests.engine.gpu.test_mps_workers import WORKERS, ShareRecorder
from tests.engine.hybrid_units import hybrid_spec
from tests.engine.live_units import workers_of
from tests.engine.stepping import SteppedUnit
from tests.engine.units import check_lengths, check_nothing_leaks, greedy, running, spec_of
from tests.engine.vision.models import (
    VOCAB,
    VisionOracle,
    build_vision_model,
    noise_image,
    vision_request,
    with_marks,
)
from tests.models import model_spec

pytestmark = pytest.mark.usefixtures("fast_children")

FAMILIES = ("qwen2_5_vl", "qwen2_vl")
KILLED = ("qwen2_5_vl",)
NUM_TOKENS = 12


@dataclass(frozen=True)
class Chat:
    """A prompt with a place for each image, and the images."""

    prompt: list[int]
    images: Sequence[Image.Image] = ()


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    root = tmp_path_factory.mktemp("models")
    return {family: build_vision_model(root / family, family) for family in FAMILIES}


@pytest.fixture(scope="module")
def oracles(models: Mapping[str, Path]) -> Mapping[str, VisionOracle]:
    return {family: VisionOracle(path) for family, path in models.items()}


@pytest.fixture(scope="module")
def directory(models: Mapping[str, Path]) -> Path:
    return models[KILLED[0]]


@pytest.fixture(scope="module")
def oracle(oracles: Mapping[str, VisionOracle]) -> VisionOracle:
    return oracles[KILLED[0]]


def text(seed: int, length: int) -> list[int]:
    return np.random.default_rng(seed).integers(3, VOCAB, length).tolist()


def chats(name: str, shift: int = 0) -> dict[str, Chat]:
    """Texts alone, images at the beginning, in the middle, at the end, several, large and small."""
    tall, wide, small = noise_image(70, 30, shift), noise_image(24, 120, shift), noise_image(9, 9)
    large = noise_image(200, 300, shift)
    found = {
        "text": Chat(text(1 + shift, 30)),
        "first": Chat(with_marks(None, text(2, 9)), [tall]),
        "middle": Chat(with_marks(text(3, 21), None, text(4, 5)), [large]),
        "last": Chat(with_marks(text(5, 4), None), [wide]),
        "two": Chat(with_marks(text(6, 3), None, None, text(7, 12)), [small, tall]),
        "turns": Chat(with_marks(text(8, 8), None, text(9, 17), None, text(10, 2)), [wide, large]),
    }
    return {f"{name}/{shift}/{key}": chat for key, chat in found.items()}


def requests_of(asked: Mapping[str, Chat], directory: Path) -> list[Request]:
    return [
        vision_request(name, directory, chat.prompt, chat.images, greedy(NUM_TOKENS))
        for name, chat in asked.items()
    ]


def submit(unit: Unit, asked: Mapping[str, Chat], directory: Path) -> None:
    for request in requests_of(asked, directory):
        unit.submit(request)


def check(oracle: VisionOracle, asked: Mapping[str, Chat], tokens: Mapping[str, list[int]]) -> None:
    oracle.num_near_ties = 0
    for name, chat in asked.items():
        oracle.check(chat.prompt, chat.images, tokens[name])
    assert oracle.num_near_ties <= 1


def budget(spec: UnitSpec, num_tokens: int) -> UnitSpec:
    return replace(spec, scheduler=replace(spec.scheduler, token_budget=num_tokens))


@pytest.mark.parametrize("num_tokens", [7, 33, 512])
@pytest.mark.parametrize("family", FAMILIES)
def test_chunks_that_end_inside_images(
    models: Mapping[str, Path], oracles: Mapping[str, VisionOracle], family: str, num_tokens: int
) -> None:
    """Chunks of prompts and decodes in the same jobs."""
    directory = models[family]
    spec = budget(spec_of([directory], lane="mixed", partition="none"), num_tokens)
    asked = chats(directory.name)
    unit = SteppedUnit(spec)
    tokens = unit.run(requests_of(asked, directory))
    check(oracles[family], asked, tokens)
    chunks = [job for job in unit.jobs if not job.rows.samples.all()]
    assert bool(chunks) == (num_tokens < 512)


@only_with(8)
def test_an_image_is_part_of_the_prefix(directory: Path, oracle: VisionOracle) -> None:
    """The same image is found in the cache; another one of the same size is not."""
    spec = spec_of([directory], lane="mixed", partition="none")
    one, other = noise_image(64, 48, 1), noise_image(64, 48, 2)
    prompt = with_marks(text(1, 10), None, text(2, 25))
    asked = {f"{directory.name}/{i}": Chat(prompt, [one]) for i in range(2)}
    asked[f"{directory.name}/other"] = Chat(prompt, [other])
    asked[f"{directory.name}/turn"] = Chat([*prompt, *with_marks(None, text(3, 4))], [one, other])
    cached: dict[str, int] = {}
    with running(spec) as (unit, sink):
        for name, chat in asked.items():
            submit(unit, {name: chat}, directory)
            sink.wait_for_ends(len(cached) + 1)
            end = sink.ends[name].finished
            assert end is not None
            cached[name] = end.num_cached_tokens
        check_nothing_leaks(unit)
    check(oracle, asked, sink.tokens)
    first, again, foreign, turn = cached.values()
    num_before = 11  # tokens before the image's first
    assert first == 0
    assert again > 48 + num_before, "the whole image, and text behind it"
    assert 0 < foreign <= num_before
    assert turn >= again
    same, different = (sink.tokens[f"{directory.name}/{name}"] for name in (0, "other"))
    assert same != different, "the image changes nothing"


def test_killed_and_resumed_beside_a_llama(
    directory: Path, oracle: VisionOracle, tmp_path: Path
) -> None:
    """Prefills and decodes in processes of their own, which lose theirs amid the answers."""
    llama = build_model(tmp_path / "llama", "llama", seed=4)
    spec = budget(spec_of([directory, llama], num_columns=40), 24)
    asked = chats(directory.name) | chats(directory.name, shift=1)
    others = {f"llama/{i}": Chat(text(i, 20)) for i in range(3)}
    executor = ProcessExecutor(spec)
    first = next(iter(asked))
    with running(spec, executor) as (unit, sink):
        submit(unit, asked | others, directory)
        sink.wait_for_tokens(first, 2)
        for pid in workers_of(executor.owner_pid, len(spec.workers)):
            os.kill(pid, signal.SIGKILL)
        sink.wait_for_tokens(first, 6)
        os.kill(executor.owner_pid, signal.SIGKILL)
        sink.wait_for_ends(len(asked) + len(others))
        check_nothing_leaks(unit)
    check_lengths(sink, [*asked, *others], NUM_TOKENS)
    check(oracle, asked, sink.tokens)


def test_both_classes_in_one_pool_that_is_too_small(directory: Path, oracle: VisionOracle) -> None:
    """Batch requests lend blocks that hold images, or are computed again."""
    spec = hybrid_spec({directory.name: directory}, num_blocks=100)
    asked = chats(directory.name)
    spec = replace(spec, models=tuple(replace(m, max_model_len=256) for m in spec.models))
    unit = SteppedUnit(spec)
    batch, urgent = requests_of(asked, directory), requests_of(chats(directory.name, 1), directory)
    unit.add([replace(each, service_class=ServiceClass.BATCH) for each in batch])
    for _ in range(6):
        unit.step()
    unit.add(urgent)
    while unit.step():
        pass
    (stats,) = unit.scheduler.stats(0.0, "u").models
    assert stats.num_lent_columns > 0
    check(oracle, asked | chats(directory.name, 1), unit.tokens)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"adapters": (AdapterSpec("a", "/a"),)}, "has no adapters"),
        ({"adapter_places": 1, "adapter_rank": 8}, "has no adapters"),
        ({"quantize": "int8"}, "cannot be quantised"),
        ({"embedding_size": 128}, "gives no embeddings"),
    ],
)
def test_what_cannot_be_done_yet_is_refused(
    directory: Path, changed: Mapping[str, object], reason: str
) -> None:
    spec: ModelSpec = model_spec(directory, "vl", **changed)
    with pytest.raises(LoadError, match=reason):
        load(spec, "cpu")


def test_beside_recorded_steps(
    directory: Path, oracle: VisionOracle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU, where the steps of such a model are not recorded."""
    monkeypatch.setattr(in_process, "UnitRunner", partial(UnitRunner, capture=CallAgain()))
    spec = budget(spec_of([directory], lane="mixed", partition="none"), 24)
    asked = chats(directory.name)
    with running(spec) as (unit, sink):
        submit(unit, asked, directory)
        sink.wait_for_ends(len(asked))
        check_nothing_leaks(unit)
    check(oracle, asked, sink.tokens)


@pytest.mark.slow
def test_workers_that_map_the_owners_memory(
    directory: Path, oracle: VisionOracle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU under MPS: workers make the model and its tower anew, without data."""
    fake_control(tmp_path, monkeypatch)
    spec = replace(budget(spec_of([directory]), 24), workers=WORKERS, num_threads=2)
    asked = chats(directory.name)
    executor = ShareRecorder(spec)
    with running(spec, executor) as (unit, sink):
        submit(unit, asked, directory)
        sink.wait_for_ends(len(asked))
        assert executor.misfortunes == []
    check(oracle, asked, sink.tokens)


def test_random_weights(directory: Path) -> None:
    """`load_format: dummy` fills the tower, too, and its tables are those of the configuration."""
    spec = spec_of([directory], lane="mixed", partition="none")
    models = tuple(replace(model, load_format="dummy") for model in spec.models)
    unit = SteppedUnit(replace(spec, models=models))
    asked = {f"{directory.name}/x": Chat(with_marks(text(1, 4), None), [noise_image(40, 40)])}
    (tokens,) = unit.run(requests_of(asked, directory)).values()
    assert len(tokens) == NUM_TOKENS


def test_an_image_is_embedded_once(directory: Path) -> None:
    """Of its several chunks, the first has the tower run."""
    spec = budget(spec_of([directory], lane="mixed", partition="none"), 8)
    unit = SteppedUnit(spec)
    forward = unit.runner.memory.forwards[directory.name]
    sizes: list[tuple[int, ...]] = []
    embed = forward.image

    def counted(pixels):
        sizes.append(pixels.shape)
        return embed(pixels)

    forward.image = counted
    results: list[JobResult] = []
    execute = unit.runner.execute

    def kept(job):
        results.append(execute(job))
        return results[-1]

    unit.runner.execute = kept
    asked = {f"{directory.name}/x": Chat(with_marks(text(1, 4), None), [noise_image(64, 48)])}
    unit.run(requests_of(asked, directory))
    assert sizes == [(64, 48, 3)]
    (with_image,) = [result for result in results if result.image_tokens]
    assert with_image.image_tokens == 48
    assert 0 < with_image.image_s < with_image.seconds
    assert all(result.image_s == 0 for result in results if result is not with_image)
