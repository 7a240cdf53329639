"""Orders in which the search places models."""

import math

from muxcluster.placement.memory import weight_bytes
from muxcluster.placement.search.layout import UnitBuilder
from muxcluster.placement.search.refusals import first_refusal


def by_weight(builder: UnitBuilder) -> list[int]:
    """Models by their weights, largest first."""
    demands = builder.estimator.problem.demands
    return sorted(range(len(demands)), key=lambda index: weight_bytes(demands[index]), reverse=True)


def by_need(builder: UnitBuilder) -> list[int]:
    """Models by the GPU time that they ask for, most first.

    Raises DoesNotFit if no mesh takes one of them.
    """
    needs = [builder.need(index) for index in range(len(builder.estimator.problem.demands))]
    for index, need in enumerate(needs):
        if math.isinf(need):
            raise first_refusal(builder, index)
    return sorted(range(len(needs)), key=lambda index: needs[index], reverse=True)
