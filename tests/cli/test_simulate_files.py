"""What `muxcluster simulate` leaves behind: whole files, and nothing where it is broken off."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

import pytest

from tests.amounts import slow
from tests.cli.calls import call, refusal

SHORT = ("--duration", "8", "--processes", "1", "--systems", "muxserve,round-robin")
UNWRITABLE = "/proc/nothing"
"""Nobody, not even root, makes a file in /proc."""


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="a directory that nobody writes to")
@pytest.mark.parametrize(("option", "ending"), [("--plot", ".svg"), ("--timeline", ".json")])
def test_a_place_that_cannot_be_written_is_refused_before_anything_is_simulated(
    capsys, small, monkeypatch, option, ending
) -> None:
    monkeypatch.setattr("muxcluster.cli.simulate.prepare", None)
    err = refusal(capsys, "simulate", small(), *SHORT, option, UNWRITABLE + ending)
    assert f"{UNWRITABLE}{ending}: cannot be written" in err


def test_a_device_is_written_to_and_stays_one(capsys, small) -> None:
    code, _, err = call(capsys, "simulate", small(), *SHORT, "--timeline", os.devnull)
    assert (code, err) == (0, "")
    assert not Path(os.devnull).is_file()


def test_a_link_stays_and_its_target_changes(capsys, small, tmp_path) -> None:
    link, target = tmp_path / "link.json", tmp_path / "target.json"
    link.symlink_to(target)
    assert call(capsys, "simulate", small(), *SHORT, "--timeline", str(link))[0] == 0
    assert link.is_symlink()
    assert json.loads(target.read_text())["traceEvents"]


def test_the_timeline_is_valid_for_chrome(capsys, small, tmp_path) -> None:
    file = tmp_path / "jobs.json"
    busy = small(rate=30.0)
    assert call(capsys, "simulate", busy, *SHORT, "--timeline", str(file))[0] == 0
    events = json.loads(file.read_text())["traceEvents"]
    jobs = [event for event in events if event["ph"] == "X"]
    assert [job["ts"] for job in jobs] == sorted(job["ts"] for job in jobs)
    named = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
    assert {(job["pid"], job["tid"]) for job in jobs} == named
    tracks = defaultdict(list)
    for job in jobs:
        tracks[job["pid"], job["tid"]].append((job["ts"], job["dur"]))
    assert len(tracks) > 2
    for track in tracks.values():
        for (start, length), (after, _) in zip(track, track[1:], strict=False):
            assert round(1e3 * (start + length)) <= round(1e3 * after), "one job at a time"


@pytest.mark.parametrize("whom", [*slow("all"), "first"])
def test_an_interrupt_ends_all_processes_without_a_word(small, whom) -> None:
    options = ["--duration", "500000", "--systems", "muxserve,temporal"]
    # a test run in the background of a script ignores SIGINT, and so would its children
    heed = "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)"
    run = f"{heed}; from muxcluster.cli.main import main; main(sys.argv[1:])"
    command = [sys.executable, "-c", run, "simulate", small(rate=40.0), *options]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        while len(_group(process.pid, at_work_s=0.5)) < 3:  # itself and two that simulate
            assert process.poll() is None
            time.sleep(0.05)
        (os.killpg if whom == "all" else os.kill)(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=60)
        assert (process.returncode, out, err) == (130, "", "")
        deadline = time.monotonic() + 60
        while _group(process.pid):
            assert time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        for left in _group(process.pid):
            os.kill(left, signal.SIGKILL)


def _group(leader: int, at_work_s: float = 0.0) -> list[int]:
    """Living processes of a session that have computed for so long."""
    ticks = at_work_s * os.sysconf("SC_CLK_TCK")
    found = []
    for place in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = place.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        worked = int(fields[11]) + int(fields[12])
        if int(fields[2]) == leader and fields[0] != "Z" and worked >= ticks:
            found.append(int(place.parent.name))
    return found
