"""Replanning: new plans for changed nodes, changed rates or changed backlogs of batch work."""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from time import monotonic

from muxcluster.cluster.state.desired import Desired, Record
from muxcluster.cluster.state.fitting import (
    at_backlogs,
    at_rates,
    backlogs_of,
    desired_of,
    nothing_placed,
    plan_what_fits,
)
from muxcluster.cluster.state.rates import LEAST_TOKENS_PER_S, RateWatch, to_plan_for
from muxcluster.config.load import Config
from muxcluster.core.errors import ConfigError
from muxcluster.placement.plan import Plan
from muxcluster.placement.problem import Node

_Pair = tuple[Mapping[str, float], Mapping[str, float]]  # planned and measured, by model

logger = logging.getLogger(__name__)


class Replanner:
    """Compare the cluster with the one that the current plan was made for.

    follows_rates: replan for measured rates and backlogs, if the policy allows it.
    """

    def __init__(self, *, follows_rates: bool) -> None:
        self._follows_rates = follows_rates
        self._rates: RateWatch | None = None
        self._backlogs: RateWatch | None = None
        self._refused: tuple[Node, ...] | None = None
        self.problem: str | None = None

    def reset(self, desired: Desired) -> None:
        """Accept `desired` as current and drop earlier measurements."""
        policy = desired.config.policy
        follows = self._follows_rates and policy.replan == "auto"
        period_s = policy.replan_period_s
        self._rates = RateWatch(period_s) if follows else None
        self._backlogs = RateWatch(period_s, LEAST_TOKENS_PER_S) if follows else None
        self._refused = self.problem = None

    async def next(
        self,
        desired: Desired,
        nodes: tuple[Node, ...],
        records: Sequence[Record],
        measured: Mapping[str, float],
        backlogs: Mapping[str, float],
    ) -> Desired | None:
        """Return a new desired state; None if `desired` is still right.

        nodes: usable now; records: running units, from which a new plan continues; measured:
        requests/s by model, of models that serve; backlogs: tokens/s of batch work that waits, by
        model.
        """
        rates, batch = dict(desired.rates), dict(desired.backlogs)
        if _same(nodes, desired.nodes) or _same(nodes, self._refused):
            asked, waiting = _rates_now(desired, measured), _backlogs_now(desired, backlogs)
            planned = {name: rate for name, rate in rates.items() if name in asked}
            if not self._are_due((planned, asked), (batch, waiting)):
                return None
            rates, batch = rates | asked, waiting
        logger.info("plan anew for %d nodes", len(nodes))
        current = _in_force(desired, records, nodes)
        try:
            wanted = at_backlogs(at_rates(desired.config, rates), batch)
            found = await asyncio.to_thread(_planned, desired, wanted, nodes, current)
        except ConfigError as error:
            self._refused, self.problem = nodes, str(error)
            logger.warning("no new plan: %s", error)
            return None
        self.problem = None
        return found

    def _are_due(self, rates: _Pair, backlogs: _Pair) -> bool:
        """Return whether measured rates or backlogs have been off for long; both watches look."""
        if self._rates is None or self._backlogs is None:
            return False
        now_s = monotonic()
        return any((self._rates.look(*rates, now_s), self._backlogs.look(*backlogs, now_s)))


def _backlogs_now(desired: Desired, measured: Mapping[str, float]) -> dict[str, float]:
    """Return the batch work to plan for: what waits, but no less than is configured, which comes
    again."""
    names = [model.name for model in desired.config.models]
    configured = backlogs_of(desired.config)
    return {
        name: max(configured.get(name, 0.0), measured.get(name, 0.0))
        for name in names
        if name in configured or measured.get(name, 0.0) >= LEAST_TOKENS_PER_S
    }


def _rates_now(desired: Desired, measured: Mapping[str, float]) -> dict[str, float]:
    """Return the rates to plan for, of models that are measured and still configured."""
    configured = {model.name: model.section.rate for model in desired.config.models}
    return {
        name: to_plan_for(configured[name], rate)
        for name, rate in measured.items()
        if name in configured
    }


def _planned(
    desired: Desired,
    wanted: Config,
    nodes: tuple[Node, ...],
    current: Plan | None,
) -> Desired:
    """wanted: the configuration at the rates and backlogs to plan for."""
    plan, unplaced = plan_what_fits(wanted, nodes, current)
    rates = {model.name: model.section.rate for model in wanted.models}
    found = desired_of(desired.config, plan, nodes, unplaced, rates, backlogs_of(wanted))
    return replace(found, needs_gpus=found.needs_gpus or desired.needs_gpus)


def _in_force(desired: Desired, records: Sequence[Record], nodes: Sequence[Node]) -> Plan | None:
    """Return the plan of what runs on `nodes`, also units of an older plan on a returned node."""
    names = {node.name for node in nodes}
    taken: set[tuple[str, int]] = set()
    units = []
    planned = [target.planned for target in desired.targets]
    for unit in (*planned, *(record.target.planned for record in records)):
        places = {(unit.node, gpu) for gpu in unit.gpus}
        if unit.node in names and taken.isdisjoint(places):
            taken |= places
            units.append(unit)
    if not units:
        return None
    return nothing_placed(desired.config).model_copy(update={"units": tuple(units)})


def _same(nodes: Sequence[Node], others: Sequence[Node] | None) -> bool:
    return others is not None and {n.name: n for n in nodes} == {n.name: n for n in others}
