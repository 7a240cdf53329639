"""Best division of a cluster, over all columns if they are few enough, else over promising ones.

The linear program bounds every plan. A column whose reduced cost exceeds the distance between the
plan in hand and that bound is in no better plan, so few columns are left to the integer program.
"""

import random
from math import ceil, fsum

import numpy as np

from muxcluster.placement.compat.columns import Pool, Tenants
from muxcluster.placement.compat.meshes import Division, Meshes
from muxcluster.placement.compat.program import SCALE, Chosen, Program, Relaxed

# Enough for all columns of 20 to 30 models, depending on their sizes, with up to four in a mesh.
_MOST_COLUMNS = 30_000
_ROUNDS = 6
_PER_ROUND = 4_000  # further columns estimated per round if those are not all
_CORE = 8
_WIDEST = 64  # Columns for each model in the first integer program; at most in the second
# The search ends this close to the bound: the last improvements take longest and gain least.
_NEAR = 1e-4
_ROUNDING = 1e-6  # Objectives of two programs closer than this may be equal


def divide(tenants: Tenants, meshes: Meshes) -> Division:
    """Return the division with the fewest models left out, and of these the one with the greatest
    F.

    Its budget is a number of estimates and of search tree nodes, not time: equal inputs get equal
    answers. If all columns were estimated and the tree was searched, bound equals score.
    """
    pool = Pool(tenants)
    complete = pool.fill(_MOST_COLUMNS)
    program = Program(pool.values, meshes, len(tenants))
    relaxed = program.relaxed()
    for round_number in range(0 if complete else _ROUNDS):
        if not _widen(pool, program, relaxed, round_number):
            break
        program = Program(pool.values, meshes, len(tenants))
        relaxed = program.relaxed()
    if relaxed.unplaced.sum() > _ROUNDING:
        return _too_full(relaxed)
    chosen, most = _chosen(program, relaxed, len(tenants))
    columns = tuple(program.columns[index] for index in chosen.columns)
    score = fsum(pool.values[column] for column in columns)
    bound = max(score, most / SCALE) if complete else None
    idle = tuple(meshes.sizes[index] for index in chosen.idle)
    return Division(columns, idle, chosen.unplaced, score, bound)


def _widen(pool: Pool, program: Program, relaxed: Relaxed, seed: int) -> bool:
    """Add columns with one model more than those that the linear program uses; False if there are
    none."""
    used = np.flatnonzero(relaxed.used > _ROUNDING).tolist()
    beside = sorted({each for index in used for each in pool.beside(program.columns[index])})
    pool.add(random.Random(seed).sample(beside, min(len(beside), _PER_ROUND)))
    return bool(beside)


def _too_full(relaxed: Relaxed) -> Division:
    """Leave out as few models as the linear program does, those that it leaves out most."""
    count = ceil(relaxed.unplaced.sum() - _ROUNDING)
    most_left_out = np.argsort(-relaxed.unplaced, kind="stable")[:count]
    return Division((), (), tuple(sorted(most_left_out.tolist())), 0.0, None)


def _chosen(program: Program, relaxed: Relaxed, num_models: int) -> tuple[Chosen, float]:
    """Return the best choice of columns, and an upper bound of the objective.

    The choice is over all columns that may be in a better plan, or over those with the least
    reduced cost if there are too many.
    """
    ranked = np.argsort(relaxed.reduced_costs, kind="stable")
    core = _CORE * num_models
    chosen = program.chosen(ranked[:core])
    while chosen.unplaced and core < len(ranked):
        core *= 2
        chosen = program.chosen(ranked[:core])
    distance = relaxed.objective - chosen.objective
    useful = int(np.count_nonzero(relaxed.reduced_costs <= distance + _ROUNDING))
    if useful > core:
        if useful > _WIDEST * num_models or distance <= _NEAR * abs(relaxed.objective):
            return chosen, relaxed.objective
        chosen = program.chosen(ranked[:useful])
    return chosen, min(chosen.most, relaxed.objective)
