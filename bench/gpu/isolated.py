"""Parts of a bench in a process of their own: `SCRIPT NAME,... FILE OPTIONS-as-JSON`.

A part that hangs, runs out of memory or leaves the CUDA context unusable costs itself alone.
"""

import json
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

import torch

from bench.gpu.ceilings import Ceilings
from bench.gpu.children import run_child
from bench.gpu.clock import Clock
from bench.gpu.run import Run

_LEAST_S = 5.0
"""What a process needs to end well; a part with less time than that is not started."""


@dataclass(frozen=True, slots=True)
class Group:
    """Parts that share a process, and how long they may take."""

    names: tuple[str, ...]
    seconds: float


@dataclass(slots=True)
class Found:
    """What all parts kept, and why some failed, by their names."""

    checks: list[dict[str, Any]] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)
    samples: dict[str, Any] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)

    @property
    def wrong(self) -> list[dict[str, Any]]:
        """Checks that did not hold."""
        return [check for check in self.checks if not check["ok"]]


def run_group(script: Path, group: Group, shared: Mapping[str, Any], ends_at: float) -> Found:
    """What the group's process wrote down, also where it failed in the end.

    Its standard output is printed. ends_at: by `time.monotonic`, whatever the group may take.
    """
    seconds = min(group.seconds, ends_at - monotonic())
    name = " ".join(group.names)
    if seconds < _LEAST_S:
        return Found(failures={name: "no time left"})
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "record.json"
        given = json.dumps({**shared, "seconds": seconds - _LEAST_S})
        ended = run_child((str(script), ",".join(group.names), str(path), given), seconds)
        print(ended.output, end="", flush=True)
        kept = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return Found(**kept, failures={name: ended.failure} if ended.failure else {})


def gathered(parts: Sequence[Found]) -> Found:
    """All of them as one."""
    whole = Found()
    for part in parts:
        whole.checks += part.checks
        whole.rows += part.rows
        whole.samples |= part.samples
        whole.failures |= part.failures
    return whole


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
    has_failed = False
    for name in names.split(","):
        try:
            parts[name](run)
        except Exception:  # noqa: BLE001 - one part must not cost the others
            print(f"{name}:", file=sys.stderr)
            traceback.print_exc()
            has_failed = True
    return 1 if has_failed else 0
