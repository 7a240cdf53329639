"""Storage of the controller's state in the key-value table of Ray's GCS.

It outlives the controller, and the head node's GCS too if that keeps its tables in Redis.
"""

import pickle

from ray.experimental.internal_kv import (
    _internal_kv_del,
    _internal_kv_get,
    _internal_kv_initialized,
    _internal_kv_put,
)

from muxcluster.cluster.state.desired import State
from muxcluster.core.errors import EngineFailure
from muxcluster.core.served import ServedModel

NAMESPACE = b"muxcluster"
_KEY = b"state"
_ADAPTERS = b"adapters"
_FORM = b"5\n"  # first line of the value: version of its format


def read_state() -> State:
    """Return the stored state; an empty one at first.

    The value may be a pickle: only processes with the cluster's token can write there. Raises
    EngineFailure if another version of muxcluster wrote it.
    """
    assert _internal_kv_initialized(), "not connected to Ray"
    value = _internal_kv_get(_KEY, namespace=NAMESPACE)
    if value is None:
        return State()
    if not value.startswith(_FORM):
        raise EngineFailure("the cluster runs another version of muxcluster: `muxcluster down` it")
    state = pickle.loads(value[len(_FORM) :])
    assert isinstance(state, State)
    return state


def write_state(state: State) -> None:
    """Replace the stored state."""
    _internal_kv_put(_KEY, _FORM + pickle.dumps(state), overwrite=True, namespace=NAMESPACE)


def clear_state() -> None:
    """Delete the stored state."""
    _internal_kv_del(_KEY, namespace=NAMESPACE)
    _internal_kv_del(_ADAPTERS, namespace=NAMESPACE)


def read_adapters() -> tuple[ServedModel, ...]:
    """Return the stored adapters; none at first. As `read_state`."""
    value = _internal_kv_get(_ADAPTERS, namespace=NAMESPACE)
    if value is None or not value.startswith(_FORM):
        return ()
    found: tuple[ServedModel, ...] = pickle.loads(value[len(_FORM) :])
    return found


def write_adapters(adapters: tuple[ServedModel, ...]) -> None:
    """Replace the stored adapters."""
    value = _FORM + pickle.dumps(adapters)
    _internal_kv_put(_ADAPTERS, value, overwrite=True, namespace=NAMESPACE)
