"""What a confused or hostile user types: one line and exit code 2, or 1 where no server answers."""

import io
import json
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from muxcluster.cli.batch_server.client import BatchServer
from muxcluster.cli.server.serving import announce
from muxcluster.core.errors import ConfigError
from muxcluster.core.inputs.web_url import checked_url
from muxcluster.core.served import EmbeddingOutput, ScoreOutput, ServedModel
from tests.cli.calls import call, refusal
from tests.local_http import QuietHandler, running

URLS = (
    "",
    "x",
    "http://",
    "http://127.0.0.1:x",
    "http://127.0.0.1:99999",
    "http://127.0.0.1:0",
    "http://[::1",
    "http://a b",
    "http://a\n",
    "http://" + "a" * 300,
    "ftp://x",
    "file:///etc/passwd",
)


@pytest.mark.parametrize("url", URLS)
@pytest.mark.parametrize(
    "command",
    [
        ("status",),
        ("batch", "status"),
        ("bench", "serve", "--model", "m", "--num-prompts", "1"),
    ],
    ids=" ".join,
)
def test_urls_that_are_none(capsys, command: tuple[str, ...], url: str) -> None:
    err = refusal(capsys, *command, "--url", url)
    assert "--url" in err and "is not http://host:port" in err and len(err) < 400


def test_urls_of_every_form() -> None:
    for url in ("http://127.0.0.1", "https://[::1]:80/base", "http://user:word@host:1/"):
        assert checked_url(url).hostname
    with pytest.raises(ConfigError, match="--server"):
        checked_url("x", "--server")


@pytest.mark.parametrize("key", ["key\n", "", "é", " key", "k\x00"])
@pytest.mark.parametrize(
    "command",
    [
        ("status",),
        ("batch", "status"),
        ("bench", "serve", "--model", "m"),
        ("serve", "muxcluster.yaml"),
    ],
    ids=" ".join,
)
def test_keys_that_no_header_can_carry(capsys, command: tuple[str, ...], key: str) -> None:
    err = refusal(capsys, *command, "--api-key", key)
    assert "key is" in err


def test_a_key_from_the_environment_is_checked_too(capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUXCLUSTER_API_KEY", "from a file of secrets\n")
    assert "line break" in refusal(capsys, "status", "--url", "http://127.0.0.1:9")


@pytest.mark.parametrize("address", ["127.0.0.1:9", "nosuch.invalid:1"])
def test_a_cluster_that_is_not_there_is_given_up_soon(capsys, address: str) -> None:
    code, out, err = call(capsys, "status", "--address", address)
    assert (code, out) == (1, "")
    assert err == f"muxcluster: no Ray cluster answers at {address}: nothing listens there\n"


@contextmanager
def answering(body: bytes, *, has_length: bool = True) -> Iterator[str]:
    """The address of a server that answers everything so."""

    class Answers(QuietHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"] or 0))
            self.send_response(200)
            if has_length:
                self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET

    with running(Answers) as url:
        yield url


COUNTED = b'{"id": "b", "status": "completed", "request_counts": {"total": 1}}'


@pytest.mark.parametrize(
    "body",
    [b"[]", b"{}", b"5", b"null", b'{"healthy": true}', b'{"data": 5, "id": 1}', COUNTED],
    ids=range(7),
)
@pytest.mark.parametrize(
    "command",
    [
        ("status",),
        ("batch", "status"),
        ("batch", "status", "b"),
        ("batch", "cancel", "b"),
        ("batch", "results", "b", "-o", "answers.jsonl"),
    ],
    ids=" ".join,
)
def test_servers_of_another_kind_are_named(
    capsys,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    command: tuple[str, ...],
    body: bytes,
) -> None:
    monkeypatch.chdir(tmp_path)
    with answering(body) as url:
        code, out, err = call(capsys, *command, "--url", url)
    assert (code, out) == (1, "")
    assert err in (
        f"muxcluster: {url} is not a server with batches\n",
        f"muxcluster: no muxcluster server answers at {url}, but another one\n",
    )
    assert list(tmp_path.iterdir()) == []


def test_a_file_may_come_without_its_length(tmp_path: Path) -> None:
    """As from a proxy that compresses or rewrites what it passes on."""
    body = b"a line\n" * 300_000
    with answering(body, has_length=False) as url:
        BatchServer(url, None).download("file-1", tmp_path / "answers.jsonl")
    assert (tmp_path / "answers.jsonl").read_bytes() == body


@pytest.mark.parametrize("address", ["ray://127.0.0.1:9", "nonsense"])
def test_addresses_of_another_form(capsys, address: str) -> None:
    code, _, err = call(capsys, "status", "--address", address)
    assert code == 1 and err.endswith("expected host:port or auto\n")


@pytest.mark.parametrize(
    "options",
    [
        ("--port", "-1"),
        ("--port", "65536"),
        ("--seed", "-1"),
        ("--seed", str(10**22)),
        ("--requests", str(10**9)),
        ("--seconds", "inf"),
        ("--seconds", "nan"),
        ("--out", "/dev/null"),
    ],
    ids=" ".join,
)
def test_the_demo_refuses_what_it_cannot_do(capsys, options: tuple[str, str]) -> None:
    assert options[0] in refusal(capsys, "demo", *options)


@pytest.mark.parametrize("burstiness", ["inf", "1e308", "nan"])
def test_gaps_that_cannot_be_drawn(capsys, burstiness: str) -> None:
    command = ("bench", "serve", "--model", "m", "--request-rate", "9", "--burstiness", burstiness)
    assert "--burstiness" in refusal(capsys, *command, "--url", "http://127.0.0.1:9")


@pytest.mark.parametrize("output", ["", ".", "a\0b"])
def test_an_output_without_a_name(capsys, tmp_path: Path, output: str) -> None:
    job, config = tmp_path / "job.jsonl", tmp_path / "muxcluster.yaml"
    job.write_text("{}\n")
    config.write_text("models: []\n")
    for command in (("run", str(job), "--config", str(config)), ("submit", str(job))):
        refusal(capsys, "batch", *command, "-o", output)


def test_a_file_whose_name_is_no_text_can_be_submitted(capsys, tmp_path: Path) -> None:
    path = Path(f"{tmp_path}/\udcff.jsonl")
    submit = ("batch", "submit", str(path), "--url", "http://127.0.0.1:9")
    path.write_text('{"custom_id": "a"}\n')
    code, _, err = call(capsys, *submit)
    assert code == 2 and "\\udcff.jsonl: no line of it is a request" in err
    request = {"custom_id": "a", "method": "POST", "url": "/v1/completions"}
    path.write_text(json.dumps(request | {"body": {"model": "m", "prompt": "x"}}) + "\n")
    code, _, err = call(capsys, *submit)
    assert code == 1 and "no server answers" in err


def test_a_path_with_brackets_is_shown_as_it_is() -> None:
    shown = io.StringIO()
    model = ServedModel("m", "/models/[red]/x", 128, 100, (0,))
    console = Console(file=shown, soft_wrap=True)
    announce(console, [model], "http://127.0.0.1:1")
    assert "from /models/[red]/x\n" in shown.getvalue()


def test_the_call_to_paste_is_one_that_its_model_answers() -> None:
    chat = ServedModel("chat", "/models/chat", 128, 100, (0,))
    vectors = replace(chat, name="vectors", embedding=EmbeddingOutput(64))
    for models, route, name in (
        ([vectors], "/v1/embeddings", "vectors"),
        ([vectors, chat], "/v1/chat/completions", "chat"),
        ([replace(chat, name="scores", scoring=ScoreOutput())], "/v1/rerank", "scores"),
    ):
        shown = io.StringIO()
        announce(Console(file=shown, soft_wrap=True), models, "http://127.0.0.1:1")
        command = shlex.split(shown.getvalue().splitlines()[-1])
        assert command[1] == f"http://127.0.0.1:1{route}"
        assert json.loads(command[-1])["model"] == name
