"""Gives jobs to render processes so that no template delays those of other models."""

import asyncio
import threading
import time
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import lru_cache

from muxcluster.core.errors import (
    ChatTemplateLimit,
    ContextLengthExceeded,
    EngineFailure,
    InvalidValue,
)
from muxcluster.text.rendering.frames import Job, Outcome, Reply
from muxcluster.text.rendering.process import Died, RenderLimits, RenderProcess

NUM_PROCESSES = 2
SUSPECT_S = 60.0  # how long a template that hit a limit is confined to the slow place


@dataclass(slots=True, eq=False)
class _Place:
    """A place for a process, which is started when it is first needed.

    is_slow: for templates that have hit a limit.
    """

    is_slow: bool
    is_free: bool = True
    process: RenderProcess | None = None


@dataclass(slots=True)
class _Queue:
    """Jobs of one template that wait for a place; at most one runs at a time."""

    waiting: deque["Future[_Place]"] = field(default_factory=deque)
    is_running: bool = False
    suspect_until_s: float = 0.0


class RenderPool:
    """Renders chat templates, for any thread and any event loop of this process.

    A template runs one job at a time, so it occupies at most one place. A template that hits a
    limit is then confined to the slow place, which such templates share. The processes end with
    this one, or with `close`.
    """

    def __init__(
        self, limits: RenderLimits | None = None, num_processes: int = NUM_PROCESSES
    ) -> None:
        self._limits = limits or RenderLimits()
        self._places = [_Place(is_slow=False) for _ in range(num_processes)] + [
            _Place(is_slow=True)
        ]
        self._queues: dict[str, _Queue] = {}
        self._lock = threading.Lock()
        self._tasks: set[asyncio.Task[str]] = set()

    def __enter__(self) -> "RenderPool":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the processes that run no job; further jobs start new ones."""
        with self._lock:
            for place in self._places:
                if place.is_free and place.process is not None:
                    place.process.close()
                    place.process = None

    @property
    def pids(self) -> list[int]:
        """Return the ids of the processes that run now."""
        return [place.process.pid for place in self._places if place.process is not None]

    def render(self, job: Job) -> str:
        """Return the prompt, or "" if `job` only compiles; waits on this thread.

        Raises InvalidValue with the template's message, ContextLengthExceeded over
        `job.max_chars`, ChatTemplateLimit, EngineFailure if no process can be started.
        """
        place = self._turn(job.key).result()
        try:
            for is_last in (False, True):
                try:
                    reply = self._process(place).ask(job)
                except Died as death:
                    self._died(place, job, death, is_last=is_last)
                else:
                    return self._text(place, job, reply)
            raise AssertionError("the last try returns or raises")
        finally:
            self._give_back(place, job.key)

    async def render_async(self, job: Job) -> str:
        """As `render`, on the running event loop."""
        place = await self._granted(job.key)
        task = asyncio.create_task(self._render_in(place, job))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        # A caller that gives up leaves the process to finish: to kill it costs more.
        return await asyncio.shield(task)

    async def _granted(self, key: str) -> _Place:
        turn = self._turn(key)
        if turn.done():
            return turn.result()
        try:
            return await asyncio.wrap_future(turn)
        except asyncio.CancelledError:
            with self._lock:
                is_granted = not turn.cancel()
            if is_granted:
                self._give_back(turn.result(), key)
            raise

    async def _render_in(self, place: _Place, job: Job) -> str:
        try:
            for is_last in (False, True):
                try:
                    reply = await self._process(place).ask_async(job)
                except Died as death:
                    self._died(place, job, death, is_last=is_last)
                except asyncio.CancelledError:  # the event loop is closing
                    place.process = None
                    raise
                else:
                    return self._text(place, job, reply)
            raise AssertionError("the last try returns or raises")
        finally:
            self._give_back(place, job.key)

    def _process(self, place: _Place) -> RenderProcess:
        if place.process is None:
            try:
                place.process = RenderProcess(self._limits)
            except OSError as error:
                raise EngineFailure(f"no process to render in: {error.strerror}") from error
        return place.process

    def _died(self, place: _Place, job: Job, death: Died, *, is_last: bool) -> None:
        """Raise ChatTemplateLimit unless `job` is to be tried again."""
        place.process = None
        if death.is_late:
            raise self._limit_hit(job, f"takes more than {self._limits.cpu_s:g} s")
        if is_last:
            raise self._limit_hit(job, f"ended its process twice (status {death.status})")

    def _text(self, place: _Place, job: Job, reply: Reply) -> str:
        if reply.outcome is Outcome.RENDERED:
            return reply.text
        if reply.outcome is Outcome.NO_MEMORY:
            assert place.process is not None
            place.process.kill()
            place.process = None
            mebibytes = self._limits.memory_bytes // 2**20
            raise self._limit_hit(job, f"takes more than {mebibytes} MiB of memory")
        if reply.outcome is Outcome.TOO_LONG:
            raise ContextLengthExceeded(
                f"the messages make a prompt of {int(reply.text)} characters; at most "
                f"{job.max_chars} fit the model's context",
                "messages",
            )
        raise InvalidValue(f"the chat template refused: {reply.text}", "messages")

    def _limit_hit(self, job: Job, message: str) -> ChatTemplateLimit:
        with self._lock:
            self._queues[job.key].suspect_until_s = time.monotonic() + SUSPECT_S
        return ChatTemplateLimit(f"the chat template {message}", "messages")

    def _turn(self, key: str) -> "Future[_Place]":
        """A place, some time."""
        turn: Future[_Place] = Future()
        with self._lock:
            self._queues.setdefault(key, _Queue()).waiting.append(turn)
            self._grant()
        return turn

    def _give_back(self, place: _Place, key: str) -> None:
        with self._lock:
            place.is_free = True
            self._queues[key].is_running = False
            self._grant()

    def _grant(self) -> None:
        """Give free places to templates in turn. Under the lock."""
        now_s = time.monotonic()
        for key in list(self._queues):
            queue = self._queues[key]
            if queue.is_running:
                continue
            place = self._free_place(key, is_slow=queue.suspect_until_s > now_s)
            if place is None:
                continue
            while queue.waiting:
                turn = queue.waiting.popleft()
                if turn.set_running_or_notify_cancel():
                    place.is_free, queue.is_running = False, True
                    self._queues[key] = self._queues.pop(key)
                    turn.set_result(place)
                    break
            else:
                if queue.suspect_until_s <= now_s:
                    del self._queues[key]

    def _free_place(self, key: str, *, is_slow: bool) -> _Place | None:
        """The best one: whose process knows the template, else one that has a process."""
        free = [place for place in self._places if place.is_free and place.is_slow == is_slow]
        return max(free, key=lambda place: _fitness(place, key), default=None)


def _fitness(place: _Place, key: str) -> int:
    return 0 if place.process is None else 2 if place.process.knows(key) else 1


@lru_cache(maxsize=1)
def shared_pool() -> RenderPool:
    """Return the pool of this process, for callers without a pool of their own."""
    return RenderPool()
