"""Progress of units that start, as lines."""

from collections.abc import Mapping
from typing import Any

from rich.console import Console


class ProgressPrinter:
    """Prints what changed since it was called last."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._known: dict[str, str] = {}
        self._failures: set[str] = set()

    def __call__(self, progress: Mapping[str, Any]) -> None:
        phases = {name: phase for name, phase, _ in progress["units"]}
        for name in self._known.keys() - phases.keys():
            self._console.print(f"  {name}: gone")
        for name, phase in phases.items():
            if self._known.get(name) != phase:
                self._console.print(f"  {name}: {phase}")
        problems = {*progress["failures"], *filter(None, [progress["edge"]])}
        for text in sorted(problems - self._failures):
            self._console.print(f"  {text}", style="red")
        self._known, self._failures = phases, problems
