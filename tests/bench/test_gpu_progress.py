"""Records of benches in parts: rewritten after each part, gone on from, and put together."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest

from bench.gpu.running.found import FAILED, NO_TIME, OK, WRONG, Found, Part, from_record, verdict_of
from tests.conftest import ROOT

SCRIPT = """
import sys, time
from pathlib import Path
sys.path.insert(0, {root!r})
from bench.gpu.running.found import OK, Found, Part
from bench.gpu.running.progress import Progress, parts_parser
from bench.harness import Bench, Claim

NAMES = ("first", "second", "third")
bench = Bench(parts_parser("three parts, of which the second waits for a file"))
setting = {{"bench": "three", "dry": True, "card": "none"}}
progress = Progress(bench, NAMES, setting, lambda found, _: [Claim("rows", len(found.rows), "")])
progress.sample(ceiling=[2.0])
for name in progress.left(NAMES):
    while name == "second" and not Path("go").exists():
        time.sleep(0.01)
    row = {{"case": name}}
    progress.add(Found({{name: Part(name, OK, 1.0, rows=(row,), samples={{name: [1.0]}})}}))
sys.exit(progress.publish())
"""


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    """The script of three parts, its record at record.json of `folder`."""
    script = folder / "three.py"
    script.write_text(SCRIPT.format(root=str(ROOT)))
    command = (sys.executable, str(script), "--json", "record.json", *arguments)
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True)


def run(folder: Path, *arguments: str) -> str:
    process = start(folder, *arguments)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    return output


def record_in(folder: Path, name: str = "record.json") -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / name).read_text(encoding="utf-8"))
    return found


def wait_for_parts(path: Path, count: int) -> None:
    """Until the record at `path` has so many parts. A record that is no JSON fails at once."""
    deadline = monotonic() + 300
    while monotonic() < deadline:
        if path.exists() and len(json.loads(path.read_text(encoding="utf-8"))["parts"]) >= count:
            return
        sleep(0.02)
    raise AssertionError("no part ended")


def test_a_run_that_is_killed_loses_only_the_part_that_ran(tmp_path: Path) -> None:
    process = start(tmp_path)
    wait_for_parts(tmp_path / "record.json", 1)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    record = record_in(tmp_path)
    assert not record["finished"]
    assert record["missing"] == ["second", "third"]
    assert record["samples"] == {"ceiling": [2.0], "first": [1.0]}
    assert record["claims"][0]["value"] == 1
    head = {"command", "commit", "changed_files", "machine", "versions", "started", "wall_s"}
    assert head <= record.keys()
    assert len(record["commit"]) == 40

    (tmp_path / "go").touch()
    output = run(tmp_path, "--resume")
    assert "done in an earlier run: first" in output
    assert "part first" not in output
    record = record_in(tmp_path)
    assert record["finished"]
    assert record["missing"] == []
    assert {name: part["run"] for name, part in record["parts"].items()} == {
        "first": 0,
        "second": 1,
        "third": 1,
    }
    assert [row["case"] for row in record["rows"]] == ["first", "second", "third"]
    assert record["samples"].keys() == {"ceiling", "first", "second", "third"}
    # Each run says what it was.
    assert [each["samples"] for each in record["runs"]] == [{"ceiling": [2.0]}] * 2
    assert all(head <= each.keys() for each in record["runs"])


def test_without_resume_a_run_starts_anew(tmp_path: Path) -> None:
    (tmp_path / "go").touch()
    run(tmp_path)
    assert "part first: ok, 1.0 s" in run(tmp_path)
    assert len(record_in(tmp_path)["runs"]) == 1


def test_a_record_of_another_setting_is_put_aside(tmp_path: Path) -> None:
    (tmp_path / "go").touch()
    run(tmp_path)
    assert "part first: ok" in run(tmp_path, "--resume", "--quick")
    assert not record_in(tmp_path, "record.before.json")["quick"]
    assert record_in(tmp_path)["quick"]
    (tmp_path / "record.json").write_text('{"setting": ')
    assert "part first: ok" in run(tmp_path, "--resume")
    assert (tmp_path / "record.before.json").read_text() == '{"setting": '


def test_no_file_to_go_on_from_is_an_error(tmp_path: Path) -> None:
    script = ROOT / "bench" / "gpu" / "facts.py"
    command = (sys.executable, str(script), "--dry", "--resume")
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert done.stderr.strip() == "--resume needs --json FILE, the record to go on from"


@pytest.mark.slow  # test_gpu_lease.py shows it of a whole call
def test_facts_go_on_where_they_were_killed(tmp_path: Path) -> None:
    path = tmp_path / "facts.json"
    command = (sys.executable, str(ROOT / "bench" / "gpu" / "facts.py"), "--dry", "--resume")
    killed = subprocess.Popen((*command, "--json", str(path)), stdout=subprocess.DEVNULL)
    wait_for_parts(path, 1)
    # With SIGTERM its check is ended too, also where this test does not wait for it.
    killed.send_signal(signal.SIGTERM)
    killed.wait(timeout=60)
    record = json.loads(path.read_text(encoding="utf-8"))
    assert not record["finished"]
    assert "versions" in record["parts"]
    done = subprocess.run(
        (*command, "--json", str(path)), capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    record = json.loads(path.read_text(encoding="utf-8"))
    assert record["finished"]
    assert record["parts"]["versions"]["run"] == 0
    assert record["parts"]["ipc"]["run"] == 1


def is_running(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="ascii")
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


@pytest.mark.skipif(sys.platform != "linux", reason="Linux tells a process of its parent's end")
def test_a_part_ends_when_its_script_is_killed(tmp_path: Path) -> None:
    part = (
        "import os, time; from pathlib import Path;"
        "from bench.gpu.running.children import die_with_parent;"
        "die_with_parent(); Path('pid.part').write_text(str(os.getpid()));"
        "Path('pid.part').rename('pid'); time.sleep(600)"
    )
    script = f"from bench.gpu.running.children import run_child; run_child(('-c', {part!r}), 600)"
    process = subprocess.Popen(
        (sys.executable, "-c", script), cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    deadline = monotonic() + 120
    while not (tmp_path / "pid").exists():
        assert monotonic() < deadline
        sleep(0.02)
    pid = int((tmp_path / "pid").read_text())
    process.kill()
    process.wait(timeout=60)
    while is_running(pid):
        assert monotonic() < deadline
        sleep(0.02)


def part(verdict: str, value: int, name: str = "a") -> Part:
    return Part(name, verdict, rows=({"case": "x", "value": value},), samples={"x": [value]})


@pytest.mark.parametrize(
    ("earlier", "later", "counts"),
    [(OK, OK, 2), (OK, FAILED, 1), (FAILED, OK, 2), (WRONG, OK, 2), (NO_TIME, FAILED, 2)],
)
def test_of_two_tries_the_better_counts_and_no_sample_is_lost(
    earlier: str, later: str, counts: int
) -> None:
    found = Found({"a": part(earlier, 1), "b": part(OK, 7, "b")})
    found.add(Found({"a": part(later, 2)}))
    assert [row["value"] for row in found.rows] == [counts, 7]
    assert [each.samples["x"] for each in found.superseded] == [[3 - counts]]
    record = {**found.as_record(), "samples": {"x": [counts]}}
    again = from_record(json.loads(json.dumps(record)))
    assert again.as_record() == found.as_record()


def test_a_part_that_left_cases_out_has_not_ended() -> None:
    late = {"kernel": "a", "case": "b", "failure": "no time left"}
    assert verdict_of([], [{"case": "c"}, late], "") == (NO_TIME, "no time left for 1 of 2 cases")
    assert verdict_of([{"ok": False}], [late], "")[0] == WRONG
    assert verdict_of([{"ok": True}], [{"skipped": "no msgspec"}], "") == ("skipped", "no msgspec")
    assert verdict_of([{"ok": False}], [], "killed") == (FAILED, "killed")
