"""The record of a bench in parts: rewritten after each part, and continued later."""

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.gpu.running.children import end_in_order
from bench.gpu.running.found import OK, WRONG, Found, Part, from_record
from bench.harness import Bench, Claim, make_parser

_SHOWN_CHARACTERS = 200  # Of a reason, in the line of a part


def parts_parser(description: str | None) -> argparse.ArgumentParser:
    """The options of every bench that runs in parts; a bench may add its own."""
    parser = make_parser(description)
    parser.add_argument(
        "--resume",
        action="store_true",
        help="go on from the record at --json: parts that are there and ok do not run again",
    )
    parser.add_argument(
        "--budget", type=float, metavar="S", help="end within so many seconds, whatever is left"
    )
    return parser


class Progress:
    """What all runs of a bench have found so far, and its record.

    about: further entries of the record, to be set before `add`. The record says `finished` once
    every part of the bench in this mode has had its turn, and names those that are `missing`.
    `runs` says of each run what a record says at its top of the last one; a part's `run` is an
    index into it.
    """

    def __init__(
        self,
        bench: Bench,
        names: Sequence[str],
        setting: dict[str, Any],
        claims: Callable[[Found, Mapping[str, Any]], list[Claim]],
    ) -> None:
        """names: of all parts in this mode. setting: "bench", "dry", "card" and whatever else a
        record must agree in to be gone on from. claims: what is said in public of what there is
        so far, given the setting."""
        self.about: dict[str, Any] = {}
        self.found = Found()
        self.earlier: dict[str, Any] = {}
        self._bench = bench
        self._names = tuple(names)
        self.setting: dict[str, Any] = {
            "quick": bench.options.quick,
            "seed": bench.options.seed,
            **setting,
        }
        self._claims = claims
        self.runs: list[dict[str, Any]] = []
        self._measured: dict[str, Any] = {}
        if bench.options.resume:
            self._resume()
        end_in_order()

    def left(self, wanted: Sequence[str]) -> list[str]:
        """Those of `wanted` that have not been measured yet, or were not ok."""
        parts = self.found.parts
        done = [name for name in wanted if name in parts and parts[name].is_done]
        if done:
            print(f"done in an earlier run: {' '.join(done)}", flush=True)
        return [name for name in wanted if name not in done]

    def sample(self, **series: Sequence[float]) -> None:
        """Keep measurements of this run that belong to no part, such as its ceilings; they stand
        in its entry of `runs` too."""
        self._measured |= series

    def add(self, found: Found) -> None:
        """Take in what parts of this run found, say how they ended, rewrite the record."""
        run = len(self.runs)
        parts = {name: replace(part, run=run) for name, part in found.parts.items()}
        self.found.add(Found(parts))
        for part in parts.values():
            print(part_line(part), flush=True)
        self._bench.save(self._claims(self.found, self.setting), self._samples(), **self._results())

    def publish(self) -> int:
        """Print what went wrong and the claims, write the record; 1 where anything went wrong."""
        for check in self.found.wrong:
            case = " ".join(str(check[key]) for key in ("kernel", "case") if key in check)
            print(f"WRONG {case}: {check.get('failure', check.get('error'))}")
        for name, failure in self.found.failures.items():
            print(f"FAILED {name}: {failure}")
        self._bench.publish(
            self._claims(self.found, self.setting), self._samples(), **self._results()
        )
        return 1 if self.found.wrong or self.found.failures else 0

    def _results(self) -> dict[str, Any]:
        parts = self.found.parts
        missing = [name for name in self._names if name not in parts or not parts[name].has_ended]
        run = {**self._bench.provenance(), "samples": self._measured}
        return {
            "finished": not missing,
            "missing": missing,
            "setting": self.setting,
            "runs": [*self.runs, run],
            **self.about,
            **self.found.as_record(),
        }

    def _samples(self) -> dict[str, Any]:
        return {**self._measured, **self.found.samples}

    def _resume(self) -> None:
        """Take over the record at `--json`; where it is of another setting, put it aside."""
        asked = self._bench.options.json
        if asked in (None, "-"):
            raise SystemExit("--resume needs --json FILE, the record to go on from")
        path = Path(asked)
        if not path.exists():
            return
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            if record["setting"] != self.setting:
                raise ValueError(f"it is of {record['setting']}, this run of {self.setting}")
            self.found, self.runs = from_record(record), record["runs"]
            self.earlier = record
        except (ValueError, KeyError, TypeError) as error:
            aside = path.with_name(f"{path.stem}.before{path.suffix}")
            path.replace(aside)
            print(f"not gone on from {path}, now {aside.name}: {error}", file=sys.stderr)


def part_line(part: Part) -> str:
    """How a part ended, in a line that bench/gpu/lease.py shows."""
    line = f"part {part.name}: {part.verdict}, {part.seconds:.1f} s"
    reason = " ".join(part.reason.split())
    if part.verdict not in (OK, WRONG) and len(reason) > _SHOWN_CHARACTERS:
        # The end of a child's messages names its error.
        reason = f"... {reason[-_SHOWN_CHARACTERS:]}"
    return f"{line}: {reason}" if reason else line
