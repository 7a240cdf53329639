"""Where the weights of a unit's models are, and the moves that change it."""

from dataclasses import dataclass
from enum import StrEnum


class Residency(StrEnum):
    """What may become of a model's weights (`models[].residency`)."""

    ALWAYS = "always"  # on the unit's devices for as long as the unit lives
    AUTO = "auto"  # there from the start where there is room; parked when others need it
    ON_DEMAND = "on-demand"  # parked until the first request, and again when others need the room


class WeightState(StrEnum):
    """Where a model's weights are."""

    RESIDENT = "resident"  # on the unit's devices: its jobs can run
    WAKING = "waking"  # on their way there
    PARKING = "parking"  # leaving: its memory is not free yet
    PARKED = "parked"  # in host memory
    COLD = "cold"  # in its files alone


class MoveKind(StrEnum):
    """Direction of a move."""

    WAKE = "wake"
    PARK = "park"


@dataclass(frozen=True, slots=True)
class Move:
    """Weights to bring to the unit's devices, or to give up there; no job of the model runs
    meanwhile."""

    move_id: int
    model: str
    kind: MoveKind
