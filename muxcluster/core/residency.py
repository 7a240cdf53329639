"""Where the weights of a unit's models are, and the moves that change it."""

from dataclasses import dataclass
from enum import StrEnum

# A woken model that has requests stays for at least so many times the seconds it takes to wake, so
# that at most 1 / (1 + STAY_WAKES) of the time goes into moves. Three 30B models that take turns on
# a GPU had 8.4 % of their requests late with 2, 11.4 with 4 and 9.1 with 1 (simulated, ten times
# the arena's rates, four seeds: bench/planning/parked.py); with enough memory it matters little.
STAY_WAKES = 2.0
# Its interactive requests may go on for so many times its wake seconds after others were promised
# its memory: what is interrupted is recomputed. Thirty models on five GPUs had 99.1 and 99.1 % of
# their requests in time with 0.5 (two seeds), 98.9 and 98.9 with 1, and 98.9 with 0 (simulated, ten
# times the arena's rates: bench/residency.py); longer ones are worse.
DRAIN_WAKES = 0.5


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


class WeightOrder(StrEnum):
    """What an operator asks of a model's weights; the last order holds."""

    PARK = "park"  # give its memory back; its next request wakes it, nothing else does
    HOLD = "hold"  # as PARK, and wake it for no request before WAKE or PIN
    WAKE = "wake"  # bring it to the devices, and end a HOLD; then it is a model like any other
    PIN = "pin"  # bring it to the devices, and never park it
    UNPIN = "unpin"  # end a PIN
    # not an operator's: a request was refused that will come again. As WAKE, but a HOLD goes on
    EXPECT = "expect"
