"""The offline plan of a job that runs on this machine, on its real tokens."""

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from muxcluster.api.batches.answering import body_of
from muxcluster.api.batches.planning import InOrder, LivePlan, Read
from muxcluster.api.model_text import ModelTexts
from muxcluster.api.service import prompts_of
from muxcluster.batch.entry import parse_entry
from muxcluster.batch.job import Batch
from muxcluster.batch.store import Pending
from muxcluster.cli.batching.planning import AUTO
from muxcluster.cli.batching.setting import Setting
from muxcluster.core.errors import RequestError
from muxcluster.offline.choice import Unplanned, compare_orders, sample_job
from muxcluster.offline.orders import ORDERS, order_requests
from muxcluster.offline.prompts import token_prompts
from muxcluster.sim.batch import SimPredictor

SAMPLED = 500
"""Requests that orders are compared on: more would keep the engine waiting."""
_Asked = tuple[Pending, "np.ndarray[tuple[int], np.dtype[np.int32]]", int]


class LocalPlanner:
    """Orders each model's lines for the unit that serves it.

    order: a name, or auto. settings: by model, where it runs. chosen: order by model, once planned.
    All prompts' tokens are in memory while it plans, four bytes each.
    """

    def __init__(
        self, texts: ModelTexts, settings: Mapping[str, Setting], order: str, *, lenient: bool
    ) -> None:
        self._texts = texts
        self._settings = settings
        self._order = order
        self._lenient = lenient
        self.chosen: dict[str, str] = {}

    async def plan(self, batch: Batch, lines: Sequence[Pending], read: Read) -> Sequence[LivePlan]:
        """As `Planner.plan`, on a thread. A line of several prompts is planned by its first."""
        return await asyncio.to_thread(self._plans, lines, read)

    def _plans(self, lines: Sequence[Pending], read: Read) -> list[LivePlan]:
        by_model: dict[str, list[_Asked]] = defaultdict(list)
        refused = []
        for line in lines:
            try:
                by_model[line.model].append(self._asked(line, read))
            except RequestError:
                # it ends at once when it runs, with what is wrong
                refused.append(line)
        return [InOrder(refused), *(InOrder(self._plan(*each)) for each in by_model.items())]

    def _asked(self, line: Pending, read: Read) -> _Asked:
        """The line's prompt, and how many output tokens to expect."""
        body = body_of(parse_entry(read(line)), lenient=self._lenient)
        prompt = prompts_of(body, self._texts.find(line.model))[0]
        spec = self._settings[line.model].spec
        is_limited = body.max_tokens or getattr(body, "max_completion_tokens", None)
        output = prompt.max_tokens if is_limited else round(spec.mean_output_tokens)
        return line, prompt.tokens, max(1, min(output, spec.max_model_len - len(prompt.tokens)))

    def _plan(self, model: str, asked: Sequence[_Asked]) -> list[Pending]:
        setting = self._settings[model]
        unplanned = Unplanned(
            token_prompts([tokens for _, tokens, _ in asked]),
            np.array([output for _, _, output in asked], dtype=np.int64),
            setting.resources,
            setting.size_bytes,
            setting.spec.shape.block_tokens(setting.unit.spec.block_bytes),
        )
        whole = unplanned.with_tree()
        order = self._order
        if order == AUTO:
            sample = sample_job(unplanned, whole, SAMPLED)
            predictor = SimPredictor(setting.unit, model, setting.resources)
            order = compare_orders(sample, predictor, tuple(ORDERS)).best
        self.chosen[model] = order
        return [asked[number][0] for number in order_requests(whole, order).tolist()]
