"""A batch job as it is kept: what was asked for, and how far it is."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from muxcluster.core.errors import InvalidValue


class Status(StrEnum):
    """OpenAI's words for the state of a batch."""

    VALIDATING = "validating"
    FAILED = "failed"
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"
    COMPLETED = "completed"
    EXPIRED = "expired"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"


# states that a batch leaves by itself
OPEN = frozenset({Status.VALIDATING, Status.IN_PROGRESS, Status.FINALIZING, Status.CANCELLING})


@dataclass(frozen=True, slots=True)
class Order:
    """What a user asks for. owner: of the batch and its files.

    endpoint: the only url its lines may have; None: any. window: as given, "24h"; deadline_s:
    when it ends, in Unix seconds; None: never.
    """

    owner: str
    input_file_id: str
    endpoint: str | None
    window: str = ""
    deadline_s: int | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Use:
    """Tokens of answers. cached: prompt tokens that the prefix cache had."""

    prompt: int = 0
    cached: int = 0
    output: int = 0

    def __add__(self, other: "Use") -> "Use":
        return Use(
            self.prompt + other.prompt, self.cached + other.cached, self.output + other.output
        )


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch at one moment.

    times: when it entered each status, Unix seconds; "created" too. num_completed, num_failed:
    lines that ended in the output or the error file, of num_total. output_bytes, error_bytes: of
    these files, what counts. problem: why it failed. use: tokens of the answers in them.
    """

    batch_id: str
    order: Order
    status: Status
    times: Mapping[str, int]
    num_total: int = 0
    num_completed: int = 0
    num_failed: int = 0
    output_bytes: int = 0
    error_bytes: int = 0
    problem: str = ""
    use: Use = Use()

    @property
    def output_file_id(self) -> str:
        """Of answers with status 200."""
        return f"file-{self.batch_id}-output"

    @property
    def error_file_id(self) -> str:
        """Of lines that got no such answer."""
        return f"file-{self.batch_id}-errors"

    @property
    def num_ended(self) -> int:
        """Lines that are in one of the two files."""
        return self.num_completed + self.num_failed


_WINDOW = re.compile(r"([0-9]{1,6})(m|h|d)")
_UNIT_S = {"m": 60, "h": 3600, "d": 86400}
MAX_WINDOW_S = 30 * 86400


def window_s(text: str) -> int:
    """Seconds of a `completion_window`: minutes, hours or days ("30m", "24h", "7d").

    Raises InvalidValue for anything else, and beyond 30 days.
    """
    found = _WINDOW.fullmatch(text)
    seconds = int(found[1]) * _UNIT_S[found[2]] if found else 0
    if not 0 < seconds <= MAX_WINDOW_S:
        message = f"completion_window: expected 1m to 30d, such as 24h, found {text!r:.40}"
        raise InvalidValue(message, "completion_window")
    return seconds
