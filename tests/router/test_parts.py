"""Parts of batches at the router: where each is fed, and what a unit gets that takes one over."""

import numpy as np

from muxcluster.core.batch_part import BatchPart, LinePlace
from muxcluster.router.parts import BatchParts


def _part(part_id: str = "p") -> BatchPart:
    lengths = np.ones(6)
    return BatchPart(part_id, "m", "dfs", {}, lengths, lengths, {}, 1.0)


def test_a_part_stays_where_it_is_and_moves_where_that_unit_is_away() -> None:
    parts = BatchParts()
    parts.add(_part(), "u")
    assert "p" in parts and "q" not in parts
    assert parts.home("p", ["v", "u"]) == "u"
    assert parts.home("p", ["v", "w"]) == "v"
    assert parts.home("p", ["u", "v"]) == "v", "it does not come back"


def test_a_unit_gets_what_is_not_over_and_not_elsewhere_under_a_new_id() -> None:
    parts = BatchParts()
    parts.add(_part(), "u")
    for number, unit_id in ((0, "u"), (1, "u"), (2, "v")):
        parts.send(LinePlace("p", number), unit_id)
    parts.end_line(LinePlace("p", 0))
    first, second = parts.fresh("p", "u"), parts.fresh("p", "u")
    assert first.part_id != second.part_id
    assert first.over == (0, 2)
    parts.lose("v")
    assert parts.fresh("p", "u").over == (0,)


def test_a_part_that_is_over_is_forgotten() -> None:
    parts = BatchParts()
    parts.add(_part(), "u")
    parts.end_part("p")
    parts.end_part("p")
    parts.end_line(LinePlace("p", 0))
    assert "p" not in parts
