"""Adapters through the real engine: the tokens of Hugging Face's models with merged weights."""

import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from muxcluster.core.request import Request
from muxcluster.core.sampling import SamplingParams
from muxcluster.core.unitspec import AdapterSpec, UnitSpec
from muxcluster.engine.unit.unit import Unit
from tests.adapters import ATTENTION, LLAMA, merged, write_adapter
from tests.amounts import slow
from tests.blocks import scaled
from tests.engine.conftest import ModelBuilder
from tests.engine.fakes import Sink
from tests.engine.live_units import RecordingExecutor, wait_until_gone, workers_of
from tests.engine.units import check_lengths, check_nothing_leaks, greedy, prompts, running, spec_of
from tests.oracles import GreedyOracle

pytestmark = pytest.mark.usefixtures("fast_children")

NUM_TOKENS = 12
SHARED = scaled(24, 8)  # tokens that all prompts share: whole blocks


@dataclass(frozen=True)
class Adapted:
    """A model with adapters of different ranks, and an oracle of each."""

    base: Path
    adapters: tuple[AdapterSpec, ...]
    oracles: Mapping[str, GreedyOracle]  # "" is the base

    def spec(self, **options: object) -> UnitSpec:
        """Jobs are sent ahead: one is in flight while the next is launched."""
        made = spec_of([self.base], **options)  # type: ignore[arg-type]
        models = (replace(made.models[0], adapters=self.adapters),)
        return replace(made, models=models, scheduler=replace(made.scheduler, pipeline_depth=2))

    def check(self, asked: Mapping[str, list[int]], sink: Sink) -> None:
        """Each request's tokens are those of the model that its id ends with."""
        for request_id, prompt in asked.items():
            self.oracles[adapter_of(request_id)].check(prompt, sink.tokens[request_id])


Maker = Callable[[str], Adapted]


@pytest.fixture(scope="module")
def adapted(tiny: ModelBuilder, tmp_path_factory: pytest.TempPathFactory) -> Maker:
    """Family -> its model with three adapters: of few linears, of all, scaled by a root."""
    made: dict[str, Adapted] = {}

    def make(family: str) -> Adapted:
        if family not in made:
            base, root = tiny(family), tmp_path_factory.mktemp(family)
            all_targets = LLAMA if family != "mixtral" else ATTENTION
            paths = {
                "small": write_adapter(
                    root / "small", base, rank=2, targets=("q_proj", "v_proj"), seed=1
                ),
                "all": write_adapter(root / "all", base, rank=8, targets=all_targets, seed=2),
                "root": write_adapter(
                    root / "root", base, rank=5, targets=ATTENTION, seed=3, use_rslora=True
                ),
            }
            oracles = {"": GreedyOracle(base)}
            for name, path in paths.items():
                oracles[name] = GreedyOracle(merged(root / f"{name}-merged", base, path))
            adapters = tuple(AdapterSpec(name, str(path)) for name, path in paths.items())
            made[family] = Adapted(base, adapters, oracles)
        return made[family]

    return make


def adapter_of(request_id: str) -> str:
    return request_id.rpartition("@")[2]


def for_each(adapted: Adapted, asked: Mapping[str, list[int]]) -> dict[str, list[int]]:
    """Each prompt for the base and for each adapter, in turn."""
    return {
        f"{request_id}@{name}": prompt
        for request_id, prompt in asked.items()
        for name in adapted.oracles
    }


def submit(unit: Unit, asked: Mapping[str, Sequence[int]], sampling: SamplingParams) -> None:
    for seed, (request_id, prompt) in enumerate(asked.items()):
        tokens = np.asarray(prompt, dtype=np.int32)
        model = request_id.split("/")[0]
        own = replace(sampling, seed=seed)
        unit.submit(Request(request_id, model, tokens, own, adapter=adapter_of(request_id)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "lane"),
    [("llama", "adbs"), ("mixtral", "mixed"), *slow(("qwen3", "mixed"), ("qwen2", "temporal"))],
)
def test_adapters_of_several_ranks_and_none_in_one_unit(
    adapted: Maker, family: str, lane: str
) -> None:
    """The same prompts for all, so a shared block or a mixed-up row shows in the tokens."""
    model = adapted(family)
    with running(model.spec(lane=lane, num_columns=400)) as (unit, sink):
        everything = prompts(family, 5, 512, shared=SHARED)
        first = for_each(model, dict(list(everything.items())[:3]))
        again = for_each(model, dict(list(everything.items())[3:]))
        for asked, num_ends in ((first, len(first)), (again, len(first) + len(again))):
            submit(unit, asked, greedy(NUM_TOKENS))
            sink.wait_for_ends(num_ends)
            check_lengths(sink, asked, NUM_TOKENS)
        stats = unit.stats().models[0]
        check_nothing_leaks(unit)
    model.check({**first, **again}, sink)
    # in the second wave each adapter finds its own prefix
    assert stats.prefix_hits >= len(again) * SHARED
    tokens = {tuple(sink.tokens[request_id]) for request_id in first}
    assert len(tokens) > len(first) // 2, "adapters change nothing"


@pytest.mark.slow
def test_each_adapter_computes_the_prefix_that_others_have_cached(adapted: Maker) -> None:
    model = adapted("llama")
    prompt = list(range(SHARED + 1))
    with running(model.spec()) as (unit, sink):
        for number, name in enumerate(model.oracles, start=1):
            submit(unit, {f"llama/one@{name}": prompt}, greedy(2))
            sink.wait_for_ends(number)
        assert unit.stats().models[0].prefix_hits == 0
        submit(unit, {"llama/two@all": prompt}, greedy(2))
        sink.wait_for_ends(number + 1)
        assert unit.stats().models[0].prefix_hits == SHARED


def test_requests_of_an_adapter_that_is_not_here_are_refused(adapted: Maker) -> None:
    with running(adapted("llama").spec(partition="none", lane="mixed")) as (unit, sink):
        submit(unit, {"llama/1@other": [1, 2, 3]}, greedy(2))
        sink.wait_for_ends(1)
    rejected = sink.ends["llama/1@other"].rejected
    assert rejected is not None
    assert (rejected.code, rejected.message) == ("model_not_found", "no adapter 'other' here")


@pytest.fixture(scope="module")
def live(adapted: Maker) -> Iterator[tuple[RecordingExecutor, Unit, Sink]]:
    spec = adapted("llama").spec()
    executor = RecordingExecutor(spec)
    with running(spec, executor) as (unit, sink):
        yield executor, unit, sink


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1, "owner"])
def test_whoever_is_killed_the_tokens_stay(
    adapted: Maker, live: tuple[RecordingExecutor, Unit, Sink], victim: int | str
) -> None:
    """A new worker gets each row's adapter again, and a new owner loads all of them."""
    (executor, unit, sink), model = live, adapted("llama")
    sink.clear()
    asked = for_each(model, prompts("llama", 3, 512))
    workers = workers_of(executor.owner_pid, 2)
    pid = executor.owner_pid if victim == "owner" else workers[int(victim)]
    submit(unit, asked, greedy(NUM_TOKENS))
    sink.wait_for_tokens(next(iter(asked)), 2)
    os.kill(pid, signal.SIGKILL)
    sink.wait_for_ends(len(asked))
    check_lengths(sink, asked, NUM_TOKENS)
    check_nothing_leaks(unit)
    wait_until_gone([pid])
    model.check(asked, sink)
