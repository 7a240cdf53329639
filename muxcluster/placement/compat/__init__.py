"""`place --method compat`: plans on the public MuxServe planner's own scale, its score F.

Its objective and feasibility rules, not its search; what it computes was measured by running it
and described in ESTIMATOR.md beside the published profile.
"""

from muxcluster.placement.compat.curves import Curves, read_curves
from muxcluster.placement.compat.errors import CompatError
from muxcluster.placement.compat.planner import place_compat
from muxcluster.placement.compat.score import cluster_score

__all__ = ["CompatError", "Curves", "cluster_score", "place_compat", "read_curves"]
