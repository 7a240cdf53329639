"""A batch job as stored: its order and its progress."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from muxcluster.core.errors import InvalidValue


class Status(StrEnum):
    """The state of a batch, in OpenAI's words."""

    VALIDATING = "validating"
    FAILED = "failed"
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"
    COMPLETED = "completed"
    EXPIRED = "expired"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"


# states of a batch that has not ended
OPEN = frozenset({Status.VALIDATING, Status.IN_PROGRESS, Status.FINALIZING, Status.CANCELLING})


@dataclass(frozen=True, slots=True)
class Order:
    """A user's order of a batch. owner: of the batch and its files.

    endpoint: the only url of its lines; None: any. window: as given, "24h". deadline_s: end of the
    window, Unix seconds; None: never. results_lifetime_s: how long its result files are kept; None:
    until they are deleted.
    """

    owner: str
    input_file_id: str
    endpoint: str | None
    window: str = ""
    deadline_s: int | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    results_lifetime_s: int | None = None


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

    times: when it entered each status, Unix seconds, and "created". num_completed, num_failed:
    lines in the output and the error file, of num_total. output_bytes, error_bytes: valid lengths
    of these files. problem: why it failed. use: tokens of the answers.
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
        """File of answers with status 200."""
        return f"file-{self.batch_id}-output"

    @property
    def error_file_id(self) -> str:
        """File of the other lines."""
        return f"file-{self.batch_id}-errors"

    @property
    def num_ended(self) -> int:
        """Lines in one of the two files."""
        return self.num_completed + self.num_failed


_SPAN = re.compile(r"([0-9]{1,6})(m|h|d)")
_UNIT_S = {"m": 60, "h": 3600, "d": 86400}
MAX_WINDOW_S = 30 * 86400
# of a file, as in OpenAI's API
MIN_LIFETIME_S, MAX_LIFETIME_S = 3600, 30 * 86400


def window_s(text: str) -> int:
    """Return the seconds of a `completion_window`: minutes, hours or days ("30m", "24h", "7d").

    Raises InvalidValue for anything else, and beyond 30 days.
    """
    seconds = _span_s(text)
    if not 0 < seconds <= MAX_WINDOW_S:
        message = f"completion_window: expected 1m to 30d, such as 24h, found {text!r:.40}"
        raise InvalidValue(message, "completion_window")
    return seconds


def lifetime_s(text: str) -> int:
    """Return the seconds for which a file is kept: "1h" to "30d".

    Raises InvalidValue for anything else.
    """
    seconds = _span_s(text)
    if not MIN_LIFETIME_S <= seconds <= MAX_LIFETIME_S:
        raise InvalidValue(f"expected 1h to 30d, such as 7d, found {text!r:.40}", "expires_after")
    return seconds


def _span_s(text: str) -> int:
    """Return the seconds of minutes, hours or days; 0 for anything else."""
    found = _SPAN.fullmatch(text)
    return int(found[1]) * _UNIT_S[found[2]] if found else 0
