"""Stored results of a long bench's parts, so that it can be run in pieces."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.harness import source

Row = dict[str, Any]


class Rows:
    """Rows by name, one a line of a file; None keeps them in memory alone."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._rows: dict[str, Row] = {}
        if path is not None and path.exists():
            lines = path.read_text(encoding="utf-8").splitlines()
            self._rows = {row["case"]: row for row in map(json.loads, lines)}

    def __getitem__(self, name: str) -> Row:
        """Raises KeyError for what has not run."""
        return self._rows[name]

    def __contains__(self, name: object) -> bool:
        return name in self._rows

    def run(self, name: str, make: Callable[[], Row]) -> Row:
        """The row of that name; made, with the commit that made it, where there is none."""
        if name not in self._rows:
            row = {"case": name, "commit": source()["commit"], **make()}
            self._rows[name] = row
            if self._path is not None:
                with self._path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row) + "\n")
        return self._rows[name]
