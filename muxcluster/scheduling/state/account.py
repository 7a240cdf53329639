"""Where a request's time went: it is in one stage at a time, so the parts add up to the whole."""

from enum import StrEnum


class Stage(StrEnum):
    """What a request does or waits for.

    queue: for its first launch. prefill: prompt, until the first token; turns waited for between
    chunks too. decode: from token to token. preempted: to be launched again after it gave up its
    memory or its job failed. restore: recomputes keys and values that were lost, until its next
    token.
    """

    QUEUE = "queue"
    PREFILL = "prefill"
    DECODE = "decode"
    PREEMPTED = "preempted"
    RESTORE = "restore"


_WAITING = (Stage.QUEUE, Stage.PREEMPTED)
_NOTHING = dict.fromkeys(Stage, 0.0)


class TimeAccount:
    """Seconds by stage on the scheduler's clock; they sum to the time since the start.

    has_output: the request comes from a lost unit with output, so its prefill is a restore.
    decode_running_s: the part of decode that was spent in running jobs.
    """

    __slots__ = ("_next", "_seconds", "_since_s", "_stage", "decode_running_s")

    def __init__(self, now: float, *, has_output: bool) -> None:
        self._seconds = _NOTHING.copy()
        self._stage = Stage.QUEUE
        self._since_s = now
        self._next = Stage.RESTORE if has_output else Stage.PREFILL
        self.decode_running_s = 0.0

    @property
    def has_started(self) -> bool:
        """True from the first launch on."""
        return self._stage is not Stage.QUEUE

    def launch(self, now: float) -> None:
        """It is in a job; the waiting before it, if any, is over."""
        if self._stage in _WAITING:
            self._enter(self._next, now)

    def sample(self, now: float) -> None:
        """All tokens it has are computed and it got one more: it decodes."""
        self._enter(Stage.DECODE, now)

    def set_back(self, now: float, *, keeps_memory: bool) -> None:
        """Its job failed, or it lost its slot: it waits to be launched again."""
        if self._stage not in _WAITING:
            self._next = self._stage
            self._enter(Stage.PREEMPTED, now)
        if self._next is Stage.DECODE and not keeps_memory:
            self._next = Stage.RESTORE

    def close(self, now: float) -> dict[Stage, float]:
        """Seconds by stage at the end."""
        self._enter(self._stage, now)
        return self._seconds

    def _enter(self, stage: Stage, now: float) -> None:
        self._seconds[self._stage] += now - self._since_s
        self._stage, self._since_s = stage, now
