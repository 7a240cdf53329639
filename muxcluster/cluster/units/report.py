"""What controller and unit tell each other, as plain values."""

from dataclasses import dataclass

from muxcluster.cluster.state.reconcile import Phase
from muxcluster.core.directory import UnitAddress
from muxcluster.core.served import UnitStats


@dataclass(frozen=True, slots=True)
class Entrance:
    """Where a unit listens: on a socket in `socket_dir`; or, where that is None, on tcp at its
    node's address, for clients with the secret half of `client_key` (CURVE, Z85)."""

    socket_dir: str | None = None
    client_key: bytes | None = None


@dataclass(frozen=True, slots=True)
class UnitReport:
    """What a unit says of itself."""

    phase: Phase  # loading, ready or failed, then for `reason`
    reason: str | None = None
    address: UnitAddress | None = None
    stats: UnitStats | None = None
