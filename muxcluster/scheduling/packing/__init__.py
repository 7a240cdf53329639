"""Policies that choose who is in a job: add a file and a line here."""

from muxcluster.scheduling.packing.additive import AdditivePacking
from muxcluster.scheduling.packing.batch import Packing
from muxcluster.scheduling.packing.hybrid import HybridPacking
from muxcluster.scheduling.packing.priority import FcfsPacking, PriorityPacking
from muxcluster.scheduling.packing.round_robin import RoundRobinPacking

PACKINGS: dict[str, type[Packing]] = {
    "hybrid": HybridPacking,
    "additive": AdditivePacking,
    "priority": PriorityPacking,
    "fcfs": FcfsPacking,
    "round-robin": RoundRobinPacking,
}
