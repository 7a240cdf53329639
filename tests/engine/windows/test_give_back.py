"""Models with sliding windows give blocks back while they run, and put out Hugging Face's tokens.

mistral has a window of 16 tokens in all layers, gemma2 in every second one.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from muxcluster.core.job import WorkerSpec
from muxcluster.core.unitspec import UnitSpec
from muxcluster.engine.processes.executor import ProcessExecutor
from muxcluster.engine.unit.executor_choice import make_executor
from muxcluster.scheduling.state.model import ModelState
from tests.amounts import slow
from tests.blocks import block_tokens, scaled
from tests.engine.conftest import ModelBuilder
from tests.engine.hybrid_units import hybrid_spec, serve_both, total
from tests.engine.live_units import CopyKills
from tests.engine.lockstep import Lockstep
from tests.engine.stepping import SteppedUnit
from tests.engine.units import (
    check_lengths,
    check_nothing_leaks,
    greedy,
    prompts,
    request_of,
    running,
    spec_of,
    submit,
)
from tests.oracles import GreedyOracle

pytestmark = pytest.mark.usefixtures("fast_children")

WINDOW = 16
FAMILIES = ("mistral", "gemma2", "gpt_oss")
WIDTH = block_tokens(8)
# Blocks of a column of layers that see all tokens, and of those with a window.
SIZES = {"mistral": (0, 2), "gemma2": (2, 2), "gpt_oss": (2, 2)}


class PoisonedUnit(SteppedUnit):
    """After each step all blocks that nobody holds are filled with NaN."""

    def step(self) -> bool:
        has_run = super().step()
        pool = self.scheduler._kv._lent.pool
        self.runner.arena.pool[np.flatnonzero(pool.owners == 0)] = 0xFF
        return has_run

    @property
    def model(self) -> ModelState:
        (model,) = self.scheduler._models.values()
        return model


def spec(directory: Path, *, num_columns: int = 200, pipeline_depth: int = 1) -> UnitSpec:
    found = spec_of([directory], lane="mixed", partition="none", num_columns=num_columns)
    policy = replace(found.scheduler, pipeline_depth=pipeline_depth)
    return replace(found, scheduler=policy)


def blocks_at(family: str, num_computed: int) -> int:
    """Blocks of one sequence after a step, when so many tokens are computed."""
    full, windowed = SIZES[family]
    columns = -(-num_computed // WIDTH)
    behind = max(0, num_computed + 1 - WINDOW) // WIDTH
    return columns * full + (columns - behind) * windowed


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_a_long_output_holds_what_its_windows_need(tiny: ModelBuilder, family: str) -> None:
    """Exactly: a prompt in chunks, then token by token to the greatest length."""
    directory = tiny(family)
    unit = PoisonedUnit(spec(directory))
    prompt = prompts(family, 1, 512, shared=scaled(100, 8))[f"{family}/0/0"]
    num_tokens = unit.model.spec.max_model_len - len(prompt)
    unit.add([request_of(f"{family}/0/0", prompt, greedy(num_tokens))])
    held: list[int] = []
    while unit.step():
        if family == "mistral":  # also while its prompt is computed
            assert unit.model.kv.used <= unit.model.most_blocks(2**20)
        if unit.model.running.num_live and not unit.model.running.num_prefilling:
            num_computed = len(prompt) + len(unit.tokens[f"{family}/0/0"]) - 1
            held.append(unit.model.kv.used)
            assert held[-1] == blocks_at(family, num_computed)
    assert len(held) == num_tokens - 1
    if family == "mistral":
        assert max(held) <= (-(-WINDOW // WIDTH) + 1) * 2
    oracle = GreedyOracle(directory)
    oracle.check(prompt, unit.tokens[f"{family}/0/0"])
    assert oracle.num_near_ties <= 1


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("num_columns", [33, *slow(200)])
def test_tokens_beyond_several_windows(tiny: ModelBuilder, family: str, num_columns: int) -> None:
    """Many at a time that share prefixes, with room for all of them and with hardly any."""
    directory = tiny(family)
    unit = PoisonedUnit(spec(directory, num_columns=num_columns))
    asked = prompts(family, 5, 512, shared=scaled(40, 8), longest=scaled(30, 8))
    tokens = unit.run([request_of(name, each, greedy(70)) for name, each in asked.items()])
    again = unit.run([request_of(f"{name}/b", each, greedy(9)) for name, each in asked.items()])
    oracle = GreedyOracle(directory)
    for name, prompt in asked.items():
        assert len(tokens[name]) == 70
        oracle.check(prompt, tokens[name])
        oracle.check(prompt, again[f"{name}/b"])
    assert oracle.num_near_ties <= 2
    stats = unit.scheduler.stats(0.0, "u").models[0]
    assert stats.prefix_hits > 0
    if family == "gemma2" and num_columns == 33:
        assert stats.num_preemptions > 0


@pytest.mark.parametrize("family", FAMILIES)
def test_a_conversation_goes_on_from_the_cache(tiny: ModelBuilder, family: str) -> None:
    """The next turn begins with all that was said: only the last window of it is needed."""
    directory = tiny(family)
    unit = PoisonedUnit(spec(directory))
    oracle = GreedyOracle(directory)
    prompt = prompts(family, 1, 512, shared=scaled(50, 8))[f"{family}/0/0"]
    said = 0
    for turn in range(3):
        name = f"{family}/{turn}"
        before = unit.scheduler.stats(0.0, "u").models[0].prefix_hits
        answer = list(unit.run([request_of(name, prompt, greedy(20))])[name])
        hits = unit.scheduler.stats(0.0, "u").models[0].prefix_hits - before
        oracle.check(prompt, answer)
        assert hits == said
        prompt = [*prompt, *answer]
        said = (len(prompt) - 1) // WIDTH * WIDTH  # the last token is in no cache
    assert oracle.num_near_ties <= 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lane", "prefix_caching"), [("mixed", True), *slow(("mixed", False), ("temporal", True))]
)
def test_both_classes_lend_and_take(tiny: ModelBuilder, lane: str, prefix_caching: bool) -> None:
    """Batch requests lend what their windows hold, and are restored."""
    directories = {"narrow": tiny("mistral"), "wide": tiny("gemma2")}
    spec = hybrid_spec(directories, num_blocks=150, lane=lane, prefix_caching=prefix_caching)
    served = serve_both(spec, Lockstep(make_executor(spec)), num_waves=4)
    served.crowd.check(oracles_of(directories))
    counted = total(served.stats.models)
    assert counted["saved_slots"] > 0
    assert counted["restored_slots"] > 0


@pytest.mark.slow
def test_workers_killed_in_jobs_that_save_and_restore(tiny: ModelBuilder) -> None:
    directories = {"narrow": tiny("mistral"), "wide": tiny("gemma2")}
    workers = tuple(WorkerSpec(worker_id, (0.5,)) for worker_id in (0, 1))
    spec = hybrid_spec(
        directories, num_blocks=150, lane="adbs", workers=workers, partition="threads"
    )
    executor = ProcessExecutor(spec)
    kills = CopyKills(executor)
    served = serve_both(spec, Lockstep(executor, kills), num_waves=5)
    served.crowd.check(oracles_of(directories))
    assert kills.is_over


@pytest.mark.parametrize("family", [*slow("mistral", "gpt_oss"), "gemma2"])
def test_a_step_in_flight_reads_what_it_needs(tiny: ModelBuilder, family: str) -> None:
    """Blocks come back while the next step of the same sequences runs already."""
    directory = tiny(family)
    found = replace(spec(directory, num_columns=60, pipeline_depth=2), partition="threads")
    asked = prompts(family, 4, 512, longest=scaled(30, 8))
    with running(found) as (unit, sink):
        submit(unit, asked, greedy(60))
        sink.wait_for_ends(len(asked))
        check_lengths(sink, asked, 60)
        check_nothing_leaks(unit)
    oracle = GreedyOracle(directory)
    for name, prompt in asked.items():
        oracle.check(prompt, sink.tokens[name])
    assert oracle.num_near_ties <= 1


def oracles_of(directories: Mapping[str, Path]) -> dict[str, GreedyOracle]:
    return {name: GreedyOracle(path) for name, path in directories.items()}
