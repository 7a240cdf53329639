"""Parts of a bench in a process of their own: `SCRIPT NAME,... FILE OPTIONS-as-JSON`.

A part that hangs, runs out of memory or leaves the CUDA context unusable costs itself alone.
"""

import json
import logging
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

import torch

from bench.gpu.running.ceilings import Ceilings
from bench.gpu.running.children import die_with_parent, run_child
from bench.gpu.running.clock import Clock
from bench.gpu.running.found import NO_TIME, NO_TIME_LEFT, Found, Part, verdict_of
from bench.gpu.running.run import Run

_LEAST_S = 5.0  # What a process needs to end well; a part with less time than that is not started
_KEPT_CHARACTERS = 1500  # Of the message of an exception


@dataclass(frozen=True, slots=True)
class Group:
    """Parts that share a process, and how long they may take."""

    names: tuple[str, ...]
    seconds: float
    # with less time than that it is not started, because it would measure nothing
    least_s: float = 0.0


def run_group(script: Path, group: Group, shared: Mapping[str, Any], ends_at: float) -> Found:
    """What the group's process wrote down, also where it failed in the end.

    Its standard output and its messages are printed. ends_at: by `time.monotonic`, whatever the
    group may take.
    """
    seconds = min(group.seconds, ends_at - monotonic())
    if seconds < max(group.least_s, _LEAST_S):
        return Found({name: Part(name, NO_TIME, reason=NO_TIME_LEFT) for name in group.names})
    with tempfile.TemporaryDirectory(prefix="bench-gpu-") as folder:
        path = Path(folder) / "record.json"
        given = json.dumps({**shared, "seconds": seconds - _LEAST_S})
        start_s = monotonic()
        ended = run_child((str(script), ",".join(group.names), str(path), given), seconds)
        took_s = monotonic() - start_s
        print(ended.output, end="", flush=True)
        print(ended.errors, end="", file=sys.stderr, flush=True)
        kept = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return found_in(kept, group.names, ended.failure, took_s)


def found_in(kept: Mapping[str, Any], names: Sequence[str], failure: str, took_s: float) -> Found:
    """The parts `names` of what a process wrote down.

    failure: why the process did not end well, which is the failure of the parts that had not
    ended by then. took_s: all of it.
    """
    found = Found()
    before_s = sum(each["seconds"] for each in kept.get("ended", {}).values())
    for name in names:
        end = kept.get("ended", {}).get(name)
        if end is None:
            end = {"seconds": took_s - before_s, "failure": failure or "it wrote nothing down"}
            before_s = took_s
        checks = _entries(kept, "checks", name)
        rows = _entries(kept, "rows", name)
        series = [key for key, part in kept.get("series", {}).items() if part == name]
        verdict, reason = verdict_of(checks, rows, end["failure"])
        found.parts[name] = Part(
            name=name,
            verdict=verdict,
            # A process of one part: with its start-up and its end.
            seconds=took_s if len(names) == 1 else end["seconds"],
            reason=reason,
            checks=checks,
            rows=rows,
            samples={key: kept["samples"][key] for key in series},
        )
    return found


def _entries(kept: Mapping[str, Any], kind: str, name: str) -> tuple[dict[str, Any], ...]:
    mine = (entry for entry in kept.get(kind, ()) if entry.get("part") == name)
    return tuple({key: value for key, value in entry.items() if key != "part"} for entry in mine)


def run_here(parts: Mapping[str, Callable[[Run], None]]) -> int:
    """In the process of a group: its parts one after the other; 1 where one of them raised."""
    names, path, options = sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3])
    device = torch.device(options["device"])
    torch.manual_seed(options["seed"])
    run = Run(
        device=device,
        clock=Clock(device, options["repeats"]),
        ceilings=Ceilings(**options["ceilings"]),
        tiny=options["tiny"],
        ends_at=monotonic() + options["seconds"],
        path=path,
        given=options.get("given", {}),
    )
    die_with_parent()
    # The engine says there which kernels and partitions it chose, and why.
    logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s")
    has_failed = False
    for name in names.split(","):
        run.part, start_s, failure = name, monotonic(), ""
        try:
            parts[name](run)
        except Exception as error:  # noqa: BLE001 - one part must not cost the others
            print(f"{name}:", file=sys.stderr)
            traceback.print_exc()
            failure = f"{type(error).__name__}: {error}"[-_KEPT_CHARACTERS:]
            has_failed = True
        run.end(monotonic() - start_s, failure)
    return 1 if has_failed else 0
