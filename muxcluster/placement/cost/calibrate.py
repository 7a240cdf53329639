"""A roofline whose constants are fitted to a profile."""

from collections.abc import Sequence
from dataclasses import astuple, fields, replace
from statistics import median

import numpy as np
import scipy  # its parts are imported when they are first used: most processes need none
from numpy.typing import NDArray

from muxcluster.placement.cost.profile import Cell, ProfiledModel
from muxcluster.placement.cost.roofline import (
    Roofline,
    Tuning,
    Work,
    decode_work,
    job_seconds,
    prefill_work,
    stacked,
)
from muxcluster.placement.hardware import Gpu
from muxcluster.placement.shapes.shape import ModelShape

FloatArray = NDArray[np.float64]

# Constants that cannot exceed the data sheet; a CPU's figures are guesses of ours.
_EFFICIENCIES = [
    index
    for index, constant in enumerate(fields(Tuning))
    if constant.name in ("compute", "bandwidth", "link")
]
_MOST_CELLS = 1500
_NOISE = 0.05  # relative error above which a cell counts less than quadratically (soft L1)
# Pull towards the default constants, per factor of e: matters only where the cells do not.
_PRIOR = 0.05
_FREEDOM = 3.0  # most factors of e between a constant and its default


def cell_work(shape: ModelShape, itemsize: int, cell: Cell) -> Work[float]:
    make = prefill_work if cell.phase == "prefill" else decode_work
    return make(shape, itemsize, cell.tp, cell.share, cell.batch, cell.tokens)


def calibrated(gpu: Gpu, itemsize: int, models: Sequence[ProfiledModel]) -> Roofline:
    """Fit the roofline of `gpu` to the cells, in logarithms and robustly.

    Constants that the cells do not determine (all-reduces if tp is always 1) keep their defaults.
    """
    cells = _some([(model.shape, cell) for model in models for cell in model.cells])
    work = stacked(cell_work(shape, itemsize, cell) for shape, cell in cells)
    measured = np.array([median(cell.seconds) for _, cell in cells])
    usual = _packed(Tuning(), gpu)

    def error(constants: FloatArray) -> FloatArray:
        tuning, tuned = _unpacked(constants, gpu)
        off = np.log(job_seconds(work, tuned, itemsize, tuning) / measured)
        return np.concatenate((off, _PRIOR * (constants - usual)))

    least, most = usual - _FREEDOM, usual + _FREEDOM
    if not gpu.is_cpu:
        most[_EFFICIENCIES] = 0.0
    start = np.clip(_packed(_launch_floors(work, measured), gpu), least, most)
    found = scipy.optimize.least_squares(
        error, start, bounds=(least, most), loss="soft_l1", f_scale=_NOISE
    )
    tuning, tuned = _unpacked(found.x, gpu)
    return Roofline(tuned, itemsize, tuning)


def _packed(tuning: Tuning, gpu: Gpu) -> FloatArray:
    return np.log([*astuple(tuning), gpu.bandwidth_knee])


def _unpacked(constants: FloatArray, gpu: Gpu) -> tuple[Tuning, Gpu]:
    *values, knee = np.exp(constants).tolist()
    return Tuning(*values), replace(gpu, bandwidth_knee=knee)


def _launch_floors(work: Work[FloatArray], seconds: FloatArray) -> Tuning:
    """Return the start of the fit: the host as slow as the fastest job allows. From a host that is
    never the slower one the fit would not find that it is."""
    floors = seconds / work.num_layers
    prefill, decode = floors[work.is_prefill == 1], floors[work.is_prefill == 0]
    usual = Tuning()
    return replace(
        usual,
        prefill_layer_s=float(prefill.min()) if prefill.size else usual.prefill_layer_s,
        decode_layer_s=float(decode.min()) if decode.size else usual.decode_layer_s,
    )


def _some(cells: list[tuple[ModelShape, Cell]]) -> list[tuple[ModelShape, Cell]]:
    """Return at most so many cells as the fit needs, always the same ones."""
    if len(cells) <= _MOST_CELLS:
        return cells
    chosen = np.random.default_rng(0).permutation(len(cells))[:_MOST_CELLS]
    return [cells[index] for index in chosen]
