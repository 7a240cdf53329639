"""Merge the records of several calls on a lent GPU: one record per bench.

Give the folders in the order of the calls. Of a part that was tried several times the better try
counts, of equal ones the later; the others stay in the record as `superseded`, so that no sample
is lost. A record that is there already is not replaced by one with fewer parts ok, unless --force
says so; to add to what is there, name its folder first.

    python bench/gpu/merge.py returned/a returned/b returned/c
"""

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.pop(0)  # the script's folder, whose kernels.py would hide the package
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from bench.gpu import engine, facts, kernels, multiplex, partitions
from bench.gpu.running.found import OK, Found, from_record
from bench.harness import ROOT, Claim, record_text, write_whole

RESULTS = ROOT / "bench" / "results" / "gpu"
CLAIMS: Mapping[str, Callable[[Found, Mapping[str, Any]], list[Claim]]] = {
    "facts": facts.claims_of,
    "kernels": kernels.claims_of,
    "partitions": partitions.claims_of,
    "engine": engine.claims_of,
    "multiplex": multiplex.claims_of,
}
# What a merged record makes anew; all else it has of the last record.
_OWN = (
    *("claims", "parts", "rows", "checks", "failures", "superseded", "samples"),
    *("runs", "finished", "missing"),
)


class Refused(Exception):
    """Records that do not go together, or must not replace what is there."""


def merged(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Of one bench, in the order in which they were made. Raises Refused: of several settings."""
    last = records[-1]
    found, runs = Found(), []
    for record in records:
        if record["setting"] != last["setting"]:
            raise Refused(f"one is of {record['setting']}, another of {last['setting']}")
        # A record that went on from another one holds that one's runs too.
        places = [_place(run, runs) for run in record["runs"]]
        found.add(_new_in(_moved(from_record(record), places), found))
    names = dict.fromkeys((*last["parts"], *last["missing"]))
    missing = [each for each in names if each not in found.parts or not found.parts[each].has_ended]
    claims = CLAIMS[last["setting"]["bench"]](found, last["setting"])
    return {
        "claims": [asdict(claim) for claim in claims],
        **{key: value for key, value in last.items() if key not in _OWN},
        "finished": not missing,
        "missing": missing,
        "runs": runs,
        **found.as_record(),
        "samples": {**_loose(last), **found.samples},
    }


def _place(run: dict[str, Any], runs: list[dict[str, Any]]) -> int:
    """Index of the run among `runs`, to which a new one is added. The start tells runs apart."""
    for index, each in enumerate(runs):
        if (each["started"], each["command"]) == (run["started"], run["command"]):
            return index
    runs.append(run)
    return len(runs) - 1


def _moved(found: Found, places: Sequence[int]) -> Found:
    """With the numbers of runs that they have in the merged record."""
    parts = {name: replace(part, run=places[part.run]) for name, part in found.parts.items()}
    return Found(parts, [replace(part, run=places[part.run]) for part in found.superseded])


def _new_in(found: Found, known: Found) -> Found:
    """Without the tries that `known` has."""
    before = {(part.name, part.run) for part in (*known.parts.values(), *known.superseded)}
    parts = {n: part for n, part in found.parts.items() if (n, part.run) not in before}
    superseded = [part for part in found.superseded if (part.name, part.run) not in before]
    return Found(parts, superseded)


def _loose(record: Mapping[str, Any]) -> dict[str, Any]:
    """Samples that belong to no part."""
    of_parts = {series for part in record["parts"].values() for series in part["series"]}
    return {name: each for name, each in record["samples"].items() if name not in of_parts}


def refusal(new: Mapping[str, Any], there: Mapping[str, Any]) -> str | None:
    """Why the new record must not replace the one that is there; None: it may."""
    if there["finished"] and not new["finished"]:
        return f"it is finished, the new one lacks {' '.join(new['missing'])}"
    before, now = (
        {name for name, part in record["parts"].items() if part["verdict"] == OK}
        for record in (there, new)
    )
    if before - now:
        return f"its parts {' '.join(sorted(before - now))} are ok, and not in the new one"
    return None


def _load(path: Path) -> dict[str, Any]:
    record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return record


def _merge(name: str, options: Any) -> bool:
    """Write the merged record of a bench; False where it is refused, with a line that says why."""
    paths = [folder / f"{name}.json" for folder in options.folders]
    records = [_load(path) for path in paths if path.exists()]
    if not records:
        print(f"{name}: none")
        return True
    target = options.into / f"{name}.json"
    try:
        new = merged(records)
        if new["setting"]["dry"] and not options.dry:
            raise Refused("it is of a dry run (--dry merges it all the same)")
        why = refusal(new, _load(target)) if target.exists() and not options.force else None
        if why is not None:
            raise Refused(f"{target} stays: {why} (--force replaces it)")
    except Refused as error:
        print(f"{name}: REFUSED: {error}")
        return False
    write_whole(target, record_text(new))
    if name == "facts":
        write_whole(options.into / "FACTS.md", facts.markdown(new["rows"]))
    num_ok = sum(part["verdict"] == OK for part in new["parts"].values())
    left = f"; missing: {' '.join(new['missing'])}" if new["missing"] else ""
    print(f"{name}: {len(records)} records, {num_ok} of {len(new['parts'])} parts ok{left}")
    return True


def main(argv: Sequence[str] | None = None) -> int:
    """Merge every bench; 1 where one was refused."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folders", nargs="+", type=Path, metavar="DIR")
    parser.add_argument("--into", type=Path, default=RESULTS, metavar="DIR")
    parser.add_argument("--force", action="store_true", help="replace better records too")
    parser.add_argument("--dry", action="store_true", help="merge records of dry runs")
    options = parser.parse_args(argv)
    options.into.mkdir(parents=True, exist_ok=True)
    num_refused = sum(not _merge(name, options) for name in CLAIMS)
    return 1 if num_refused else 0


if __name__ == "__main__":
    sys.exit(main())
