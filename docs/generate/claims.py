"""Claims of the records in words, what they are held against, and what was missed."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from docs.generate.markdown import table
from docs.generate.records import needed, record, with_unit

_SLACK = 1e-9


@dataclass(frozen=True, slots=True)
class Said:
    """What a claim says."""

    name: str
    words: str
    better: Literal["more", "less", ""] = ""  # "": it is held against nothing
    against: str = "goal"  # whose figure the baseline is
    why: str = ""  # where it was missed
    unit: str | None = None  # instead of the record's

    def is_missed(self, value: float, baseline: float | None) -> bool:
        """Tell whether a value is worse than its baseline."""
        if baseline is None or not self.better:
            return False
        if self.better == "more":
            return value < baseline - _SLACK
        return value > baseline + _SLACK


def claims_table(name: str, said: tuple[Said, ...], *, has_others: bool = True) -> str:
    """Return the record's claims, ours beside goal or paper; none where the record is absent.

    has_others: claims without words are listed too, under their names.
    """
    if record(name) is None:
        return f"*No record `{name}.json` is committed yet.*"
    rows = []
    known = {each.name for each in said}
    for each, found in _pairs(name, said):
        if not has_others and each.name not in known:
            continue
        unit = each.unit or found["unit"]
        held = with_unit(found["baseline"], unit)
        against = f"{held} ({each.against})" if held and each.better else ""
        value = with_unit(found["value"], unit)
        missed = each.is_missed(found["value"], found["baseline"])
        verdict = "**missed**" if missed else "met" if against else ""
        rows.append((each.words, f"**{value}**" if not missed else value, against, verdict))
    return table(("", "ours", "held against", ""), rows)


def missed_list(name: str, said: tuple[Said, ...]) -> str:
    """Return a list of what was missed and why; a sentence where nothing was."""
    if record(name) is None:
        return ""
    lines = [
        f"- {each.words}: {with_unit(found['value'], each.unit or found['unit'])}, not "
        f"{with_unit(found['baseline'], each.unit or found['unit'])} ({each.against}). "
        f"{each.why}".rstrip()
        for each, found in _pairs(name, said)
        if each.is_missed(found["value"], found["baseline"])
    ]
    return "\n".join(lines) or "Nothing that is held against a goal or a paper was missed."


def _pairs(name: str, said: tuple[Said, ...]) -> Iterator[tuple[Said, Mapping[str, Any]]]:
    """Yield the record's claims with their words, in the order of `said`; claims without words come
    last, under their names."""
    found = {each["name"]: each for each in needed(name)["claims"]}
    known = {each.name for each in said}
    for each in said:
        if each.name in found:
            yield each, found[each.name]
    for key, value in found.items():
        if key not in known:
            yield Said(key, key.replace("_", " ")), value
