"""Replanning: new plans for changed nodes or changed rates."""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from time import monotonic

from muxcluster.cluster.state.desired import Desired, Record
from muxcluster.cluster.state.fitting import at_rates, desired_of, nothing_placed, plan_what_fits
from muxcluster.cluster.state.rates import RateWatch, to_plan_for
from muxcluster.core.errors import ConfigError
from muxcluster.placement.plan import Plan
from muxcluster.placement.problem import Node

logger = logging.getLogger(__name__)


class Replanner:
    """Compare the cluster with the one that the current plan was made for.

    follows_rates: replan for measured rates, if the policy allows it.
    """

    def __init__(self, *, follows_rates: bool) -> None:
        self._follows_rates = follows_rates
        self._rates: RateWatch | None = None
        self._refused: tuple[Node, ...] | None = None
        self.problem: str | None = None

    def reset(self, desired: Desired) -> None:
        """Accept `desired` as current and drop earlier measurements."""
        policy = desired.config.policy
        follows = self._follows_rates and policy.replan == "auto"
        self._rates = RateWatch(policy.replan_period_s) if follows else None
        self._refused = self.problem = None

    async def next(
        self,
        desired: Desired,
        nodes: tuple[Node, ...],
        records: Sequence[Record],
        measured: Mapping[str, float],
    ) -> Desired | None:
        """Return a new desired state; None if `desired` is still right.

        nodes: usable now; records: running units, from which a new plan continues; measured:
        requests/s by model, of models that serve.
        """
        rates = dict(desired.rates)
        if _same(nodes, desired.nodes) or _same(nodes, self._refused):
            asked = _rates_now(desired, measured)
            planned = {name: rate for name, rate in rates.items() if name in asked}
            if self._rates is None or not self._rates.look(planned, asked, monotonic()):
                return None
            rates |= asked
        logger.info("plan anew for %d nodes", len(nodes))
        current = _in_force(desired, records, nodes)
        try:
            found = await asyncio.to_thread(_planned, desired, nodes, rates, current)
        except ConfigError as error:
            self._refused, self.problem = nodes, str(error)
            logger.warning("no new plan: %s", error)
            return None
        self.problem = None
        return found


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
    nodes: tuple[Node, ...],
    rates: Mapping[str, float],
    current: Plan | None,
) -> Desired:
    config = at_rates(desired.config, rates)
    plan, unplaced = plan_what_fits(config, nodes, current)
    found = desired_of(desired.config, plan, nodes, unplaced, rates)
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
