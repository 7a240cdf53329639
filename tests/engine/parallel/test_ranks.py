"""Units of two real rank processes: outputs, losses, saves and restores."""

import os
import signal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from muxcluster.core.errors import ConfigError, EngineFailure, LoadError
from muxcluster.core.job import WorkerSpec
from muxcluster.core.unitspec import UnitSpec
from muxcluster.engine.parallel.executor import RanksExecutor
from muxcluster.engine.parallel.group_executor import GroupExecutor
from muxcluster.engine.processes.liveness import Patience
from muxcluster.engine.unit.executor_choice import make_executor
from muxcluster.engine.unit.unit import Unit
from tests.blocks import scaled
from tests.engine.fakes import Sink
from tests.engine.hybrid_units import SavedBlocks, hybrid_spec, serve_both, total
from tests.engine.live_units import SAMPLED, wait_until_gone
from tests.engine.lockstep import Lockstep
from tests.engine.parallel.conftest import ModelBuilder
from tests.engine.parallel.ranks import over_ranks
from tests.engine.units import (
    check_lengths,
    check_nothing_leaks,
    greedy,
    prompts,
    running,
    spec_of,
    submit,
)
from tests.models import model_spec
from tests.oracles import GreedyOracle

THREE = tuple(WorkerSpec(worker_id, (0.3,)) for worker_id in range(3))

pytestmark = [
    pytest.mark.usefixtures("fast_children"),
    pytest.mark.timeout(scaled(300, 8)),  # outputs are as many times longer
]

LONGEST, NUM_TOKENS = scaled(50, 8), scaled(24, 8)
"""Prompt and output tokens of a request: `live` cannot hold what all need."""
MODELS: Mapping[str, Mapping[str, object]] = {
    "llama": {},
    "qwen2": {"tie_word_embeddings": False},
    "llama-tied": {"tie_word_embeddings": True, "vocab_size": 515},
}


@dataclass
class Live:
    """A unit of two ranks that the tests use in turn, and its twin of one."""

    executor: RanksExecutor
    unit: Unit
    sink: Sink
    single: UnitSpec
    oracles: Mapping[str, GreedyOracle]

    def finish(self, asked: dict[str, list[int]], num_tokens: int) -> dict[str, list[int]]:
        """Outputs of all, after checking that all ended well and gave back their blocks."""
        self.sink.wait_for_ends(len(asked))
        check_lengths(self.sink, asked, num_tokens)
        check_nothing_leaks(self.unit)
        tokens = dict(self.sink.tokens)
        self.sink.clear()
        return tokens

    def check_greedy(self, asked: dict[str, list[int]], tokens: dict[str, list[int]]) -> None:
        """Every output is Hugging Face's; near-ties are excused and counted."""
        for oracle in self.oracles.values():
            oracle.num_near_ties = 0
        for request_id, prompt in asked.items():
            self.oracles[request_id.split("/")[0]].check(prompt, tokens[request_id])
        assert sum(o.num_near_ties for o in self.oracles.values()) <= len(asked) // 20


@pytest.fixture(scope="module")
def live(tiny: ModelBuilder) -> Iterator[Live]:
    directories = [tiny(name, name.split("-")[0], **fields) for name, fields in MODELS.items()]
    single = spec_of(directories, num_columns=14, lane="temporal", partition="none")
    spec = over_ranks(single)
    executor = RanksExecutor(spec, Patience(silence_s=2.0))
    oracles = {path.name: GreedyOracle(path) for path in directories}
    with running(spec, executor) as (unit, sink):
        yield Live(executor, unit, sink, single, oracles)


def asked_of(live: Live, count: int, seed: int = 0) -> dict[str, list[int]]:
    asked: dict[str, list[int]] = {}
    for model in live.single.models:
        vocabulary = model.vocab_size
        asked |= prompts(model.name, count, vocabulary, longest=LONGEST, seed=seed)
    return asked


@pytest.mark.slow
def test_greedy_outputs_are_hugging_faces_with_preemption(live: Live) -> None:
    asked = asked_of(live, 8)
    submit(live.unit, asked, greedy(NUM_TOKENS))
    live.check_greedy(asked, live.finish(asked, NUM_TOKENS))
    stats = live.unit.stats()
    assert all(model.num_preemptions > 0 for model in stats.models)


@pytest.mark.slow
def test_sampled_outputs_are_those_of_one_rank(live: Live) -> None:
    """Seeds, penalties, truncation: every rank draws the same, and what a unit of one draws."""
    asked = asked_of(live, 4, seed=1)
    sampled = replace(SAMPLED, max_tokens=NUM_TOKENS)
    submit(live.unit, asked, sampled, seeded=True)
    tokens = live.finish(asked, NUM_TOKENS)
    with running(live.single) as (unit, sink):
        submit(unit, asked, sampled, seeded=True)
        sink.wait_for_ends(len(asked))
        assert sink.tokens == tokens


def test_a_killed_rank_loses_nothing(live: Live) -> None:
    asked = asked_of(live, 4, seed=2)
    pids = live.executor.rank_pids
    submit(live.unit, asked, greedy(NUM_TOKENS))
    live.sink.wait_for_tokens(next(iter(asked)), 5)
    os.kill(pids[1], signal.SIGKILL)
    live.check_greedy(asked, live.finish(asked, NUM_TOKENS))
    wait_until_gone(list(pids))
    assert not set(pids) & set(live.executor.rank_pids)


@pytest.mark.slow
def test_a_stopped_rank_loses_nothing(live: Live) -> None:
    """It holds up the other inside a collective, so neither does anything: both are replaced."""
    asked = asked_of(live, 3, seed=4)
    pids = live.executor.rank_pids
    submit(live.unit, asked, greedy(NUM_TOKENS))
    live.sink.wait_for_tokens(next(iter(asked)), 2)
    os.kill(pids[0], signal.SIGSTOP)
    live.check_greedy(asked, live.finish(asked, NUM_TOKENS))
    wait_until_gone(list(pids))


@pytest.mark.slow
def test_saves_and_restores_are_made_on_every_rank(tiny: ModelBuilder) -> None:
    """Interactive requests write over batch ones' slots, of another model too."""
    directories = {
        "narrow": tiny("narrow", "llama"),
        "wide": tiny("wide", "qwen3", head_dim=128),
    }
    oracles = {name: GreedyOracle(path) for name, path in directories.items()}
    workers = tuple(WorkerSpec(worker_id, (0.5,)) for worker_id in (0, 1))
    spec = over_ranks(hybrid_spec(directories, lane="adbs", workers=workers), partition="threads")
    saved = SavedBlocks(spec)
    served = serve_both(spec, Lockstep(GroupExecutor(spec), saved), num_waves=3)
    served.crowd.check(oracles)
    counts = total(served.stats.models)
    assert len(saved.blocks) > 50
    assert counts["saved_slots"] > 0 and counts["restored_slots"] > 0
    assert counts["recomputed_tokens"] == 0


def rank_children() -> set[int]:
    """Process ids of living ranks; the module's own unit has some."""
    stats = (path.read_text() for path in Path("/proc").glob("[0-9]*/stat") if path.exists())
    fields = [stat.rpartition(")") for stat in stats]
    parents = {int(head.split()[0]): int(tail.split()[1]) for head, _, tail in fields}

    def is_ours(pid: int) -> bool:
        return pid == os.getpid() or (pid in parents and is_ours(parents[pid]))

    found = {int(h.split()[0]) for h, _, t in fields if "(mux-rank" in h and t.split()[0] != "Z"}
    return {pid for pid in found if is_ours(pid)}


@pytest.mark.slow
def test_a_model_that_cannot_be_divided_is_refused_at_start_by_one_line(tiny: ModelBuilder) -> None:
    directory = tiny("three", "llama", num_attention_heads=3, num_key_value_heads=1)
    spec = replace(spec_of([directory], lane="temporal", partition="none"), tp=2)
    unit, before = Unit(spec, Sink()), rank_children()
    with pytest.raises(LoadError, match="3 heads cannot be divided among them") as caught:
        unit.start()
    assert str(caught.value).startswith(f"{directory}/config.json: ")
    assert rank_children() <= before


def test_one_rank_that_cannot_load_ends_the_others(
    tiny: ModelBuilder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 0 waits for rank 1, which has no device; no process and no file is left behind."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    spec = over_ranks(spec_of([tiny("llama", "llama")], lane="temporal"))
    unit = Unit(replace(spec, rank_devices=("cpu", "cuda:77")), Sink())
    before = rank_children()
    with pytest.raises(EngineFailure, match="unit-0 cannot start: rank 1: ") as caught:
        unit.start()
    assert "\n" not in str(caught.value)
    assert rank_children() <= before
    assert not list(tmp_path.glob("muxcluster-ranks-*"))


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"partition": "none"}, "unit-0: workers: 2 workers of 2 ranks need a partition"),
        (
            {"partition": "green", "device": "cuda:0", "workers": THREE},
            "unit-0: workers: 2 ranks keep the SMs of 2 workers apart",
        ),
        (
            {"partition": "mps", "device": "cuda:0", "rank_devices": ("cuda:0", "cuda:1")},
            "unit-0: partition: a unit of 2 ranks shares SMs by green contexts",
        ),
        (
            {"device": "cuda:0", "partition": "green"},
            "rank_devices: 2 ranks need as many GPUs: none",
        ),
        (
            {"device": "cuda:0", "partition": "green", "rank_devices": ("cuda:0", "cuda:0")},
            "2 ranks need as many GPUs: cuda:0, cuda:0",
        ),
    ],
)
def test_a_unit_that_cannot_have_ranks(tiny: ModelBuilder, fields, says) -> None:
    models = (model_spec(tiny("llama", "llama"), "m"),)
    spec = replace(over_ranks(spec_of([tiny("llama", "llama")])), models=models, **fields)
    with pytest.raises(ConfigError, match=says):
        make_executor(spec)
