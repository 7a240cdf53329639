"""A unit without an engine: a real `UnitServer` fed by a clock, so that only the framework is seen.

Every open request gets its next token at every tick; token i is the i-th of a fixed list, so that
a client knows what it must read. The first token is sent as soon as the request arrives.
"""

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from ray import serve

from muxcluster.channel.server import UnitServer
from muxcluster.core.events import Finished, FinishReason, TokenDelta
from muxcluster.core.request import Request
from muxcluster.core.served import JobRecord, UnitStats
from muxcluster.core.unitspec import UnitSpec

MIN_STEP_S = 0.001


@dataclass(frozen=True, slots=True)
class Script:
    """What the fake says: `tokens`, again and again, `tokens_per_s` over all open requests.

    A tick is at least MIN_STEP_S, so few streams get less.
    """

    tokens: tuple[int, ...]
    tokens_per_s: float


class FakeUnit:
    """Stands in for `UnitReplica`: same endpoint, same messages, no model."""

    def __init__(self, spec: UnitSpec, socket_dir: str, script: Script) -> None:
        self._spec = spec
        self._script = script
        self._lock = threading.Lock()
        self._position: dict[str, int] = {}
        self._limit: dict[str, int] = {}
        self._wake = threading.Event()
        socket = f"{socket_dir}/{spec.unit_id}-{os.getpid()}"
        self._server = UnitServer(f"ipc://{socket}", self._submit, self._abort, self._stats)
        self._endpoint = self._server.start()
        threading.Thread(target=self._run, daemon=True).start()

    def endpoint(self) -> str:
        """As `UnitReplica.endpoint`."""
        return self._endpoint

    def stats(self) -> UnitStats:
        """As `UnitReplica.stats`."""
        return self._stats()

    def timeline(self) -> tuple[JobRecord, ...]:
        """There are no jobs."""
        return ()

    def _submit(self, request: Request) -> None:
        with self._lock:
            self._position[request.request_id] = 0
            self._limit[request.request_id] = request.sampling.max_tokens
        self._wake.set()

    def _abort(self, request_id: str) -> None:
        with self._lock:
            self._position.pop(request_id, None)
            self._limit.pop(request_id, None)

    def _stats(self) -> UnitStats:
        return UnitStats(self._spec.unit_id, time.monotonic(), num_blocks=1, free_blocks=1)

    def _run(self) -> None:
        next_s = time.monotonic()
        while True:
            if not self._position:
                self._wake.wait()
                next_s = time.monotonic()
            self._wake.clear()
            deltas = self._step(is_tick=time.monotonic() >= next_s)
            if deltas:
                self._server.send(deltas)
            if time.monotonic() >= next_s:
                step_s = max(MIN_STEP_S, len(self._position) / self._script.tokens_per_s)
                next_s = max(next_s + step_s, time.monotonic())
            self._wake.wait(max(0.0, next_s - time.monotonic()))

    def _step(self, *, is_tick: bool) -> dict[str, TokenDelta]:
        """A token for each open request, or off the tick for the new ones only."""
        tokens, deltas = self._script.tokens, {}
        with self._lock:
            for request_id, position in list(self._position.items()):
                if not is_tick and position:
                    continue
                finished = None
                if position + 1 == self._limit[request_id]:
                    finished = Finished(request_id, FinishReason.LENGTH)
                    del self._position[request_id], self._limit[request_id]
                else:
                    self._position[request_id] = position + 1
                token = tokens[position % len(tokens)]
                deltas[request_id] = TokenDelta((token,), finished=finished)
        return deltas


def fake_units(script: Script) -> Callable[[UnitSpec, str | None], Any]:
    """For `Wiring.make_unit`: bound deployments that play `script`."""
    return partial(_deployment, script)


def _deployment(script: Script, spec: UnitSpec, socket_dir: str | None) -> Any:
    deployment = serve.deployment(
        FakeUnit, name=spec.unit_id, ray_actor_options={"num_cpus": 0.1}, max_ongoing_requests=100
    )
    return deployment.bind(spec, socket_dir, script)
