"""Cost of a model's interactive and batch requests together: they are in the same jobs."""

from dataclasses import replace

from muxcluster.placement.estimator.modelcost import ModelCost


class MergedCost(ModelCost):
    """`ModelCost` of two classes of requests to one model, on the same mesh.

    A mean of both: of prompts by their numbers, of decode steps by the rows that each class has,
    which seconds and bandwidth are nearly linear in.
    """

    def __init__(self, own: ModelCost, batch: ModelCost, part: float, max_rows: int) -> None:
        """own, batch: of interactive and of batch requests. part: of all requests that are batch, 0
        to 1. max_rows: of both."""
        few, many = own.demand, batch.demand
        outputs = (1 - part) * few.output_tokens, part * many.output_tokens
        prompt_tokens = (1 - part) * few.prompt_tokens + part * many.prompt_tokens
        self._own, self._batch, self._part = own, batch, part
        self._rows_part = outputs[1] / sum(outputs)
        self.demand = replace(
            few,
            prompt_tokens=prompt_tokens,
            output_tokens=sum(outputs),
            decode_tokens=self._by_rows(few.mean_tokens, many.mean_tokens),
        )
        self.tp = own.tp
        self.max_rows = max_rows
        self.token_budget = own.token_budget
        self.static_bytes = own.static_bytes
        self.activation_bytes = own.activation_bytes
        self.floor_blocks = own.floor_blocks
        blocks = self._by_rows(own.sequence_blocks, batch.sequence_blocks)
        self.sequence_blocks = max(1, round(blocks))
        self.most_blocks = max(self.floor_blocks, self.max_rows * self.sequence_blocks)
        self.held_bytes = (1 - part) * own.held_bytes + part * batch.held_bytes
        self.prefill_rows = max(1, int(self.token_budget // prompt_tokens))
        self._cost = own._cost
        self._forget()

    def prefill(self, share: float) -> tuple[float, float]:
        """As `ModelCost`: per request, of either class."""
        (own_s, own_draw), (batch_s, batch_draw) = (
            cost.prefill(share) for cost in (self._own, self._batch)
        )
        own_s, batch_s = (1 - self._part) * own_s, self._part * batch_s
        seconds = own_s + batch_s
        return seconds, (own_s * own_draw + batch_s * batch_draw) / seconds

    def prefill_draw(self, share: float, prompts: float) -> float:
        """As `ModelCost`."""
        own, batch = (cost.prefill_draw(share, prompts) for cost in (self._own, self._batch))
        return (1 - self._part) * own + self._part * batch

    def prompts_at(self, place: int, share: float) -> float:
        """As `ModelCost`."""
        own, batch = (cost.prompts_at(place, share) for cost in (self._own, self._batch))
        return (1 - self._part) * own + self._part * batch

    def decode_draw(self, batch: int, share: float) -> float:
        """As `ModelCost`."""
        own, other = (cost.decode(batch, share)[1] for cost in (self._own, self._batch))
        return self._by_rows(own, other)

    def step_at(self, batch: int, share: float) -> float:
        """As `ModelCost`."""
        own, other = (cost.step_at(batch, share) for cost in (self._own, self._batch))
        return self._by_rows(own, other)

    def _by_rows(self, own: float, batch: float) -> float:
        return (1 - self._rows_part) * own + self._rows_part * batch
