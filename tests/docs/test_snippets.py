"""The lane that "How to add a policy" shows serves a load to its end."""

from collections.abc import Iterator

import pytest

from muxcluster.core.job import Phase
from muxcluster.scheduling.lanes import LANES
from muxcluster.scheduling.lanes.view import LaneView, Proposal
from tests.conftest import ROOT
from tests.docs.test_commands import PYTHON
from tests.scheduling.rig import Rig, request, unit_spec


def test_the_lane_of_the_guide_serves_all_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    page = ROOT / "docs" / "internals" / "add-a-policy.md"
    (text,) = PYTHON.findall(page.read_text(encoding="utf-8"))
    names = {"Iterator": Iterator, "LaneView": LaneView, "Phase": Phase, "Proposal": Proposal}
    exec(compile(text, str(page), "exec"), names)
    monkeypatch.setitem(LANES, "decode-first", names["DecodeFirstLane"])  # type: ignore[arg-type]
    rig = Rig(unit_spec(lane="decode-first"))
    requests = [request(str(i), "abc"[i % 3], num_prompt=8, num_output=20) for i in range(12)]
    rig.add(*requests)
    rig.run()
    rig.check_outputs(requests)
    rig.check_empty()
