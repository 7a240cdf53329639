"""An application with batches over the scripted backend, and the real client of it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import openai
import pytest
from fastapi import FastAPI

from muxcluster.batch.service.local import LocalBatchService
from muxcluster.batch.service.settings import BatchSettings
from muxcluster.http.app import create_app
from muxcluster.http.batch_lines import LineAnswerer
from muxcluster.http.calls.model_text import ModelTexts
from muxcluster.http.metrics.requests import Metrics
from muxcluster.http.service import CompletionService
from muxcluster.http.settings import ApiSettings, QueueLimits
from tests.http.fakes import FakeBackend, running_server

AppOf = Callable[..., FastAPI]
ClientOf = Callable[..., openai.OpenAI]


@pytest.fixture
def batch_app(backend: FakeBackend, tmp_path: Path) -> AppOf:
    """Makes an application; changes: other batch settings. One at a time may run."""

    def make(api: ApiSettings | None = None, **changes: int) -> FastAPI:
        batch = BatchSettings(str(tmp_path / "batches"), **changes)
        api = ApiSettings() if api is None else api
        texts, metrics = ModelTexts.load(backend.models()), Metrics()
        own = ApiSettings(queues=QueueLimits(batch=2**20))
        service = CompletionService(backend, texts, metrics, own)
        batch_service = LocalBatchService(
            Path(batch.directory),
            LineAnswerer(service, lenient=False),
            lambda: [t.served.name for t in texts],
            batch,
        )
        settings = ApiSettings(api_key=api.api_key, more_keys=api.more_keys, batch=batch)
        return create_app(backend, settings, batch_service)

    return make


@contextmanager
def client_of(app: FastAPI, key: str = "none") -> Iterator[openai.OpenAI]:
    """The real client of a real server."""
    with (
        running_server(app) as url,
        openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0) as client,
    ):
        yield client


@pytest.fixture
def batch_client(batch_app: AppOf) -> Iterator[openai.OpenAI]:
    with client_of(batch_app()) as client:
        yield client
