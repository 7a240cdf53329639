"""What a check of bench/gpu/facts.py found out."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Answer:
    """verdict: yes, no or measured. text: one or a few plain sentences. numbers: by name."""

    verdict: str
    text: str
    numbers: dict[str, Any] = field(default_factory=dict)


def attempt(name: str, call: Callable[[], str]) -> str:
    """`name: what call says`, or the error's own text."""
    try:
        said = call()
    except Exception as failure:  # noqa: BLE001 - the error is the finding
        said = f"failed: {type(failure).__name__}: {' '.join(str(failure).split())[:300]}"
    return f"{name}: {said}"
