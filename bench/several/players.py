"""Engines in processes of their own that play the same requests by one clock."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Any

from bench.several.asks import Answer, Ask

_FOLDER = Path(__file__).resolve().parent
_LEAD_S = 1.0  # from the message to the start


class Engine:
    """One process: a line of JSON with its models, then one a play; it answers each with a line."""

    def __init__(self, script: str, python: str, task: Mapping[str, Any]) -> None:
        """Start it; `wait` returns when its models are loaded. script: of this folder."""
        environment = {name: os.environ[name] for name in os.environ if name != "OMP_NUM_THREADS"}
        self._process = subprocess.Popen(
            (python, str(_FOLDER / script)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        self.say(task)

    def say(self, message: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{json.dumps(message)}\n")
        self._process.stdin.flush()

    def wait(self) -> Any:
        """Return its next answer. Raises RuntimeError if it has ended."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"an engine ended with status {self._process.wait()}")
        return json.loads(line)

    def close(self) -> None:
        """Let it end; kill it if that takes long."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Side:
    """One way to serve all models: engines that each hold some of them."""

    def __init__(self, name: str, tasks: Sequence[tuple[str, str, Mapping[str, Any]]]) -> None:
        """tasks: script, Python and first message of each engine, whose `models` it holds."""
        self.name = name
        self._models = [set(task["models"]) for _, _, task in tasks]
        self._engines = [Engine(*task) for task in tasks]

    def __enter__(self) -> "Side":
        try:
            for engine in self._engines:
                engine.wait()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for engine in self._engines:
            engine.close()

    def play(self, asks: Sequence[Ask]) -> list[Answer]:
        """Have all requests answered; return the answers, in their order."""
        start_s = time.monotonic() + _LEAD_S
        shares = [
            [number for number, ask in enumerate(asks) if ask.model in models]
            for models in self._models
        ]
        for engine, share in zip(self._engines, shares, strict=True):
            rows = [astuple(asks[number]) for number in share]
            engine.say({"start_s": start_s, "asks": rows})
        found: dict[int, Answer] = {}
        for engine, share in zip(self._engines, shares, strict=True):
            for number, row in zip(share, engine.wait(), strict=True):
                found[number] = Answer(*row)
        return [found[number] for number in range(len(asks))]


def in_turn(
    sides: Sequence[Side], number: int, asks: Sequence[Ask]
) -> Iterator[tuple[str, list[Answer]]]:
    """Have each side answer the requests of a round; yield its name and answers.

    number: of the round. Each side goes first in every so many rounds.
    """
    turn = number % len(sides)
    for side in (*sides[turn:], *sides[:turn]):
        yield side.name, side.play(asks)


def one_unit(name: str, config: Path, models: Sequence[str]) -> Side:
    """One unit of all models, as `muxcluster serve` starts it from the file, without HTTP."""
    return Side(
        name, [("unit.py", sys.executable, {"models": list(models), "config": str(config)})]
    )
