"""Storage of the controller's state in the key-value table of Ray's GCS.

It outlives the controller, and the head node's GCS too if that keeps its tables in Redis.
"""

from typing import Any

from ray.experimental.internal_kv import (
    _internal_kv_del,
    _internal_kv_get,
    _internal_kv_initialized,
    _internal_kv_put,
)

from muxcluster.cluster.state.desired import State
from muxcluster.core.errors import EngineFailure
from muxcluster.core.inputs.carried import WIRE, packed, talks_to, unpacked
from muxcluster.core.served import ServedModel

NAMESPACE = b"muxcluster"
_KEY = b"state"
_ADAPTERS = b"adapters"


def read_state() -> State:
    """Return the stored state; an empty one at first.

    Raises EngineFailure if a version of muxcluster wrote it with which this one does not work
    together.
    """
    assert _internal_kv_initialized(), "not connected to Ray"
    value = _internal_kv_get(_KEY, namespace=NAMESPACE)
    return State() if value is None else state_of(value)


def write_state(state: State) -> None:
    """Replace the stored state."""
    _internal_kv_put(_KEY, stored(state), overwrite=True, namespace=NAMESPACE)


def clear_state() -> None:
    """Delete the stored state."""
    _internal_kv_del(_KEY, namespace=NAMESPACE)
    _internal_kv_del(_ADAPTERS, namespace=NAMESPACE)


def read_adapters() -> tuple[ServedModel, ...]:
    """Return the stored adapters; none at first. As `read_state`."""
    value = _internal_kv_get(_ADAPTERS, namespace=NAMESPACE)
    return () if value is None else tuple(_value_of(value))


def write_adapters(adapters: tuple[ServedModel, ...]) -> None:
    """Replace the stored adapters."""
    _internal_kv_put(_ADAPTERS, stored(adapters), overwrite=True, namespace=NAMESPACE)


def stored(value: object) -> bytes:
    """Return a value with the version of its form, `WIRE`, as its first line."""
    return b"%d\n" % WIRE + packed(value)


def state_of(value: bytes) -> State:
    """Return the state that `stored` wrote in this version or a neighbour of it.

    Raises EngineFailure as `read_state`.
    """
    state = _value_of(value)
    assert isinstance(state, State)
    return state


def _value_of(value: bytes) -> Any:
    """The value holds a pickle: only processes with the cluster's token can write it."""
    form, _, data = value.partition(b"\n")
    if not form.isdigit() or not talks_to(int(form)):
        raise EngineFailure(
            "the cluster runs a version of muxcluster that this one cannot replace while it"
            " serves: `muxcluster down` it with that version, then `up`"
        )
    return unpacked(data)
