"""The units of a configuration in this process, behind the service of the HTTP routes."""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from muxcluster.config.load import Config
from muxcluster.config.planner_input import nodes_of
from muxcluster.config.planning import plan_for
from muxcluster.config.units import served_models, unit_specs
from muxcluster.core.batch_part import BatchPart, LineOver, LinePlace, PartOver
from muxcluster.core.errors import EngineFailure
from muxcluster.core.events import TokenDelta
from muxcluster.core.request import Request
from muxcluster.core.residency import WeightOrder
from muxcluster.core.served import UnitState, UnitStats
from muxcluster.core.unitspec import UnitSpec
from muxcluster.engine.load.weights import check_weight_files
from muxcluster.engine.unit.local import LocalUnitClient
from muxcluster.http.calls.kept_prompts import KeptPrompts
from muxcluster.http.calls.model_text import ModelTexts
from muxcluster.http.metrics.requests import Metrics
from muxcluster.http.service import CompletionService
from muxcluster.http.settings import ApiSettings
from muxcluster.router.backend import RoutedBackend
from muxcluster.router.token_source import Stream


class LocalParts:
    """A `PartSink` over the units of this process, which never move."""

    def __init__(self, clients: Mapping[str, LocalUnitClient]) -> None:
        """clients: by unit id."""
        self._clients = clients
        self._unit_ids: dict[str, str] = {}

    def add_part(self, part: BatchPart, unit_id: str) -> None:
        self._unit_ids[part.part_id] = unit_id
        self._clients[unit_id].feed(part)

    def end_line(self, place: LinePlace) -> None:
        client = self.client_of(place)
        if client is not None:
            client.feed(LineOver(place))

    def end_part(self, part_id: str) -> None:
        unit_id = self._unit_ids.pop(part_id, None)
        if unit_id is not None:
            self._clients[unit_id].feed(PartOver(part_id))

    def client_of(self, place: LinePlace) -> LocalUnitClient | None:
        """Return the unit that feeds the line, if one does."""
        unit_id = self._unit_ids.get(place.part_id)
        return None if unit_id is None else self._clients[unit_id]


class _UnitsOfModel:
    """Several units of a model as one."""

    def __init__(self, clients: Sequence[LocalUnitClient], parts: LocalParts) -> None:
        self._clients = clients
        self._parts = parts

    def generate(self, request: Request) -> Stream[TokenDelta]:
        """Send a planned line to its unit, another request to the unit with the fewest open."""
        planned = None if request.line is None else self._parts.client_of(request.line)
        client = planned or min(self._clients, key=lambda each: each.unit.num_open)
        return client.generate(request)

    async def request_move(self, model: str, order: WeightOrder) -> None:
        for client in self._clients:
            await client.request_move(model, order)

    def stats(self) -> UnitStats | None:
        return self._clients[0].stats()


@dataclass(frozen=True, slots=True)
class LocalService:
    """The service, the text sides of its models and the units behind it."""

    service: CompletionService
    texts: ModelTexts
    clients: Mapping[str, LocalUnitClient]  # by unit id
    parts: LocalParts
    kept: KeptPrompts = field(default_factory=KeptPrompts)  # from the plan to the service

    def check(self) -> None:
        """Raise EngineFailure if a unit has failed."""
        for unit_id, client in self.clients.items():
            if client.unit.state is UnitState.FAILED:
                raise EngineFailure(f"unit {unit_id} failed; its log says why")


def local_specs(config: Config) -> tuple[UnitSpec, ...]:
    """Return the units that this machine would run, with their weights checked.

    Raises ConfigError, InfeasiblePlan, LoadError.
    """
    nodes = nodes_of(config)
    specs = unit_specs(config, plan_for(config, nodes), nodes)
    for model in (model for spec in specs for model in spec.models):
        if model.load_format != "dummy":
            check_weight_files(Path(model.path))
    return specs


@asynccontextmanager
async def local_service(
    config: Config, specs: Sequence[UnitSpec], settings: ApiSettings
) -> AsyncGenerator[LocalService, None]:
    """Start the units of `specs`; after the block none of their processes is left.

    Raises LoadError, EngineFailure.
    """
    models = served_models(config)
    texts = ModelTexts.load(models)
    clients = {spec.unit_id: LocalUnitClient(spec) for spec in specs}
    parts = LocalParts(clients)
    try:
        await asyncio.gather(*(client.start() for client in clients.values()))
        of_model = {
            name: _UnitsOfModel([clients[spec.unit_id] for spec in _serving(specs, name)], parts)
            for name in {model.unit_model for model in models}
        }
        metrics = Metrics()
        metrics.declare(models)
        service = CompletionService(RoutedBackend(models, of_model), texts, metrics, settings)
        yield LocalService(service, texts, clients, parts)
    finally:
        await asyncio.gather(*(client.close() for client in clients.values()))


def _serving(specs: Sequence[UnitSpec], name: str) -> list[UnitSpec]:
    return [spec for spec in specs if any(model.name == name for model in spec.models)]
