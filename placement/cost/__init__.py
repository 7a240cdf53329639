"""Seconds of prefill and decode jobs: one cost model for planner, scheduler and simulator."""

from placement.cost.choice import cost_for
from placement.cost.interference import slowdown
from placement.cost.muxserve import read_muxserve
from placement.cost.profile import Cell, Profile, ProfiledModel
from placement.cost.protocol import Cost
from placement.cost.roofline import Roofline

__all__ = [
    "Cell",
    "Cost",
    "Profile",
    "ProfiledModel",
    "Roofline",
    "cost_for",
    "read_muxserve",
    "slowdown",
]
