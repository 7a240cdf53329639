"""Adapters that come while a unit runs: the tokens of models with merged weights, whoever dies."""

import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from muxcluster.core.inputs.adapters.files import read_adapter
from muxcluster.core.inputs.adapters.load import LoadedAdapter, version_in
from muxcluster.core.request import Request
from muxcluster.core.unitspec import AdapterSpec, ModelSpec, UnitSpec
from muxcluster.engine.adapters.low_rank import version_of
from muxcluster.engine.unit.adapter_checks import check_adapter
from muxcluster.engine.unit.unit import Unit
from tests.adapters import ATTENTION, LLAMA, merged, write_adapter
from tests.amounts import slow
from tests.engine.conftest import ModelBuilder
from tests.engine.fakes import Sink
from tests.engine.live_units import RecordingExecutor, wait_until_gone, workers_of
from tests.engine.units import check_lengths, check_nothing_leaks, greedy, prompts, running, spec_of
from tests.oracles import GreedyOracle

pytestmark = pytest.mark.usefixtures("fast_children")

NUM_TOKENS = 10
RANKS = {"low": 2, "high": 8, "mid": 5}
FIXED = "fixed"  # is there from the start


@dataclass(frozen=True)
class Base:
    """A model with one adapter of its own and others that come, and an oracle of each."""

    path: Path
    folder: Path
    oracles: Mapping[str, GreedyOracle]  # "" is the base

    def spec(self, **options: object) -> UnitSpec:
        """Fewer places than adapters; a job is in flight while the next is launched."""
        made = spec_of([self.path], **options)  # type: ignore[arg-type]
        model = replace(
            made.models[0],
            adapters=(AdapterSpec(FIXED, str(self.folder / FIXED)),),
            adapter_places=2,
            adapter_rank=8,
        )
        scheduler = replace(made.scheduler, pipeline_depth=2)
        return replace(made, models=(model,), scheduler=scheduler)

    def submit(self, unit: Unit, asked: Mapping[str, Sequence[int]]) -> None:
        for request_id, prompt in asked.items():
            unit.submit(self.request(request_id, prompt))

    def request(self, request_id: str, prompt: Sequence[int]) -> Request:
        name = adapter_of(request_id)
        tokens, path = np.asarray(prompt, dtype=np.int32), ""
        if name in RANKS:
            path = str(self.folder / name)
            name = LoadedAdapter(path, version_of(read_adapter(Path(path)))).unit_id(name)
        sampling = greedy(NUM_TOKENS)
        return Request(
            request_id, self.path.name, tokens, sampling, adapter=name, adapter_path=path
        )

    def check(self, asked: Mapping[str, list[int]], sink: Sink) -> None:
        check_lengths(sink, asked, NUM_TOKENS)
        for request_id, prompt in asked.items():
            self.oracles[adapter_of(request_id)].check(prompt, sink.tokens[request_id])


def adapter_of(request_id: str) -> str:
    return request_id.rpartition("@")[2]


def for_each(base: Base, count: int, seed: int = 0) -> dict[str, list[int]]:
    """Each prompt for the base and for each adapter, in turn."""
    asked = prompts(base.path.name, count, 512, seed=seed)
    return {f"{each}@{name}": prompt for each, prompt in asked.items() for name in base.oracles}


@pytest.fixture(scope="module", params=["llama", *slow("mixtral", "qwen2")])
def base(
    request: pytest.FixtureRequest, tiny: ModelBuilder, tmp_path_factory: pytest.TempPathFactory
) -> Base:
    path, folder = tiny(request.param), tmp_path_factory.mktemp(request.param)
    targets = ATTENTION if request.param == "mixtral" else LLAMA
    oracles = {"": GreedyOracle(path)}
    for seed, (name, rank) in enumerate({FIXED: 3, **RANKS}.items()):
        some = ("q_proj", "v_proj") if name == "low" else targets
        adapter = write_adapter(folder / name, path, rank=rank, targets=some, seed=seed)
        oracles[name] = GreedyOracle(merged(folder / f"{name}-merged", path, adapter))
    return Base(path, folder, oracles)


@pytest.fixture(scope="module")
def live(base: Base) -> Iterator[tuple[RecordingExecutor, Unit, Sink]]:
    spec = base.spec()
    executor = RecordingExecutor(spec)
    with running(spec, executor) as (unit, sink):
        yield executor, unit, sink


@pytest.mark.parametrize("victim", [*slow(None, 0), 1, *slow("owner")])
def test_more_adapters_than_places_and_whoever_is_killed(
    base: Base, live: tuple[RecordingExecutor, Unit, Sink], victim: int | str | None
) -> None:
    """A new worker and a new owner read them again when their rows come."""
    executor, unit, sink = live
    sink.clear()
    asked = for_each(base, 3, seed=len(f"{victim}"))
    base.submit(unit, asked)
    if victim is not None:
        workers = workers_of(executor.owner_pid, 2)
        pid = executor.owner_pid if victim == "owner" else workers[int(victim)]
        sink.wait_for_tokens(next(iter(asked)), 2)
        os.kill(pid, signal.SIGKILL)
    sink.wait_for_ends(len(asked))
    check_nothing_leaks(unit)
    base.check(asked, sink)
    if victim is not None:
        wait_until_gone([pid])
    assert len({tuple(sink.tokens[request_id]) for request_id in asked}) > len(asked) // 2


def test_another_version_of_a_name_finds_nothing_of_the_first(base: Base) -> None:
    """Neither its cached prefix nor its numbers."""
    prompt = list(range(1, 90))
    with running(base.spec(lane="mixed", partition="none")) as (unit, sink):
        for number, folder in enumerate(("high", "mid"), start=1):
            made = base.request(f"{number}@{folder}", prompt)
            version = version_in(made.adapter)
            unit.submit(replace(made, adapter=LoadedAdapter("", version).unit_id("same")))
            sink.wait_for_ends(number)
        assert unit.stats().models[0].prefix_hits == 0
    base.check({"1@high": prompt, "2@mid": prompt}, sink)


def test_files_that_have_gone_end_their_request_alone(base: Base, tmp_path: Path) -> None:
    prompt = list(range(1, 20))
    gone = base.request("gone@low", prompt)
    gone = replace(gone, adapter="gone@1", adapter_path=str(tmp_path / "gone"))
    others = {f"{number}@high": prompt for number in range(3)}
    with running(base.spec()) as (unit, sink):
        unit.submit(gone)
        base.submit(unit, others)
        sink.wait_for_ends(4)
        check_nothing_leaks(unit)
    base.check(others, sink)
    finished = sink.ends["gone@low"].finished
    assert finished is not None and finished.reason == "error"


def test_files_that_have_changed_end_their_request_alone(base: Base, tmp_path: Path) -> None:
    """Their version is in caches already."""
    prompt = list(range(1, 20))
    made = base.request("changed@mid", prompt)
    changed = replace(made, adapter_path=str(base.folder / "high"))
    with running(base.spec()) as (unit, sink):
        unit.submit(changed)
        sink.wait_for_ends(1)
        base.submit(unit, {"2@high": prompt})
        unit.submit(replace(made, request_id="3@mid"))
        sink.wait_for_ends(3)
        check_nothing_leaks(unit)
    base.check({"2@high": prompt, "3@mid": prompt}, sink)
    finished = sink.ends["changed@mid"].finished
    assert finished is not None and finished.reason == "error"


def spec_to_check(base: Base) -> ModelSpec:
    return base.spec().models[0]


def test_a_check_tells_versions_apart(base: Base, tmp_path: Path) -> None:
    spec = spec_to_check(base)
    found = {name: check_adapter(spec, str(base.folder / name)) for name in RANKS}
    assert [each.problem for each in found.values()] == ["", "", ""]
    assert len({each.version for each in found.values()}) == 3
    copy = write_adapter(tmp_path / "copy", base.path, rank=2, targets=("q_proj", "v_proj"), seed=1)
    assert check_adapter(spec, str(copy)).version == found["low"].version


def test_a_check_names_the_tensor(base: Base, tmp_path: Path) -> None:
    spec = spec_to_check(base)
    wide = write_adapter(tmp_path / "wide", base.path, rank=9, targets=("q_proj",))
    found = check_adapter(spec, str(wide)).problem
    assert "q_proj.lora_A.weight has rank 9, places of" in found
    broken = write_adapter(tmp_path / "broken", base.path, targets=("k_proj",))
    file = broken / "adapter_model.safetensors"
    tensors = load_file(file)
    name = min(tensors)
    tensors[name][0, 0] = float("nan")
    save_file(tensors, file)
    assert f"tensor {name} holds NaN" in check_adapter(spec, str(broken)).problem
    assert "no such file" in check_adapter(spec, str(tmp_path / "nothing")).problem
    without = replace(spec, adapter_places=0)
    assert "adapter_places" in check_adapter(without, str(wide)).problem


def test_a_check_names_a_linear_that_the_base_lacks(base: Base, tmp_path: Path) -> None:
    adapter = write_adapter(tmp_path / "other", base.path, targets=("q_proj",))
    file = adapter / "adapter_model.safetensors"
    other = {name.replace("q_proj", "c_proj"): each for name, each in load_file(file).items()}
    save_file(other, file)
    assert "has no linear" in check_adapter(spec_to_check(base), str(adapter)).problem
