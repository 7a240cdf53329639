"""The roofline without a profile, against Vidur's measured layers and all-reduces."""

import csv
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from muxcluster.placement.cost import Tuning
from muxcluster.placement.cost.roofline import Work, all_reduces_s, job_seconds
from muxcluster.placement.hardware import GPUS, Gpu

FloatArray = NDArray[np.float64]
_GPUS = {"a100": GPUS["A100-80GB"], "h100": GPUS["H100"]}
# (node, GPU, most workers that its NVLinks join). The A100 DGX of that data set is left out: ten
# times slower than its links, it was not using them.
_NODES = (("a100_pairwise_nvlink", "a100", 2), ("h100_dgx", "h100", 8))
_ITEMSIZE = 2
# Vidur times kernels on the GPU.
_NO_HOST = replace(Tuning(), prefill_layer_s=0.0, decode_layer_s=0.0)


def layer_errors(data: Path) -> Iterator[tuple[str, FloatArray]]:
    """(GPU and model, signed relative error of the seconds of one layer without its attention) of
    every number of tokens and tp that was measured."""
    for path in sorted((data / "vidur").glob("mlp_median_ms.*.csv")):
        _, gpu, model, _ = path.name.split(".", 3)
        with path.open(encoding="utf-8", newline="") as stream:
            rows = [
                {key: _number(text) for key, text in row.items()} for row in csv.DictReader(stream)
            ]
        errors = [_layer_s(row, _GPUS[gpu]) / _measured_s(row) - 1 for row in rows]
        yield f"layer {gpu} {model}", np.array(errors)


def all_reduce_errors(data: Path) -> Iterator[tuple[str, FloatArray]]:
    """(node, signed relative error of the seconds of one all-reduce) of every measured size."""
    for node, gpu, most in _NODES:
        path = data / "vidur" / f"network_{node}.all_reduce.csv"
        with path.open(encoding="utf-8", newline="") as stream:
            rows = list(csv.DictReader(stream))
        errors = [
            _all_reduce_s(float(row["num_workers"]), float(row["size_bytes"]), _GPUS[gpu])
            / (float(row["median_ms_over_ranks"]) / 1e3)
            - 1
            for row in rows
            if int(row["num_workers"]) <= most
        ]
        yield f"all-reduce {node}", np.array(errors)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float(text == "True")


def _measured_s(row: dict[str, float]) -> float:
    """Of the operators that every layer runs; the embedding is not one of them."""
    return sum(ms for key, ms in row.items() if key.endswith("_ms") and key != "emb_ms") / 1e3


def _layer_s(row: dict[str, float], gpu: Gpu) -> float:
    """One layer on one GPU's part of the weights."""
    hidden, tp, tokens = row["n_embd"], row["num_tensor_parallel_workers"], row["num_tokens"]
    attention = 2 * hidden * hidden * (1 + row["n_kv_head"] / row["n_head"])
    params = (attention + 3 * hidden * row["n_expanded_embd"]) / tp
    flops, num_bytes = 2 * params * tokens, params * _ITEMSIZE
    work = Work(1.0, 1.0, 1.0, hidden, flops, num_bytes, tokens, 0.0, 1.0)
    return job_seconds(work, gpu, _ITEMSIZE, _NO_HOST)


def _all_reduce_s(num_gpus: float, num_bytes: float, gpu: Gpu) -> float:
    work = Work(num_gpus, 1.0, 1.0, num_bytes / _ITEMSIZE, 0.0, 0.0, 1.0, 0.0, 1.0)
    return all_reduces_s(work, gpu, _ITEMSIZE, Tuning()) / 2
