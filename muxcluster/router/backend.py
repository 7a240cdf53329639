"""The `Backend` protocol of the HTTP server, and one over units that never move."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from muxcluster.core.errors import ModelNotFound, NotReady
from muxcluster.core.events import TokenDelta
from muxcluster.core.request import Request
from muxcluster.core.served import JobRecord, ServedModel, UnitStats
from muxcluster.router.token_source import Stream, TokenSource

MAX_KEPT_JOBS = 100_000  # job records kept where nobody takes them


class Backend(TokenSource, Protocol):
    """The served models and the units behind them."""

    def models(self) -> Sequence[ServedModel]:
        """Return the models served now; none before they are known."""
        ...

    def stats(self) -> Sequence[UnitStats]:
        """Return the latest state of each unit that has reported."""
        ...

    def ready(self) -> bool:
        """True while new requests are accepted: models loaded, not draining."""
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
        self._reports = [UnitReports(client) for client in clients.values()]
        self._silence_s = silence_s
        self._draining = False

    def models(self) -> Sequence[ServedModel]:
        return self._models

    def generate(self, request: Request) -> Stream[TokenDelta]:
        """As `TokenSource.generate`.

        Raises ModelNotFound where no unit serves `request.model`, NotReady while draining."""
        if self._draining:
            raise NotReady("the server is shutting down", code="server_shutting_down")
        client = self._client_of.get(request.model)
        if client is None:
            raise ModelNotFound(f"model {request.model} is not served here", "model")
        return client.generate(request)

    def stats(self) -> Sequence[UnitStats]:
        """Return each unit's latest report, with all jobs since the previous call."""
        taken = (reports.take() for reports in self._reports)
        return [report for report in taken if report is not None]

    def drain(self) -> None:
        """Refuse new requests from now on; running ones go on."""
        self._draining = True

    def ready(self) -> bool:
        return not self._draining and all(reports.age_s() is not None for reports in self._reports)

    def healthy(self) -> bool:
        """True until a unit that has reported stops reporting."""
        ages = (reports.age_s() for reports in self._reports)
        return all(age_s is None or age_s < self._silence_s for age_s in ages)


class UnitReports:
    """The reports of one unit, gathered so that each job is returned once."""

    def __init__(self, unit: StatsSource) -> None:
        self._unit = unit
        self._latest: UnitStats | None = None
        self._jobs: list[JobRecord] = []
        self._changed_s = 0.0

    def _poll(self) -> None:
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

    def age_s(self) -> float | None:
        """Return the seconds since the report last changed, None before the first."""
        self._poll()
        return None if self._latest is None else time.monotonic() - self._changed_s
