"""Batch requests in rows beside those of interactive ones: Hugging Face's tokens, on every path."""

from dataclasses import replace

import pytest

from muxcluster.core.request import ServiceClass
from muxcluster.core.unitspec import UnitSpec
from muxcluster.engine.steps import runner
from muxcluster.engine.steps.runner import UnitRunner
from tests.engine.conftest import ModelBuilder
from tests.engine.fakes import Sink
from tests.engine.stepping import SteppedUnit
from tests.engine.tape import TapeCapture
from tests.engine.units import greedy, prompts, request_of, running, spec_of
from tests.oracles import GreedyOracle

MAX_SEQS, BATCH_SEQS, NUM_BATCH, NUM_TOKENS = 3, 9, 14, 7


def spec(tiny: ModelBuilder, lane: str, partition: str = "none") -> UnitSpec:
    found = spec_of([tiny("llama")], lane=lane, partition=partition, max_seqs=MAX_SEQS)
    models = tuple(replace(model, batch_seqs=BATCH_SEQS) for model in found.models)
    policy = replace(found.scheduler, packing="hybrid")
    return replace(found, models=models, scheduler=policy, num_host_blocks=100)


def requests() -> list:
    """Batch ones, and interactive ones after them."""
    asked = prompts("llama", NUM_BATCH + MAX_SEQS, 512, longest=20)
    return [
        replace(
            request_of(name, prompt, greedy(NUM_TOKENS)),
            service_class=ServiceClass.BATCH if i < NUM_BATCH else ServiceClass.INTERACTIVE,
        )
        for i, (name, prompt) in enumerate(asked.items())
    ]


@pytest.mark.usefixtures("torch_only")
@pytest.mark.parametrize("is_recorded", [False, True])
@pytest.mark.parametrize("lane", ["mixed", "temporal"])
def test_more_rows_than_max_seqs_decode_at_once(
    tiny: ModelBuilder, monkeypatch: pytest.MonkeyPatch, lane: str, is_recorded: bool
) -> None:
    """Recorded, as on a GPU: steps of more rows than `max_seqs` run operator by operator."""
    found = spec(tiny, lane)
    capture = None
    if is_recorded:
        monkeypatch.setattr(runner, "is_fusible", lambda model: False)
        capture = TapeCapture(monkeypatch)
    unit = SteppedUnit(found, UnitRunner(found, capture=capture))
    asked = requests()
    tokens = unit.run(asked)
    oracle = GreedyOracle(tiny("llama"))
    for each in asked:
        oracle.check(each.prompt_tokens.tolist(), tokens[each.request_id])
    assert oracle.num_near_ties <= 1
    decoding = [int(job.rows.samples.sum()) for job in unit.jobs]
    assert MAX_SEQS + 5 < max(decoding) <= MAX_SEQS + BATCH_SEQS
    again = [replace(each, request_id=f"{each.request_id}/again") for each in asked[-MAX_SEQS:]]
    repeated = unit.run(again)
    assert all(
        repeated[f"{each.request_id}/again"] == tokens[each.request_id]
        for each in asked[-MAX_SEQS:]
    )
    assert capture is None or capture.replays > 0


@pytest.mark.slow
def test_through_workers(tiny: ModelBuilder) -> None:
    asked = requests()
    with running(spec(tiny, "adbs", "threads")) as (unit, sink):
        for each in asked:
            unit.submit(each)
        sink.wait_for_ends(len(asked))
    check(tiny, asked, sink)


def check(tiny: ModelBuilder, asked: list, sink: Sink) -> None:
    oracle = GreedyOracle(tiny("llama"))
    for each in asked:
        oracle.check(each.prompt_tokens.tolist(), sink.tokens[each.request_id])
    assert oracle.num_near_ties <= 1
