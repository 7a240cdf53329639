"""`place_compat`: the plan with the greatest score F under the reference planner's rules."""

import time
from dataclasses import replace

from muxcluster.placement.compat.assemble import planned_units
from muxcluster.placement.compat.checks import Case, case_of
from muxcluster.placement.compat.curves import Curves
from muxcluster.placement.compat.facts import MOST_DECODE_SM, WEIGHTS_GB_PER_GPU
from muxcluster.placement.compat.meshes import Division
from muxcluster.placement.compat.search import divide
from muxcluster.placement.hardware import GIB
from muxcluster.placement.memory import DoesNotFit
from muxcluster.placement.plan import Plan
from muxcluster.placement.problem import Problem


def place_compat(problem: Problem, curves: Curves) -> Plan:
    """A plan with every model in one unit; the same for any order of models and nodes.

    score: F, in requests/s. bound: what no plan's F exceeds, None for more than 20 to 30 models.
    throughput: sum of min(rate, the mesh estimate's throughput). The reference takes every
    sequence to have 161 prompt and 337 output tokens: the lengths, context limits, latency targets
    and weights of the demands, and `problem.objective`, change nothing.

    Rules: each node is split into powers of two; no more meshes, idle ones included, than models,
    unless no plan obeys that (fewer models than nodes: the reference has no plan there); 43.2 GB of
    weights a GPU; decode SM shares of a mesh within 120 %. Raises DoesNotFit if the models have
    no room under these, CompatError where the reference does not know a model or a GPU.
    """
    start = time.perf_counter()
    problem = problem.in_order()
    case = case_of(problem, curves)
    division = _divided(case)
    units = planned_units(problem, case.tenants, division)
    return Plan(
        method="compat",
        objective="muxserve-F",
        score=division.score,
        throughput=sum(model.throughput for unit in units for model in unit.models),
        bound=division.bound,
        solve_seconds=time.perf_counter() - start,
        units=units,
    )


def _divided(case: Case) -> Division:
    division = divide(case.tenants, case.meshes)
    if division.unplaced and case.meshes.most is not None:
        division = divide(case.tenants, replace(case.meshes, most=None))
    if division.unplaced:
        raise _refusal(case, division)
    return division


def _refusal(case: Case, division: Division) -> DoesNotFit:
    """Return an error that names the largest of the fewest models to leave out."""
    left = [case.models[index] for index in division.unplaced]
    largest = max(left, key=lambda model: model.facts.weights_gb)
    missing = sum(model.facts.weights_gb for model in left) * GIB
    return DoesNotFit(
        largest.name,
        f"no room found for {len(left)} of {len(case.models)} models on {case.meshes.num_gpus} "
        f"GPUs at {WEIGHTS_GB_PER_GPU} GB of weights a GPU and decode SM shares of "
        f"{MOST_DECODE_SM} % a mesh; add GPUs",
        missing,
    )
