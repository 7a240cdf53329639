"""Policies that choose who is in a job: add a file and a line here."""

from muxcluster.scheduling.packing.batch import Packing
from muxcluster.scheduling.packing.fcfs import FcfsPacking

PACKINGS: dict[str, type[Packing]] = {"fcfs": FcfsPacking}
