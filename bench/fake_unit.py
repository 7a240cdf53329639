"""A unit without an engine: a real `UnitServer` fed by a clock, so that only the framework is seen.

Every open request gets its next token at every tick; token i is the i-th of a fixed list, so that
a client knows what it must read. The first token is sent as soon as the request arrives.
"""

import math
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ray import serve

from muxcluster.channel.server import UnitServer
from muxcluster.cluster.unit_actor import unit_deployment
from muxcluster.core.events import Finished, FinishReason, TokenDelta
from muxcluster.core.request import Request
from muxcluster.core.served import JobRecord, UnitStats
from muxcluster.core.unitspec import UnitSpec


@dataclass(frozen=True, slots=True)
class Script:
    """What a fake says: `tokens`, again and again.

    Each open request gets a token every `step_s` seconds, or less often so that all together get
    no more than `tokens_per_s`.
    """

    tokens: tuple[int, ...]
    step_s: float = 0.001
    tokens_per_s: float = math.inf


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
                rate_per_s = self._script.tokens_per_s
                step_s = max(self._script.step_s, len(self._position) / rate_per_s)
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


def unit_or_fake(
    scripts: Mapping[str, Script],
) -> Callable[[UnitSpec, str | None], Any]:
    """For `Wiring.make_unit`: units named in `scripts` are fakes that play them, others real."""

    def make(spec: UnitSpec, socket_dir: str | None) -> Any:
        if spec.unit_id not in scripts:
            return unit_deployment(spec, socket_dir)
        return _fake_deployment(scripts[spec.unit_id], spec, socket_dir)

    return make


def _fake_deployment(script: Script, spec: UnitSpec, socket_dir: str | None) -> Any:
    deployment = serve.deployment(
        FakeUnit, name=spec.unit_id, ray_actor_options={"num_cpus": 0.1}, max_ongoing_requests=100
    )
    return deployment.bind(spec, socket_dir, script)
