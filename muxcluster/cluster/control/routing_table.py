"""The ingresses' routing table from the observed units."""

from collections.abc import Sequence

from muxcluster.cluster.control.watch import UnitWatch
from muxcluster.cluster.state.desired import State
from muxcluster.cluster.state.reconcile import Phase
from muxcluster.core.directory import Directory

# Retry-After for a model without a place: nodes come back in minutes, not in seconds.
RETRY_AFTER_S = 30.0
_GONE = frozenset({Phase.AWAY, Phase.FAILED, Phase.STOPPING})


def directory_of(
    state: State, watches: Sequence[UnitWatch], reachable: frozenset[str], leaving: str = ""
) -> Directory:
    """Route new requests to units that serve; a restarting unit keeps its place and its requests
    wait.

    A unit that failed, is being stopped, or is on an unreachable node is left out. leaving: as the
    directory's.
    """
    assert state.desired is not None
    models = {model.unit_model for model in state.desired.models}
    routes: dict[str, tuple[str, ...]] = dict.fromkeys(sorted(models), ())
    units, draining = {}, {}
    for watch in watches:
        unit = watch.observed(is_reachable=watch.record.node_id in reachable)
        if unit.phase in _GONE or not watch.was_ready:
            continue
        if watch.report is not None and watch.report.address is not None:
            units[unit.name] = watch.report.address
        if unit.drain_until_s is not None:
            draining[unit.name] = watch.drain_s
            continue
        for name in unit.models & models:
            routes[name] = (*routes[name], unit.name)
    return Directory(
        models=state.desired.models,
        routes=routes,
        units=units,
        draining=draining,
        unplaced={name: RETRY_AFTER_S for name in state.desired.unplaced if not routes[name]},
        client_key=state.client_key,
        leaving=leaving,
    )
