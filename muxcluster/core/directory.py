"""Routing table of a cluster: written by the controller, read by every ingress."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from muxcluster.core.inputs.carried import Carried
from muxcluster.core.served import ServedModel


@dataclass(frozen=True, slots=True)
class KeyPair(Carried):
    """A CURVE key pair in Z85, 40 bytes each. The secret half is never shown."""

    public: bytes
    secret: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class UnitAddress(Carried):
    """Current address of one unit."""

    unit_id: str
    endpoint: str  # "ipc://PATH" (a private folder on this node) or "tcp://NODE_IP:PORT"
    # CURVE public key (Z85), made by the unit at its start; None on ipc. A restarted unit has
    # another endpoint and another key.
    server_key: bytes | None = None


@dataclass(frozen=True, slots=True)
class Directory(Carried):
    """Routing table at one moment; an ingress keeps its last one while the controller is gone."""

    # Every configured model, even if not served at the moment; `/v1/models` lists them
    models: tuple[ServedModel, ...]
    # Model -> ids of the units that take its new requests, never one of `draining`. Without a unit
    # the model is being placed or moved, and its requests wait (limited in number and time).
    routes: Mapping[str, tuple[str, ...]]
    # Unit id -> address, best listed before `routes` names the unit: ingresses connect at once. A
    # unit in `routes` or `draining` but not here is restarting: its link is kept. A unit that is
    # named nowhere is gone: its link is closed, and its requests are resumed elsewhere.
    units: Mapping[str, UnitAddress] = field(default_factory=dict)
    # Unit id -> seconds that running requests may take to end there, from when an ingress learns of
    # it; the others are then moved with the tokens they have
    draining: Mapping[str, float] = field(default_factory=dict)
    # Model without capacity -> seconds for Retry-After: new requests are refused with 503, running
    # ones wait until it is placed again (for a limited time)
    unplaced: Mapping[str, float] = field(default_factory=dict)
    # Proves to units on tcp that a client belongs to the cluster; they were started with its public
    # half. None if every unit is on ipc.
    client_key: KeyPair | None = None
    # Version of the ingresses that take no more connections and finish their answers, because
    # others replace them; empty: none
    leaving: str = ""

    @property
    def version(self) -> str:
        """Hash of the content: equal directories have equal versions, across restarts too.

        The controller's `async directory(known_version: str | None) -> Directory | None` returns
        None if `known_version` is the current one, and until it has a directory itself: a
        restarted controller must not withdraw models before it has read its state.
        """
        parts = (self.routes, self.units, self.draining, self.unplaced)
        content = [sorted(part.items()) for part in parts]
        text = repr((self.models, self.client_key, self.leaving, content))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def unit_ids(self) -> tuple[str, ...]:
        """Sorted ids of all units named here: an ingress keeps a link to each."""
        routed = {unit_id for unit_ids in self.routes.values() for unit_id in unit_ids}
        return tuple(sorted(routed | self.draining.keys() | self.units.keys()))
