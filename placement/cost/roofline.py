"""Seconds of a prefill or decode job from a roofline: FLOPs, bytes, SM share (DESIGN.md §7)."""

from dataclasses import dataclass

from placement.hardware import Gpu
from placement.shapes import ModelShape

COMPUTE_EFFICIENCY = 0.6
"""Share of the data sheet's FLOP/s that large matrix products reach."""
BANDWIDTH_EFFICIENCY = 0.8
"""Share of the data sheet's bandwidth that streaming reads reach."""
LAUNCH_S = 5e-6
"""Launch of one kernel in a captured graph; about ten kernels a layer."""
ALL_REDUCE_S = 10e-6
"""Latency of one all-reduce, two of them a layer under tensor parallelism."""


@dataclass(frozen=True, slots=True)
class Roofline:
    """Predictions for one kind of GPU, weights and KV in `itemsize` bytes an element.

    All predictions are in seconds. `tp` GPUs work together, `share` of the SMs of each; `batch`
    sequences.
    """

    gpu: Gpu
    itemsize: int = 2

    def prefill_s(
        self, model: ModelShape, tp: int, share: float, batch: float, prompt_tokens: float
    ) -> float:
        """One forward over `batch` prompts of `prompt_tokens` each."""
        tokens = batch * prompt_tokens
        flops = tokens * model.flops_per_token(prompt_tokens / 2)
        # the output head runs on the last token of each prompt only
        flops -= 2 * (tokens - batch) * model.vocab_size * model.hidden_size
        kv_bytes = tokens * model.kv_bytes_per_token(self.itemsize)
        return self._seconds(model, tp, share, tokens, flops, kv_bytes)

    def decode_s(
        self, model: ModelShape, tp: int, share: float, batch: float, context: float
    ) -> float:
        """One token for each of `batch` sequences of `context` tokens."""
        flops = batch * model.flops_per_token(context)
        kv_bytes = batch * context * model.kv_bytes_per_token(self.itemsize)
        return self._seconds(model, tp, share, batch, flops, kv_bytes)

    def prefill_draw(
        self, model: ModelShape, tp: int, share: float, batch: float, prompt_tokens: float
    ) -> float:
        """Share of the mesh's memory bandwidth that such a prefill draws, 0 to 1."""
        tokens = batch * prompt_tokens
        kv_bytes = tokens * model.kv_bytes_per_token(self.itemsize)
        seconds = self.prefill_s(model, tp, share, batch, prompt_tokens)
        return self._draw(model, tp, tokens, kv_bytes, seconds)

    def decode_draw(
        self, model: ModelShape, tp: int, share: float, batch: float, context: float
    ) -> float:
        """Share of the mesh's memory bandwidth that such a step draws, 0 to 1."""
        kv_bytes = batch * context * model.kv_bytes_per_token(self.itemsize)
        seconds = self.decode_s(model, tp, share, batch, context)
        return self._draw(model, tp, batch, kv_bytes, seconds)

    def _draw(
        self, model: ModelShape, tp: int, tokens: float, kv_bytes: float, seconds: float
    ) -> float:
        num_bytes = model.touched_params(tokens) * self.itemsize + kv_bytes
        return min(1.0, num_bytes / (tp * self.gpu.bandwidth * BANDWIDTH_EFFICIENCY * seconds))

    def _seconds(
        self,
        model: ModelShape,
        tp: int,
        share: float,
        tokens: float,
        flops: float,
        kv_bytes: float,
    ) -> float:
        gpu = self.gpu
        compute_s = flops / (tp * share * gpu.flops * COMPUTE_EFFICIENCY)
        num_bytes = model.touched_params(tokens) * self.itemsize + kv_bytes
        drawn = min(1.0, share / gpu.bandwidth_knee) * gpu.bandwidth * BANDWIDTH_EFFICIENCY
        memory_s = num_bytes / (tp * drawn)
        launch_s = model.num_layers * 10 * LAUNCH_S
        return max(compute_s, memory_s) + launch_s + self._all_reduce_s(model, tp, tokens)

    def _all_reduce_s(self, model: ModelShape, tp: int, tokens: float) -> float:
        """Two ring all-reduces of the hidden states a layer."""
        if tp == 1:
            return 0.0
        sent = 2 * (tp - 1) / tp * tokens * model.hidden_size * self.itemsize
        return 2 * model.num_layers * (ALL_REDUCE_S + sent / self.gpu.link)
