"""`muxcluster bench serve` against the real application over a scripted backend."""

import json
from collections.abc import Iterator

import pytest

from muxcluster.cli.main import run
from muxcluster.http.app import create_app
from muxcluster.http.settings import ApiSettings
from muxcluster.loadgen.prompts import Prompts
from tests.http.fakes import FakeBackend, make_tokenizer, running_server, served_model

KEY = "open sesame"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server that repeats one token for as long as it is asked to."""
    model = served_model(make_tokenizer(tmp_path_factory.mktemp("models") / "tiny"), "tiny", 4096)
    backend = FakeBackend([model])
    backend.script = lambda request: [70] * request.sampling.max_tokens
    with running_server(create_app(backend, ApiSettings(api_key=KEY))) as url:
        yield url


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUXCLUSTER_API_KEY", KEY)


def command(url: str, *more: str) -> list[str]:
    return ["bench", "serve", "--url", url, "--model", "tiny", "--num-prompts", "6", *more]


@pytest.mark.parametrize("backend", ["openai", "openai-chat"])
def test_json(url: str, backend: str, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--output-len", "7", "--max-concurrency", "2", "--backend", backend, "--json")
    assert run(command(url, *options)) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["completed"], found["failed"], found["total_output_tokens"]) == (6, 0, 42)
    assert (found["model_id"], found["request_rate"], found["backend"]) == ("tiny", "inf", backend)
    assert found["output_lens"] == [7] * 6
    assert all(len(gaps) == 6 for gaps in found["itls"])  # an event a token
    assert found["muxcluster"]["finish_reasons"] == {"length": 6}
    # /tokenize says how many tokens its words have
    assert 0.8 * 128 < found["total_input_tokens"] / 6 < 1.3 * 128


def test_table_with_goodput(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--request-rate", "200", "--goodput", "ttft:60000", "tpot:60000")
    assert run(command(url, *options)) == 0
    lines = capsys.readouterr().out.splitlines()
    values = {line[:40].rstrip(): line[40:].strip() for line in lines}
    assert values["Successful requests:"] == "6"
    assert values["Request goodput (req/s):"] == values["Request throughput (req/s):"]
    assert values["Request rate configured (RPS):"] == "200.00"


def test_failures_are_counted_and_told(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = command(url)
    arguments[arguments.index("tiny")] = "another"
    assert run(arguments) == 1
    captured = capsys.readouterr()
    assert "Failed requests:                         6" in captured.out
    assert "model_not_found" in captured.err


def test_no_server(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(command("http://127.0.0.1:9")) == 1
    assert "cannot connect" in capsys.readouterr().err


@pytest.mark.parametrize(
    "wrong", [("--goodput", "ttft"), ("--goodput", "itl:5"), ("--url", "ftp://x")]
)
def test_bad_input(url: str, wrong: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(command(url, *wrong)) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_prompts_repeat_with_the_seed() -> None:
    same, other = Prompts("m", 50, 5), Prompts("m", 50, 5, seed=1)
    assert same.bodies(3, 1.5) == same.bodies(3, 1.5) != other.bodies(3, 1.5)
    prompts = [json.loads(body)["prompt"] for body in same.bodies(3, 1.5)]
    assert len({prompt[:12] for prompt in prompts}) == 3
