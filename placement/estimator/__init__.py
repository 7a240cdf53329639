"""What a mesh with models on it serves: loads, fairness, latency, memory."""

from placement.estimator.latency import Latency
from placement.estimator.modelcost import BATCHES, ModelCost
from placement.estimator.shares import Loads, Tenant
from placement.estimator.unit import Estimator, Offer, UnitEstimate

__all__ = [
    "BATCHES",
    "Estimator",
    "Latency",
    "Loads",
    "ModelCost",
    "Offer",
    "Tenant",
    "UnitEstimate",
]
