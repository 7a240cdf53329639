"""Error of the cost model on measurements that it has not seen.

The published A100 profile (MuxServe: LLaMA 7B to 65B, tp 1 to 8, 30 to 100 % of the SMs) is split
three ways: random fifths of all cells; one SM share at a time, end shares included; one model at a
time, which the roofline fitted to the others then predicts. An error is |predicted / measured - 1|
of one cell, predicted by a model that was fitted without it; the measurements' own noise and
outliers are in it. Beside it stand linear interpolation of logarithms (the obvious method) on the
same fifths and the roofline as it comes, with no profile at all: it expects decode to run as a
captured graph, and these measurements launched every kernel from Python, so it is too fast there
(its bias), most where tp is great. It is also held against Vidur's measured layers and all-reduces
of A100 and H100. Times are of the fastest of five rounds, as the machine may be busy.
"""

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.interpolate import LinearNDInterpolator, NearestNDInterpolator

sys.path.pop(0)  # the script's folder, whose http.py would hide Python's
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.harness import Bench, Claim, make_parser
from bench.planning.vidur import all_reduce_errors, layer_errors
from muxcluster.placement.cost import (
    Cell,
    Cost,
    MeasuredCost,
    ProfiledModel,
    Roofline,
    read_muxserve,
)
from muxcluster.placement.hardware import GPUS
from muxcluster.placement.shapes.shape import ModelShape

GPU = GPUS["A100-80GB"]
ITEMSIZE = 2
FOLDS = 5
PHASES = ("prefill", "decode")
NUM_TIMED = 20_000
ROUNDS = 5

FloatArray = NDArray[np.float64]
Labels = Sequence[int]
Subject = tuple[ModelShape, Cell]
Fit = Callable[[Sequence[ProfiledModel]], Callable[[Sequence[Subject]], FloatArray]]


def subjects(models: Iterable[ProfiledModel]) -> list[Subject]:
    """Every cell with its model's shape."""
    return [(model.shape, cell) for model in models for cell in model.cells]


def predictions(cost: Cost, wanted: Sequence[Subject]) -> FloatArray:
    """Seconds [cells]."""
    return np.array(
        [
            (cost.prefill_s if cell.phase == "prefill" else cost.decode_s)(
                shape, cell.tp, cell.share, cell.batch, cell.tokens
            )
            for shape, cell in wanted
        ]
    )


def fit_measured(models: Sequence[ProfiledModel]) -> Callable[[Sequence[Subject]], FloatArray]:
    """What the planner predicts with."""
    cost = MeasuredCost(GPU, ITEMSIZE, models)
    return lambda wanted: predictions(cost, wanted)


def fit_linear(models: Sequence[ProfiledModel]) -> Callable[[Sequence[Subject]], FloatArray]:
    """Log seconds, linear in log share, log batch, log tokens; the nearest cell outside."""
    groups: dict[tuple[ModelShape, int, str], list[Cell]] = {}
    for shape, cell in subjects(models):
        groups.setdefault((shape, cell.tp, cell.phase), []).append(cell)
    fields = {}
    for key, cells in groups.items():
        points, logs = _points(cells), np.log([cell.seconds[0] for cell in cells])
        fields[key] = LinearNDInterpolator(points, logs), NearestNDInterpolator(points, logs)

    def predict(wanted: Sequence[Subject]) -> FloatArray:
        found = []
        for shape, cell in wanted:
            linear, nearest = fields[shape, cell.tp, cell.phase]
            value = float(linear(_points([cell]))[0])
            found.append(value if np.isfinite(value) else float(nearest(_points([cell]))[0]))
        return np.exp(found)

    return predict


def _points(cells: Sequence[Cell]) -> FloatArray:
    return np.log2([(cell.share, cell.batch, cell.tokens) for cell in cells])


def left_out(models: Sequence[ProfiledModel], labels: Labels, fit: Fit) -> FloatArray:
    """Signed relative error of every cell, in the order of `subjects`, each label left out once."""
    label = np.array(labels)
    all_cells = subjects(models)
    errors = np.zeros(len(all_cells))
    for one in np.unique(label):
        held = np.flatnonzero(label == one)
        predict = fit(list(_without(models, label == one)))
        found = predict([all_cells[index] for index in held])
        errors[held] = found / [all_cells[index][1].seconds[0] for index in held] - 1
    return errors


def _without(models: Sequence[ProfiledModel], held: NDArray[np.bool_]) -> Iterator[ProfiledModel]:
    start = 0
    for model in models:
        end = start + len(model.cells)
        kept = tuple(
            cell for cell, out in zip(model.cells, held[start:end], strict=True) if not out
        )
        start = end
        if kept:
            yield replace(model, cells=kept)


def figures(cells: Sequence[Subject], errors: FloatArray, split: str) -> Iterator[dict[str, Any]]:
    """Percentiles of the absolute error, in all and by phase, tp and SM share."""
    yield _row(split, "all", errors)
    for phase in PHASES:
        of_phase = np.array([cell.phase == phase for _, cell in cells])
        yield _row(split, phase, errors[of_phase])
        for key in ("tp", "share"):
            values = np.array([getattr(cell, key) for _, cell in cells])
            for value in np.unique(values):
                yield _row(split, f"{phase} {key} {value:g}", errors[of_phase & (values == value)])


def _row(split: str, of: str, errors: FloatArray) -> dict[str, Any]:
    p50, p90, p99 = np.percentile(np.abs(errors), (50, 90, 99)).round(4).tolist()
    bias = round(float(np.median(errors)), 4)
    return {
        "split": split, "of": of, "cells": len(errors),
        "p50": p50, "p90": p90, "p99": p99, "bias": bias,
    }  # fmt: skip


def splits(models: Sequence[ProfiledModel], seed: int, quick: bool) -> dict[str, FloatArray]:
    """Signed errors of every cell, by how it was left out."""
    cells = subjects(models)
    measured = np.array([cell.seconds[0] for _, cell in cells])
    random = np.random.default_rng(seed).integers(FOLDS, size=len(cells)).tolist()
    plain = predictions(Roofline(GPU, ITEMSIZE), cells)
    found = {
        "holdout": left_out(models, random, fit_measured),
        "linear_holdout": left_out(models, random, fit_linear),
        "roofline": plain / measured - 1,
    }
    if not quick:
        percents = [round(100 * cell.share) for _, cell in cells]
        names = [number for number, model in enumerate(models) for _ in model.cells]
        found["share_out"] = left_out(models, percents, fit_measured)
        found["model_out"] = left_out(models, names, fit_measured)
    return found


def speed(models: Sequence[ProfiledModel]) -> tuple[list[float], list[float]]:
    """(seconds of each fit, microseconds of one prediction in each round)."""
    fits_s, rounds_us = [], []
    shape = models[0].shape
    for _ in range(ROUNDS):
        start = time.perf_counter()
        cost = MeasuredCost(GPU, ITEMSIZE, models)
        fits_s.append(time.perf_counter() - start)
        start = time.perf_counter()
        for number in range(NUM_TIMED):
            cost.decode_s(shape, 1, 0.5, 1 + number % 300, 499.5)
        rounds_us.append((time.perf_counter() - start) / NUM_TIMED * 1e6)
    return fits_s, rounds_us


def claims_of(rows: Sequence[dict[str, Any]]) -> Iterator[Claim]:
    """The median and p90 of every split, and of both phases of the held-out fifths."""
    by_name = {(row["split"], row["of"]): row for row in rows}
    for split, name in (
        ("holdout", "holdout"),
        ("share_out", "leave_one_share_out"),
        ("model_out", "leave_one_model_out"),
        ("roofline", "roofline"),
    ):
        for of in ("all", *PHASES):
            row = by_name.get((split, of))
            if row is None:
                continue
            prefix = name if of == "all" else f"{name}_{of}"
            obvious = by_name["linear_holdout", of] if split == "holdout" else None
            for percentile, word in (("p50", "median"), ("p90", "p90")):
                against = None if obvious is None else obvious[percentile]
                yield Claim(f"{prefix}_{word}_abs_error", row[percentile], "share", against)


def main() -> None:
    """Leave out, fit, predict; print a table; publish the claims."""
    bench = Bench(make_parser(__doc__))
    options, data = bench.options, bench.data()
    models = read_muxserve(data / "muxserve" / "llama_a100_profile.json").models
    cells = subjects(models)
    errors = splits(models, options.seed, options.quick)
    rows = [row for split, found in errors.items() for row in figures(cells, found, split)]
    for name, found in (*layer_errors(data), *all_reduce_errors(data)):
        rows.append(_row("vidur", name, found))
    for row in rows:
        if row["of"] in ("all", *PHASES) or row["split"] == "vidur":
            print(" ".join(f"{key}={value}" for key, value in row.items()), flush=True)
    fits_s, rounds_us = speed(models)
    bench.publish(
        [
            *claims_of(rows),
            Claim("fastest_fit_s", round(min(fits_s), 3), "s"),
            Claim("fastest_prediction_us", round(min(rounds_us), 2), "us", 5.0),
        ],
        {
            **{name: found.round(4).tolist() for name, found in errors.items()},
            "fit_s": fits_s,
            "prediction_us": rounds_us,
        },
        errors=rows,
    )


if __name__ == "__main__":
    main()
