"""A unit without an engine: a real `UnitServer` driven by a clock, to measure the framework alone.

Every open request gets its next token at every tick; token i is the i-th of a fixed list, so that
a client knows what it must read. The first token is sent as soon as the request arrives.
"""

import json
import math
import os
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from muxcluster.channel.curve import Door
from muxcluster.channel.server import UnitCalls, UnitServer
from muxcluster.cluster.state.reconcile import Phase
from muxcluster.cluster.units.actor import UnitReplica
from muxcluster.cluster.units.report import ListenSpec, UnitReport
from muxcluster.core.directory import UnitAddress
from muxcluster.core.events import Finished, FinishReason, TokenDelta
from muxcluster.core.request import Request
from muxcluster.core.served import JobRecord, UnitStats
from muxcluster.core.unitspec import UnitSpec

UNIT_CLASS = "bench.online.fake_unit:unit_or_fake"
SCRIPTS = "scripts.json"


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
        self._server = UnitServer(
            Door(f"ipc://{socket}"), UnitCalls(self._submit, self._abort, self._stats)
        )
        self._endpoint = self._server.start()
        threading.Thread(target=self._run, daemon=True).start()

    def report(self) -> UnitReport:
        """As `UnitReplica.report`."""
        address = UnitAddress(self._spec.unit_id, self._endpoint)
        return UnitReport(Phase.READY, None, address, self._stats())

    def close(self) -> None:
        """As `UnitReplica.close`."""
        self._server.close()

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


def write_scripts(folder: str, scripts: Mapping[str, Script]) -> None:
    """Have `unit_or_fake` play them for models of these names; folder: where units listen."""
    plain = {name: asdict(script) for name, script in scripts.items()}
    (Path(folder) / SCRIPTS).write_text(json.dumps(plain))


def unit_or_fake(spec: UnitSpec, listen_spec: ListenSpec) -> Any:
    """A `unit_class` of a controller: units of models with scripts are fakes, others real."""
    assert listen_spec.socket_dir is not None
    scripts = json.loads((Path(listen_spec.socket_dir) / SCRIPTS).read_text())
    name = spec.models[0].name
    if name not in scripts:
        return UnitReplica(spec, listen_spec)
    script = Script(**{**scripts[name], "tokens": tuple(scripts[name]["tokens"])})
    return FakeUnit(spec, listen_spec.socket_dir, script)
