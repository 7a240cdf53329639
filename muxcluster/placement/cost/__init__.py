"""Seconds of prefill and decode jobs: one cost model for planner, scheduler and simulator."""

from muxcluster.placement.cost.interference import slowdown
from muxcluster.placement.cost.measured import MeasuredCost, cost_for
from muxcluster.placement.cost.muxserve import read_muxserve
from muxcluster.placement.cost.profile import (
    Cell,
    MixedCell,
    Pair,
    PairedJob,
    Profile,
    ProfiledModel,
    Turn,
)
from muxcluster.placement.cost.protocol import Cost
from muxcluster.placement.cost.roofline import Roofline, Tuning

__all__ = [
    "Cell",
    "Cost",
    "MeasuredCost",
    "MixedCell",
    "Pair",
    "PairedJob",
    "Profile",
    "ProfiledModel",
    "Roofline",
    "Tuning",
    "Turn",
    "cost_for",
    "read_muxserve",
    "slowdown",
]
