"""Cost of one model on one kind of mesh: memory, and seconds by batch and SM share."""

from bisect import bisect_right
from collections.abc import Sequence

from muxcluster.placement.cost import Cost
from muxcluster.placement.cost.masks import masks_s
from muxcluster.placement.memory import (
    activation_bytes,
    check_split,
    held_blocks,
    sequence_blocks,
    table_bytes,
    weight_bytes,
)
from muxcluster.placement.problem import Demand, Problem
from muxcluster.placement.shapes.division import kv_copies


def _ladder() -> tuple[int, ...]:
    return tuple(sorted({round(2 ** (step / 4)) for step in range(53)}))


# Considered batch sizes, four per octave up to 8,192. A unit's batch is rounded *down* to
# one of them, so that every estimate is also a mode of the relaxation that bounds it.
BATCHES = _ladder()
# Considered numbers of prompts of a job, two per octave: prefills are nearly linear in them.
_PROMPTS = tuple(2 ** (step / 2) for step in range(-6, 25))


class ModelCost:
    """Cost of a model, at any rate, on meshes of `tp` GPUs of one kind. Predictions are memoised.

    Raises DoesNotFit if it cannot be split over `tp` GPUs.

    Bytes and blocks are of all GPUs of the mesh.

    static_bytes: weights and block tables. activation_bytes: of one job at a time. floor_blocks:
    blocks of one sequence of the greatest length; sequence_blocks: those that one of the mean
    length holds while it decodes.
    """

    def __init__(
        self, demand: Demand, tp: int, cost: Cost, problem: Problem, bytes_per_block: int
    ) -> None:
        check_split(demand, tp)
        limits = problem.limits
        self.max_rows = min(demand.max_seqs, problem.policy.scheduler.max_decode_rows)
        self.token_budget = limits.token_budget
        self.demand = demand
        self.tp = tp
        self.static_bytes = weight_bytes(demand, tp) + table_bytes(demand, bytes_per_block, tp)
        self.activation_bytes = activation_bytes(demand, limits, tp)
        self.floor_blocks = sequence_blocks(demand, demand.max_model_len, bytes_per_block, tp)
        mean = max(1, round(demand.mean_tokens))
        self.sequence_blocks = held_blocks(demand, mean, bytes_per_block, tp)
        self.most_blocks = max(self.floor_blocks, self.max_rows * self.sequence_blocks)
        # KV bytes that its sequences hold at 1 request/s and 1 second a token
        held = demand.shape.sequence_bytes(demand.mean_tokens, demand.itemsize)
        self.held_bytes = demand.output_tokens * held * kv_copies(demand.shape, tp)
        self.prefill_rows = max(1, int(limits.token_budget // demand.prompt_tokens))
        self._cost = cost
        self._forget()

    def _forget(self) -> None:
        self._prefill: dict[float, tuple[float, float]] = {}
        self._decode: dict[tuple[int, float], tuple[float, float]] = {}
        self._mixed: dict[int, tuple[float, float]] = {}
        self._steps: dict[tuple[int, float], float] = {}
        self._prompts: dict[tuple[int, float], float] = {}

    def batch(self, quota_blocks: int) -> int:
        """Return the largest considered batch of mean sequences that fits, at least 1."""
        most = min(self.max_rows, quota_blocks // self.sequence_blocks)
        return BATCHES[max(0, bisect_right(BATCHES, most) - 1)]

    def rows(self, quota_blocks: int) -> float:
        """Return the most mean sequences at a time, at least 1."""
        return max(1.0, min(self.max_rows, quota_blocks / self.sequence_blocks))

    def prefill(self, share: float) -> tuple[float, float]:
        """(seconds per request in full prefill jobs, share of the bandwidth such a job draws)."""
        found = self._prefill.get(share)
        if found is None:
            rows, prompt = self.prefill_rows, self.demand.prompt_tokens
            shape = self.demand.shape
            seconds = self._cost.prefill_s(shape, self.tp, share, rows, prompt) / rows
            found = self._prefill[share] = (seconds, self.prefill_draw(share, rows))
        return found

    def prefill_draw(self, share: float, prompts: float) -> float:
        """Return the share of the bandwidth that a job of so many mean prompts draws."""
        shape, tokens = self.demand.shape, self.demand.prompt_tokens
        return self._cost.prefill_draw(shape, self.tp, share, prompts, tokens)

    def prefill_job_s(self, share: float, prompts: float = 1.0) -> float:
        """Seconds of one prefill job of `prompts` mean prompts, or of a part of one; linear between
        considered numbers."""
        place = bisect_right(_PROMPTS, prompts) - 1
        if place < 0:
            return self.prompts_at(0, share)
        below = self.prompts_at(place, share)
        low = _PROMPTS[place]
        if prompts == low or place + 1 == len(_PROMPTS):
            return below * prompts / low
        above = self.prompts_at(place + 1, share)
        return below + (above - below) * (prompts - low) / (_PROMPTS[place + 1] - low)

    def prompts_at(self, place: int, share: float) -> float:
        """Seconds of a prefill job of the considered number of prompts at `place`."""
        found = self._prompts.get((place, share))
        if found is None:
            shape, tokens, prompts = self.demand.shape, self.demand.prompt_tokens, _PROMPTS[place]
            if prompts < 1:
                found = self._cost.prefill_s(shape, self.tp, share, 1, tokens * prompts)
            else:
                found = self._cost.prefill_s(shape, self.tp, share, prompts, tokens)
            self._prompts[place, share] = found
        return found

    def decode(self, batch: int, share: float) -> tuple[float, float]:
        """(seconds of decode per request at this batch, share of the bandwidth a step draws)."""
        found = self._decode.get((batch, share))
        if found is None:
            seconds = self.demand.output_tokens * self.step_at(batch, share) / batch
            found = self._decode[batch, share] = (seconds, self.decode_draw(batch, share))
        return found

    def decode_draw(self, batch: int, share: float) -> float:
        """Return the share of the bandwidth that a decode step draws."""
        shape, context = self.demand.shape, self.demand.mean_tokens
        return self._cost.decode_draw(shape, self.tp, share, batch, context)

    def mixed(self, batch: int) -> tuple[float, float]:
        """(seconds per request in mixed jobs of this batch on all SMs, seconds of the whole
        bandwidth in them)."""
        found = self._mixed.get(batch)
        if found is None:
            found = self._mixed[batch] = self._mixed_at(batch)
        return found

    def _mixed_at(self, batch: int) -> tuple[float, float]:
        """A step frees batch / output_tokens rows on average, for which as many prompts come in.

        Where that is less than one, so many of the steps carry one prompt and the others none.
        """
        demand = self.demand
        steps = demand.output_tokens / batch  # per request
        prompts = max(1.0, min(1 / steps, float(self.prefill_rows)))
        step_s = self.step_s(batch, 1.0)
        prefill_s = self.prefill_job_s(1.0, prompts)
        longer_s = self.mixed_job_s(step_s, prefill_s) - step_s
        drawn = step_s * self.decode_draw(batch, 1.0) * steps
        draw = self.prefill_draw(1.0, prompts)
        return steps * step_s + longer_s / prompts, drawn + longer_s * draw / prompts

    def mixed_job_s(self, decode_s: float, prefill_s: float) -> float:
        """Seconds of one job on all SMs of what takes so long apart."""
        return self._cost.mixed_s(self.demand.shape, self.tp, 1.0, prefill_s, decode_s)

    def turn_s(self, rows: float, new: float) -> float:
        """Seconds that the unit itself takes after a job of so many rows, some of them new."""
        return self._cost.turn_s(rows, new)

    def slowdown(self, draws: Sequence[float]) -> float:
        """Factor by which jobs on this kind of GPU are slower side by side."""
        return self._cost.slowdown(draws)

    def step_s(self, batch: float, share: float) -> float:
        """Seconds of one decode step of `batch` sequences of mean length; linear between considered
        batch sizes."""
        place = bisect_right(BATCHES, batch) - 1
        low = BATCHES[max(0, place)]
        below = self.step_at(low, share)
        if batch <= low or place + 1 >= len(BATCHES):
            return below * max(1.0, batch / low if place >= 0 else 1.0)
        high = BATCHES[place + 1]
        above = self.step_at(high, share)
        return below + (above - below) * (batch - low) / (high - low)

    def step_at(self, batch: int, share: float) -> float:
        """Seconds of one decode step of a considered batch, with the masks that it waits for."""
        found = self._steps.get((batch, share))
        if found is None:
            demand = self.demand
            found = self._cost.decode_s(demand.shape, self.tp, share, batch, demand.mean_tokens)
            found = max(found, masks_s(batch, demand.constrained_share))
            self._steps[batch, share] = found
        return found
