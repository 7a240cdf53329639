"""Seconds of a prefill or decode job from a roofline: FLOPs, bytes, SM share (design.md §7)."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from muxcluster.placement.cost.interference import slowdown
from muxcluster.placement.cost.mixed import usual_mixed_s
from muxcluster.placement.cost.tuning import Tuning
from muxcluster.placement.cost.work import Number, Work, decode_work, prefill_work
from muxcluster.placement.hardware import Gpu
from muxcluster.placement.shapes.shape import ModelShape

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
    """Seconds of one job, or of each of many."""
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
