"""SM shares of a unit's jobs, and the load of its resources at its demand."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from muxcluster.core.job import Phase
from muxcluster.placement.estimator.modelcost import ModelCost
from muxcluster.placement.estimator.weight_memory import WeightMemory
from muxcluster.placement.execution import Execution
from muxcluster.placement.quota import split_among_awake, split_blocks


@dataclass(frozen=True, slots=True)
class Tenant:
    """A model on a unit: its cost there, the requests/s offered to it, its decode batch."""

    cost: ModelCost
    rate: float
    batch: int  # a considered one
    rows: float  # most sequences at a time: of its part of the KV, or all its rows
    pool_blocks: int | None = None  # KV blocks that all models share, None: each has its quota


def tenants_of(
    costs: Sequence[ModelCost],
    rates: Sequence[float],
    num_blocks: int,
    execution: Execution,
    weight_memory: WeightMemory | None = None,
) -> tuple[tuple[Tenant, ...], tuple[int, ...]]:
    """Return the models of a unit whose pool has so many blocks, and their quotas: the initial
    ones, or what each has while it is awake, on average, where models share memory for weights."""
    weights = [rate * cost.held_bytes for cost, rate in zip(costs, rates, strict=True)]
    # without quotas all sequences share the pool, in the proportion in which they hold it
    floors = [cost.floor_blocks * execution.uses_quotas for cost in costs]
    most = [cost.most_blocks for cost in costs]
    if weight_memory is None:
        quotas = split_blocks(num_blocks, floors, weights, most)
    else:
        # all requests of a model come to the unit that has its weights
        weights = [
            weight * (weight_memory.num_units if cost.demand.may_park else 1)
            for weight, cost in zip(weights, costs, strict=True)
        ]
        awake = weight_memory.awake(rates)
        quotas = split_among_awake(num_blocks, floors, weights, most, awake)
    pool = None if execution.uses_quotas else num_blocks
    tenants = tuple(
        Tenant(cost, rate, cost.batch(quota), cost.rows(quota), pool)
        for cost, rate, quota in zip(costs, rates, quotas, strict=True)
    )
    return tenants, quotas


@dataclass(frozen=True, slots=True)
class Loads:
    """Load of a unit's resources if all that is offered were served; 1 = busy all of the time."""

    prefill_share: float  # SM share of the one prefill at a time
    # decode_shares, lanes: by model, SM share of its decodes and the load of its own decode lane (a
    # sequence is in one step at a time)
    decode_shares: tuple[float, ...]
    slowdown: float  # factor of co-running, already included in the loads
    lanes: tuple[float, ...]
    # prefill, sms, bandwidth: by model, its part of the load of the prefill lane, of the SMs' time,
    # of the memory's
    prefill: tuple[float, ...]
    sms: tuple[float, ...]
    bandwidth: tuple[float, ...]
    # by model, its part of the load of the decode workers, of which a unit may have fewer than
    # models; zeros without sharing
    decoders: tuple[float, ...] = ()
    is_mixed: bool = False  # prompt chunks and decodes of a model are one job
    # num_decodes, rungs: decode workers, and the SM shares that they can have
    num_decodes: int = 1
    rungs: tuple[float, ...] = (1.0,)
    # The other way of a unit that runs mixed jobs while sharing is measured to gain less
    other: "Loads | None" = None
    # Memory that models share for their weights, and by model its part of the load of it
    weight_memory: WeightMemory | None = None
    weight_memory_loads: tuple[float, ...] = ()

    @property
    def shared(self) -> bool:
        """Whether jobs run side by side, not one after the other on the whole GPU."""
        return self.prefill_share < 1

    @property
    def greatest(self) -> float:
        """Load of the resource that is used most. A decode lane counts only if it is too small,
        because its SMs were chosen to be just enough."""
        full = [lane for lane in self.lanes if lane > 1]
        return max(*(sum(part) for part in self.resources.values()), *full)

    @property
    def resources(self) -> dict[str, tuple[float, ...]]:
        """Load by resource that all models compete for, then by model."""
        found = {
            "prefill lane": self.prefill,
            "decode workers": self.decoders,
            "SM time": self.sms,
            "memory bandwidth": self.bandwidth,
        }
        if self.weight_memory is None:
            return found
        return {**found, "memory for weights": self.weight_memory_loads}


def expected(
    tenants: Sequence[Tenant], execution: Execution, weight_memory: WeightMemory | None = None
) -> Loads:
    """Return the loads of the way in which the unit will run its jobs most of the time: the one
    that takes less time, as scheduling/lanes/unsharing.py decides.

    weight_memory: memory that models share for their weights.
    """
    found = candidates(tenants, execution)
    if weight_memory is not None:
        found = [_with_weight_memory(tenants, loads, weight_memory) for loads in found]
    best = min(found, key=lambda each: each.greatest)
    others = [each for each in found if each.is_mixed is not best.is_mixed]
    if not (execution.may_unshare and others):
        return best
    return replace(best, other=min(others, key=lambda each: each.greatest))


def _with_weight_memory(
    tenants: Sequence[Tenant], loads: Loads, weight_memory: WeightMemory
) -> Loads:
    """Add the load of the memory that models share for their weights."""
    # without shared SMs one job runs at a time: then its time is the SMs' time
    busy = (
        [max(parts) for parts in zip(loads.lanes, loads.prefill, strict=True)]
        if loads.shared
        else loads.sms
    )
    weight_memory_loads = weight_memory.loads([each.rate for each in tenants], busy)
    return replace(loads, weight_memory=weight_memory, weight_memory_loads=weight_memory_loads)


def candidates(tenants: Sequence[Tenant], execution: Execution) -> list[Loads]:
    """The loads of each way in which the unit can run its jobs: one at a time first, then splits of
    the SMs."""
    found = [_in_mixed_jobs(tenants) if execution.runs_mixed else _in_turns(tenants)]
    for split, rest in splits_of(execution):
        num_decodes = execution.num_workers(Phase.DECODE)
        rungs = execution.rungs(Phase.DECODE)
        loads = _side_by_side(tenants, rest, split, 1.0, num_decodes)
        found.append(replace(loads, num_decodes=num_decodes, rungs=rungs))
        if loads.greatest > 1:
            # requests that cannot be served need no SMs: smaller shares leave more for all
            loads = _side_by_side(tenants, rest, split, 1 / loads.greatest, num_decodes)
            found.append(replace(loads, num_decodes=num_decodes, rungs=rungs))
    return found


def splits_of(execution: Execution) -> list[tuple[float, tuple[float, ...]]]:
    """Return the prefill shares that leave SMs for decodes, each with the decode shares beside it;
    none where the unit shares no SMs."""
    if not execution.shares_sms:
        return []
    decodes = execution.rungs(Phase.DECODE)
    splits = (
        (split, tuple(share for share in decodes if share <= 1 - split + 1e-9))
        for split in execution.rungs(Phase.PREFILL)
    )
    return [(split, rest) for split, rest in splits if rest]


def _in_turns(tenants: Sequence[Tenant]) -> Loads:
    """Load with one job at a time on the whole GPU, a prefill or a decode: temporal sharing."""
    busy, drawn = [], []
    for each in tenants:
        prefill_s, prefill_draw = each.cost.prefill(1.0)
        decode_s, decode_draw = each.cost.decode(each.batch, 1.0)
        busy.append(each.rate * (prefill_s + decode_s))
        drawn.append(each.rate * (prefill_s * prefill_draw + decode_s * decode_draw))
    none = (0.0,) * len(tenants)
    ones = (1.0,) * len(tenants)
    return Loads(1.0, ones, 1.0, none, none, tuple(busy), tuple(drawn))


def _in_mixed_jobs(tenants: Sequence[Tenant]) -> Loads:
    """Load with one job at a time on the whole GPU, with prompts and decodes of one model."""
    found = [each.cost.mixed(each.batch) for each in tenants]
    busy = tuple(each.rate * seconds for each, (seconds, _) in zip(tenants, found, strict=True))
    drawn = tuple(each.rate * drawn for each, (_, drawn) in zip(tenants, found, strict=True))
    none = (0.0,) * len(tenants)
    ones = (1.0,) * len(tenants)
    return Loads(1.0, ones, 1.0, none, none, busy, drawn, is_mixed=True)


def _side_by_side(
    tenants: Sequence[Tenant],
    rest: Sequence[float],
    prefill_share: float,
    part: float,
    num_decodes: int,
) -> Loads:
    """Load with prefill on its share of the SMs and decodes on the rest (MuxServe §3.1).

    A model's decodes get the fewest SMs on which its own lane meets `part` of its rate (Alg. 2);
    concurrent jobs compete for the SMs' time, share x seconds, and for the decode workers.
    """
    prefills = [each.cost.prefill(prefill_share) for each in tenants]
    drawn_beside = max(draw for _, draw in prefills)
    shares, slower = _decode_shares(tenants, rest, drawn_beside, part)
    decodes = [
        each.cost.decode(each.batch, share) for each, share in zip(tenants, shares, strict=True)
    ]
    prefill, lanes, sms, drawn = [], [], [], []
    for each, share, (prefill_s, prefill_draw), (decode_s, decode_draw) in zip(
        tenants, shares, prefills, decodes, strict=True
    ):
        prefill.append(each.rate * prefill_s * slower)
        lanes.append(each.rate * decode_s * slower)
        sms.append(prefill_share * prefill[-1] + share * lanes[-1])
        drawn.append(each.rate * (prefill_s * prefill_draw + decode_s * decode_draw))
    return Loads(
        prefill_share,
        tuple(shares),
        slower,
        tuple(lanes),
        tuple(prefill),
        tuple(sms),
        tuple(drawn),
        tuple(lane / num_decodes for lane in lanes),
    )


def _decode_shares(
    tenants: Sequence[Tenant], rest: Sequence[float], drawn_beside: float, part: float
) -> tuple[list[float], float]:
    """Return (share of each model's decodes, slowdown beside a prefill). More SMs also draw more
    bandwidth; the shares are chosen for the slowdown of the shares found without it."""
    slower = 1.0
    for _ in range(2):
        shares = [_fewest(each, rest, slower * part) for each in tenants]
        drawn = max(
            each.cost.decode(each.batch, share)[1]
            for each, share in zip(tenants, shares, strict=True)
        )
        slower = tenants[0].cost.slowdown((drawn_beside, drawn))
    return shares, slower


def _fewest(tenant: Tenant, rest: Sequence[float], factor: float) -> float:
    for share in rest:
        if tenant.rate * tenant.cost.decode(tenant.batch, share)[0] * factor <= 1:
            return share
    return rest[-1]


def within_loads(loads: Loads, served: Sequence[float]) -> tuple[float, ...]:
    """Return `served`, lowered to what every resource carries at the largest batches.

    So no estimate is better than the modes of the relaxation that bounds it.
    """
    capped = [
        min(share, 1 / lane) if lane > 1 else share
        for share, lane in zip(served, loads.lanes, strict=True)
    ]
    most = max(
        sum(load * share for load, share in zip(part, capped, strict=False))
        for part in loads.resources.values()
    )
    return tuple(share / max(1.0, most) for share in capped)
