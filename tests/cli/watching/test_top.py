"""`muxcluster top` and `trace` against servers: scripted ones, and a real one with a real unit."""

import json
import os
import pty
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from muxcluster.core.served import ModelStats
from muxcluster.core.unitspec import UnitSpec
from muxcluster.http.settings import ApiSettings
from tests.cli.calls import call, refusal
from tests.cli.watching.snapshots import snapshot
from tests.engine.residency.moved import in_turns
from tests.http.fakes import wait_until
from tests.http.live_server import NAME, configured, live_server
from tests.local_http import QuietHandler, running

TOP = (sys.executable, "-m", "muxcluster.cli.main", "top")


@dataclass
class Scripted:
    """What a server answers, and what it was asked."""

    url: str = ""
    status: int = 200
    answer: Any = None
    asked: list[tuple[str, str | None]] = field(default_factory=list)


@pytest.fixture
def scripted() -> Iterator[Scripted]:
    found = Scripted(answer=snapshot([ModelStats("chat")]))

    class Handler(QuietHandler):
        def do_GET(self) -> None:
            found.asked.append((self.path, self.headers["Authorization"]))
            self.send(json.dumps(found.answer).encode(), found.status)

    with running(Handler) as found.url:
        yield found


def test_one_screen_is_printed_and_the_admin_key_sent(capsys, scripted: Scripted) -> None:
    keys = ("--api-key", "client", "--admin-key", "admin")
    code, out, err = call(capsys, "top", "--once", "--url", f"{scripted.url}/v1", *keys)
    assert (code, err) == (0, "") and "chat" in out
    call(capsys, "top", "--url", scripted.url, "--api-key", "client")  # stdout is no terminal
    assert scripted.asked == [
        ("/v1/cluster/live", "Bearer admin"),
        ("/v1/cluster/live", "Bearer client"),
    ]
    code, out, _ = call(capsys, "top", "--url", scripted.url, "--json")
    assert (code, json.loads(out)) == (0, scripted.answer)


def test_refusals_and_absence_are_one_line(capsys, scripted: Scripted) -> None:
    scripted.status, scripted.answer = 403, {"error": {"message": "needs the admin key"}}
    assert "needs the admin key" in refusal(capsys, "top", "--once", "--url", scripted.url)
    for scripted.status, scripted.answer in ((503, {}), (200, ["another"]), (200, {"units": []})):
        code, out, err = call(capsys, "top", "--once", "--url", scripted.url)
        assert (code, out, err.count("\n")) == (1, "", 1)
    assert call(capsys, "top", "--once", "--url", "http://127.0.0.1:9")[0] == 1
    assert "is not http://host:port" in refusal(capsys, "top", "--url", "nowhere")


class Screen:
    """`muxcluster top` at a terminal of its own."""

    def __init__(self, url: str) -> None:
        self._terminal, theirs = pty.openpty()
        environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120", "LINES": "30"}
        self.process = subprocess.Popen(
            [*TOP, "--url", url], stdin=theirs, stdout=theirs, stderr=theirs, env=environment
        )
        os.close(theirs)
        self.seen = b""

    def wait_for(self, text: str) -> None:
        """Read until a screen has this text."""
        while text.encode() not in self.seen:
            self.seen += os.read(self._terminal, 65536)  # raises where it has ended
        self.seen = self.seen.partition(text.encode())[2]

    def press(self, keys: bytes) -> None:
        os.write(self._terminal, keys)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._terminal)


@pytest.fixture
def opened() -> Iterator[Callable[[str], Screen]]:
    screens: list[Screen] = []

    def open_screen(url: str) -> Screen:
        screens.append(Screen(url))
        return screens[-1]

    yield open_screen
    for screen in screens:
        screen.close()


def test_at_a_terminal_keys_are_followed_and_an_absent_server_is_waited_for(
    scripted: Scripted, opened: Callable[[str], Screen]
) -> None:
    screen = opened(scripted.url)
    screen.wait_for("sorted by model")
    screen.press(b"s")
    screen.wait_for("sorted by state")
    screen.press(b"1")
    screen.wait_for("interactive requests ended within 60 s")
    scripted.status = 503
    screen.wait_for("no answer for")
    screen.wait_for("trying again")
    scripted.status = 200
    scripted.answer = snapshot([ModelStats("chat", weights="parked")])
    screen.press(b"\x1b")
    screen.wait_for("parked")
    screen.press(b"q")
    screen.wait_for("\x1b[?1049l")  # the terminal is as it was
    assert screen.process.wait(60) == 0


# A real server


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    file = configured(tmp_path_factory.mktemp("top"))
    settings = ApiSettings(admin_key="admin")

    def change(spec: UnitSpec) -> UnitSpec:
        return in_turns(replace(spec, partition="threads"), 1)

    with live_server(file, settings, change) as address:
        yield address


def post(url: str, path: str, body: object = None, key: str = "admin") -> dict[str, Any]:
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    data = json.dumps(body).encode() if body is not None else b""
    with urllib.request.urlopen(urllib.request.Request(f"{url}{path}", data, headers)) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


def test_a_model_that_is_woken_serves_and_is_parked_is_seen(capsys, url: str) -> None:
    def shown() -> str:
        code, out, err = call(capsys, "top", "--once", "--url", url, "--admin-key", "admin")
        assert (code, err) == (0, "")
        return " ".join(out.split())

    assert "missing or wrong API key" in refusal(capsys, "top", "--once", "--url", url)
    body = {"model": NAME, "prompt": "Once upon a time", "max_tokens": 8, "ignore_eos": True}
    post(url, "/v1/completions", body)
    assert wait_until(lambda: f"{NAME} resident" in shown())
    post(url, f"/sleep?model={NAME}")
    assert wait_until(lambda: f"{NAME} parked, hold" in shown())
    told = json.loads(call(capsys, "top", "--json", "--url", url, "--admin-key", "admin")[1])
    (model,) = told["models"]
    assert model["recent"]["num_ended"] == 1 and model["orders"] == ["hold"]
    changes = [(each["what"], each["after"]) for each in told["events"]]
    assert ("weights", "parked") in changes and ("order", "hold") in changes
    (unit,) = told["units"]
    assert {series["model"] for series in unit["sm"]["series"]} == {NAME}
    post(url, f"/wake_up?model={NAME}")
    assert wait_until(lambda: f"{NAME} resident" in shown())


def test_where_the_time_of_a_request_went(capsys, url: str, tmp_path: Path) -> None:
    post(url, f"/wake_up?model={NAME}")
    body = {"model": NAME, "prompt": "Once", "max_tokens": 8, "ignore_eos": True, "n": 2}
    answer = post(url, "/v1/completions", body)
    out = tmp_path / "trace.json"
    server = ("--url", url, "--admin-key", "admin")
    code, text, err = call(capsys, "trace", answer["id"], "--out", str(out), *server)
    assert (code, err) == (0, "")
    assert text.count(f"of {NAME} (interactive): length") == 2
    assert "8 output tokens" in text and "decode" in text
    told = json.loads(call(capsys, "trace", answer["id"], "--json", *server)[1])
    events = json.loads(out.read_text())["traceEvents"]
    for track, choice in enumerate(told["choices"], 1):
        (whole, *parts) = [each for each in events if each["tid"] == track and each["ph"] == "X"]
        assert whole["dur"] == pytest.approx(choice["total_s"] * 1e6)
        # the parts fill the request, one after the other
        assert sum(each["dur"] for each in parts) == pytest.approx(whole["dur"], rel=1e-3)
        ends = [each["ts"] + each["dur"] for each in parts]
        assert [each["ts"] for each in parts[1:]] == pytest.approx(ends[:-1])
    assert "no request 'other'" in refusal(capsys, "trace", "other", *server)
    unwritable = ("trace", answer["id"], "--out", str(tmp_path / "no" / "file"), *server)
    assert "cannot be written" in refusal(capsys, *unwritable)
