"""Seconds of prefill and decode jobs: one cost model for planner, scheduler and simulator."""

from placement.cost.choice import cost_for
from placement.cost.interference import slowdown
from placement.cost.measured import MeasuredCost
from placement.cost.muxserve import read_muxserve
from placement.cost.profile import Cell, Pair, PairedJob, Profile, ProfiledModel
from placement.cost.protocol import Cost
from placement.cost.roofline import Roofline
from placement.cost.tuning import Tuning

__all__ = [
    "Cell",
    "Cost",
    "MeasuredCost",
    "Pair",
    "PairedJob",
    "Profile",
    "ProfiledModel",
    "Roofline",
    "Tuning",
    "cost_for",
    "read_muxserve",
    "slowdown",
]
