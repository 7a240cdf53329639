"""The page's script, run by Node over a document that records what is made."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from muxcluster.core.served import ServedModel
from muxcluster.http.app import create_app
from tests.http.fakes import wait_until
from tests.http.live.many_models import HOSTILE, ManyModels, told_plan

NODE = shutil.which("node")
pytestmark = pytest.mark.skipif(NODE is None, reason="node is not installed")

CHECK = Path(__file__).with_name("page_check.mjs")
PAGE = files("muxcluster.http.live") / "page"
LIVE, BATCHES, PLAN = "/v1/cluster/live", "/v1/batches", "/v1/cluster/plan"
TAGS = {
    *("article", "button", "div", "h3", "h4", "li", "p", "path", "progress", "span", "svg"),
    "table",
    *("tbody", "td", "th", "thead", "tr", "ul"),
}


def run(tmp_path: Path, *turns: list) -> dict[str, Any]:
    """What the page made of the answers, turn by turn."""
    answers = tmp_path / "answers.json"
    answers.write_text(json.dumps(turns))
    page = shutil.copytree(str(PAGE), tmp_path / "page")
    (page / "package.json").write_text('{"type": "module"}')
    command = [str(NODE), str(CHECK), str(page), str(answers)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["failures"] == []
    return found


@pytest.fixture
def snapshot(served: ServedModel) -> Iterator[dict[str, Any]]:
    """What a server with these models tells, with a batch service and events beside."""
    with TestClient(create_app(ManyModels(served))) as http:
        assert wait_until(lambda: http.get(LIVE).json()["units"])
        told = http.get(LIVE).json()
    assert told["has_plan"] is False
    told["has_plan"] = True
    told["batches"] = {"by_status": {"completed": 2}, "num_lines": {"completed": 7, "failed": 1}}
    told["events"] = [
        {
            "time_s": 1.0,
            "unit": "u",
            "model": HOSTILE,
            "what": "weights",
            "before": "a",
            "after": "b",
        }
    ]
    told["cluster"] |= {
        "nodes": [{"name": HOSTILE, "alive": False}],
        "error": HOSTILE,
        "missing_units": [HOSTILE],
        "unplaced": [],
    }
    yield told


def test_every_name_is_text(tmp_path: Path, snapshot: dict[str, Any]) -> None:
    batch = {"id": HOSTILE, "status": HOSTILE, "request_counts": {"total": 4, "completed": 2}}
    answers = [(LIVE, 200, snapshot), (BATCHES, 200, {"data": [batch]}), (PLAN, 200, told_plan())]
    found = run(tmp_path, answers)
    assert set(found["tags"]) <= TAGS
    assert not [name for name in found["attributes"] if name.lower().startswith("on")]
    assert not {"href", "src", "style", "srcdoc"} & set(found["attributes"])
    texts = found["shown"][-1]["texts"]
    for part in ("units", "model-rows", "problems", "events", "batch-rows", "plan-nodes"):
        assert HOSTILE in texts[part], part
    assert "1 of 1 units up" in texts["status"] and "100 models" in texts["status"]
    assert "model-98" in texts["model-rows"]
    assert "600 of 1000 blocks free" in texts["units"]
    assert "and 288 more" in texts["units"]  # of three phases each
    assert "2 completed, 7 lines completed, 1 lines failed" in texts["batch-counts"]
    assert not {"batches", "plan"} & set(found["shown"][-1]["hidden"])
    assert "GPU 0, 1" in texts["plan-nodes"] and "2 of 4 GPUs idle" in texts["plan-nodes"]
    assert "2.5 req/s, prefill 40%, decode 100%" in texts["plan-nodes"]
    assert "no room for big" in texts["plan-summary"]


def test_a_server_that_goes_away_is_said_and_its_return_too(
    tmp_path: Path, snapshot: dict[str, Any]
) -> None:
    snapshot["batches"] = None
    there = [(LIVE, 200, snapshot)]
    found = run(tmp_path, there, [], [(LIVE, 503, None)], there)
    texts = [shown["texts"]["status"] for shown in found["shown"]]
    assert "units up" in texts[0]
    assert "the server does not answer; last answer at" in texts[1]
    assert "the server answers 503" in texts[2]
    assert "units up" in texts[3]
    assert "model-98" in found["shown"][2]["texts"]["model-rows"]  # the last state stays
    assert {path for path, _ in found["asked"]} == {LIVE, PLAN}


def test_a_key_is_asked_for_sent_and_not_kept(tmp_path: Path, snapshot: dict[str, Any]) -> None:
    snapshot["batches"] = None
    found = run(tmp_path, [(LIVE, 401, None)], [(LIVE, 403, None)])
    asks, refused = found["shown"]
    assert "key-form" not in asks["hidden"] and "main" in asks["hidden"]
    assert asks["texts"]["key-problem"] == ""
    assert "admin key is needed" in refused["texts"]["key-problem"]
    assert found["asked"] == [[LIVE, None], [LIVE, "Bearer secret"]]
    assert found["key"] == ""


def test_a_snapshot_without_reports_can_be_shown(tmp_path: Path) -> None:
    unit = {
        "id": "w",
        "state": "loading",
        **dict.fromkeys(("node", "gpus", "device", "lane", "sm_shares", "phase", "reason")),
        **dict.fromkeys(("draining", "report_age_s", "num_blocks", "free_blocks", "sharing", "sm")),
        "models": [{"name": "m"}],
    }
    snapshot = {
        "time_s": 1.0,
        "version": "0",
        "ready": False,
        "batches": None,
        "cluster": dict.fromkeys(("healthy", "nodes", "missing_units", "unplaced", "error")),
        "units": [unit],
        "models": [],
        "events": [],
    }
    found = run(tmp_path, [(LIVE, 200, snapshot)])
    texts = found["shown"][-1]["texts"]
    assert "loading" in texts["units"] and "not ready" in texts["status"]
