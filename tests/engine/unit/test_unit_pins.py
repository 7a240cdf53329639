"""What a planned batch asks of a unit, from other threads: prefixes stay, memory is told."""

from dataclasses import replace

import pytest

from muxcluster.core.request import PinnedPrefix, Request, ServiceClass, Unpin
from muxcluster.engine.unit.unit import Unit
from tests.blocks import scaled
from tests.engine.fakes import FakeExecutor, Sink, expected, fake_spec, request

SHARED = list(range(100, 100 + scaled(64, 16)))
"""Four of the ten columns that the pool has."""


def _batch(name: str, prompt: list[int]) -> Request:
    return replace(request(name, "wide", prompt, 4), service_class=ServiceClass.BATCH)


def _run(unit: Unit, sink: Sink, *requests: Request) -> None:
    num_ended = len(sink.ends)
    for each in requests:
        unit.submit(each)
    sink.wait_for_ends(num_ended + len(requests))
    for each in requests:
        assert sink.tokens[each.request_id] == expected(each.prompt_tokens.tolist(), 4)


@pytest.mark.parametrize("keeps", [True, False])
def test_a_pinned_prefix_stays_until_it_is_freed(keeps: bool) -> None:
    sink, first = Sink(), _batch("first", [*SHARED, 1])
    unit = Unit(fake_spec(num_columns=10), sink, executor=FakeExecutor())
    unit.pin(Unpin("nothing has started yet"))
    unit.start()
    try:
        unit.pin(PinnedPrefix("p", "wide", first.prompt_tokens[:-1]))
        _run(unit, sink, first)
        if not keeps:
            unit.pin(Unpin("p"))
        others = [_batch(f"other {i}", [i] * scaled(60, 16)) for i in range(200, 206)]
        _run(unit, sink, *others)
        _run(unit, sink, _batch("last", [*SHARED, 2]))
        hits = {model.name: model.prefix_hits for model in unit.stats().models}
        assert hits["wide"] == (len(SHARED) if keeps else 0)
        space = unit.batch_space("wide")
        assert 0 < space.num_blocks <= 40
        assert space.other_blocks == 0
    finally:
        unit.close()
    unit.pin(Unpin("p"))
