"""One process a model, started on demand and stopped for others: the rival of a shared unit.

Each model is a `muxcluster serve` of its own on one thread, as behind a proxy that starts servers.
Weights of the servers that run are bounded; what else a process takes is not counted, which favours
this system. A part of bench/residency.py.
"""

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import yaml

from bench.online.parked import OUTPUT_TOKENS, Ask, Load
from muxcluster.core.events import FinishReason
from muxcluster.loadgen.answer import answer_of
from muxcluster.loadgen.exchange import Target, exchange, request_bytes

_START_S = 300.0
_TIMEOUT_S = 600.0
_CONTEXT, _MAX_SEQS = 128, 16
_KV_GB = 0.02


class Server(Protocol):
    """A server of one model that answers requests."""

    async def answer(self, ask: Ask) -> tuple[float, int]:
        """Return when the first output came (time.monotonic) and the number of tokens."""
        ...

    async def stop(self) -> None:
        """End its processes."""
        ...


class _Running:
    """A server, who uses it, and whether it is to be stopped."""

    def __init__(self, server: Server, num_open: int) -> None:
        self.server = server
        self.num_open = num_open
        self.last_use_s = time.monotonic()
        self.is_leaving = False


class _Waiting:
    """Requests that wait for a server; they are its first ones."""

    def __init__(self) -> None:
        self.num = 0
        self.found: asyncio.Future[_Running] = asyncio.get_running_loop().create_future()


Start = Callable[[str], Awaitable[Server]]


class OnDemand:
    """Starts a server when its model is asked for; stops those used longest ago for its memory.

    One start at a time, in the order in which models were asked for. A server that is to be stopped
    answers what it has; its later requests wait for its next start.
    """

    def __init__(self, num_bytes: Mapping[str, int], room: int, start: Start) -> None:
        """num_bytes: of each model's weights. room: for those of all servers that run; it holds
        the largest one."""
        self._num_bytes = num_bytes
        self._room = room
        self._start = start
        self._running: dict[str, _Running] = {}
        self._wanted: asyncio.Queue[str] = asyncio.Queue()
        self._waiting: dict[str, _Waiting] = {}
        self._ended = asyncio.Event()
        self.num_starts = 0
        self.most_bytes = 0  # at a time

    async def answer(self, ask: Ask) -> tuple[float, int]:
        """Return what the model's server answers, once it runs. Raises RuntimeError where it does
        not start."""
        found = self._running.get(ask.model)
        if found is None or found.is_leaving:
            found = await self._wait(ask.model)
        else:
            found.num_open += 1
        try:
            return await found.server.answer(ask)
        finally:
            found.num_open -= 1
            found.last_use_s = time.monotonic()
            self._ended.set()

    async def _wait(self, name: str) -> _Running:
        if name not in self._waiting:
            self._waiting[name] = _Waiting()
            self._wanted.put_nowait(name)
        waiting = self._waiting[name]
        waiting.num += 1
        return await asyncio.shield(waiting.found)

    async def run(self) -> None:
        """Start servers until cancelled; then stop all."""
        try:
            while True:
                name = await self._wanted.get()
                try:
                    await self._make_room(name)
                    server = await self._start(name)
                except (OSError, RuntimeError, TimeoutError) as error:
                    reason = f"{name} does not start: {error!r}"
                    print(reason, flush=True)  # its requests are lost, and count as such
                    self._waiting.pop(name).found.set_exception(RuntimeError(reason))
                    continue
                waiting = self._waiting.pop(name)
                self._running[name] = _Running(server, waiting.num)
                waiting.found.set_result(self._running[name])
                self.num_starts += 1
                held = sum(self._num_bytes[each] for each in self._running)
                self.most_bytes = max(self.most_bytes, held)
        finally:
            for found in self._running.values():
                await found.server.stop()

    async def _make_room(self, name: str) -> None:
        while True:
            held = sum(self._num_bytes[each] for each in self._running)
            if held + self._num_bytes[name] <= self._room:
                return
            await self._stop(min(self._running, key=self._rank))

    def _rank(self, name: str) -> tuple[bool, float]:
        found = self._running[name]
        return found.num_open > 0, found.last_use_s

    async def _stop(self, name: str) -> None:
        found = self._running[name]
        found.is_leaving = True
        while found.num_open:
            self._ended.clear()
            await self._ended.wait()
        await found.server.stop()
        del self._running[name]


async def play(asks: Sequence[Ask], system: OnDemand) -> Load:
    """Send a trace at its times; returns what became of each request."""
    load = Load(asks)
    manager = asyncio.create_task(system.run())
    start_s = time.monotonic()

    async def one(ask: Ask) -> None:
        await asyncio.sleep(start_s + ask.at_s - time.monotonic())
        name = ask.request_id
        load.sent_s[name] = time.monotonic()
        load.reasons[name] = None
        with suppress(RuntimeError):
            first_s, num_tokens = await system.answer(ask)
            load.first_s[name] = first_s - load.sent_s[name]
            load.num_tokens[name] = num_tokens
            load.reasons[name] = FinishReason.LENGTH

    try:
        async with asyncio.timeout(asks[-1].at_s + _TIMEOUT_S):
            await asyncio.gather(*map(one, asks))
    finally:
        manager.cancel()
        with suppress(asyncio.CancelledError):
            await manager
    return load


class ServeProcess:
    """`muxcluster serve` of one model."""

    def __init__(self, process: asyncio.subprocess.Process, target: Target) -> None:
        self._process = process
        self._target = target
        self._reading = asyncio.create_task(_read_on(process))

    async def answer(self, ask: Ask) -> tuple[float, int]:
        """Raises RuntimeError for an answer that is not whole."""
        body = {
            "model": ask.model,
            "prompt": ask.prompt.tolist(),
            "max_tokens": OUTPUT_TOKENS,
            "temperature": 0.0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        request = request_bytes(self._target, "/v1/completions", json.dumps(body).encode())
        received = await exchange(self._target, request, _TIMEOUT_S)
        answer = answer_of(received)
        if not answer.is_complete or not answer.event_times_s:
            raise RuntimeError(answer.error or "an answer without output")
        # answers are timed on time.perf_counter
        late_s = time.perf_counter() - answer.event_times_s[0]
        return time.monotonic() - late_s, answer.num_output_tokens

    async def stop(self) -> None:
        """End it as an operator would."""
        if self._process.returncode is None:
            self._process.terminate()
        await self._process.wait()
        self._reading.cancel()


def starter(paths: Mapping[str, Path], folder: Path) -> Start:
    """Return what starts `muxcluster serve` for a model. folder: for configurations."""

    async def start(name: str) -> Server:
        file = folder / f"{name}.yaml"
        model = {"name": name, "path": str(paths[name]), "max_model_len": _CONTEXT}
        policy = {"scheduler": "mixed", "num_threads": 1, "kv_gb": _KV_GB}
        content = {"models": [{**model, "max_seqs": _MAX_SEQS}], "policy": policy}
        file.write_text(yaml.safe_dump(content))
        code = "from muxcluster.cli.main import main; main()"
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", code, "serve", str(file), "--port", "0"),
            *("--drain-timeout", "0"),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        try:
            return ServeProcess(process, await asyncio.wait_for(_ready(process), _START_S))
        except BaseException:
            if process.returncode is None:
                process.terminate()
            await process.wait()
            raise

    return start


async def _ready(process: asyncio.subprocess.Process) -> Target:
    """Return where the server listens, once it says that it is ready."""
    assert process.stdout is not None
    said, url = [], ""
    while line := (await process.stdout.readline()).decode(errors="replace"):
        said.append(line)
        if line.strip().startswith("curl "):
            url = line.split()[1].removesuffix("/v1/chat/completions")
        if line.startswith("ready after"):  # a unit's log may say so, too
            return Target.of(url)
    raise RuntimeError("the server did not start:\n" + "".join(said))


async def _read_on(process: asyncio.subprocess.Process) -> None:
    """Empty the pipe, or the server would wait for it."""
    assert process.stdout is not None
    while await process.stdout.readline():
        pass
