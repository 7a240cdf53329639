"""What an ingress must know of the cluster: the controller writes it, the data path lives by it."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from muxcluster.core.served import ServedModel


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A CURVE key pair in Z85, 40 bytes each. The secret half is never shown."""

    public: bytes
    secret: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class UnitAddress:
    """Where one unit listens now.

    endpoint: "ipc://PATH" (a private folder on this node) or "tcp://NODE_IP:PORT".
    server_key: the CURVE public key (Z85) that the unit made when it started; None on ipc, which
    needs none. A unit that was restarted has another endpoint and another key.
    """

    unit_id: str
    endpoint: str
    server_key: bytes | None = None


@dataclass(frozen=True, slots=True)
class Directory:
    """The whole of it at one moment; an ingress keeps its last one while the controller is gone.

    models: every configured model, served at the moment or not; `/v1/models` follows them.
    routes: model -> ids of the units that take its new requests, never one of `draining`. No unit:
        the model is being placed or moved, and its requests wait (bounded in number and time).
    units: address of each unit by id, best before `routes` names it: ingresses connect at once. One
        that is in `routes` or `draining` but not here restarts: its link stays as it is. One that
        is nowhere is gone: the link to it is closed, and requests it still had go on elsewhere.
    draining: unit id -> seconds, from when an ingress hears of it, that requests under way may take
        to end there; those left then move on with what they have.
    unplaced: model -> seconds for Retry-After, where no capacity is left for it: new requests are
        refused with 503 at once, those under way wait for it to be placed again (bounded).
    client_key: proves to units on tcp that a client belongs to the cluster; they were started with
        its public half. None where every unit is on ipc.
    """

    models: tuple[ServedModel, ...]
    routes: Mapping[str, tuple[str, ...]]
    units: Mapping[str, UnitAddress] = field(default_factory=dict)
    draining: Mapping[str, float] = field(default_factory=dict)
    unplaced: Mapping[str, float] = field(default_factory=dict)
    client_key: KeyPair | None = None

    @property
    def version(self) -> str:
        """Name of this content: equal directories have equal versions, across restarts too.

        The controller's `async directory(known_version: str | None) -> Directory | None` answers
        None where `known_version` is that of the present one, and as long as it has none itself: a
        controller that comes back must not take models away before it has read its state.
        """
        parts = (self.routes, self.units, self.draining, self.unplaced)
        text = repr((self.models, self.client_key, [sorted(part.items()) for part in parts]))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def unit_ids(self) -> tuple[str, ...]:
        """Units that an ingress keeps a link to: all that are named somewhere, sorted."""
        routed = {unit_id for unit_ids in self.routes.values() for unit_id in unit_ids}
        return tuple(sorted(routed | self.draining.keys() | self.units.keys()))
