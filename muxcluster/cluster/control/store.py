"""The controller's state in the key-value table of Ray's GCS: it outlives the controller.

It lives as long as the head node's GCS does, or longer where that keeps its tables in Redis.
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

NAMESPACE = b"muxcluster"
_KEY = b"state"
_FORM = b"1\n"  # First line of the value: what form the rest has


def read_state() -> State:
    """The state that was kept last; an empty one at first.

    Only who has the cluster's token can write there, so the value may be a pickle. Raises
    EngineFailure where another version of muxcluster wrote it.
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
    """Keep `state` instead of what is there."""
    _internal_kv_put(_KEY, _FORM + pickle.dumps(state), overwrite=True, namespace=NAMESPACE)


def clear_state() -> None:
    """Forget everything."""
    _internal_kv_del(_KEY, namespace=NAMESPACE)
