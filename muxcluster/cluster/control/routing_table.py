"""From units as they are to what ingresses are told."""

from collections.abc import Sequence

from muxcluster.cluster.control.watch import UnitWatch
from muxcluster.cluster.state.desired import State
from muxcluster.cluster.state.reconcile import Phase
from muxcluster.core.directory import Directory

# What clients of a model without a place are told: nodes come back in minutes, not in seconds.
RETRY_AFTER_S = 30.0
_GONE = frozenset({Phase.AWAY, Phase.FAILED, Phase.STOPPING})


def directory_of(
    state: State, watches: Sequence[UnitWatch], reachable: frozenset[str]
) -> Directory:
    """New requests go to units that serve; one that restarts keeps its place, its requests wait.

    A unit that failed, ends, or is on a node that cannot be reached is not in it.
    """
    assert state.desired is not None
    models = {model.name for model in state.desired.models}
    routes: dict[str, tuple[str, ...]] = dict.fromkeys(sorted(models), ())
    units, draining = {}, {}
    for watch in watches:
        unit = watch.seen(is_reachable=watch.record.node_id in reachable)
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
    )
