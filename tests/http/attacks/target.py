"""A real engine behind the real listener, attacked while its streams go on."""

import asyncio
import http.client
import json
import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from muxcluster.batch.service.local import LocalBatchService
from muxcluster.batch.service.settings import BatchSettings
from muxcluster.config.load import load_config
from muxcluster.config.planning import plan_for
from muxcluster.config.units import served_models, unit_specs
from muxcluster.core.inputs.web_url import HttpAddress
from muxcluster.engine.unit.local import LocalUnitClient
from muxcluster.http.app import create_app
from muxcluster.http.batch_lines import LineAnswerer
from muxcluster.http.calls.model_text import ModelTexts
from muxcluster.http.metrics.requests import Metrics
from muxcluster.http.server.connection import HeadLimits
from muxcluster.http.server.listener import Listener
from muxcluster.http.service import CompletionService
from muxcluster.http.settings import ApiSettings, ConnectionLimits
from muxcluster.router.backend import RoutedBackend
from tests.http.listeners import free_port
from tests.http.live_server import NAME

KEY, OTHER_KEY, ADMIN_KEY = "client-secret", "other-secret", "admin-secret"
SETTINGS = ApiSettings(
    api_key=KEY,
    more_keys=(OTHER_KEY,),
    admin_key=ADMIN_KEY,
    min_body_bytes_per_s=1000,
    body_window_s=0.5,
    connections=ConnectionLimits(most=256),
)
HEAD_S = 0.5
PATIENCE_S = 300.0
PROMPTS = ("once upon a time", "the second prompt", "3 4 5 6", "and so on and so forth")
NUM_TOKENS = 30


@dataclass
class Target:
    """The server. calm: what each prompt's stream says undisturbed."""

    port: int
    calm: dict[str, str] = field(default_factory=dict)
    num_refused: int = 0  # streams that were asked for again

    def call(
        self, method: str, path: str, body: object = None, key: str = KEY, **headers: str
    ) -> tuple[int, bytes]:
        """Status (0 without an answer) and body of one request on its own connection."""
        sent = {"Authorization": f"Bearer {key}", "Connection": "close", **headers}
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        if data is not None:
            sent.setdefault("Content-Type", "application/json")
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        try:
            try:
                connection.request(method, path, data, sent)
                answer = connection.getresponse()
            except ConnectionError:
                return 0, b""
            return answer.status, answer.read()
        finally:
            connection.close()

    def stream(self, prompt: str) -> str:
        """The whole text of a stream. One that is refused is asked for again, as clients do."""
        body = {"model": NAME, "prompt": prompt, "max_tokens": NUM_TOKENS, "temperature": 1.0}
        while True:
            asked = body | {"seed": 5, "stream": True, "ignore_eos": True}
            status, text = self.call("POST", "/v1/completions", asked)
            if status == 200:
                break
            assert status in (0, 503), text
            self.num_refused += 1
        events = [line[6:] for line in text.split(b"\n\n") if line.startswith(b"data: ")]
        assert events[-1] == b"[DONE]", text[-200:]
        chunks = [json.loads(event) for event in events[:-1]]
        return "".join(choice["text"] for chunk in chunks for choice in chunk["choices"])

    @contextmanager
    def serving(self, *, may_refuse: bool = False) -> Iterator[None]:
        """Streams go on until the end of the block; then each must have been as undisturbed."""
        before = self.num_refused
        is_over = threading.Event()
        wrong: list[str] = []
        counts = [0] * len(PROMPTS)

        def go_on(index: int, prompt: str) -> None:
            try:
                while not (is_over.is_set() and counts[index]):
                    text = self.stream(prompt)
                    counts[index] += 1
                    if text != self.calm[prompt]:
                        wrong.append(text)
            except Exception as error:  # noqa: BLE001 - told below, in the test's own thread
                wrong.append(f"{type(error).__name__}: {error}")

        threads = [
            threading.Thread(target=go_on, args=each, daemon=True) for each in enumerate(PROMPTS)
        ]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            is_over.set()
            for thread in threads:
                thread.join(PATIENCE_S)
        assert wrong == []
        assert all(counts), counts
        assert may_refuse or self.num_refused == before


@contextmanager
def running(file: Path) -> Iterator[Target]:
    """Serve the unit of a configuration, with files and batches."""
    target = Target(free_port())
    started: queue.Queue[BaseException | None] = queue.Queue()
    end = threading.Event()
    serving = partial(_serve, file, target.port, started, end)
    thread = threading.Thread(target=lambda: asyncio.run(serving()), daemon=True)
    thread.start()
    try:
        assert started.get(timeout=PATIENCE_S) is None
        target.calm = {prompt: target.stream(prompt) for prompt in PROMPTS}
        assert len(set(target.calm.values())) == len(PROMPTS)
        yield target
    finally:
        end.set()
        thread.join(PATIENCE_S)


async def _serve(
    file: Path, port: int, started: "queue.Queue[BaseException | None]", end: threading.Event
) -> None:
    config = load_config(file)
    (spec,) = unit_specs(config, plan_for(config))
    unit = LocalUnitClient(spec)
    await unit.start()
    try:
        models = served_models(config)
        names = [model.name for model in models]
        backend = RoutedBackend(models, dict.fromkeys(names, unit))
        batch = BatchSettings(str(file.parent / "batches"))
        settings = replace(SETTINGS, batch=batch)
        texts = ModelTexts.load(backend.models())
        service = CompletionService(backend, texts, Metrics(), settings)
        lines = LineAnswerer(service, lenient=False)
        batches = LocalBatchService(Path(batch.directory), lines, lambda: names, batch)
        app = create_app(backend, settings, batches)
        limits = HeadLimits(timeout_s=HEAD_S, on_refused=app.state.on_refused_head)
        address = HttpAddress("127.0.0.1", port)
        listener = Listener(address, limits, connections=settings.connections)
        async with app.router.lifespan_context(app):
            await listener.start(app)
            started.put(None)
            await asyncio.to_thread(end.wait)
            await listener.close()
    except BaseException as error:
        started.put(error)
        raise
    finally:
        await unit.close()


def bearer(key: str) -> bytes:
    return f"Authorization: Bearer {key}\r\n".encode()


def error_code(body: bytes) -> Any:
    return json.loads(body)["error"]["code"]
