"""The end of a server: running answers finish, new ones are refused, no process is left."""

import json
import os
import signal
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI

KEY = "open sesame"


@pytest.fixture(scope="module")
def guarded(start_server: Any, config_file: Path) -> Any:
    """A second server, with a key, that the tests of this module stop."""
    arguments = ("--port", "0", "--api-key", KEY, "--drain-timeout", "30")
    server = start_server("serve", str(config_file), *arguments)
    server.url()
    return server


def test_a_key_is_asked_for(guarded: Any) -> None:
    url = guarded.url()
    for path in ("/v1/models", "/status", "/metrics", "/timeline"):
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(f"{url}{path}", timeout=10)
        refused.value.close()
        assert refused.value.code == 401
    with urllib.request.urlopen(f"{url}/health", timeout=10) as answer:
        assert json.load(answer) == {"status": "ok"}
    with OpenAI(base_url=f"{url}/v1", api_key=KEY) as client:
        assert len(client.models.list().data) == 3


def _is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/ready", timeout=10) as answer:
            return answer.status == 200
    except urllib.error.HTTPError as refused:
        refused.close()
        return False


def _units(server: Any) -> list[int]:
    """Process ids of the server's unit replicas."""
    named = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in server.processes()}
    return [
        pid for pid, name in named.items() if name.startswith(b"ray::ServeReplica:muxcluster:l")
    ]


def test_a_killed_unit_comes_back_and_is_found(guarded: Any) -> None:
    url = guarded.url()
    (unit,) = _units(guarded)
    before = guarded.processes()
    os.kill(unit, signal.SIGKILL)
    deadline = time.monotonic() + 90.0
    while (_units(guarded) or [unit]) == [unit] or not _is_ready(url):
        assert time.monotonic() < deadline, guarded.output
        time.sleep(0.2)
    with OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=10) as client:
        answer = client.completions.create(model="opt-c", prompt="x", max_tokens=4)
    assert answer.choices[0].finish_reason in ("stop", "length")
    owners = [pid for pid in before - guarded.processes() if pid != unit]
    assert len(owners) == 3  # the dead unit's owner and its two workers are gone too


def test_sigterm_lets_running_answers_finish_and_leaves_no_process(guarded: Any) -> None:
    url, reasons, started = guarded.url(), [], threading.Event()

    def read() -> None:
        with OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0) as client:
            stream = client.completions.create(
                model="llama-a",
                prompt="x",
                max_tokens=300,
                stream=True,
                extra_body={"ignore_eos": True},
            )
            for chunk in stream:
                started.set()
                reasons.extend(choice.finish_reason for choice in chunk.choices)

    reader = threading.Thread(target=read)
    reader.start()
    assert started.wait(30.0)
    family, num_lines = guarded.processes(), len(guarded.lines)
    assert len(family) > 5  # Ray, Serve, a unit, its owner and workers
    assert guarded.stop(signal.SIGTERM) == 0, guarded.output
    reader.join(30.0)
    assert reasons[-1] == "length"
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
