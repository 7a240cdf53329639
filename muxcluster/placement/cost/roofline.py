"""Roofline cost: the work of a job, and its seconds from FLOPs, bytes and launches."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from muxcluster.placement.cost.interference import slowdown
from muxcluster.placement.cost.mixed import usual_mixed_s
from muxcluster.placement.hardware import Gpu
from muxcluster.placement.shapes.division import kv_copies
from muxcluster.placement.shapes.shape import ModelShape


@dataclass(frozen=True, slots=True)
class Tuning:
    """The constants of the roofline. Times in seconds, shares 0 to 1.

    The values here were fitted to the published A100 profile (MuxServe: four LLaMA models, tp 1 to
    8, 30 to 100 % of the SMs), with two exceptions. A layer of decode is launched as a part of a
    captured graph, not kernel by kernel from Python (0.4 ms there). All-reduces are those that
    Vidur measured over NVLink (A100 pairs, H100 DGX): the profile's were slower.
    """

    compute: float = 0.62  # share of the FLOP/s that large matrix products reach
    bandwidth: float = 0.88  # share of the bandwidth that streaming reads reach
    # SM share above which something else (the clock) limits compute; for memory it is the GPU's
    # bandwidth_knee
    compute_knee: float = 1.2
    kernels_s: float = 1.1e-4  # GPU time of the small kernels of one layer
    row_s: float = 1.9e-6  # attention and bookkeeping of one sequence in one layer of a decode step
    # prefill_layer_s, decode_layer_s: host time to launch one layer, while the GPU runs the last
    prefill_layer_s: float = 6e-4
    decode_layer_s: float = 5e-5
    all_reduce_s: float = 2e-5  # latency of one all-reduce
    link: float = 0.6  # share of the links' speed


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
    weights = model.touched_bytes(tokens, itemsize)
    num_bytes = weights + tokens * model.kv_bytes_per_token(itemsize) * kv_copies(model, tp)
    return Work(tp, share, model.num_layers, model.hidden_size, flops, num_bytes, tokens, 0.0, 1.0)


def decode_work(
    model: ModelShape, itemsize: int, tp: int, share: float, batch: float, context: float
) -> Work[float]:
    """One token for each of `batch` sequences of `context` tokens."""
    flops = batch * model.flops_per_token(context)
    weights = model.touched_bytes(batch, itemsize)
    num_bytes = weights + batch * model.sequence_bytes(context, itemsize) * kv_copies(model, tp)
    return Work(tp, share, model.num_layers, model.hidden_size, flops, num_bytes, batch, batch, 0.0)


def stacked(works: Iterable[Work[float]]) -> Work[NDArray[np.float64]]:
    """Stack many jobs: every field becomes an array [jobs]."""
    return Work(*np.array(list(works), dtype=np.float64).T)


_KNEE_POWER = 3
# Compute and memory traffic of a job overlap in part: their sum would be too long.
_OVERLAP_POWER = 2
_HOST_POWER = 8  # the host launches ahead of the GPU: nearly the larger of the two


def saturation(share: Number, knee: float) -> Number:
    """Share of a resource that a job on `share` of the SMs reaches: linear far below `knee`, then
    bending; 1 on the whole GPU."""
    bent = 1 + (knee / share) ** _KNEE_POWER
    part: Number = ((1 + knee**_KNEE_POWER) / bent) ** (1 / _KNEE_POWER)
    return part


def job_seconds(work: Work[Number], gpu: Gpu, itemsize: int, tuning: Tuning) -> Number:
    sms = work.tp * saturation(work.share, tuning.compute_knee)
    compute_s = work.flops / (sms * gpu.flops * tuning.compute)
    drawn = work.tp * saturation(work.share, gpu.bandwidth_knee)
    memory_s = work.num_bytes / (drawn * gpu.bandwidth * tuning.bandwidth)
    overlapped_s = (compute_s**_OVERLAP_POWER + memory_s**_OVERLAP_POWER) ** (1 / _OVERLAP_POWER)
    layer_s = tuning.kernels_s + work.rows * tuning.row_s / sms
    layer_s = layer_s + all_reduces_s(work, gpu, itemsize, tuning)
    device_s = overlapped_s + work.num_layers * layer_s
    launch_s = tuning.decode_layer_s + work.is_prefill * (
        tuning.prefill_layer_s - tuning.decode_layer_s
    )
    host_s = work.num_layers * launch_s
    seconds: Number = (device_s**_HOST_POWER + host_s**_HOST_POWER) ** (1 / _HOST_POWER)
    return seconds


def all_reduces_s(work: Work[Number], gpu: Gpu, itemsize: int, tuning: Tuning) -> Number:
    """Seconds of two ring all-reduces of the hidden states, for one job or for each of many."""
    sent = 2 * (1 - 1 / work.tp) * work.tokens * work.hidden_size * itemsize
    return 2 * ((work.tp > 1) * tuning.all_reduce_s + sent / (gpu.link * tuning.link))


@dataclass(frozen=True, slots=True)
class Roofline:
    """Predictions for one kind of GPU, weights and KV in `itemsize` bytes an element.

    All predictions are in seconds. `tp` GPUs work together, `share` of the SMs of each; `batch`
    sequences.
    """

    gpu: Gpu
    itemsize: int = 2
    tuning: Tuning = field(default_factory=Tuning)

    def prefill_s(
        self, model: ModelShape, tp: int, share: float, batch: float, prompt_tokens: float
    ) -> float:
        """One forward over `batch` prompts of `prompt_tokens` each."""
        return self.seconds(prefill_work(model, self.itemsize, tp, share, batch, prompt_tokens))

    def decode_s(
        self, model: ModelShape, tp: int, share: float, batch: float, context: float
    ) -> float:
        """One token for each of `batch` sequences of `context` tokens."""
        return self.seconds(decode_work(model, self.itemsize, tp, share, batch, context))

    def mixed_s(
        self, model: ModelShape, tp: int, share: float, prefill_s: float, decode_s: float
    ) -> float:
        """One forward over what takes `prefill_s` and `decode_s` apart (`usual_mixed_s`)."""
        return usual_mixed_s(prefill_s, decode_s)

    def turn_s(self, rows: float, new: float) -> float:
        """What the unit itself does between two jobs: nothing is known of it."""
        return 0.0

    def prefill_draw(
        self, model: ModelShape, tp: int, share: float, batch: float, prompt_tokens: float
    ) -> float:
        """Share of the mesh's memory bandwidth that such a prefill draws, 0 to 1."""
        work = prefill_work(model, self.itemsize, tp, share, batch, prompt_tokens)
        return self.draw(work, self.seconds(work))

    def decode_draw(
        self, model: ModelShape, tp: int, share: float, batch: float, context: float
    ) -> float:
        """Share of the mesh's memory bandwidth that such a step draws, 0 to 1."""
        work = decode_work(model, self.itemsize, tp, share, batch, context)
        return self.draw(work, self.seconds(work))

    def slowdown(self, draws: Sequence[float]) -> float:
        """Factor ≥ 1 for jobs side by side (`interference.slowdown`)."""
        return slowdown(draws)

    def seconds(self, work: Work[Number]) -> Number:
        """Seconds of one job, or of each of many."""
        return job_seconds(work, self.gpu, self.itemsize, self.tuning)

    def draw(self, work: Work[float], seconds: float) -> float:
        """Share of the reachable bandwidth that a job of `seconds` takes."""
        reachable = work.tp * self.gpu.bandwidth * self.tuning.bandwidth
        return min(1.0, work.num_bytes / (reachable * seconds))
