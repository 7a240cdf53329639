"""The end of a server: running answers finish, new ones are refused, no process is left."""

import contextlib
import hashlib
import json
import os
import signal
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from openai import AuthenticationError, OpenAI

from muxcluster.cli.main import run
from tests.engine.live_units import wait_until_gone

pytestmark = pytest.mark.slow

KEY = "open sesame"
ADMIN = "close sesame"
LATE_S = 1.0
"""Ten times what Serve's router expects of a replica."""
NUM_TOKENS = 300
PATIENCE_S = 600.0
"""For what must happen, however busy the machine is; below the time limit of a test."""


def _write_keys(file: Path, **limits: int) -> None:
    """A file of tenants' keys: one for each name, so many requests a minute."""
    keys = [
        {
            "name": name,
            "sha256": hashlib.sha256(f"{name}-secret".encode()).hexdigest(),
            "requests_per_minute": limit,
        }
        for name, limit in limits.items()
    ]
    part = file.with_suffix(".part")
    part.write_text(yaml.safe_dump({"keys": keys}))
    part.replace(file)


@pytest.fixture(scope="module")
def keys_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("tenants") / "keys.yaml"
    _write_keys(file, team=1000)
    return file


@pytest.fixture(scope="module")
def guarded(start_server: Any, config_file: Path, keys_file: Path) -> Any:
    """A second server, with keys, that the tests of this module stop."""
    content = yaml.safe_load(config_file.read_text())
    content["server"] = {"keys_file": str(keys_file), "admin_key": ADMIN}
    file = keys_file.with_name("muxcluster.yaml")
    file.write_text(yaml.safe_dump(content))
    arguments = ("--port", "0", "--api-key", KEY, "--drain-timeout", str(PATIENCE_S))
    server = start_server("serve", str(file), *arguments)
    server.url()
    return server


def test_a_key_is_asked_for(guarded: Any) -> None:
    url = guarded.url()
    for path in ("/v1/models", "/status", "/metrics", "/timeline"):
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(f"{url}{path}", timeout=PATIENCE_S)
        refused.value.close()
        assert refused.value.code == 401
    with urllib.request.urlopen(f"{url}/health", timeout=PATIENCE_S) as answer:
        assert json.load(answer) == {"status": "ok"}
    with OpenAI(base_url=f"{url}/v1", api_key=KEY) as client:
        assert len(client.models.list().data) == 3


def _until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def _left(url: str, name: str) -> str | None:
    """What a short answer says of the requests that the key has left; its status is 200."""
    with OpenAI(base_url=f"{url}/v1", api_key=f"{name}-secret", max_retries=0) as client:
        asked = client.completions.with_raw_response
        answer = asked.create(model="opt-c", prompt="x", max_tokens=2)
    return answer.headers.get("x-ratelimit-remaining-requests")


def _usage(url: str, capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    capsys.readouterr()
    assert run(["usage", "--json", "--by", "key", "--url", url, "--admin-key", ADMIN]) == 0
    rows: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    return rows


def test_one_actor_counts_for_tenants_and_may_be_killed(
    guarded: Any, keys_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = guarded.url()
    assert [_left(url, "team") for _ in range(3)] == ["999", "998", "997"]
    _write_keys(keys_file, team=500, other=10)

    def is_known() -> bool:
        try:
            return _left(url, "other") is not None
        except AuthenticationError:
            return False

    _until(is_known)
    _until(lambda: _usage(url, capsys)[-1]["requests"] == 3)
    (counter,) = _named(guarded, "cmdline", b"ray::KeyHost")
    os.kill(counter, signal.SIGKILL)
    left, num_more = None, 0
    while left is None:  # without it requests run, and tell nothing of limits
        left, num_more = _left(url, "team"), num_more + 1
    # its successor has read the new file, and begins with a new minute
    assert left == "499"

    def rows() -> dict[str, dict[str, Any]]:
        return {row["key"]: row for row in _usage(url, capsys)}

    # lines of a batch are counted for the key that made it
    with OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=5) as client:
        body = {"model": "opt-c", "prompt": "x", "max_tokens": 3, "ignore_eos": True}
        line = {"custom_id": "x", "method": "POST", "url": "/v1/completions", "body": body}
        data = "\n".join(json.dumps({**line, "custom_id": str(i)}) for i in range(5)).encode()
        given = client.files.create(file=("in.jsonl", data), purpose="batch")
        client.batches.create(
            input_file_id=given.id, endpoint="/v1/completions", completion_window="24h"
        )
    _until(lambda: rows().get("server.api_key", {}).get("requests", 0) >= 5)
    batch = rows()["server.api_key"]
    assert (batch["requests"], batch["completion_tokens"]) == (5, 15)
    assert batch["prompt_tokens"] % 5 == 0 and batch["prompt_tokens"] > 0
    _until(lambda: rows()["team"]["requests"] >= 3 + num_more)
    team = rows()["team"]
    assert (team["requests"], team["refused"]) == (3 + num_more, 0)
    assert 0 < team["completion_tokens"] <= 2 * team["requests"]


def _is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/ready", timeout=PATIENCE_S) as answer:
            return answer.status == 200
    except urllib.error.HTTPError as refused:
        refused.close()
        return False


def _named(server: Any, file: str, name: bytes) -> list[int]:
    """Process ids of the server's processes whose /proc/PID/`file` begins so."""
    found = []
    for pid in server.processes():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if Path(f"/proc/{pid}/{file}").read_bytes().startswith(name):
                found.append(pid)
    return found


def _units(server: Any) -> list[int]:
    """Process ids of the server's units."""
    return _named(server, "cmdline", b"ray::UnitHost")


def test_a_killed_unit_comes_back_and_is_found(guarded: Any) -> None:
    url = guarded.url()
    (unit,) = _units(guarded)
    doomed = _named(guarded, "comm", b"mux-")
    assert len(doomed) >= 3  # the unit's memory owner, its two workers, and soon a spare owner
    os.kill(unit, signal.SIGKILL)
    deadline = time.monotonic() + PATIENCE_S
    while (_units(guarded) or [unit]) == [unit] or not _is_ready(url):
        assert time.monotonic() < deadline, guarded.output
        time.sleep(0.2)
    with OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=10) as client:
        answer = client.completions.create(model="opt-c", prompt="x", max_tokens=4)
    assert answer.choices[0].finish_reason in ("stop", "length")
    wait_until_gone(doomed)


class Reader(threading.Thread):
    """Reads one long stream to its end."""

    def __init__(self, url: str, model: str) -> None:
        super().__init__(daemon=True)
        self.started = threading.Event()
        self.reasons: list[str | None] = []
        self.num_tokens = 0
        self._url, self._model = url, model

    def run(self) -> None:
        with OpenAI(base_url=f"{self._url}/v1", api_key=KEY, max_retries=0) as client:
            stream = client.completions.create(
                model=self._model,
                prompt="x",
                max_tokens=NUM_TOKENS,
                stream=True,
                stream_options={"include_usage": True},
                extra_body={"ignore_eos": True},
            )
            for chunk in stream:
                self.started.set()
                self.reasons.extend(choice.finish_reason for choice in chunk.choices)
                if chunk.usage is not None:
                    self.num_tokens = chunk.usage.completion_tokens


def _answer(url: str) -> tuple[int, str | None, str | None] | None:
    """(status, error code, Retry-After) of a new request; None where it is not answered soon."""
    request = urllib.request.Request(
        f"{url}/v1/completions",
        json.dumps({"model": "opt-c", "prompt": "x", "max_tokens": 1}).encode(),
        {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=5) as answer:
            return answer.status, None, None
    except urllib.error.HTTPError as refused:
        with refused:
            code = json.load(refused)["error"]["code"]
            return refused.code, code, refused.headers["Retry-After"]
    except TimeoutError:
        return None


@contextlib.contextmanager
def _stopped(pids: list[int]) -> Iterator[None]:
    """These processes stand still for the length of the block; some may be killed meanwhile."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def test_sigterm_under_load_lets_answers_finish_and_leaves_no_process(guarded: Any) -> None:
    """Its workers stand still until new requests are refused, or the answers might have ended by
    then, and its ingress for a while: a busy one answers the call to drain late."""
    url = guarded.url()
    readers = [Reader(url, model) for model in ("llama-a", "qwen-b", "opt-c") * 3]
    for reader in readers:
        reader.start()
    assert all(reader.started.wait(PATIENCE_S) for reader in readers)
    with _stopped(_named(guarded, "comm", b"mux-worker-")):
        family, num_lines = guarded.processes(), len(guarded.lines)
        assert len(family) > 5  # Ray, Serve, a unit, its owner and workers
        with _stopped(_named(guarded, "cmdline", b"ray::ServeReplica:muxcluster:ingress")):
            guarded.process.send_signal(signal.SIGTERM)
            time.sleep(LATE_S)
        while _answer(url) != (503, "server_shutting_down", "1"):
            assert guarded.process.poll() is None, guarded.output
        assert not _is_ready(url)
        assert any(reader.is_alive() for reader in readers), "the drain was not seen under load"
    assert guarded.process.wait(PATIENCE_S) == 0, guarded.output
    for reader in readers:
        reader.join(PATIENCE_S)
        assert (reader.reasons[-1], reader.num_tokens) == ("length", NUM_TOKENS)
    guarded.assert_gone(family)
    guarded.join()
    assert guarded.lines[num_lines:] == ["stopped"]


def test_an_interrupt_while_starting_leaves_no_process(
    start_server: Any, config_file: Path
) -> None:
    server = start_server("serve", str(config_file), "--port", "0")
    server.wait_for("starting 3 model")
    # Ray's processes appear one by one; any moment must do.
    deadline = time.monotonic() + 30.0
    while len(server.processes()) < 4 and time.monotonic() < deadline:
        time.sleep(0.1)
    family = server.processes()
    assert server.stop(signal.SIGINT) == 130, server.output
    server.assert_gone(family)
    assert "ready after" not in server.output and "Traceback" not in server.output
