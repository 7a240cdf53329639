"""The HTTP server's backend over the units of a cluster: routing, recovery, health and drain."""

import asyncio
import math
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import replace

from muxcluster.core.batch_part import BatchPart, LinePlace
from muxcluster.core.errors import ModelNotFound, NotReady, Overloaded
from muxcluster.core.events import TokenDelta
from muxcluster.core.request import Request
from muxcluster.core.residency import WeightOrder
from muxcluster.core.served import ModelStats, ServedModel, UnitStats
from muxcluster.router.backend import UnitReports
from muxcluster.router.parts import BatchParts
from muxcluster.router.recovery import Progress, is_loss
from muxcluster.router.routing import Candidate, choose
from muxcluster.router.unit_link import RESTART_LIMIT_S, LinkState, UnitLink
from muxcluster.router.unit_links import UnitLinks

DRAIN_POLL_S = 0.05
CUT_S = 2.0  # how long requests that a drain cuts get to tell their clients
RETRY_S = 0.1  # pause before an accepted request is offered again to a unit whose queue was full
UNHEALTHY = (LinkState.STALLED, LinkState.FAILED)


class ClusterBackend:
    """A `Backend`: each model's requests go to one of the units that `unit_links` knows for it.

    An accepted request outlives its unit: it waits until the unit is back, or goes on at another
    unit of the model, with the output it has. wait_s: longest such wait in seconds. It is a
    `PartSink`, too: a unit gets a part of a batch with the first of its lines.
    """

    def __init__(self, unit_links: UnitLinks, wait_s: float = RESTART_LIMIT_S) -> None:
        self._unit_links = unit_links
        self._reports: dict[UnitLink, UnitReports] = {}
        self._parts = BatchParts()
        self._wait_s = wait_s
        self._is_warm = False
        self._is_draining = False
        self._is_cutting = False
        self._num_open = 0

    def models(self) -> Sequence[ServedModel]:
        return self._unit_links.models()

    async def generate(self, request: Request) -> AsyncGenerator[TokenDelta, None]:
        """As `TokenSource.generate`, from as many units as it takes.

        Raises ModelNotFound if `request.model` is not configured; NotReady while draining, before
        the model was first up, if no capacity is left for it, and if the request lost its units too
        often or for too long.
        """
        self._check(request.model)
        progress = Progress(request)
        self._num_open += 1
        try:
            while True:
                link = await self._open_link(request, is_under_way=progress.num_losses > 0)
                try:
                    submission = self._placed(link, progress.submission())
                    async with link.opened(submission) as deltas:
                        async for delta in deltas:
                            delta = progress.advance(delta)
                            yield delta
                            if delta.finished is not None or delta.rejected is not None:
                                return
                except NotReady as error:
                    if self._is_cutting or not is_loss(error):
                        raise self._reason(error) from error
                    link.lose()
                    self._parts.lose(link.unit_id)
                    progress.lose(error)
                except Overloaded:
                    if progress.num_losses == 0:
                        raise
                    await asyncio.sleep(RETRY_S)
        finally:
            self._num_open -= 1

    def _check(self, model: str) -> None:
        if self._is_draining:
            raise NotReady("the server is shutting down", code="server_shutting_down")
        if self._unit_links.version is None:
            raise NotReady("the server does not know its units yet")
        self._check_place(model)
        if not self._unit_links.was_served(model):
            raise NotReady(f"{model} is loading")

    def _check_place(self, model: str, *, is_under_way: bool = False) -> None:
        """Raise unless a unit may come; a request under way waits for its model's next place."""
        if not any(served.name == model for served in self._unit_links.models()):
            raise ModelNotFound(f"model {model} is not served here", "model")
        retry_s = self._unit_links.unplaced_s(model)
        if retry_s is not None and not is_under_way and not self._unit_links.of(model):
            message = f"no capacity is left for {model}"
            raise NotReady(message, max(1, math.ceil(retry_s)), "no_capacity")

    def _reason(self, error: NotReady) -> NotReady:
        if self._is_cutting:
            return NotReady("the server is shutting down", code="server_shutting_down")
        return error

    async def _open_link(self, request: Request, *, is_under_way: bool) -> UnitLink:
        """Return the best unit that takes requests of the model; wait for one if there is none."""
        model = request.model
        deadline = asyncio.get_running_loop().time() + self._wait_s
        while not self._is_cutting:
            self._check_place(model, is_under_way=is_under_way)
            ready = [link for link in self._unit_links.of(model) if link.is_open()]
            if ready:
                # where an operator holds the model back, it waits until that ends
                awake = [link for link in ready if not link.holds(model)]
                return self._best(request, awake or ready)
            try:
                async with asyncio.timeout_at(deadline):
                    await self._unit_links.change()
            except TimeoutError:
                message = f"no unit of {model} came back within {self._wait_s:g} s"
                raise NotReady(message, retry_after_s=10, code="replica_lost") from None
        raise NotReady("the server is shutting down", code="server_shutting_down")

    def _best(self, request: Request, links: Sequence[UnitLink]) -> UnitLink:
        """Return the unit with the earliest predicted first token; count the request there."""
        line = request.line
        if line is not None and line.part_id in self._parts:
            emptiest = sorted(links, key=lambda link: link.num_open)
            home = self._parts.home(line.part_id, (link.unit_id for link in emptiest))
            return next(link for link in links if link.unit_id == home)
        if len(links) == 1:
            return links[0]
        model, now = request.model, time.monotonic()
        candidates = [
            Candidate(
                unit_id=link.unit_id,
                wait_s=link.load.wait_s(model, now),
                token_s=link.load.token_s(model),
                num_requests=link.load.num_requests(),
                prefixes=link.prefixes,
            )
            for link in links
        ]
        choice = choose(request, candidates)
        chosen = next(link for link in links if link.unit_id == choice.unit_id)
        chosen.load.send(model, choice.num_tokens, now)
        return chosen

    def add_part(self, part: BatchPart, unit_id: str) -> None:
        self._parts.add(part, unit_id)

    def end_line(self, place: LinePlace) -> None:
        self._parts.end_line(place)
        for link in self._unit_links.links():
            link.end_line(place)

    def end_part(self, part_id: str) -> None:
        self._parts.end_part(part_id)
        for link in self._unit_links.links():
            link.end_part(part_id)

    def _placed(self, link: UnitLink, request: Request) -> Request:
        """Return the request with its line's place at the unit, which gets the part first."""
        line = request.line
        if line is None or line.part_id not in self._parts:
            return replace(request, line=None) if line is not None else request
        part_id = link.part_id_at_unit(line.part_id)
        if part_id is None:
            part = self._parts.fresh(line.part_id, link.unit_id)
            link.feed(line.part_id, part)
            part_id = part.part_id
        self._parts.send(line, link.unit_id)
        return replace(request, line=LinePlace(part_id, line.number))

    def stats(self) -> Sequence[UnitStats]:
        """Return each unit's latest report, with all jobs since the previous call."""
        links = self._unit_links.links()
        self._reports = {link: self._reports.get(link, UnitReports(link)) for link in links}
        taken = (reports.take() for reports in self._reports.values())
        return [report for report in taken if report is not None]

    def model_stats(self, model: str) -> Mapping[str, ModelStats]:
        links = [link for link in self._unit_links.of(model) if link.is_open()]
        found = {link.unit_id: link.model_stats(model) for link in links}
        return {unit_id: each for unit_id, each in found.items() if each is not None}

    async def request_move(
        self, model: str, order: WeightOrder, unit_id: str | None = None
    ) -> None:
        self._check(model)
        links = [link for link in self._unit_links.of(model) if unit_id in (None, link.unit_id)]
        if not links and unit_id is not None:
            raise ModelNotFound(f"no unit {unit_id!r} has {model}", "unit")
        await asyncio.gather(*(link.request_move(model, order) for link in links))

    def ready(self) -> bool:
        """True if new requests are accepted: not draining, and a unit takes them.

        At the start False until every model that has a place is up. Later a model that is lost,
        moves or is new affects its own requests only.
        """
        self._is_warm = self._is_warm or self._unit_links.are_warm()
        is_up = any(link.state() is LinkState.UP for link in self._unit_links.routed())
        return self._is_warm and is_up and not self._is_draining

    def draining(self) -> bool:
        """As `Backend.draining`."""
        return self._is_draining

    def healthy(self) -> bool:
        """False if every unit stalls, has failed, or takes too long to restart."""
        states = [link.state() for link in self._unit_links.routed()]
        return not states or any(state not in UNHEALTHY for state in states)

    async def drain(self, timeout_s: float) -> int:
        """Refuse new requests, wait `timeout_s` for the open ones and cut the rest.

        Return how many were cut.
        """
        self._is_draining = True
        await self._until_idle(timeout_s)
        num_cut = self._num_open
        if num_cut:
            self._is_cutting = True
            await self._unit_links.close()
            await self._until_idle(CUT_S)
        return num_cut

    async def _until_idle(self, timeout_s: float) -> None:
        deadline = asyncio.get_running_loop().time() + timeout_s
        while self._num_open and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(DRAIN_POLL_S)
