"""The HTTP surface's backend over the units of a cluster: routing, recovery, health and drain."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence

from muxcluster.api.backend import UnitReports, close
from muxcluster.api.links import LinkState, UnitLink
from muxcluster.api.recovery import Progress, is_loss
from muxcluster.core.errors import ModelNotFound, NotReady, Overloaded
from muxcluster.core.events import TokenDelta
from muxcluster.core.request import Request
from muxcluster.core.served import ServedModel, UnitStats

DRAIN_POLL_S = 0.05
CUT_S = 2.0
"""How long requests that a drain cuts get to tell their clients."""
RETRY_S = 0.1
"""Pause before an accepted request is offered again to a unit whose queue was full."""
UNHEALTHY = (LinkState.STALLED, LinkState.FAILED)


class ClusterBackend:
    """A `Backend`: each model's requests go to one of the units that `units_of` names.

    A request that was accepted outlives its unit: it waits for the unit, or goes to another that
    serves the model, with what it has so far. wait_s: longest such a wait in seconds.
    """

    def __init__(
        self,
        models: Sequence[ServedModel],
        units_of: Mapping[str, Sequence[str]],
        links: Sequence[UnitLink],
        wait_s: float = 120.0,
    ) -> None:
        by_id = {link.unit_id: link for link in links}
        self._models = tuple(models)
        self._links = tuple(links)
        self._links_of = {m: tuple(by_id[unit] for unit in units) for m, units in units_of.items()}
        self._reports = [UnitReports(link) for link in links]
        self._wait_s = wait_s
        self._is_draining = False
        self._is_cutting = False
        self._num_open = 0

    def models(self) -> Sequence[ServedModel]:
        return self._models

    async def generate(self, request: Request) -> AsyncIterator[TokenDelta]:
        """As `Backend.generate`.

        Raises ModelNotFound where no unit serves `request.model`; NotReady while it drains, before
        the units' first report, and where the request lost its units too often or for too long.
        """
        self._check(request.model)
        self._num_open += 1
        deltas = self._recovered(request)
        try:
            async for delta in deltas:
                yield delta
        finally:
            self._num_open -= 1
            await close(deltas)

    def _check(self, model: str) -> None:
        if self._is_draining:
            raise NotReady("the server is shutting down", code="server_shutting_down")
        links = self._links_of.get(model)
        if links is None:
            raise ModelNotFound(f"model {model} is not served here", "model")
        if not any(link.was_heard() for link in links):
            raise NotReady(f"{model} is loading")

    async def _recovered(self, request: Request) -> AsyncIterator[TokenDelta]:
        """Deltas of the request from as many units as it takes."""
        progress = Progress(request)
        while True:
            link = await self._open_link(request.model)
            deltas = link.generate(progress.submission())
            try:
                async for delta in deltas:
                    delta = progress.advance(delta)
                    yield delta
                    if delta.finished is not None or delta.rejected is not None:
                        return
            except NotReady as error:
                if self._is_cutting or not is_loss(error):
                    raise self._reason(error) from error
                link.lose()
                progress.lose(error)
            except Overloaded:
                if progress.num_losses == 0:
                    raise
                await asyncio.sleep(RETRY_S)
            finally:
                await close(deltas)

    def _reason(self, error: NotReady) -> NotReady:
        if self._is_cutting:
            return NotReady("the server is shutting down", code="server_shutting_down")
        return error

    async def _open_link(self, model: str) -> UnitLink:
        """The least busy unit that takes requests of `model`, waited for where there is none."""
        links = self._links_of[model]
        deadline = asyncio.get_running_loop().time() + self._wait_s
        while not self._is_cutting:
            ready = [link for link in links if link.is_open()]
            if ready:
                return min(ready, key=lambda link: link.num_open)
            try:
                async with asyncio.timeout_at(deadline):
                    await _any_change(links)
            except TimeoutError:
                message = f"no unit of {model} came back within {self._wait_s:g} s"
                raise NotReady(message, retry_after_s=10, code="replica_lost") from None
        raise NotReady("the server is shutting down", code="server_shutting_down")

    def stats(self) -> Sequence[UnitStats]:
        """Each unit's latest report, with all jobs since the previous call."""
        taken = (reports.take() for reports in self._reports)
        return [report for report in taken if report is not None]

    def ready(self) -> bool:
        """False in warm-up, in a drain and while any unit recovers."""
        return not self._is_draining and all(link.state() is LinkState.UP for link in self._links)

    def healthy(self) -> bool:
        """False where a unit stalls, has failed, or takes longer to restart than it may."""
        return not any(link.state() in UNHEALTHY for link in self._links)

    async def drain(self, timeout_s: float) -> int:
        """Refuse new requests and wait for the open ones, then cut those left.

        Returns how many had to be cut.
        """
        self._is_draining = True
        await self._until_idle(timeout_s)
        num_cut = self._num_open
        if num_cut:
            self._is_cutting = True
            await asyncio.gather(*(link.close() for link in self._links))
            await self._until_idle(CUT_S)
        return num_cut

    async def _until_idle(self, timeout_s: float) -> None:
        deadline = asyncio.get_running_loop().time() + timeout_s
        while self._num_open and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(DRAIN_POLL_S)


async def _any_change(links: Sequence[UnitLink]) -> None:
    """Until one of `links` changes; on one alone nothing is spent on tasks."""
    if len(links) == 1:
        await links[0].change()
        return
    waits = [asyncio.ensure_future(link.change()) for link in links]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
