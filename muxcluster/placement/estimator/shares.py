"""SM shares of a unit's jobs, and the load of its resources at its demand."""

from collections.abc import Sequence
from dataclasses import dataclass

from muxcluster.placement.estimator.modelcost import ModelCost

_SPLITS = (0.3, 0.5, 0.7, 0.9)  # prefill shares to try; decodes get the other SMs


@dataclass(frozen=True, slots=True)
class Tenant:
    """A model on a unit: its cost there, the requests/s offered to it, its decode batch."""

    cost: ModelCost
    rate: float
    batch: int


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

    @property
    def shared(self) -> bool:
        """Whether jobs run side by side, not one after the other on the whole GPU."""
        return self.prefill_share < 1

    @property
    def greatest(self) -> float:
        """Load of the resource that is used most. A decode lane counts only if it is too small,
        because its SMs were chosen to be just enough."""
        full = [lane for lane in self.lanes if lane > 1]
        return max(sum(self.prefill), sum(self.sms), sum(self.bandwidth), *full)


def candidates(tenants: Sequence[Tenant], rungs: Sequence[float]) -> list[Loads]:
    """The loads of each way of sharing that `rungs` allow: time sharing first, then splits."""
    found = [_in_turns(tenants)]
    for split in (rung for rung in rungs if rung in _SPLITS):
        loads = _side_by_side(tenants, rungs, split, 1.0)
        found.append(loads)
        if loads.greatest > 1:
            # requests that cannot be served need no SMs: smaller shares leave more for all
            found.append(_side_by_side(tenants, rungs, split, 1 / loads.greatest))
    return found


def _in_turns(tenants: Sequence[Tenant]) -> Loads:
    """Load with one job at a time on the whole GPU: temporal sharing, and a bound for `mixed`."""
    busy, drawn = [], []
    for each in tenants:
        prefill_s, prefill_draw = each.cost.prefill(1.0)
        decode_s, decode_draw = each.cost.decode(each.batch, 1.0)
        busy.append(each.rate * (prefill_s + decode_s))
        drawn.append(each.rate * (prefill_s * prefill_draw + decode_s * decode_draw))
    none = (0.0,) * len(tenants)
    ones = (1.0,) * len(tenants)
    return Loads(1.0, ones, 1.0, none, none, tuple(busy), tuple(drawn))


def _side_by_side(
    tenants: Sequence[Tenant], rungs: Sequence[float], prefill_share: float, part: float
) -> Loads:
    """Load with prefill on its share of the SMs and decodes on the rest (MuxServe §3.1).

    A model's decodes get the fewest SMs on which its own lane meets `part` of its rate (Alg. 2);
    concurrent jobs compete for the SMs' time, share x seconds.
    """
    rest = [rung for rung in rungs if rung <= 1 - prefill_share + 1e-9]
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
