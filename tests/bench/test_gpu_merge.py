"""bench/gpu/merge.py: several tries of a call become one record, and no sample is lost."""

import json
from pathlib import Path
from typing import Any

import pytest

from bench.gpu.merge import Refused, main, merged
from bench.gpu.running.found import FAILED, NO_TIME, OK, Found, Part

SETTING = {"bench": "engine", "dry": False, "card": "H100", "quick": False, "seed": 0}
NAMES = ("equal", "decode.8b", "serve.8b.muxcluster")


def part(name: str, verdict: str, value: float, run: int = 0) -> Part:
    row = {"case": name, "tokens_per_s": value}
    return Part(name, verdict, 1.0, "", run, rows=(row,), samples={f"{name} s": [value]})


def record(starts: list[str], *parts: Part, **others: Any) -> dict[str, Any]:
    """As a script writes it, of runs that began at `starts`."""
    found = Found({each.name: each for each in parts})
    ended = [name for name, each in found.parts.items() if each.has_ended]
    missing = [name for name in NAMES if name not in ended]
    runs = [{"command": "engine.py", "started": each, "samples": {}} for each in starts]
    return {
        "claims": [],
        "command": "engine.py",
        "commit": "c",
        "setting": SETTING,
        "runs": runs,
        "finished": not missing,
        "missing": missing,
        "card": {"name": "H100"},
        **found.as_record(),
        "samples": {"copy": [3.0], **found.samples},
        **others,
    }


def test_parts_of_several_tries_are_put_together() -> None:
    first = record(["1"], part("equal", OK, 1), part("decode.8b", FAILED, 2))
    second = record(["2"], part("decode.8b", OK, 3), part("serve.8b.muxcluster", NO_TIME, 4))
    whole = merged([first, second])
    assert {name: each["verdict"] for name, each in whole["parts"].items()} == {
        "equal": OK,
        "decode.8b": OK,
        "serve.8b.muxcluster": NO_TIME,
    }
    assert [each["run"] for each in whole["parts"].values()] == [0, 1, 1]
    assert [run["started"] for run in whole["runs"]] == ["1", "2"]
    assert whole["samples"]["decode.8b s"] == [3]
    assert whole["samples"]["copy"] == [3.0]
    assert [each["samples"] for each in whole["superseded"]] == [{"decode.8b s": [2]}]
    assert (whole["finished"], whole["missing"]) == (False, ["serve.8b.muxcluster"])
    assert whole["card"] == {"name": "H100"}


def test_a_record_that_went_on_from_another_is_counted_once() -> None:
    first = record(["1"], part("equal", OK, 1))
    second = record(["1", "2"], part("equal", OK, 1), part("decode.8b", OK, 3, run=1))
    whole = merged([first, second])
    assert len(whole["runs"]) == 2
    assert whole["superseded"] == []
    assert merged([whole, second])["superseded"] == []


def test_records_of_several_cards_do_not_go_together() -> None:
    other = record(["2"], setting={**SETTING, "card": "H200"})
    with pytest.raises(Refused, match="H200"):
        merged([record(["1"]), other])


def write(folder: Path, made: dict[str, Any]) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "engine.json").write_text(json.dumps(made))
    return folder


def test_a_better_record_is_replaced_only_by_force(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    everything = [part(name, OK, 1) for name in NAMES]
    good = write(tmp_path / "good", record(["1"], *everything))
    short = write(tmp_path / "short", record(["2"], part("equal", OK, 2)))
    broken = [*everything[:2], part(NAMES[2], FAILED, 0)]
    bad = write(tmp_path / "bad", record(["3"], *broken))
    into = tmp_path / "into"

    def values() -> list[float]:
        rows = json.loads((into / "engine.json").read_text())["rows"]
        return [row["tokens_per_s"] for row in rows]

    assert main([str(good), "--into", str(into)]) == 0
    assert main([str(short), "--into", str(into)]) == 1
    assert "it is finished, the new one lacks decode.8b" in capsys.readouterr().out
    assert main([str(bad), "--into", str(into)]) == 1
    assert "serve.8b.muxcluster are ok" in capsys.readouterr().out
    assert values() == [1, 1, 1]
    # Named first, what is there is added to.
    assert main([str(into), str(short), "--into", str(into)]) == 0
    assert values() == [2, 1, 1]
    assert main([str(short), "--into", str(into), "--force"]) == 0
    assert values() == [2]


def test_dry_records_are_not_taken_for_measured_ones(tmp_path: Path) -> None:
    dry = write(tmp_path / "dry", record(["1"], setting={**SETTING, "dry": True}))
    assert main([str(dry), "--into", str(tmp_path / "into")]) == 1
    assert not (tmp_path / "into" / "engine.json").exists()
    assert main([str(dry), "--into", str(tmp_path / "into"), "--dry"]) == 0
