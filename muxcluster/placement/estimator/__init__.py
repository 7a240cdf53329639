"""Estimates of a mesh with models on it: load, latency, memory."""

from muxcluster.placement.estimator.backlog import BacklogEstimate, Backlogged, BatchWork
from muxcluster.placement.estimator.latency import Latency
from muxcluster.placement.estimator.modelcost import BATCHES, ModelCost
from muxcluster.placement.estimator.planned import equal_units, node_of, offers_of
from muxcluster.placement.estimator.queueing import Quantiles
from muxcluster.placement.estimator.shares import Loads, Tenant
from muxcluster.placement.estimator.strain import strain
from muxcluster.placement.estimator.unit import Estimator, Offer, UnitEstimate

__all__ = [
    "BATCHES",
    "BacklogEstimate",
    "Backlogged",
    "BatchWork",
    "Estimator",
    "Latency",
    "Loads",
    "ModelCost",
    "Offer",
    "Quantiles",
    "Tenant",
    "UnitEstimate",
    "equal_units",
    "node_of",
    "offers_of",
    "strain",
]
