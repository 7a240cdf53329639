"""The requests that one client has open at its unit, as streams for one event loop."""

from collections.abc import Callable, Mapping

from muxcluster.channel.mailbox import Mailbox
from muxcluster.core.events import TokenDelta
from muxcluster.core.request import Request


class UnitStreams:
    """Hands the unit's output to the streams of the open requests."""

    def __init__(self, submit: Callable[[Request], None], abort: Callable[[str], None]) -> None:
        """submit: sends a request to the unit, or raises. abort: ends it there, by its id."""
        self._submit = submit
        self._abort = abort
        self._mailboxes: dict[str, Mailbox] = {}

    def __len__(self) -> int:
        return len(self._mailboxes)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._mailboxes

    def generate(self, request: Request) -> "UnitStream":
        """As `TokenSource.generate`."""
        return UnitStream(self, request)

    def put(self, deltas: Mapping[str, TokenDelta]) -> None:
        """Add output by request id; that of requests which are not open is dropped."""
        for request_id, delta in deltas.items():
            mailbox = self._mailboxes.get(request_id)
            if mailbox is not None:
                mailbox.put(delta)

    def fail(self, request_id: str, error: Exception) -> None:
        """End one stream with `error`, after the output that waits for its reader."""
        mailbox = self._mailboxes.get(request_id)
        if mailbox is not None:
            mailbox.fail(error)

    def fail_all(self, error: Exception) -> None:
        """End every stream with `error`."""
        for mailbox in self._mailboxes.values():
            mailbox.fail(error)

    def _open(self, request: Request) -> Mailbox:
        self._submit(request)
        mailbox = self._mailboxes[request.request_id] = Mailbox()
        return mailbox

    def _close(self, request_id: str, *, has_ended: bool) -> None:
        del self._mailboxes[request_id]
        if not has_ended:
            self._abort(request_id)


class UnitStream:
    """The deltas of one request, for one reader; a slow reader gets several merged into one.

    An error or a cancellation while the reader waits closes the stream.
    """

    def __init__(self, streams: UnitStreams, request: Request) -> None:
        self._streams = streams
        self._request = request
        self._mailbox: Mailbox | None = None
        self._is_over = False

    def __aiter__(self) -> "UnitStream":
        return self

    async def __anext__(self) -> TokenDelta:
        """The output since the last call. The first call submits the request."""
        if self._is_over:
            raise StopAsyncIteration
        try:
            if self._mailbox is None:
                self._mailbox = self._streams._open(self._request)
            delta = await self._mailbox.take()
        except BaseException:
            self._end(has_ended=False)
            raise
        if delta.finished is not None or delta.rejected is not None:
            self._end(has_ended=True)
        return delta

    async def aclose(self) -> None:
        """Abort the request unless it has ended. Idempotent."""
        if not self._is_over:
            self._end(has_ended=False)

    def _end(self, *, has_ended: bool) -> None:
        self._is_over = True
        if self._mailbox is not None:
            self._streams._close(self._request.request_id, has_ended=has_ended)
