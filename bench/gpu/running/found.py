"""Results of the parts of a bench, from which its record is made and continued."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

OK, WRONG, SKIPPED, FAILED, NO_TIME = "ok", "wrong", "skipped", "failed", "no time"
# Of two tries of a part the one with the higher rank counts; of equal ones the later.
_RANK = {NO_TIME: 0, FAILED: 1, SKIPPED: 2, WRONG: 3, OK: 3}


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a bench, as one run found it."""

    name: str
    # `ok`; `wrong` (it ran, and a check did not hold); `skipped` (what it needs is not there);
    # `failed` (it raised, hung or died); `no time` (not started, or cases left out)
    verdict: str
    seconds: float = 0.0
    reason: str = ""  # why it is not ok, else ""
    run: int = 0  # index into the record's runs
    # checks, rows: one entry a correctness or timed case
    checks: tuple[dict[str, Any], ...] = ()
    rows: tuple[dict[str, Any], ...] = ()
    samples: Mapping[str, Any] = field(default_factory=dict)  # every single measurement, by series

    @property
    def is_done(self) -> bool:
        """Nothing is left to measure, and all of it held."""
        return self.verdict == OK

    @property
    def has_ended(self) -> bool:
        """It had its turn, well or not."""
        return self.verdict != NO_TIME

    def summary(self) -> dict[str, Any]:
        """All but the entries, which stand in lists of their own with the part's name in each."""
        return {
            "verdict": self.verdict,
            "seconds": round(self.seconds, 1),
            "reason": self.reason,
            "run": self.run,
            "series": list(self.samples),
        }


@dataclass(slots=True)
class Found:
    """Results of the parts of a bench."""

    # the try of each part that counts, by name, in order
    parts: dict[str, Part] = field(default_factory=dict)
    superseded: list[Part] = field(default_factory=list)  # the others

    def add(self, other: "Found") -> None:
        """Take in the parts of a later run; what no longer counts is kept as superseded."""
        self.superseded += other.superseded
        for name, part in other.parts.items():
            before = self.parts.get(name)
            if before is None or _RANK[part.verdict] >= _RANK[before.verdict]:
                self.parts[name] = part
            if before is not None:
                aside = part if self.parts[name] is before else before
                if aside.checks or aside.rows or aside.samples:
                    self.superseded.append(aside)

    @property
    def checks(self) -> list[dict[str, Any]]:
        return [check for part in self.parts.values() for check in part.checks]

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [row for part in self.parts.values() for row in part.rows]

    @property
    def samples(self) -> dict[str, Any]:
        return {name: each for part in self.parts.values() for name, each in part.samples.items()}

    @property
    def wrong(self) -> list[dict[str, Any]]:
        """Checks that did not hold."""
        return [check for check in self.checks if not check["ok"]]

    @property
    def failures(self) -> dict[str, str]:
        """Why parts have no result, or not all of it, by name."""
        bad = (FAILED, NO_TIME)
        return {name: part.reason for name, part in self.parts.items() if part.verdict in bad}

    def as_record(self) -> dict[str, Any]:
        """As a record holds it; samples apart, which a record has at its end."""
        return {
            "parts": {name: part.summary() for name, part in self.parts.items()},
            "rows": tagged(self.parts.values(), "rows"),
            "checks": tagged(self.parts.values(), "checks"),
            "failures": self.failures,
            "superseded": [
                {
                    "part": part.name,
                    **part.summary(),
                    "rows": list(part.rows),
                    "checks": list(part.checks),
                    "samples": dict(part.samples),
                }
                for part in self.superseded
            ],
        }


def tagged(parts: Iterable[Part], kind: str) -> list[dict[str, Any]]:
    """The `kind` ("rows" or "checks") of all parts, each entry with its part's name."""
    return [{**entry, "part": part.name} for part in parts for entry in getattr(part, kind)]


def from_record(record: Mapping[str, Any]) -> Found:
    """What `as_record` and the record's samples say. Raises KeyError where it is no such record."""
    found = Found()
    for name, summary in record["parts"].items():
        samples = {series: record["samples"][series] for series in summary["series"]}
        entries = {kind: _of_part(record[kind], name) for kind in ("checks", "rows")}
        found.parts[name] = _part(name, summary, samples=samples, **entries)
    for each in record["superseded"]:
        entries = {kind: tuple(each[kind]) for kind in ("checks", "rows")}
        part = _part(each["part"], each, samples=each["samples"], **entries)
        found.superseded.append(part)
    return found


def _part(name: str, summary: Mapping[str, Any], **entries: Any) -> Part:
    kept = {key: summary[key] for key in ("verdict", "seconds", "reason", "run")}
    return Part(name, **kept, **entries)


def _of_part(entries: Iterable[Mapping[str, Any]], name: str) -> tuple[dict[str, Any], ...]:
    return tuple(
        {key: value for key, value in entry.items() if key != "part"}
        for entry in entries
        if entry.get("part") == name
    )


def verdict_of(
    checks: Iterable[Mapping[str, Any]], rows: Iterable[Mapping[str, Any]], failure: str
) -> tuple[str, str]:
    """(verdict, reason) of a part that ended; failure: why it did not end well, else ""."""
    if failure:
        return FAILED, failure
    rows = list(rows)
    wrong = [check for check in checks if not check["ok"]]
    if wrong:
        return WRONG, f"{len(wrong)} checks did not hold"
    late = [row for row in rows if row.get("failure") == NO_TIME_LEFT]
    if late:
        return NO_TIME, f"{NO_TIME_LEFT} for {len(late)} of {len(rows)} cases"
    skipped = [row["skipped"] for row in rows if "skipped" in row]
    if skipped:
        return SKIPPED, str(skipped[0])
    return OK, ""


NO_TIME_LEFT = "no time left"  # What a part or a case says that was not started for want of time
