"""The one actor that keeps files and batches and sends their requests to the units."""

import asyncio
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from muxcluster.batch.service.local import LocalBatchService
from muxcluster.batch.service.short_collections import keep_collections_short
from muxcluster.cluster.control.controller import Controller
from muxcluster.cluster.ingress.batch_use import CountedAnswerer
from muxcluster.cluster.ingress.controller_calls import ControllerCalls, connect
from muxcluster.cluster.ingress.key_client import KeyServiceClient
from muxcluster.cluster.units.actors import BATCHES, make_on_head
from muxcluster.core.errors import NotReady
from muxcluster.http.batch_lines import LineAnswerer
from muxcluster.http.calls.kept_prompts import KeptPrompts
from muxcluster.http.calls.model_text import ModelTexts
from muxcluster.http.keys.ring import KeyRing
from muxcluster.http.metrics import request_log, spans
from muxcluster.http.metrics.requests import Metrics
from muxcluster.http.service import CompletionService
from muxcluster.http.settings import ApiSettings, QueueLimits
from muxcluster.router.fleet import ClusterBackend
from muxcluster.router.unit_links import UnitLinks, keep_in_step

_MODELS_PERIOD_S = 0.25
_BACKLOGS_PERIOD_S = 5.0
_UNBOUNDED = QueueLimits(batch=2**20)  # `BatchSettings.max_running` bounds the lines that wait
_MOST_KEPT_TOKENS = 2**26  # of planned lines that wait, 256 MiB; the rest is tokenised again


class BatchHost:
    """A `LocalBatchService` behind Ray calls, with links of its own to the units.

    Make it on a running event loop. Raises as `LocalBatchService`.
    """

    def __init__(self, settings: ApiSettings, controller: Any) -> None:
        # Imported here: ingresses import this module too, and only the host needs the simulator.
        from muxcluster.batch.plan.planner import FedPlanner, PlanRules
        from muxcluster.batch.plan.prediction import AUTO
        from muxcluster.cluster.ingress.batch_planner import ServedSettings

        assert settings.batch is not None
        if settings.request_log is not None:
            request_log.write_to(Path(settings.request_log))
        spans.begin(settings.traces)
        self._settings = settings
        self._unit_links = UnitLinks(connect, settings.restart_limit_s)
        self._backend = ClusterBackend(self._unit_links, settings.restart_limit_s)
        self._texts = ModelTexts()
        own = replace(settings, queues=_UNBOUNDED)
        service = CompletionService(self._backend, self._texts, Metrics(), own)
        self._calls = calls = ControllerCalls(controller)
        kept = KeptPrompts(_MOST_KEPT_TOKENS)
        self._planner = FedPlanner(
            self._texts,
            ServedSettings(partial(calls.ask, Controller.desired)),
            self._backend,
            PlanRules(AUTO, lenient=settings.lenient, most_unplanned=settings.batch.max_running),
            kept,
        )
        self._keys = _keys_of(settings)
        lines = LineAnswerer(service, lenient=settings.lenient, kept=kept)
        self._batch_service = LocalBatchService(
            Path(settings.batch.directory),
            lines if self._keys is None else CountedAnswerer(lines, self._keys, self._owner_of),
            lambda: [text.served.name for text in self._texts],
            settings.batch,
            self._planner,
        )
        if self._keys is not None:
            self._keys.start()
        self._tasks = (
            asyncio.create_task(keep_in_step(self._unit_links, calls.directory)),
            asyncio.create_task(self._follow_models()),
            asyncio.create_task(self._tell_backlogs()),
            asyncio.create_task(self._batch_service.start()),
            asyncio.create_task(keep_collections_short(lambda: self._batch_service.is_running)),
        )

    async def _follow_models(self) -> None:
        while True:
            await self._texts.follow(self._backend.models())
            await asyncio.sleep(_MODELS_PERIOD_S)

    async def _tell_backlogs(self) -> None:
        """Tell the controller again and again how much batch work there is, for its next plan."""
        while True:
            with suppress(NotReady):
                await self._calls.ask(Controller.note_backlogs, self._batch_service.backlogs())
            await asyncio.sleep(_BACKLOGS_PERIOD_S)

    def _owner_of(self, batch_id: str) -> str | None:
        return self._batch_service.owner(batch_id)

    async def settings(self) -> ApiSettings:
        return self._settings

    async def ask(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Return the batch service's answer. Raises what it raises."""
        return await getattr(self._batch_service, method)(*args, **kwargs)

    async def close(self) -> None:
        """Stop; open batches go on in the next one. Idempotent."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._batch_service.close()
        if self._keys is not None:
            await self._keys.close()
        await asyncio.to_thread(self._planner.close)
        await self._unit_links.close()
        await asyncio.to_thread(spans.stop)


def _keys_of(settings: ApiSettings) -> KeyRing | None:
    """Return the keys of tenants, for the use of their batches; None without a ledger."""
    if settings.keys is None:
        return None
    # nobody scrapes metrics of this process; the ring logs what fails
    client = KeyServiceClient(settings.keys, may_replace=False)
    return KeyRing(settings, client, lambda reason: None)


def make_host(settings: ApiSettings, controller: Any) -> Any:
    """Return the handle of the cluster's one host; make it on the head if it is missing."""
    return make_on_head(BatchHost, BATCHES, settings, controller)
