"""The offline plan of a batch job, made on its real tokens."""

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np

from muxcluster.batch.plan.feeding import FedPlan, FedUnit, PlannedLine
from muxcluster.batch.plan.prediction import AUTO
from muxcluster.batch.service.planning import InOrder, LivePlan, Read
from muxcluster.batch.store.entry import parse_entry
from muxcluster.batch.store.job import Batch
from muxcluster.batch.store.store import Pending
from muxcluster.core.errors import RequestError
from muxcluster.http.batch_lines import body_of
from muxcluster.http.calls.call import Prompt, Tokenised
from muxcluster.http.calls.kept_prompts import KeptPrompts
from muxcluster.http.calls.model_text import ModelTexts
from muxcluster.http.service import tokenise
from muxcluster.offline.choice import Unplanned, compare_orders, sample_job
from muxcluster.offline.feed.feeder import BatchFeeder
from muxcluster.offline.order.orders import ORDERS, order_requests
from muxcluster.offline.prefix.prompts import token_prompts
from muxcluster.sim.batch.setting import Setting
from muxcluster.sim.batch.simulate import SimPredictor
from muxcluster.sim.batch.together import OrderedJob, compare_together
from muxcluster.text.schemas import GenerationBody

SAMPLED = 500  # requests on which orders are compared: more would delay the start


class LocalPlanner:
    """Plans each model's lines for the units of this process that serve it.

    Lines of a model without such units are put in a fixed order.
    """

    def __init__(
        self,
        texts: ModelTexts,
        settings: Mapping[str, Setting],
        order: str,
        *,
        lenient: bool,
        units: Mapping[str, Sequence[FedUnit]] = MappingProxyType({}),
        kept: KeptPrompts | None = None,
    ) -> None:
        """order: a name, or auto. settings: by model, where it runs. lenient: as for requests.

        units: by model, those of `settings` that run in this process. kept: gets all prompts'
        tokens, four bytes each, for the lines to run with.
        """
        self._texts = texts
        self._settings = settings
        self._units = units
        self._order = order
        self._lenient = lenient
        self._kept = KeptPrompts() if kept is None else kept
        self.chosen: dict[str, str] = {}  # order by model, once planned
        # models that share units and run one after the other, as that is predicted to be faster
        self.in_turn: list[tuple[str, ...]] = []
        self._jobs: dict[str, OrderedJob] = {}

    async def plan(self, batch: Batch, lines: Sequence[Pending], read: Read) -> Sequence[LivePlan]:
        """As `Planner.plan`, on a thread. A line of several prompts is planned by its first."""
        tokenised: dict[int, Tokenised] = {}
        plans = await asyncio.to_thread(self._plans, batch, lines, read, tokenised)
        self._kept.keep(batch.batch_id, tokenised)
        return plans

    def _plans(
        self, batch: Batch, lines: Sequence[Pending], read: Read, tokenised: dict[int, Tokenised]
    ) -> list[LivePlan]:
        """tokenised: gets each line's prompts."""
        by_model: dict[str, list[PlannedLine]] = defaultdict(list)
        refused = []
        for line in lines:
            try:
                body = body_of(parse_entry(read(line)), lenient=self._lenient)
                found = tokenised[line.line] = self._tokenised(batch.batch_id, line, body)
                by_model[line.model].append(self._asked(line, body, found.prompts[0]))
            except RequestError:
                # it ends at once when it runs, with what is wrong
                refused.append(line)
        plans = [self._plan(*each) for each in by_model.items()]
        fed = [plan for plan in plans if isinstance(plan, FedPlan)]
        for sharing in FedPlan.sharing_units(fed):
            models = tuple(plan.model for plan in sharing)
            if self._gains_at_once(models):
                FedPlan.share_memory(sharing)
            else:
                FedPlan.take_turns(sharing)
                self.in_turn.append(models)
        return [InOrder(refused), *plans]

    def _gains_at_once(self, models: Sequence[str]) -> bool:
        """True if running at once is predicted to be faster, or if nothing can be predicted."""
        unit = self._settings[models[0]].unit
        if any(self._settings[model].unit.spec != unit.spec for model in models):
            return True
        jobs = {model: self._jobs[model] for model in models}
        return compare_together(unit, jobs, SAMPLED).is_faster

    def _tokenised(self, batch_id: str, line: Pending, body: GenerationBody) -> Tokenised:
        model, kept = self._texts.find(line.model), self._kept.find(batch_id, line.line)
        return kept if kept is not None and kept.model is model else tokenise(body, model)

    def _asked(self, line: Pending, body: GenerationBody, prompt: Prompt) -> PlannedLine:
        spec = self._settings[line.model].spec
        is_limited = bool(body.max_tokens or getattr(body, "max_completion_tokens", None))
        output = prompt.max_tokens if is_limited else round(spec.mean_output_tokens)
        return PlannedLine(
            line,
            prompt.tokens,
            max(1, min(output, spec.max_model_len - len(prompt.tokens))),
            is_limited and _runs_to_its_limit(body),
            body.cache_salt or "",
        )

    def _plan(self, model: str, asked: Sequence[PlannedLine]) -> LivePlan:
        setting = self._settings[model]
        unplanned = Unplanned(
            token_prompts([each.tokens for each in asked]),
            np.array([each.output_tokens for each in asked], dtype=np.int64),
            setting.resources,
            setting.size_bytes,
            setting.spec.shape.block_tokens(setting.unit.spec.block_bytes),
            shared_prefix_tokens=setting.unit.spec.scheduler.shared_prefix_tokens,
        )
        whole = unplanned.with_tree()
        order, are_known = self._order, all(each.is_known for each in asked)
        if order == AUTO:
            sample = sample_job(unplanned, whole, SAMPLED)
            predictor = SimPredictor(setting.unit, model, setting.resources)
            order = compare_orders(sample, predictor, tuple(ORDERS), are_known=are_known).best
        self.chosen[model] = order
        self._jobs[model] = OrderedJob(unplanned, order, are_known)
        units = self._units.get(model)
        if units is None:
            return InOrder([asked[number].line for number in order_requests(whole, order).tolist()])
        lengths = [each.output_tokens if each.is_known else np.nan for each in asked]
        known = np.array(lengths, dtype=np.float64)[whole.tree.order]
        return FedPlan(BatchFeeder(whole, order, known), model, asked, units)


def _runs_to_its_limit(body: GenerationBody) -> bool:
    """True if nothing ends the answer before its most tokens."""
    return bool(body.ignore_eos) and not (body.stop or body.stop_token_ids)
