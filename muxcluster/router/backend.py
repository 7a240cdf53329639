"""The `Backend` protocol of the HTTP server, and one over units that never move."""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from muxcluster.core.errors import ModelNotFound, NotReady
from muxcluster.core.events import TokenDelta
from muxcluster.core.request import Request
from muxcluster.core.residency import WeightOrder
from muxcluster.core.served import JobRecord, ModelStats, ServedModel, UnitStats
from muxcluster.router.token_source import Stream, TokenSource

MAX_KEPT_JOBS = 100_000  # job records kept where nobody takes them
REPORT_AGE_S = 0.25  # reports of units in this process are that old at most where only read


class Backend(TokenSource, Protocol):
    """The served models and the units behind them."""

    def models(self) -> Sequence[ServedModel]:
        """Return the models served now; none before they are known."""
        ...

    def stats(self) -> Sequence[UnitStats]:
        """Return the latest state of each unit that has reported."""
        ...

    def model_stats(self, model: str) -> Mapping[str, ModelStats]:
        """Return what units that take requests of the model last reported of it, by unit id."""
        ...

    async def request_move(
        self, model: str, order: WeightOrder, unit_id: str | None = None
    ) -> None:
        """Give an operator's order for a model's weights to its units, or to one of them.

        It is followed after this returns, and then `model_stats` is newer than the order. Raises
        ModelNotFound, MoveRefused, NotReady, Overloaded.
        """
        ...

    def ready(self) -> bool:
        """True while new requests are accepted: models loaded, not draining."""
        ...

    def draining(self) -> bool:
        """True once the server refuses new requests because it ends."""
        ...

    def healthy(self) -> bool:
        """False if the engine is stuck or gone and this process should be replaced."""
        ...


class StatsSource(Protocol):
    """Reports how one unit does."""

    def stats(self) -> UnitStats | None:
        """Return the latest state, None before the first report."""
        ...


class UnitSource(TokenSource, StatsSource, Protocol):
    """One unit: the channel's client or the in-process one."""

    async def request_move(self, model: str, order: WeightOrder) -> None:
        """Give an operator's order for a model's weights; `stats` is newer than it afterwards.

        Raises ModelNotFound, MoveRefused, NotReady, Overloaded.
        """
        ...


class RoutedBackend:
    """A backend that sends each model's requests to its unit.

    `client_of` maps model names to unit clients; several models may share one. A unit whose
    reports stop for `silence_s` seconds makes the backend unhealthy.
    """

    def __init__(
        self,
        models: Sequence[ServedModel],
        client_of: Mapping[str, UnitSource],
        silence_s: float = 30.0,
    ) -> None:
        self._models = tuple(models)
        self._client_of = dict(client_of)
        clients = {id(client): client for client in client_of.values()}
        self._reports = {key: UnitReports(client) for key, client in clients.items()}
        self._silence_s = silence_s
        self._draining = False

    def models(self) -> Sequence[ServedModel]:
        return self._models

    def generate(self, request: Request) -> Stream[TokenDelta]:
        """As `TokenSource.generate`.

        Raises ModelNotFound where no unit serves `request.model`, NotReady while draining."""
        if self._draining:
            raise NotReady("the server is shutting down", code="server_shutting_down")
        return self._client(request.model).generate(request)

    def _client(self, model: str) -> UnitSource:
        client = self._client_of.get(model)
        if client is None:
            raise ModelNotFound(f"model {model} is not served here", "model")
        return client

    def model_stats(self, model: str) -> Mapping[str, ModelStats]:
        client = self._client_of.get(model)
        report = None if client is None else self._reports[id(client)].latest(REPORT_AGE_S)
        if report is None:
            return {}
        found = [each for each in report.models if each.name == model]
        return {report.unit_id: found[0]} if found else {}

    async def request_move(
        self, model: str, order: WeightOrder, unit_id: str | None = None
    ) -> None:
        client = self._client(model)
        report = self._reports[id(client)].latest(REPORT_AGE_S)
        if unit_id is not None and (report is None or report.unit_id != unit_id):
            raise ModelNotFound(f"no unit {unit_id!r} has {model}", "unit")
        await client.request_move(model, order)
        self._reports[id(client)].latest()

    def stats(self) -> Sequence[UnitStats]:
        """Return each unit's latest report, with all jobs since the previous call."""
        taken = (reports.take() for reports in self._reports.values())
        return [report for report in taken if report is not None]

    def drain(self) -> None:
        """Refuse new requests from now on; running ones go on."""
        self._draining = True

    def draining(self) -> bool:
        return self._draining

    def ready(self) -> bool:
        return not self._draining and all(
            each.age_s() is not None for each in self._reports.values()
        )

    def healthy(self) -> bool:
        """True until a unit that has reported stops reporting."""
        ages = (reports.age_s() for reports in self._reports.values())
        return all(age_s is None or age_s < self._silence_s for age_s in ages)


class UnitReports:
    """The reports of one unit, gathered so that each job is returned once."""

    def __init__(self, unit: StatsSource) -> None:
        self._unit = unit
        self._latest: UnitStats | None = None
        self._jobs: list[JobRecord] = []
        self._changed_s = 0.0
        self._polled_s = -math.inf

    def _poll(self) -> None:
        self._polled_s = time.monotonic()
        report = self._unit.stats()
        if report is None or (self._latest is not None and report.now_s == self._latest.now_s):
            return
        self._latest = report
        self._jobs.extend(report.jobs)
        del self._jobs[:-MAX_KEPT_JOBS]
        self._changed_s = time.monotonic()

    def take(self) -> UnitStats | None:
        """Return the latest report, with the jobs gathered since the previous call."""
        self._poll()
        if self._latest is None:
            return None
        jobs, self._jobs = self._jobs, []
        return replace(self._latest, jobs=tuple(jobs))

    def latest(self, max_age_s: float = 0.0) -> UnitStats | None:
        """Return the latest report; the unit is asked unless it was within `max_age_s`.

        No job is taken.
        """
        if time.monotonic() - self._polled_s > max_age_s:
            self._poll()
        return self._latest

    def age_s(self) -> float | None:
        """Return the seconds since the report last changed, None before the first."""
        self._poll()
        return None if self._latest is None else time.monotonic() - self._changed_s
