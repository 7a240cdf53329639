"""Policies that choose model, phase and SM share: add a file and a line here."""

from muxcluster.scheduling.lanes.adbs import AdbsLane
from muxcluster.scheduling.lanes.mixed import MixedLane
from muxcluster.scheduling.lanes.round_robin import RoundRobinLane
from muxcluster.scheduling.lanes.temporal import TemporalLane
from muxcluster.scheduling.lanes.view import Lane

LANES: dict[str, type[Lane]] = {
    "adbs": AdbsLane,
    "temporal": TemporalLane,
    "round-robin": RoundRobinLane,
    "mixed": MixedLane,
}
