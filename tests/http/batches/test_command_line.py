"""`muxcluster batch submit | status | cancel | results` against a real server."""

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from rich.console import Console

from muxcluster.batch.service.planning import FileOrder, JobFile
from muxcluster.cli.batch_server import following, waiting
from muxcluster.cli.batch_server.client import BatchServer
from muxcluster.cli.batch_server.showing import duration_text
from muxcluster.core.errors import ConfigError, Unavailable
from muxcluster.http.settings import ApiSettings
from tests.batch.jobs import line_of
from tests.cli.calls import call, refusal
from tests.http.fakes import running_server, wait_until


@pytest.fixture(autouse=True)
def quick_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "POLL_S", 0.01)


@pytest.fixture
def server(batch_app, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A server that the commands find by the environment."""
    with running_server(batch_app(max_running=4)) as url:
        monkeypatch.setenv("MUXCLUSTER_URL", url)
        yield url


def _job(folder: Path, count: int, *more: bytes) -> str:
    path = folder / "job.jsonl"
    path.write_bytes(b"\n".join([*(line_of(f"r{i}") for i in range(count)), *more]))
    return str(path)


def _ids(path: Path) -> list[str]:
    return sorted(json.loads(line)["custom_id"] for line in path.read_text().splitlines())


def _json(capsys, *arguments: str) -> Any:
    code, out, err = call(capsys, "batch", *arguments, "--json")
    assert code == 0, err
    return json.loads(out)


def test_from_job_to_answers(capsys, server, tmp_path, says) -> None:
    says("hello")
    code, out, err = call(capsys, "batch", "submit", _job(tmp_path, 30, b"{not json"))
    assert (code, err) == (0, "")
    batch_id = out.strip()
    assert wait_until(lambda: _json(capsys, "status", batch_id)["status"] == "completed")
    code, out, _ = call(capsys, "batch", "status", batch_id)
    assert out == f"{batch_id}: completed, 31 of 31 lines, 1 of them without an answer\n"
    output = tmp_path / "out.jsonl"
    code, out, err = call(capsys, "batch", "results", batch_id, "-o", str(output))
    assert (code, err) == (0, "")
    assert out.startswith(f"30 answers in {output}\n1 lines without one in ")
    assert _ids(output) == sorted(f"r{i}" for i in range(30))
    assert "line 31: " in (tmp_path / "out.errors.jsonl").read_text()
    assert not list(tmp_path.glob("*.part"))


def test_waiting_brings_the_answers(capsys, server, tmp_path, says) -> None:
    says("hello")
    output = tmp_path / "out.jsonl"
    arguments = ("submit", _job(tmp_path, 20), "--window", "2h", "-o", str(output), "--json")
    code, out, err = call(capsys, "batch", *arguments)
    assert code == 0, err
    batch = json.loads(out)
    assert (batch["status"], batch["completion_window"]) == ("completed", "2h")
    assert _ids(output) == sorted(f"r{i}" for i in range(20))
    assert not (tmp_path / "out.errors.jsonl").exists()


def test_a_large_file_arrives_whole(capsys, server, tmp_path, says) -> None:
    """It is sent in pieces."""
    says("hello")
    body = {"model": "tiny", "prompt": "x" * 3_000_000}
    file = _job(tmp_path, 1, line_of("long", body=body), line_of("last"))
    output = tmp_path / "out.jsonl"
    assert call(capsys, "batch", "submit", file, "-o", str(output))[0] == 0
    assert _ids(output) == ["last", "r0"]
    assert _ids(tmp_path / "out.errors.jsonl") == ["long"]
    kept = _json(capsys, "status")[0]["input_file_id"]
    BatchServer(server, None).download(kept, tmp_path / "again.jsonl")
    assert (tmp_path / "again.jsonl").read_bytes() == Path(file).read_bytes()


def test_chat_lines_need_no_option(capsys, server, tmp_path, says) -> None:
    says("hello")
    body = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
    file = tmp_path / "chat.jsonl"
    file.write_bytes(b"\n" + line_of("a", url="/v1/chat/completions", body=body))
    output = tmp_path / "out.jsonl"
    assert call(capsys, "batch", "submit", str(file), "-o", str(output))[0] == 0
    assert _ids(output) == ["a"]


def test_cancelled_while_it_runs(capsys, server, tmp_path, backend, says) -> None:
    says("hello")
    backend.most_deltas = 1
    batch_id = _json(capsys, "submit", _job(tmp_path, 10))["id"]
    assert wait_until(lambda: len(backend.requests) == 4)
    output = tmp_path / "out.jsonl"
    code, out, err = call(capsys, "batch", "results", batch_id, "-o", str(output))
    assert (code, out) == (1, "")
    # what is left follows, where a token was seen
    assert err.startswith(f"muxcluster: no results yet: {batch_id}: in_progress, 0 of 10 lines")
    assert "cancelling" in call(capsys, "batch", "cancel", batch_id)[1]
    assert wait_until(lambda: _json(capsys, "status", batch_id)["status"] == "cancelled")
    assert len(backend.aborted) == 4
    code, out, _ = call(capsys, "batch", "results", batch_id, "-o", str(output))
    assert (code, out.splitlines()[0]) == (0, f"0 answers in {output}")
    assert output.read_bytes() == b""
    assert _ids(tmp_path / "out.errors.jsonl") == sorted(f"r{i}" for i in range(10))
    assert "it is cancelled" in refusal(capsys, "batch", "cancel", batch_id)


def test_a_batch_that_fails_is_exit_code_1(capsys, server, tmp_path, says) -> None:
    job = tmp_path / "job.jsonl"
    job.write_bytes(line_of("a", body={"model": "gone", "prompt": "x"}))
    code, out, _ = call(capsys, "batch", "submit", str(job), "--wait")
    assert code == 1
    assert "failed, 1 of 1 lines" in out
    assert "no line of the input file is a request that can run" in out


def test_the_newest_are_listed(capsys, server, tmp_path, says, monkeypatch) -> None:
    says("hello")
    monkeypatch.setenv("COLUMNS", "200")
    assert call(capsys, "batch", "status")[1] == "no batches\n"
    made = [_json(capsys, "submit", _job(tmp_path, 2), "--wait")["id"] for _ in range(3)]
    assert [each["id"] for each in _json(capsys, "status", "--count", "2")] == made[:0:-1]
    _, out, _ = call(capsys, "batch", "status")
    assert [out.index(each) for each in reversed(made)] == sorted(map(out.index, made))
    assert out.count("completed") == 3


def test_openais_variables_are_read(capsys, batch_app, tmp_path, says, monkeypatch) -> None:
    says("hello")
    with running_server(batch_app(ApiSettings(api_key="one"))) as url:
        monkeypatch.setenv("OPENAI_BASE_URL", f"{url}/v1/")
        assert "key" in refusal(capsys, "batch", "status")
        monkeypatch.setenv("OPENAI_API_KEY", "one")
        assert _json(capsys, "status") == []
        refusal(capsys, "batch", "status", "--api-key", "two")


def test_refusals(capsys, server, tmp_path) -> None:
    job, output = _job(tmp_path, 1), tmp_path / "out.jsonl"
    said = refusal(capsys, "batch", "status", "batch_none")
    assert said.startswith(f"muxcluster: {server}: ")
    assert "--window: completion_window: expected" in refusal(
        capsys, "batch", "submit", job, "--window", "soon"
    )
    gone = str(tmp_path / "gone.jsonl")
    assert "gone.jsonl: cannot be read" in refusal(capsys, "batch", "submit", gone)
    empty = tmp_path / "empty.jsonl"
    empty.write_text("\n{}\n")
    assert "no line of it is a request" in refusal(capsys, "batch", "submit", str(empty))
    assert "--url: 'ftp://x'" in refusal(capsys, "batch", "status", "--url", "ftp://x")
    output.write_text("mine")
    for arguments in (("submit", job), ("results", "batch_none")):
        said = refusal(capsys, "batch", *arguments, "-o", str(output))
        assert "out.jsonl: is there already" in said
    assert output.read_text() == "mine"


def test_no_server(capsys) -> None:
    code, out, err = call(capsys, "batch", "status", "--url", "http://127.0.0.1:1")
    assert (code, out) == (1, "")
    assert err.startswith("muxcluster: no server answers at http://127.0.0.1:1")
    assert err.count("\n") == 1


class _BreaksOff(BaseHTTPRequestHandler):
    """Promises more of a file than it sends."""

    def do_GET(self) -> None:
        card = {
            "id": "b",
            "status": "completed",
            "output_file_id": "f",
            "error_file_id": None,
            "request_counts": {"total": 2, "completed": 2, "failed": 0},
        }
        is_file = self.path.endswith("/content")
        data = b'{"half": ' if is_file else json.dumps(card).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data) + 100 * is_file))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        pass


def test_half_a_file_is_no_file(capsys, tmp_path) -> None:
    with HTTPServer(("127.0.0.1", 0), _BreaksOff) as http_server:
        thread = threading.Thread(target=http_server.serve_forever, args=(0.01,))
        thread.start()
        url = f"http://127.0.0.1:{http_server.server_port}"
        output = tmp_path / "out.jsonl"
        code, out, err = call(capsys, "batch", "results", "b", "-o", str(output), "--url", url)
        http_server.shutdown()
        thread.join()
    assert (code, out) == (1, "")
    assert f"{url} broke off in the middle of a file" in err
    assert list(tmp_path.iterdir()) == []


Answers = list[Mapping[str, Any] | Exception]


def _seen(monkeypatch, answers: Answers, *streams: Answers) -> Callable[[], int]:
    """Lets the server answer so, and stream so, then refuse streams; how many answers are left."""
    later = iter(streams)

    def next_of(some: Answers) -> Mapping[str, Any]:
        answer = some.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def events(self: BatchServer, batch_id: str) -> Iterator[Mapping[str, Any]]:
        stream = next(later, [ConfigError("http://x", "", "no such route")])
        while stream:
            yield next_of(stream)

    monkeypatch.setattr(BatchServer, "batch", lambda self, batch_id: next_of(answers))
    monkeypatch.setattr(BatchServer, "events", events)
    return answers.__len__


def test_waiting_outlives_a_restart_of_the_server(monkeypatch) -> None:
    counts = {"total": 9, "completed": 3, "failed": 0}
    runs = {"id": "b", "status": "in_progress", "request_counts": counts, "metadata": None}
    ended = {**runs, "status": "expired"}
    gone = Unavailable("gone")
    num_left = _seen(monkeypatch, [runs, gone, gone, runs, ended, gone])
    server, console = BatchServer("http://x", None), Console(quiet=True)
    assert waiting.wait_for(server, "b", console) == ended
    assert num_left() == 1
    monkeypatch.setattr(following, "PATIENCE_S", -1.0)
    with pytest.raises(Unavailable, match="gone"):
        waiting.wait_for(server, "b", console)


def _card(status: str, completed: int) -> Mapping[str, Any]:
    counts = {"total": 9, "completed": completed, "failed": 0}
    return {"id": "b", "status": status, "request_counts": counts, "metadata": None}


def test_events_are_followed_where_they_are_offered(monkeypatch) -> None:
    """Asked once a connection: at the start, and after a stream that broke off."""
    runs = [_card("in_progress", count) for count in range(6)]
    ended = _card("completed", 9)
    gone = Unavailable("gone")
    num_left = _seen(
        monkeypatch, [runs[0], gone, runs[3], runs[5]], [*runs[1:3], gone], [runs[4]], [ended]
    )
    told = list(following.followed(BatchServer("http://x", None), "b"))
    assert told == [*runs[:3], gone, gone, *runs[3:], ended]
    assert num_left() == 0


def test_a_stream_without_a_first_event_is_not_asked_for_again(monkeypatch) -> None:
    """Some proxies hold events back."""
    runs, ended = _card("in_progress", 1), _card("completed", 9)
    held_back = Unavailable("timed out")
    num_left = _seen(monkeypatch, [runs, runs, ended], [held_back], [ended])
    told = list(following.followed(BatchServer("http://x", None), "b"))
    assert told == [runs, held_back, runs, ended]
    assert num_left() == 0


def test_following_prints_a_line_a_change(capsys, server, tmp_path, backend, says) -> None:
    says("hello")
    batch_id = call(capsys, "batch", "submit", _job(tmp_path, 5), "--expires-after", "2h")[
        1
    ].strip()
    code, out, err = call(capsys, "batch", "status", batch_id, "--follow")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[-1] == f"{batch_id}: completed, 5 of 5 lines"
    assert len(set(lines)) == len(lines)
    code, out, _ = call(capsys, "batch", "status", batch_id, "--follow", "--json")
    assert json.loads(out)["status"] == "completed"
    assert "--follow needs" in refusal(capsys, "batch", "status", "--follow")
    file = httpx.get(f"{server}/v1/files/{_json(capsys, 'status', batch_id)['output_file_id']}")
    assert file.json()["expires_at"] == file.json()["created_at"] + 7200


def test_waiting_for_a_batch_of_an_earlier_command(capsys, server, tmp_path, says) -> None:
    says("hello")
    batch_id = call(capsys, "batch", "submit", _job(tmp_path, 5))[1].strip()
    output = tmp_path / "out.jsonl"
    code, out, err = call(capsys, "batch", "wait", batch_id, "-o", str(output))
    assert (code, err) == (0, "")
    assert out == f"{batch_id}: completed, 5 of 5 lines\n5 answers in {output}\n"
    assert _ids(output) == sorted(f"r{i}" for i in range(5))
    refusal(capsys, "batch", "wait", "batch_none")


FORETOLD: Mapping[str, Any] = {
    "object": "batch.plan",
    "num_lines": 12,
    "num_bad": 1,
    "bad_lines": [{"line": 7, "message": "the line is empty"}],
    "duration_s": 150.0,
    "prompt_tokens": 1000,
    "cached_tokens": 250,
    "output_tokens": 80,
    "models": [
        {
            "model": "tiny",
            "num_lines": 10,
            "num_read": 8,
            "num_known_outputs": 3,
            "prompt_tokens": 1000,
            "cached_tokens": 250,
            "output_tokens": 80,
            "density": 1.5,
            "sharing": 0.3,
            "order": "blend",
            "duration_s": 150.0,
            "units": [
                {
                    "unit": "a-0",
                    "duration_s": 150.0,
                    "use": {
                        "bin_s": 75.0,
                        "compute": [0.5, 0.6],
                        "memory": [0.0, 0.2],
                        "held": [0.1, 0.9],
                    },
                }
            ],
        }
    ],
    "not_predicted": {"gone": 1},
}


def test_a_servers_plan_is_shown_and_its_file_deleted(
    capsys, server, tmp_path, monkeypatch
) -> None:
    job, plot = _job(tmp_path, 3), tmp_path / "job.svg"

    async def predicted(self: FileOrder, job: JobFile) -> Mapping[str, Any]:
        assert len(job.path.read_bytes().splitlines()) == 3
        return FORETOLD

    monkeypatch.setattr(FileOrder, "predict", predicted)
    code, out, err = call(capsys, "batch", "plan", job, "--server", server, "--plot", str(plot))
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "12 lines, 2 min if nothing else runs: 1000 prompt tokens, 25% of them from the prefix "
        "cache, 80 output tokens",
        "model  lines  prompt tokens  cached  output tokens  density  order",
        "tiny      10           1000     25%             80     1.50  blend  2 min",
        "tiny: predicted on 8 of its lines",
        "tiny: most output lengths are not known; a line's limit, or the configured mean, is "
        "taken for them",
        "gone: 1 lines that no unit can run now",
        "1 lines are no requests:",
        "  line 7: the line is empty",
    ]
    assert "tiny on a-0, order blend" in plot.read_text()
    code, out, _ = call(capsys, "batch", "plan", job, "--server", server, "--json")
    assert {**json.loads(out), "input_file_id": None} == {**FORETOLD, "input_file_id": None}
    assert httpx.get(f"{server}/v1/files").json()["data"] == []
    assert _json(capsys, "status") == []
    said = refusal(capsys, "batch", "plan", job, "--server", server, "--order", "dfs")
    assert "--order goes without --server" in said


def test_a_server_without_plans_keeps_no_file(capsys, server, tmp_path) -> None:
    code, out, err = call(capsys, "batch", "plan", _job(tmp_path, 3), "--server", server)
    assert (code, out) == (1, "")
    assert "predicts nothing" in err
    assert httpx.get(f"{server}/v1/files").json()["data"] == []


def test_lifetimes_are_checked_before_anything_is_sent(capsys, server, tmp_path) -> None:
    for text in ("59m", "31d", "soon"):
        said = refusal(capsys, "batch", "submit", _job(tmp_path, 1), "--expires-after", text)
        assert f"--expires-after: expected 1h to 30d, such as 7d, found '{text}'" in said
    assert httpx.get(f"{server}/v1/files").json()["data"] == []


def test_interrupted_the_batch_goes_on(capsys, server, tmp_path, backend, says, monkeypatch):
    says("hello")
    backend.most_deltas = 1

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("muxcluster.cli.batch.submit.wait_for", interrupted)
    code, out, err = call(capsys, "batch", "submit", _job(tmp_path, 3), "--wait")
    assert (code, out) == (130, "")
    batch_id = _json(capsys, "status")[0]["id"]
    assert f"the batch goes on: muxcluster batch status {batch_id}" in err
    assert _json(capsys, "status", batch_id)["status"] in ("validating", "in_progress")


def test_durations() -> None:
    told = [duration_text(seconds) for seconds in (0.4, 99, 150, 5400, 7200)]
    assert told == ["0 s", "99 s", "2 min", "90 min", "2.0 h"]
