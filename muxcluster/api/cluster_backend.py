"""The HTTP surface's backend over the units of a cluster: routing, health and drain."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence

from muxcluster.api.backend import RoutedBackend, close
from muxcluster.api.links import SILENT_S, UnitLink
from muxcluster.core.errors import NotReady
from muxcluster.core.events import TokenDelta
from muxcluster.core.request import Request
from muxcluster.core.served import ServedModel, UnitStats

STALLED_S = 10.0
"""A unit reports twice a second; after this long without a report it is stuck or gone."""
DRAIN_POLL_S = 0.05


class ClusterBackend:
    """A `Backend`: each model's requests go to the unit that `unit_of` names."""

    def __init__(
        self, models: Sequence[ServedModel], unit_of: Mapping[str, str], links: Sequence[UnitLink]
    ) -> None:
        by_id = {link.unit_id: link for link in links}
        self._links = tuple(links)
        self._routed = RoutedBackend(models, {m: by_id[unit] for m, unit in unit_of.items()})
        self._was_ready = False
        self._is_draining = False
        self._num_open = 0

    def models(self) -> Sequence[ServedModel]:
        return self._routed.models()

    async def generate(self, request: Request) -> AsyncIterator[TokenDelta]:
        """As `Backend.generate`. Raises NotReady while it drains."""
        if self._is_draining:
            raise NotReady("the server is shutting down", code="server_shutting_down")
        deltas = self._routed.generate(request)
        self._num_open += 1
        try:
            async for delta in deltas:
                yield delta
        finally:
            self._num_open -= 1
            await close(deltas)

    def stats(self) -> Sequence[UnitStats]:
        return self._routed.stats()

    def ready(self) -> bool:
        return not self._is_draining and self._are_heard(SILENT_S)

    def healthy(self) -> bool:
        """False where a unit that once reported has fallen silent; warm-up is healthy."""
        self._was_ready = self._was_ready or self.ready()
        return not self._was_ready or self._are_heard(STALLED_S)

    def _are_heard(self, within_s: float) -> bool:
        return all(link.age_s() <= within_s for link in self._links)

    async def drain(self, timeout_s: float) -> int:
        """Refuse new requests and wait for the open ones; how many are open still."""
        self._is_draining = True
        deadline = asyncio.get_running_loop().time() + timeout_s
        while self._num_open and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(DRAIN_POLL_S)
        return self._num_open
