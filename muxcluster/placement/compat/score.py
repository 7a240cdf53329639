"""The cluster score F of a given layout."""

from collections.abc import Iterable, Sequence
from math import fsum

from muxcluster.placement.compat.checks import case_of
from muxcluster.placement.compat.curves import Curves
from muxcluster.placement.compat.mesh import value
from muxcluster.placement.problem import Problem

Layout = Iterable[tuple[int, Sequence[str]]]  # (GPUs, names of the models) of each mesh


def cluster_score(problem: Problem, curves: Curves, layout: Layout) -> float:
    """F: sum over the meshes of (rate-weighted mean requests/s x rates of the mesh) / all rates.

    Scores any layout, also one against the rules of `place_compat`. Raises CompatError and
    DoesNotFit as it does, and KeyError for a model or a tp that there is no candidate for.
    """
    case = case_of(problem, curves)
    by_name = {model.name: each for model, each in zip(case.models, case.tenants, strict=True)}
    parts = []
    for num_gpus, names in layout:
        tenants = [by_name[name][num_gpus] for name in names]
        if tenants:
            parts.append(value(tenants) * fsum(each.rate for each in tenants))
    return fsum(parts) / fsum(model.rate for model in case.models)
