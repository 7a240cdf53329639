"""Batch sequences of a model with its own cache lend their blocks, as those of a paged one do."""

from dataclasses import replace

import pytest

from muxcluster.core.backends import as_loaded
from muxcluster.core.request import ServiceClass
from muxcluster.core.unitspec import SchedulerSpec
from muxcluster.engine.dense.store import RowStore
from muxcluster.engine.executor import JobDone
from muxcluster.engine.unit.deltas import deltas_of
from muxcluster.engine.unit.in_process import InProcessExecutor
from muxcluster.scheduling.scheduler import UnitScheduler
from tests.amounts import slow
from tests.engine.conftest import ModelBuilder
from tests.engine.dense.units import VOCAB, generated, unit_of
from tests.engine.units import greedy, prompts, request_of

NUM_TOKENS = 40
WAVE_AT = 12
"""Jobs before the interactive requests come."""


def watch_states(monkeypatch: pytest.MonkeyPatch) -> None:
    """No row is read whose states are lost, but where the last token of a prompt comes alone: what
    was before it is not kept then."""
    forgotten: set[int] = set()
    read, write, forget = RowStore.read, RowStore.write, RowStore.forget

    def watched_read(store, table_row, length):
        row = read(store, table_row, length)
        assert row is not None or table_row in forgotten, (
            "the states are not those of so many tokens"
        )
        return row

    def noted_write(store, cache, table_rows, starts, counts):
        forgotten.difference_update(table_rows.tolist())
        write(store, cache, table_rows, starts, counts)

    def noted_forget(store, table_rows):
        forgotten.update(table_rows.tolist())
        forget(store, table_rows)

    monkeypatch.setattr(RowStore, "read", watched_read)
    monkeypatch.setattr(RowStore, "write", noted_write)
    monkeypatch.setattr(RowStore, "forget", noted_forget)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "num_blocks"), [("bloom", 520), ("mamba", 30), *slow(("jamba", 400))]
)
def test_what_lent_blocks_held_is_saved_and_comes_back(
    tiny: ModelBuilder, monkeypatch: pytest.MonkeyPatch, family: str, num_blocks: int
) -> None:
    watch_states(monkeypatch)
    policy = SchedulerSpec(lane="mixed", packing="hybrid", token_budget=64, ageing_s=0.5)
    spec = unit_of({family: tiny(family)}, (), num_blocks=num_blocks)
    spec = replace(spec, scheduler=policy, num_host_blocks=2080)
    executor = InProcessExecutor(spec)
    executor.start()
    scheduler = UnitScheduler(as_loaded(spec, executor.backends))
    batch = prompts(family, 6, VOCAB, longest=60, seed=1)
    wave = prompts(family, 5, VOCAB, shared=50, longest=40, seed=2)
    tokens: dict[str, list[int]] = {name: [] for name in (*batch, *wave)}
    for name, prompt in batch.items():
        request = request_of(name, prompt, greedy(NUM_TOKENS))
        scheduler.add(replace(request, service_class=ServiceClass.BATCH, cacheable=False), 0.0)
    num_ended = num_jobs = 0
    while num_ended < len(tokens):
        now = num_jobs * 0.02
        if num_jobs == WAVE_AT:
            for name, prompt in wave.items():
                request = request_of(name, prompt, greedy(NUM_TOKENS))
                scheduler.add(replace(request, cacheable=False), now)
        for job in scheduler.next_jobs(now):
            executor.launch(job)
            (done,) = executor.wait(0.0)
            assert isinstance(done, JobDone), done
            output = scheduler.complete(job, done.result, now)
            for name, delta in deltas_of([output]).items():
                tokens[name] += delta.tokens
                num_ended += delta.finished is not None
        num_jobs += 1
        scheduler.check()
    (stats,) = scheduler.stats(now, "unit-0").models
    assert stats.num_lent_columns > 0
    assert stats.num_restored_slots > 0
    assert stats.num_recomputed_tokens == 0
    for name, prompt in (batch | wave).items():
        assert tokens[name] == generated(tiny(family), prompt, NUM_TOKENS), name
