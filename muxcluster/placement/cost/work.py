"""Work of a job: FLOPs, bytes, tokens, for one job (floats) or for many (arrays)."""

from collections.abc import Iterable
from typing import Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from muxcluster.placement.shapes.division import kv_copies
from muxcluster.placement.shapes.shape import ModelShape

Number = TypeVar("Number", float, NDArray[np.float64])


class Work(NamedTuple, Generic[Number]):
    """One job on `tp` GPUs, `share` of the SMs of each; flops and num_bytes are of all GPUs.

    KV heads that several GPUs have are counted on each, their weights once.
    """

    tp: Number
    share: Number
    num_layers: Number
    hidden_size: Number
    flops: Number
    num_bytes: Number
    tokens: Number  # that pass through the layers
    rows: Number  # sequences of a decode step, 0 in prefill
    is_prefill: Number  # 0 or 1


def prefill_work(
    model: ModelShape, itemsize: int, tp: int, share: float, batch: float, prompt_tokens: float
) -> Work[float]:
    """One forward over `batch` prompts of `prompt_tokens` each."""
    tokens = batch * prompt_tokens
    flops = tokens * model.flops_per_token(prompt_tokens / 2)
    # the output head runs on the last token of each prompt only
    flops -= 2 * (tokens - batch) * model.vocab_size * model.hidden_size
    weights = model.touched_params(tokens) * itemsize
    num_bytes = weights + tokens * model.kv_bytes_per_token(itemsize) * kv_copies(model, tp)
    return Work(tp, share, model.num_layers, model.hidden_size, flops, num_bytes, tokens, 0.0, 1.0)


def decode_work(
    model: ModelShape, itemsize: int, tp: int, share: float, batch: float, context: float
) -> Work[float]:
    """One token for each of `batch` sequences of `context` tokens."""
    flops = batch * model.flops_per_token(context)
    weights = model.touched_params(batch) * itemsize
    num_bytes = weights + batch * model.sequence_bytes(context, itemsize) * kv_copies(model, tp)
    return Work(tp, share, model.num_layers, model.hidden_size, flops, num_bytes, batch, batch, 0.0)


def stacked(works: Iterable[Work[float]]) -> Work[NDArray[np.float64]]:
    """Stack many jobs: every field becomes an array [jobs]."""
    return Work(*np.array(list(works), dtype=np.float64).T)
