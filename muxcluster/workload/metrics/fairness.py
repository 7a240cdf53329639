"""Fairness between models: use (token blocks held, or throughput) against demand."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Fairness:
    """Fairness of the models' use per unit of rate; all 1 where it is equal."""

    max_over_min: float  # infinite where a model got nothing
    jain: float  # Jain's index, (Σx)² / (m · Σx²), from 1/m up
    least_share: float  # the least served model's use per rate over that of all models together
    least_model: str


def fairness(use: Mapping[str, float], rates: Mapping[str, float]) -> Fairness:
    """Return the fairness of `use` over `rates` by model (MuxServe §3.2: token blocks over rate).

    use: mean token blocks held, or requests/s served; not below 0. rates: requests/s, above 0.
    Raises ValueError where a number is out of range or all use is 0, KeyError for a model without
    a use.
    """
    models = list(rates)
    demand = np.array([rates[model] for model in models], dtype=np.float64)
    held = np.array([use[model] for model in models], dtype=np.float64)
    if not ((demand > 0).all() and (held >= 0).all() and held.sum() > 0):
        raise ValueError(f"needs rates above 0 and some use, found rates {rates}, use {use}")
    each = held / demand
    least = int(each.argmin())
    return Fairness(
        float(each.max() / each[least]) if each[least] > 0 else float("inf"),
        float(each.sum() ** 2 / (len(models) * (each**2).sum())),
        float(each[least] / (held.sum() / demand.sum())),
        models[least],
    )
