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

    async def begin(self, asked: Asked, keeping: Keeping, head: RequestHead) -> Json:
        """Begin to make a response; return it as it is now. Raises as `CompletionService.prepare`.

        head: of the request. The response has a meter of its own, which ends with it.
        """
        if head.meter is not None:
            head = replace(head, meter=head.meter.another())  # `Edge` ends the request's own
        try:
            with naming(asked.names):
                call = await self._service.prepare(asked.body, head)
            try:
                answers = keeping.answers_of(call)
                response = answers.response(IN_PROGRESS, [])
                await keeping.begin(response, call.timeout_s)
            except BaseException:
                call.admission.release()
                raise
        except BaseException:
            _end_meter(head)
            raise
        self._start(self._made(call, answers, keeping), call, head)
        return response

    async def ended(self, limit_s: float) -> None:
        """Wait until all that is being made has ended, for at most `limit_s` s."""
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=limit_s)

    async def close(self) -> None:
        """Give up what is being made; it has failed then."""
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

    async def _made(self, call: Call, answers: ResponseAnswers, keeping: Keeping) -> None:
        """Make a response and keep its end, unless it was cancelled or deleted."""
        work = asyncio.ensure_future(answers.whole(self._service.stream(call)))
        response_id = answers.response_id
        try:
            while not work.done():
                await asyncio.wait({work}, timeout=CANCEL_POLL_S)
                if not work.done() and not await self._is_wanted(keeping, response_id):
                    return
            response = _ended(work, answers)
        except asyncio.CancelledError:
            error = http_error(NotReady("the server shuts down", code="server_shutting_down"))
            response = answers.response(FAILED, [], error=error)
        finally:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
        try:
            await keeping.store.end(keeping.owner, response_id, msgspec.json.encode(response))
        except MuxClusterError as error:
            logger.error("response %s is lost: %s", response_id, error)

    async def _is_wanted(self, keeping: Keeping, response_id: str) -> bool:
        try:
            stored = await keeping.store.find(keeping.owner, response_id)
        except MuxClusterError:
            return True  # the store will answer later
        return stored is not None and stored.is_open


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
