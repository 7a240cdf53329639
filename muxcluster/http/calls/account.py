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
    waking_s: float = 0.0  # until its model's weights were resident
    mask_wait_s: float = 0.0  # in decode jobs, for what its constraint allows

    @classmethod
    def of(cls, end: Finished) -> "EngineTime":
        """Return the times that the unit reports, with what it waited for its model's weights taken
        out of the waits: of the first one as far as it goes, then of later ones."""
        waking_at_first = min(end.queue_s, end.waking_s)
        waking_again = min(end.preempted_s, end.waking_s - waking_at_first)
        return cls(
            end.queue_s - waking_at_first,
            end.prefill_s,
            end.decode_s - end.mask_wait_s,
            end.preempted_s - waking_again,
            end.restore_s,
            end.recovery_s,
            waking_at_first + waking_again,
            end.mask_wait_s,
        )

    def within(self, total_s: float) -> dict[str, float]:
        """Return all parts, and `framework_s` so that they add up to `total_s`."""
        parts = asdict(self)
        return {**parts, "framework_s": total_s - sum(parts.values()), "total_s": total_s}
