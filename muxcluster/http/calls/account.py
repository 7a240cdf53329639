"""The parts of a request's time, from its arrival here to its end."""

from dataclasses import asdict, dataclass

from muxcluster.core.events import Finished


@dataclass(frozen=True, slots=True)
class EngineTime:
    """Seconds of a request in its units and in recoveries between them; the parts are disjoint."""

    queue_s: float = 0.0  # until its first launch
    prefill_s: float = 0.0  # from there to its first token
    decode_s: float = 0.0  # from there on
    preempted_s: float = 0.0  # waiting to be launched again
    restore_s: float = 0.0  # recomputing what was lost
    # from the last output of a lost unit to the next submission, and waiting for a first unit
    recovery_s: float = 0.0

    @classmethod
    def of(cls, end: Finished) -> "EngineTime":
        """Return the times that the unit reports."""
        return cls(
            end.queue_s,
            end.prefill_s,
            end.decode_s,
            end.preempted_s,
            end.restore_s,
            end.recovery_s,
        )

    def within(self, total_s: float) -> dict[str, float]:
        """Return all parts, and `framework_s` so that they add up to `total_s`."""
        parts = asdict(self)
        return {**parts, "framework_s": total_s - sum(parts.values()), "total_s": total_s}
