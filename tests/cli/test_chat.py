"""`muxcluster chat` against a scripted server: streaming, its commands, interrupts, failures."""

import io
import json
import os
import pty
import signal
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from muxcluster.cli.chatting.terminal import printable
from tests.cli.calls import call
from tests.conftest import ROOT
from tests.local_http import QuietHandler, running


@dataclass
class Scripted:
    """A server whose answers depend on the last message; what it was sent."""

    url: str = ""
    bodies: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)
    was_left: threading.Event = field(default_factory=threading.Event)


def _event(content: str, reason: str | None = None, name: str = "content") -> bytes:
    choice = {"index": 0, "delta": {name: content}, "finish_reason": reason}
    return f"data: {json.dumps({'choices': [choice]})}\n\n".encode()


class _Handler(QuietHandler):
    scripted: Scripted

    def do_GET(self) -> None:
        self.send(json.dumps({"data": [{"id": "chat-7b"}, {"id": "code-1b"}]}).encode())

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.scripted.bodies.append(body)
        self.scripted.keys.append(self.headers["Authorization"])
        question = body["messages"][-1]["content"]
        if question == "refused":
            error = {"error": {"message": "the prompt is\ntoo long"}}
            self.send(json.dumps(error).encode(), 400)
        elif question == "broken":
            self.send(_event("half"))
        elif question == "fails":
            self.send(_event("half") + b'data: {"error": {"message": "worker gone"}}\n\n')
        elif question == "think":
            thoughts = (_event(text, name="reasoning_content") for text in ("Hm, ", "so"))
            said = _event("Yes") + _event(".", "stop")
            self.send(b"".join(thoughts) + said + b"data: [DONE]\n\n")
        elif question == "wait":
            self.send_response(200)
            self.end_headers()
            self.wfile.write(_event("first"))
            self.rfile.read(1)  # until the client leaves
            self.scripted.was_left.set()
        else:
            reason = "length" if question == "long" else "stop"
            said = _event(f"you said: {question}") + _event("\x1b[2J!") + _event("", reason)
            self.send(said + b"data: [DONE]\n\n")


@pytest.fixture
def scripted() -> Iterator[Scripted]:
    state = Scripted()
    handler = type("Handler", (_Handler,), {"scripted": state})
    with running(handler) as url:
        state.url = url
        yield state


def chat(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    scripted: Scripted,
    lines: str,
    *options: str,
) -> tuple[int, str, str]:
    """A chat whose lines are piped in."""
    monkeypatch.setattr(sys, "stdin", io.StringIO(lines))
    return call(capsys, "chat", "chat-7b", "--url", scripted.url, *options)


def test_a_conversation_is_kept_until_it_is_cleared(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, scripted: Scripted
) -> None:
    options = ("--system", "be short", "--max-tokens", "9", "--temperature", "0")
    lines = "one\n\n  two  \n/clear\nthree\n/exit\nnever\n"
    key = ("--api-key", "secret")
    code, out, err = chat(capsys, monkeypatch, scripted, lines, *options, *key)
    assert (code, err) == (0, "")
    # what a terminal would obey is left out
    assert out == "you said: one[2J!\nyou said: two[2J!\nyou said: three[2J!\n"
    system = {"role": "system", "content": "be short"}
    first = {"role": "user", "content": "one"}
    answer = {"role": "assistant", "content": "you said: one\x1b[2J!"}
    assert [body["messages"] for body in scripted.bodies] == [
        [system, first],
        [system, first, answer, {"role": "user", "content": "two"}],
        [system, {"role": "user", "content": "three"}],
    ]
    for body in scripted.bodies:
        assert body["model"] == "chat-7b" and body["stream"] is True
        assert (body["max_tokens"], body["temperature"]) == (9, 0.0)
    assert scripted.keys == ["Bearer secret"] * 3


def test_reasoning_is_shown_and_not_sent_back(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, scripted: Scripted
) -> None:
    code, out, _ = chat(capsys, monkeypatch, scripted, "think\ntwo\n")
    assert code == 0
    assert out.startswith("Hm, so\n\nYes.\nyou said: two")
    assert scripted.bodies[1]["messages"][1] == {"role": "assistant", "content": "Yes."}


def test_an_answer_that_is_cut_off_says_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, scripted: Scripted
) -> None:
    code, _, err = chat(capsys, monkeypatch, scripted, "long\n/help\n")
    assert code == 0
    cut, commands = err.splitlines()
    assert cut.startswith("(cut off") and "/exit" in commands


@pytest.mark.parametrize(
    ("line", "code", "says"),
    [
        ("refused", 2, "the prompt is too long"),
        ("broken", 1, "broke off in the middle of an answer"),
        ("fails", 1, "worker gone"),
    ],
)
def test_the_first_failure_ends_a_piped_chat(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    scripted: Scripted,
    line: str,
    code: int,
    says: str,
) -> None:
    found, _, err = chat(capsys, monkeypatch, scripted, f"{line}\nnever\n")
    assert found == code and len(scripted.bodies) == 1
    assert err.startswith("muxcluster: ") and err.count("\n") == 1 and says in err


def test_a_model_that_is_not_served(capsys: pytest.CaptureFixture[str], scripted: Scripted) -> None:
    code, out, err = call(capsys, "chat", "chat-8b", "--url", f"{scripted.url}/v1")
    assert (code, out) == (2, "")
    assert err == f"muxcluster: {scripted.url}: no model 'chat-8b'; did you mean chat-7b?\n"


class Terminal:
    """`muxcluster chat chat-7b` on a terminal of its own."""

    def __init__(self, url: str) -> None:
        command = [sys.executable, "-m", "muxcluster.cli.main", "chat", "chat-7b", "--url", url]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "dumb"}
        self._pid, self._terminal = pty.fork()
        if self._pid == 0:
            # ignored in what a script runs in the background, and in all that it starts
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.execve(sys.executable, command, environment)
        self._text = ""

    def type(self, text: str) -> None:
        os.write(self._terminal, text.encode())

    def wait_for(self, text: str) -> None:
        """Read until `text` is there, and drop what is before its end."""
        while text not in self._text:
            self._text += os.read(self._terminal, 4096).decode()
        self._text = self._text.partition(text)[2]

    def end(self) -> int:
        """The exit code."""
        try:
            while os.read(self._terminal, 4096):
                pass
        except OSError:  # the other side is closed
            pass
        os.close(self._terminal)
        return os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])


def test_an_interrupt_stops_the_answer_only(scripted: Scripted) -> None:
    terminal = Terminal(scripted.url)
    terminal.wait_for(">>> ")
    terminal.type("wait\n")
    terminal.wait_for("first")
    time.sleep(0.2)  # a signal that comes just before it waits is seen with what comes next
    terminal.type("\x03")
    terminal.wait_for("[stopped]")
    assert scripted.was_left.wait(60)  # the request is cancelled
    terminal.wait_for(">>> ")
    time.sleep(0.2)  # readline sees a signal that comes while it begins with the next key only
    terminal.type("\x03")  # at the prompt
    terminal.wait_for("/exit (or Ctrl-D) ends")
    terminal.wait_for(">>> ")
    terminal.type("refused\n")
    terminal.wait_for("muxcluster: ")
    terminal.wait_for("the prompt is too long")
    terminal.wait_for(">>> ")
    terminal.type("more\n")
    terminal.wait_for("you said: more")
    terminal.wait_for(">>> ")
    terminal.type("/exit\n")
    assert terminal.end() == 0
    assert scripted.bodies[-1]["messages"] == [
        {"role": "user", "content": "wait"},
        {"role": "assistant", "content": "first"},
        {"role": "user", "content": "more"},
    ]


def test_control_characters_are_left_out() -> None:
    assert printable("a\x1b[31mb\x07\r\n\tc\u202e é 中 👩\u200d💻") == "a[31mb\n\tc é 中 👩\u200d💻"
