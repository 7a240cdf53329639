"""Messages between controller and unit, as plain values."""

from dataclasses import dataclass

from muxcluster import __version__
from muxcluster.cluster.state.reconcile import Phase
from muxcluster.core.directory import UnitAddress
from muxcluster.core.inputs.carried import WIRE, Carried
from muxcluster.core.served import UnitStats


@dataclass(frozen=True, slots=True)
class ListenSpec(Carried):
    """Address of a unit: a socket in `socket_dir`; or, if that is None, tcp at its node's address,
    for clients with the secret half of `client_key` (CURVE, Z85)."""

    socket_dir: str | None = None
    client_key: bytes | None = None


@dataclass(frozen=True, slots=True)
class UnitReport(Carried):
    """State of a unit, for the controller."""

    phase: Phase  # loading, ready, or failed with `reason`
    reason: str | None = None
    address: UnitAddress | None = None
    stats: UnitStats | None = None
    # How its workers share the SMs, which its node decides for partition `auto`; None until then
    partition: str | None = None
    # Of muxcluster in the unit's process
    version: str = __version__
    wire: int = WIRE
