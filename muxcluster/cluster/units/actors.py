"""Unit actors in Ray: created on their node in a placement group like their mesh, and stopped."""

import asyncio
import contextlib
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util import (
    get_placement_group,
    list_named_actors,
    placement_group,
    placement_group_table,
    remove_placement_group,
)
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from muxcluster.cluster.ray.nodes import HEAD_RESOURCE
from muxcluster.cluster.state.desired import Record
from muxcluster.cluster.units.host import UnitHost
from muxcluster.cluster.units.mesh import mesh_request

NAMESPACE = "muxcluster"  # Ray namespace of all our actors
CONTROLLER = "controller"
# Name of the actor with files and batches, created by the layer above; it ends with the controller.
BATCHES = "batches"
KEYS = "keys"  # the actor that counts what the keys of tenants use, as BATCHES
RESPONSES = "responses"  # the actor that keeps responses, as BATCHES
_GROUP = "muxcluster:"  # prefix of our placement groups' names
_CONCURRENCY = 8
_HEAD_CONCURRENCY = 1000  # concurrent calls of an actor on the event loop, most of which wait


def make_on_head(actor_class: type, name: str, *args: Any) -> Any:
    """Return the handle of the cluster's actor of that name. If it is missing, `actor_class(*args)`
    is created on the head; it outlives its creator."""
    actor: Any = ray.remote(actor_class)
    return actor.options(
        name=name,
        namespace=NAMESPACE,
        get_if_exists=True,
        lifetime="detached",
        num_cpus=0,
        resources={HEAD_RESOURCE: 0.001},
        max_restarts=-1,
        max_concurrency=_HEAD_CONCURRENCY,
    ).remote(*args)


def make_unit(record: Record, unit_class: str, *args: Any) -> None:
    """Create the unit's actor, `unit_class(spec, *args)`, without waiting for it.

    unit_class: as `UnitHost`'s. An existing actor of that name is kept.
    """
    mesh = mesh_request(record.target.num_gpus)
    group = placement_group(
        [dict(bundle) for bundle in mesh.bundles],
        strategy="STRICT_PACK",
        name=_GROUP + record.name,
        lifetime="detached",
        bundle_label_selector=[{"ray.io/node-id": record.node_id} for _ in mesh.bundles],
    )
    actor: Any = ray.remote(UnitHost)
    actor.options(
        name=record.name,
        namespace=NAMESPACE,
        get_if_exists=True,
        lifetime="detached",
        num_cpus=mesh.num_cpus,
        num_gpus=mesh.num_gpus,
        max_restarts=-1,
        max_concurrency=_CONCURRENCY,
        scheduling_strategy=PlacementGroupSchedulingStrategy(placement_group=group),
    ).remote(unit_class, record.target.spec, *args)


def find_actor(name: str) -> Any | None:
    """Return the handle of our actor of that name; None if there is none."""
    try:
        return ray.get_actor(name, NAMESPACE)
    except ValueError:
        return None


async def end_unit(name: str, timeout_s: float) -> None:
    """Close the unit, for at most `timeout_s` seconds, then kill it and free its GPUs."""
    actor = await asyncio.to_thread(find_actor, name)
    if actor is not None:
        if timeout_s > 0:
            with contextlib.suppress(TimeoutError, RayError):
                await asyncio.wait_for(actor.close.remote(), timeout_s)
        with contextlib.suppress(RayError):
            await asyncio.to_thread(ray.kill, actor)
    await asyncio.to_thread(_remove_group, name)


def _remove_group(name: str) -> None:
    with contextlib.suppress(ValueError):
        remove_placement_group(get_placement_group(_GROUP + name))


def unit_names() -> list[str]:
    """Return the names of all our actors and placement groups that Ray knows."""
    actors = list_named_actors(all_namespaces=True)
    names = {each["name"] for each in actors if each["namespace"] == NAMESPACE}
    groups = placement_group_table().values()
    names |= {
        each["name"].removeprefix(_GROUP)
        for each in groups
        if each["name"].startswith(_GROUP) and each["state"] != "REMOVED"
    }
    return sorted(names)
