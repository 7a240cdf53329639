"""Optimality: a proven bound, and set partition over (mesh, models) columns."""

from muxcluster.placement.exact.relaxation import upper_bound
from muxcluster.placement.exact.solve import solve_exact

__all__ = ["solve_exact", "upper_bound"]
