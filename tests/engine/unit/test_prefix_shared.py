"""Rows that share cached prefixes decode with prefix-shared attention: Hugging Face's tokens."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from muxcluster.core.request import Request, ServiceClass
from muxcluster.core.unitspec import UnitSpec
from muxcluster.engine.steps import runner
from muxcluster.engine.steps.runner import UnitRunner
from muxcluster.kernels.cpu.prefix_plan import PrefixPlan
from tests.blocks import scaled
from tests.engine.conftest import ModelBuilder
from tests.engine.stepping import SteppedUnit
from tests.engine.tape import TapeCapture
from tests.engine.units import greedy, prompts, request_of, running, spec_of, submit
from tests.oracles import GreedyOracle

pytestmark = pytest.mark.usefixtures("fast_children")

SHARED, LONGEST_OWN, NUM_TOKENS = scaled(136, 8), scaled(20, 8), 9
FAMILIES = ("llama", "qwen2", "opt", "mixtral")
Asked = dict[str, list[int]]
Oracles = Callable[[str], GreedyOracle]


@pytest.fixture(scope="module")
def oracle_of(tiny: ModelBuilder) -> Oracles:
    found: dict[str, GreedyOracle] = {}

    def of(family: str) -> GreedyOracle:
        if family not in found:
            found[family] = GreedyOracle(tiny(family))
        return found[family]

    return of


def spec(directory: Path, *, lane: str = "mixed", partition: str = "none", **policy) -> UnitSpec:
    found = spec_of([directory], lane=lane, partition=partition, num_columns=400)
    return replace(found, scheduler=replace(found.scheduler, token_budget=scaled(512, 8), **policy))


def groups(family: str, *sizes: int) -> tuple[Asked, Asked]:
    """Of each group the first request, and the others; those of a group of one share nothing."""
    first: Asked = {}
    others: Asked = {}
    for number, size in enumerate(sizes):
        asked = prompts(family, size, 512, shared=SHARED, longest=LONGEST_OWN, seed=number)
        request_id, prompt = asked.popitem()
        first[request_id] = prompt
        others |= asked
    return first, others


def requests(asked: Asked) -> list[Request]:
    """They end at different steps."""
    return [
        request_of(request_id, prompt, greedy(NUM_TOKENS - number % 4))
        for number, (request_id, prompt) in enumerate(asked.items())
    ]


def serve(unit: SteppedUnit, waves: tuple[Asked, Asked], oracle: GreedyOracle) -> int:
    """The others come when the prefixes are cached; the reads that were shared."""
    oracle.num_near_ties = 0
    for wave in waves:
        tokens = unit.run(requests(wave))
        for number, (request_id, prompt) in enumerate(wave.items()):
            assert len(tokens[request_id]) == NUM_TOKENS - number % 4
            oracle.check(prompt, tokens[request_id])
    assert oracle.num_near_ties <= 1
    return unit.scheduler.stats(0.0, "u").models[0].num_shared_reads


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """Shared tokens of each row of every step that was planned with shared prefixes."""
    seen: list[tuple[int, ...]] = []
    init = PrefixPlan.__init__

    def noted(self: PrefixPlan, *args: torch.Tensor, block_tokens: int) -> None:
        offsets, lengths = args[-2:]
        seen.append(tuple(lengths.repeat_interleave(offsets.diff()).tolist()))
        init(self, *args, block_tokens=block_tokens)

    monkeypatch.setattr(PrefixPlan, "__init__", noted)
    return seen


@pytest.mark.parametrize("family", FAMILIES)
def test_several_groups_and_a_group_of_one(
    tiny: ModelBuilder, oracle_of: Oracles, family: str, plans: list[tuple[int, ...]]
) -> None:
    """Groups of three, two and one beside each other, which dissolve as their members end."""
    unit = SteppedUnit(spec(tiny(family)))
    shared = serve(unit, groups(family, 4, 3, 2), oracle_of(family))
    block_tokens = unit.runner.arena.model(family).block_tokens
    prefix = SHARED // block_tokens * block_tokens
    assert plans[0] == (0, *[prefix] * 5), "five share, one does not"
    assert {tokens for plan in plans for tokens in plan} == {0, prefix}
    assert min(map(len, plans)) < 6, "members leave"
    # Of a step with both groups three rows need not read: two of the first group, one of the other.
    assert shared % prefix == 0 and shared >= 3 * prefix
    assert shared < sum(map(sum, plans))


@pytest.mark.parametrize("family", ["mistral", "gemma2"])
def test_layers_with_a_sliding_window_read_row_by_row(
    tiny: ModelBuilder, oracle_of: Oracles, family: str, plans: list[tuple[int, ...]]
) -> None:
    """mistral has a window in all layers, gemma2 in every second."""
    serve(SteppedUnit(spec(tiny(family))), groups(family, 4), oracle_of(family))
    assert bool(plans) == (family == "gemma2")


@pytest.mark.parametrize(("at_least", "is_used"), [(0, False), (SHARED + 8, False), (64, True)])
def test_the_threshold_of_the_policy(
    tiny: ModelBuilder,
    oracle_of: Oracles,
    plans: list[tuple[int, ...]],
    at_least: int,
    is_used: bool,
) -> None:
    unit = SteppedUnit(spec(tiny("llama"), shared_prefix_tokens=at_least))
    shared = serve(unit, groups("llama", 4), oracle_of("llama"))
    assert bool(plans) == is_used == (shared > 0)
    assert unit.scheduler.stats(0.0, "u").models[0].prefix_hits > 0


@pytest.mark.usefixtures("torch_only")
@pytest.mark.parametrize("lane", ["mixed", "temporal"])
def test_recorded_steps_share_prefixes_too(
    tiny: ModelBuilder, oracle_of: Oracles, monkeypatch: pytest.MonkeyPatch, lane: str
) -> None:
    """As on a GPU: one recording of each size serves all groups, which change between replays."""
    monkeypatch.setattr(runner, "is_fusible", lambda model: False)
    tape = TapeCapture(monkeypatch)
    unit_spec = spec(tiny("llama"), lane=lane)
    unit = SteppedUnit(unit_spec, UnitRunner(unit_spec, capture=tape))
    assert serve(unit, groups("llama", 5, 4, 2), oracle_of("llama")) > 0
    num_layers = unit_spec.models[0].shape.num_layers
    assert tape.num_calls["prefix_attention"] == 2 * num_layers, "of 8 and of 4 rows"
    assert tape.num_calls["paged_decode"] >= num_layers, "of the first wave"
    num_replays = tape.replays
    serve(unit, groups("llama", 5, 4, 2), oracle_of("llama"))
    assert tape.replays > num_replays


@pytest.mark.parametrize(("lane", "partition"), [("adbs", "threads"), ("mixed", "none")])
def test_through_a_unit_with_its_workers(
    tiny: ModelBuilder, oracle_of: Oracles, lane: str, partition: str
) -> None:
    """Long enough that the requests meet, however slowly they come."""
    first, others = groups("llama", 5)
    oracle = oracle_of("llama")
    with running(spec(tiny("llama"), lane=lane, partition=partition)) as (unit, sink):
        submit(unit, first, greedy(2))
        sink.wait_for_ends(1)
        submit(unit, others, greedy(80))
        sink.wait_for_ends(5)
        (stats,) = unit.stats().models
    for request_id, prompt in (first | others).items():
        oracle.check(prompt, sink.tokens[request_id])
    assert stats.num_shared_reads > 0


def test_under_preemption_by_interactive_requests(
    tiny: ModelBuilder, oracle_of: Oracles, plans: list[tuple[int, ...]]
) -> None:
    """Batch requests that share a prefix lend their own blocks to interactive ones, which read the
    same prefix."""
    found = spec(tiny("llama"), packing="hybrid")
    per_column = found.models[0].shape.blocks_per_column
    unit = SteppedUnit(replace(found, num_blocks=28 * per_column, num_host_blocks=400))
    first, others = groups("llama", 9)
    asked = requests(others)
    batch = [replace(each, service_class=ServiceClass.BATCH) for each in asked[:4]]
    oracle = oracle_of("llama")
    unit.run(requests(first))
    unit.add(batch)
    for _ in range(4):
        unit.step()
    tokens = unit.run(asked[4:])
    for request_id, prompt in others.items():
        oracle.check(prompt, unit.tokens[request_id])
    assert len(tokens) == 4
    stats = unit.scheduler.stats(0.0, "u").models[0]
    assert stats.num_lent_columns > 0 and stats.num_shared_reads > 0
    assert any(len(plan) >= 4 for plan in plans)


def test_a_shared_block_that_is_corrupted_changes_the_outputs_of_its_group(
    tiny: ModelBuilder, plans: list[tuple[int, ...]]
) -> None:
    first, others = groups("llama", 5, 3)
    unit = SteppedUnit(spec(tiny("llama")))
    unit.run(requests(first))
    whole = unit.run(requests(others))
    again = [replace(each, request_id=f"{each.request_id}/again") for each in requests(others)]
    unit.add(again)
    while not plans or len(plans[-1]) < 6:
        unit.step()
        assert unit.jobs
    prefixes = unit.jobs[-1].rows.prefixes
    assert prefixes is not None
    arena = unit.runner.arena
    table_rows = unit.jobs[-1].rows.table_rows
    leader = int(prefixes.leaders[prefixes.tokens > 0][0])
    members = {int(row) for row in table_rows[prefixes.leaders == leader]}
    ids = {
        row: unit.scheduler._models["llama"].running.request_ids[row] for row in table_rows.tolist()
    }
    block = int(arena.model("llama").tables[leader, 0, 0, 3])
    arena.pool[block].view(torch.float32).mul_(-3.0)
    while unit.step():
        pass
    for row, request_id in ids.items():
        is_same = unit.tokens[request_id] == whole[request_id.removesuffix("/again")]
        assert is_same == (row not in members)
