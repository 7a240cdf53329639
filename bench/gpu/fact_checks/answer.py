"""Result of a check of bench/gpu/facts.py."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of a check."""

    verdict: str  # yes, no or measured
    text: str  # one or a few plain sentences
    numbers: dict[str, Any] = field(default_factory=dict)  # by name


def attempt(name: str, call: Callable[[], str]) -> str:
    """`name: what call says`, or the error's own text."""
    try:
        said = call()
    except Exception as failure:  # noqa: BLE001 - the error is the finding
        said = f"failed: {type(failure).__name__}: {' '.join(str(failure).split())[:300]}"
    return f"{name}: {said}"


def last_answer(output: str, failure: str) -> dict[str, Any]:
    """The last answer among the lines that a check printed, also where it failed afterwards.

    failure: why its process did not end well, or empty.
    """
    failure = " ".join(failure.split())[-1000:]
    lines = output.rpartition("\n")[0].splitlines()  # without one that it died in
    if not lines:
        return {"verdict": "failed", "text": failure, "numbers": {}}
    answer: dict[str, Any] = json.loads(lines[-1])
    if failure:
        answer["text"] = f"{answer['text']}. Then it failed: {failure}"
    return answer
