"""Responses that are made after their request was answered."""

import asyncio
import logging
from collections.abc import Coroutine
from dataclasses import replace

import msgspec

from muxcluster.core.errors import MuxClusterError, NotReady
from muxcluster.http.apis.asked import Asked, naming
from muxcluster.http.apis.reading import Json
from muxcluster.http.apis.responses.answers import FAILED, IN_PROGRESS, ResponseAnswers
from muxcluster.http.apis.responses.keeping import Keeping
from muxcluster.http.apis.responses.store import ResponseStore
from muxcluster.http.calls.call import Call, RequestHead
from muxcluster.http.errors import http_error
from muxcluster.http.service import CompletionService

CANCEL_POLL_S = 1.0  # how soon a response that was cancelled, at any ingress, is given up

logger = logging.getLogger(__name__)


class Background:
    """The responses that this server makes in the background."""

    def __init__(self, service: CompletionService) -> None:
        self._service = service
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = asyncio.Event()

    async def begin(self, asked: Asked, keeping: Keeping, head: RequestHead) -> Json:
        """Begin to make a response; return it as it is now.

        Raises as `CompletionService.prepare`, and NotReady once this is closed. head: of the
        request. The response has a meter of its own, which ends with it.
        """
        if head.meter is not None:
            head = replace(head, meter=head.meter.another())  # `Edge` ends the request's own
        try:
            with naming(asked.names):
                call = await self._service.prepare(asked.body, head)
            try:
                answers = keeping.answers_of(call)
                response = answers.response(IN_PROGRESS, [])
                await self._begin(keeping, response, call.timeout_s)
            except BaseException:
                call.admission.release()
                raise
        except BaseException:
            _end_meter(head)
            raise
        # without `keeping`, whose input is long, and counted while the request is read only
        self._start(self._made(call, answers, keeping.store, keeping.owner), call, head)
        return response

    async def _begin(self, keeping: Keeping, response: Json, limit_s: float) -> None:
        """Keep a response that begins, unless nothing begins any more. Raises NotReady."""
        if not self._closed.is_set():
            await keeping.begin(response, limit_s)
            if not self._closed.is_set():
                return
            await keeping.store.delete(keeping.owner, response["id"])
        raise _shut_down()

    async def ended(self, limit_s: float) -> None:
        """Wait until all that is being made has ended, for at most `limit_s` s."""
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=limit_s)

    async def close(self) -> None:
        """Give up what is being made, which has failed then; nothing begins any more."""
        self._closed.set()
        await asyncio.sleep(0)  # a task that is cancelled before its first step ends no response
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _start(self, work: Coroutine[None, None, None], call: Call, head: RequestHead) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)  # the event loop itself keeps no task alive

        def end(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            # a task that is cancelled before its first step releases nothing itself
            call.admission.release()
            _end_meter(head)

        task.add_done_callback(end)

    async def _made(
        self, call: Call, answers: ResponseAnswers, store: ResponseStore, owner: str
    ) -> None:
        """Make a response and keep its end, unless it was cancelled or deleted."""
        work = asyncio.ensure_future(answers.whole(self._service.stream(call)))
        response_id = answers.response_id
        try:
            while not work.done():
                await asyncio.wait({work}, timeout=CANCEL_POLL_S)
                if not work.done() and not await _is_wanted(store, owner, response_id):
                    return
            response = _ended(work, answers)
        except asyncio.CancelledError:
            response = answers.response(FAILED, [], error=http_error(_shut_down()))
        finally:
            if not work.done():
                work.cancel()
                await asyncio.gather(work, return_exceptions=True)
        end = asyncio.ensure_future(_keep_end(store, owner, response_id, response))
        try:
            await asyncio.shield(end)
        except asyncio.CancelledError:
            await end  # `close` comes when the response is whole: it waits


async def _is_wanted(store: ResponseStore, owner: str, response_id: str) -> bool:
    try:
        return await store.is_open(owner, response_id) is True
    except MuxClusterError:
        return True  # the store will answer later


async def _keep_end(store: ResponseStore, owner: str, response_id: str, response: Json) -> None:
    try:
        await store.end(owner, response_id, msgspec.json.encode(response))
    except MuxClusterError as error:
        logger.error("response %s is lost: %s", response_id, error)


def _shut_down() -> NotReady:
    return NotReady("the server shuts down", code="server_shutting_down")


def _ended(work: "asyncio.Future[Json]", answers: ResponseAnswers) -> Json:
    """Return the response of work that has ended, with its error if there was one."""
    try:
        return work.result()
    except MuxClusterError as error:
        return answers.response(FAILED, [], error=http_error(error))
    except Exception as error:
        logger.exception("a response in the background failed")
        return answers.response(FAILED, [], error=http_error(error))


def _end_meter(head: RequestHead) -> None:
    if head.meter is not None:
        head.meter.end()
