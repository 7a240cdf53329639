"""The routes of the live view: what they tell, to whom, and the page's headers."""

import re
from concurrent.futures import ThreadPoolExecutor
from importlib.resources import files

import pytest
from starlette.testclient import TestClient

from muxcluster.core.errors import NotReady
from muxcluster.core.request import Slo
from muxcluster.core.served import ServedModel
from muxcluster.http.app import create_app
from muxcluster.http.live import view
from muxcluster.http.server.middleware import PAGE_FILES
from muxcluster.http.settings import ApiSettings, QueueLimits
from tests.http.fakes import FakeBackend, wait_until

TEXT = {"model": "tiny", "prompt": "hi", "max_tokens": 50}
LIVE = "/v1/cluster/live"
PAGE = files("muxcluster.http.live") / "page"


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def test_units_and_models_are_told(http: TestClient) -> None:
    assert wait_until(lambda: http.get(LIVE).json()["units"])
    told = http.get(LIVE).json()
    (unit,) = told["units"]
    assert (unit["id"], unit["num_blocks"], unit["free_blocks"]) == ("unit-0", 100, 80)
    (series,) = unit["sm"]["series"]
    assert (series["model"], series["phase"]) == ("tiny", "prefill")
    # 0.5 s at 70 % of the SMs, in bins of a quarter of a second
    assert sum(series["shares"]) == pytest.approx(1.4)
    (model,) = told["models"]
    assert (model["running"], model["waiting"], model["used_blocks"]) == (2, 1, 20)
    assert told["ready"] is True and told["cluster"]["nodes"] is None
    assert told["batches"] is None


def test_latencies_of_ended_requests_are_told_beside_the_targets(
    served: ServedModel, model_dir, says
) -> None:
    targeted = ServedModel(
        "tiny", str(model_dir), 256, served.vocab_size, served.eos_token_ids, Slo(100.0, 1e-9)
    )
    backend = FakeBackend([targeted])
    backend.script = lambda request: [5, 6, 7]
    with TestClient(create_app(backend)) as http:
        for _ in range(3):
            assert http.post("/v1/completions", json=TEXT).status_code == 200
        model = http.get(LIVE).json()["models"][0]
    recent = model["recent"]
    assert model["targets"] == {"ttft_s": 100.0, "tpot_s": 1e-9}
    assert (recent["num_ended"], recent["num_failed"], recent["attainment"]) == (3, 0, 0.0)
    assert 0 < recent["ttft"]["p50_s"] <= recent["ttft"]["p99_s"]
    assert recent["tpot"]["p50_s"] > 1e-9


def test_a_request_is_found_by_both_of_its_ids_after_its_end(http: TestClient, says) -> None:
    tokens = says("hello world")
    answer = http.post("/v1/completions", json=TEXT | {"n": 2}, headers={"X-Request-Id": "a/b"})
    for request_id in ("a%2Fb", answer.json()["id"]):
        found = http.get(f"/v1/cluster/requests/{request_id}").json()
        first, second = found["choices"]
        assert {first["choice"], second["choice"]} == {0, 1}
        assert first["output_tokens"] == len(tokens) + 1 and first["end"] == "stop"
        parts = [value for name, value in first.items() if name.endswith("_s")]
        assert first["queue_s"] == 0.01 and first["total_s"] >= first["ttft_s"] > 0
        assert len(parts) >= 10 and first["targets"] is None
    missing = http.get("/v1/cluster/requests/other")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "not_found")


TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


def test_requests_of_a_trace_are_found_by_its_id(http: TestClient, says) -> None:
    """W3C Trace Context: the trace and the caller's span are in what is told of a request."""
    says("hello")
    for version in ("00", "01"):
        extra = "" if version == "00" else "-what-comes-later"
        header = {"traceparent": f"{version}-{TRACE}-{SPAN}-01{extra}"}
        assert http.post("/v1/completions", json=TEXT, headers=header).status_code == 200
    found = http.get(f"/v1/cluster/requests/{TRACE}").json()["choices"]
    assert [(each["trace_id"], each["parent_span_id"]) for each in found] == [(TRACE, SPAN)] * 2


@pytest.mark.parametrize(
    "wrong",
    [
        *("", "00", f"ff-{TRACE}-{SPAN}-01", f"00-{'0' * 32}-{SPAN}-01"),
        *(f"00-{TRACE}-{'0' * 16}-01", f"00-{TRACE.upper()}-{SPAN}-01", f"00-{TRACE}-{SPAN}"),
        *(f"00-{TRACE}-{SPAN}-01-more", f"00-{TRACE}-{SPAN}-01-", f"01-{TRACE}-{SPAN}-01more"),
    ],
)
def test_a_wrong_trace_context_is_none(http: TestClient, says, wrong: str) -> None:
    says("hello")
    ids = {"traceparent": wrong, "X-Request-Id": "r"}
    assert http.post("/v1/completions", json=TEXT, headers=ids).status_code == 200
    (choice,) = http.get("/v1/cluster/requests/r").json()["choices"]
    assert choice["trace_id"] is None and choice["parent_span_id"] is None
    assert http.get("/v1/cluster/requests/").status_code == 404


def test_a_refused_request_says_why(http: TestClient, backend: FakeBackend) -> None:
    backend.error = NotReady("gone", code="replica_lost")
    assert http.post("/v1/completions", json=TEXT, headers={"X-Request-Id": "r"}).status_code == 503
    (choice,) = http.get("/v1/cluster/requests/r").json()["choices"]
    assert (choice["end"], choice["error"], choice["ttft_s"]) == ("error", "gone", None)


def test_requests_that_a_full_queue_refuses_are_told(backend: FakeBackend) -> None:
    with TestClient(create_app(backend, ApiSettings(queues=QueueLimits(interactive=1)))) as http:
        backend.most_deltas = 0
        limits = {"X-Request-Timeout-Seconds": "1"}
        bodies = [TEXT | {"prompt": ["a"]}, TEXT | {"prompt": ["b"]}]
        with ThreadPoolExecutor(2) as threads:
            answers = threads.map(
                lambda body: http.post("/v1/completions", json=body, headers=limits), bodies
            )
            codes = sorted(answer.status_code for answer in answers)
        recent = http.get(LIVE).json()["models"][0]["recent"]
    assert codes == [408, 429]
    assert (recent["num_refused"], recent["num_ended"], recent["num_failed"]) == (1, 1, 1)


@pytest.mark.parametrize("path", [LIVE, "/v1/cluster/requests/r", "/v1/cluster/", LIVE + "/"])
def test_the_admin_key_alone_opens_it_where_there_is_one(backend, path: str) -> None:
    with TestClient(create_app(backend, ApiSettings(api_key="client", admin_key="admin"))) as http:
        assert http.get(path).status_code == 401
        assert http.get(path, headers=bearer("wrong")).status_code == 401
        assert http.get(path, headers=bearer("client")).status_code == 403
        assert http.get(path, headers=bearer("admin")).status_code in (200, 404)
    with TestClient(create_app(backend, ApiSettings(admin_key="admin"))) as http:
        assert http.get(path).status_code == 401
    with TestClient(create_app(backend, ApiSettings(api_key="client"))) as http:
        assert http.get(path).status_code == 401
        assert http.get(path, headers=bearer("client")).status_code in (200, 404)
    with TestClient(create_app(backend)) as http:
        assert http.get(path).status_code in (200, 404)


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/dashboard", "text/html"),
        ("/dashboard/page.js", "text/javascript"),
        ("/dashboard/models.js", "text/javascript"),
        ("/dashboard/page.css", "text/css"),
        ("/dashboard/icon.svg", "image/svg+xml"),
    ],
)
def test_the_page_is_served_without_a_key_and_may_load_nothing_else(backend, path, kind) -> None:
    with TestClient(create_app(backend, ApiSettings(api_key="client", admin_key="admin"))) as http:
        answer = http.get(path)
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith(kind)
    policy = dict(
        part.strip().split(" ", 1) for part in answer.headers["content-security-policy"].split(";")
    )
    assert policy["default-src"] == "'none'"
    for what in ("script-src", "style-src", "connect-src", "img-src"):
        assert policy[what] == "'self'"
    assert "unsafe" not in answer.headers["content-security-policy"]
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_the_page_has_no_inline_script_or_style_and_asks_nobody_else() -> None:
    document = (PAGE / "index.html").read_text(encoding="utf-8")
    assert re.findall(r"<script[^>]*>(.*?)</script>", document, re.DOTALL) == [""]
    assert not re.search(r"\s(on\w+|style)=|<style|javascript:", document)
    scripts = {name: (PAGE / name).read_text() for name in PAGE_FILES if name.endswith(".js")}
    script = "".join(scripts.values())
    for unsafe in (
        "innerHTML",
        "outerHTML",
        "insertAdjacent",
        "document.write",
        "eval(",
        "Function(",
    ):
        assert unsafe not in script
    for kept in ("localStorage", "sessionStorage", "cookie", "indexedDB"):
        assert kept not in script
    named = {"index.html": document, **scripts, "page.css": (PAGE / "page.css").read_text()}
    for name, text in named.items():
        others = set(re.findall(r"(?:https?:)?//[a-z0-9.]+\.[a-z]+", text)) - {"http://www.w3.org"}
        assert others == set(), name
    assert set(re.findall(r'(?:href|src)="([^"]+)"', document)) == {
        "/dashboard/icon.svg",
        "/dashboard/page.css",
        "/dashboard/page.js",
    }
    assert {each.name for each in PAGE.iterdir()} == {"index.html", *PAGE_FILES}
    imported = set(re.findall(r'from "\./([^"]+)"', script))
    assert imported == scripts.keys() - {"page.js"}


class ScriptedCluster:
    """A controller that answers, or does not."""

    def __init__(self) -> None:
        self.error: NotReady | None = None
        self.num_asked = 0

    def links(self) -> dict[str, str]:
        return {"unit-0": "up", "unit-1": "loading"}

    async def status(self) -> dict[str, object]:
        self.num_asked += 1
        if self.error is not None:
            raise self.error
        unit = {"id": "unit-1", "node": "b", "gpus": [1], "phase": "loading", "reason": "reads"}
        return {
            "healthy": False,
            "nodes": [{"name": "b", "alive": True}],
            "units": [{**unit, "models": [{"name": "tiny"}]}],
            "missing_units": ["b-1"],
            "unplaced": [],
            "rates": [],
        }


def test_what_the_controller_knows_is_told_and_kept_while_it_is_away(backend, monkeypatch) -> None:
    monkeypatch.setattr(view, "CLUSTER_PERIOD_S", 0.0)
    monkeypatch.setattr(view, "FRESH_S", 0.0)
    cluster = ScriptedCluster()
    with TestClient(create_app(backend, cluster=cluster)) as http:
        assert wait_until(lambda: len(http.get(LIVE).json()["units"]) == 2)
        told = http.get(LIVE).json()
        assert told["units"][1]["node"] == "b" and told["units"][1]["reason"] == "reads"
        assert told["cluster"]["missing_units"] == ["b-1"] and told["cluster"]["error"] is None
        cluster.error = NotReady("the controller does not answer")
        assert wait_until(lambda: http.get(LIVE).json()["cluster"]["error"])
        told = http.get(LIVE).json()
        assert told["cluster"]["error"] == "the controller does not answer"
        assert told["cluster"]["missing_units"] == ["b-1"] and len(told["units"]) == 2


def test_the_controller_is_asked_by_nobody_who_looks_away(backend) -> None:
    cluster = ScriptedCluster()
    with TestClient(create_app(backend, cluster=cluster)) as http:
        assert wait_until(lambda: "unit-0" in http.get("/metrics").text)
        assert cluster.num_asked == 0
        http.get(LIVE)
        assert cluster.num_asked == 1
