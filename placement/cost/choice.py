"""Which cost model predicts for a GPU."""

from collections.abc import Sequence

from placement.cost.profile import Profile
from placement.cost.protocol import Cost
from placement.cost.roofline import Roofline
from placement.hardware import Gpu


def cost_for(gpu: Gpu, itemsize: int, profiles: Sequence[Profile] = ()) -> Cost:
    """A cost model of `gpu` in a dtype of `itemsize` bytes."""
    return Roofline(gpu, itemsize)
