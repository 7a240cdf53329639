"""Where a request's time went, from its arrival here to its end."""

from dataclasses import asdict, dataclass

from muxcluster.core.events import Finished


@dataclass(frozen=True, slots=True)
class EngineTime:
    """Seconds of a request in its units, disjoint, and in recoveries between them.

    queue: until its first launch. prefill: until its first token. decode: from there on.
    preempted: waiting to be launched again. restore: recomputing what was lost. recovery: from the
    last output of a lost unit to the submission to its successor, or waiting for a unit at all.
    """

    queue_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    preempted_s: float = 0.0
    restore_s: float = 0.0
    recovery_s: float = 0.0

    @classmethod
    def of(cls, end: Finished) -> "EngineTime":
        """The unit's own account."""
        return cls(
            end.queue_s,
            end.prefill_s,
            end.decode_s,
            end.preempted_s,
            end.restore_s,
            end.recovery_s,
        )

    def within(self, total_s: float) -> dict[str, float]:
        """All parts and `framework_s`, everything else out of `total_s`: they add up to it."""
        parts = asdict(self)
        return {**parts, "framework_s": total_s - sum(parts.values()), "total_s": total_s}
