"""Whose weights are resident: the policies, and the moves that follow from them."""

from muxcluster.scheduling.residency.foresight import Foreseeing
from muxcluster.scheduling.residency.policy import ByDeadline, WakePolicy
from muxcluster.scheduling.residency.rivals import OneAtATime, Static

POLICIES: dict[str, type[WakePolicy]] = {
    "deadline": ByDeadline,
    "foresight": Foreseeing,
    "swap": OneAtATime,
    "static": Static,
}
