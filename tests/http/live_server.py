"""A real server over a real unit with a tiny model, on an event loop of its own."""

import asyncio
import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import uvicorn
import yaml

from muxcluster.batch.service.local import LocalBatchService
from muxcluster.batch.service.settings import BatchSettings
from muxcluster.config.load import load_config
from muxcluster.config.planning import plan_for
from muxcluster.config.units import served_models, unit_specs
from muxcluster.core.unitspec import UnitSpec
from muxcluster.demo.models import build_model
from muxcluster.engine.unit.local import LocalUnitClient
from muxcluster.http.apis.responses.store import LocalResponseStore
from muxcluster.http.app import AppParts, create_app
from muxcluster.http.batch_lines import LineAnswerer
from muxcluster.http.calls.model_text import ModelTexts
from muxcluster.http.metrics.requests import Metrics
from muxcluster.http.service import CompletionService
from muxcluster.http.settings import ApiSettings
from muxcluster.router.backend import RoutedBackend

if TYPE_CHECKING:
    from muxcluster.cluster.ingress.key_host import KeyHost

NAME = "tiny"
START_S = 300.0

Change = Callable[[UnitSpec], UnitSpec]


def configured(folder: Path, family: str = "llama", **model: object) -> Path:
    """Make a model with random weights and a configuration of it; model: further keys."""
    build_model(folder / NAME, family, seed=3)
    entry = {"name": NAME, "path": NAME, "max_model_len": 2048, "max_seqs": 16, **model}
    content = {
        "models": [entry],
        "cluster": {"nodes": [{"name": "here", "gpu": "cpu", "cores": 1}]},
        "policy": {"partition": "none", "kv_gb": 0.2},
    }
    file = folder / "muxcluster.yaml"
    file.write_text(yaml.safe_dump(content))
    return file


@contextmanager
def live_server(
    file: Path, settings: ApiSettings | None = None, change: Change = lambda spec: spec
) -> Iterator[str]:
    """Serve the unit of a configuration, with files, batches, a store and a counter of keys where
    the settings have some; yields the address.

    change: what becomes of the unit before it starts.
    """
    urls: queue.Queue[str] = queue.Queue()
    end = threading.Event()
    serving = partial(_serve, file, urls, end, settings or ApiSettings(), change)
    thread = threading.Thread(target=lambda: asyncio.run(serving()), daemon=True)
    thread.start()
    try:
        yield urls.get(timeout=START_S)
    finally:
        end.set()
        thread.join(START_S)


async def _serve(
    file: Path,
    urls: "queue.Queue[str]",
    end: threading.Event,
    settings: ApiSettings,
    change: Change,
) -> None:
    config = load_config(file)
    (spec,) = unit_specs(config, plan_for(config))
    unit = LocalUnitClient(change(spec))
    await unit.start()
    try:
        models = served_models(config)
        names = [model.name for model in models]
        backend = RoutedBackend(models, dict.fromkeys(names, unit))
        batch = BatchSettings(str(file.parent / "batches"))
        settings = replace(settings, batch=batch)
        texts = ModelTexts.load(backend.models())
        service = CompletionService(backend, texts, Metrics(), settings)
        lines = LineAnswerer(service, lenient=False)
        batches = LocalBatchService(Path(batch.directory), lines, lambda: names, batch)
        store = None if settings.store is None else LocalResponseStore(settings.store)
        keys = _counter(settings)
        parts = AppParts(responses=store)
        app = create_app(backend, settings, batches, key_service=keys, parts=parts)
        server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="critical"))
        task = asyncio.create_task(server.serve())
        while not server.started:
            await asyncio.sleep(0.01)
        urls.put(f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}")
        await asyncio.to_thread(end.wait)
        server.should_exit = True
        await task
        if keys is not None:
            await keys.close()
    finally:
        await unit.close()


def _counter(settings: ApiSettings) -> "KeyHost | None":
    """The counter of tenants' keys, in this process."""
    if settings.keys is None:
        return None
    from muxcluster.cluster.ingress.key_host import KeyHost  # imports Ray

    return KeyHost(settings.keys)
