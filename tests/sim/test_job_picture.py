"""The picture of a batch job: its rows, and nothing where there is nothing."""

from xml.etree import ElementTree

import numpy as np
import pytest

from muxcluster.offline.predictor import UseOverTime
from muxcluster.sim.plot.job import picture


def _use(memory: float) -> UseOverTime:
    return UseOverTime(2.0, np.array([0.5, 1.0]), np.array([memory, 0.25]), np.array([0.1, 0.9]))


def test_each_use_has_a_row_under_its_title() -> None:
    uses = {"chat on a-0": _use(0.5), "code on a-1": _use(0.0)}
    drawn = picture(uses, "svg")
    text = drawn.decode()
    ElementTree.fromstring(text)
    assert text.count("Density: compute over memory") == 2
    for title in uses:
        assert title in text
    assert picture(uses, "svg") == drawn
    assert picture(uses, "png").startswith(b"\x89PNG")


def test_nothing_is_no_picture() -> None:
    with pytest.raises(ValueError, match="nothing"):
        picture({}, "svg")
