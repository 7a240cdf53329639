"""The client's end of the channel on asyncio: sends requests to one unit, receives their tokens."""

import asyncio
import logging
import math
from itertools import count

import zmq

from muxcluster.channel.codec import (
    Abort,
    Deltas,
    EndLine,
    EndPart,
    FeedPart,
    Message,
    MoveAnswer,
    MoveWeights,
    Ping,
    Refused,
    Stats,
    Submit,
    decode,
    encode,
)
from muxcluster.channel.curve import unlock
from muxcluster.channel.reader import SocketReader
from muxcluster.channel.unit_stream import UnitStream, UnitStreams
from muxcluster.core.batch_part import BatchPart, LineOver, PartMessage
from muxcluster.core.directory import KeyPair, UnitAddress
from muxcluster.core.errors import (
    EngineFailure,
    InvalidValue,
    ModelNotFound,
    MoveRefused,
    MuxClusterError,
    NotReady,
    Overloaded,
    Unavailable,
)
from muxcluster.core.request import Request
from muxcluster.core.residency import WeightOrder
from muxcluster.core.served import UnitStats

logger = logging.getLogger(__name__)

SEND_HIGH_WATER = 10_000
RECEIVE_HIGH_WATER = 10_000
PINGS_PER_SILENCE = 10
SILENCE_S = 5.0  # a unit reports twice a second
REPORT_POLL_S = 0.02


class UnitClient:
    """A connection to one `UnitServer`, for the event loop that called `connect`.

    If the server is silent for `silence_s` seconds, or the connection breaks (noticed at once),
    every open request fails with NotReady(code="replica_lost"), and so do new ones until the server
    is heard again. zmq reconnects by itself.
    """

    def __init__(self, *, silence_s: float = SILENCE_S) -> None:
        self._silence_s = silence_s
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._socket: zmq.Socket[bytes] | None = None
        self._readers: list[SocketReader] = []
        self._pinging: asyncio.Task[None] | None = None
        self._streams = UnitStreams(self._submit, self._abort)
        self._call_ids = count()
        self._moves: dict[str, asyncio.Future[MoveAnswer]] = {}
        self._stats: UnitStats | None = None
        self._stats_at_s = -math.inf
        self._silent_pings = 0
        self._is_lost = False
        self._is_broken = False

    async def connect(self, address: UnitAddress, keys: KeyPair | None = None) -> None:
        """Open the connection to `address`, once, without waiting for the server to answer.

        keys: the cluster's client key pair, for a unit that has a key of its own. Raises ValueError
        on tcp if either end has no key, EngineFailure for an invalid endpoint.
        """
        assert self._socket is None, "connected already"
        endpoint = address.endpoint
        if not endpoint.startswith("ipc://") and (address.server_key is None or keys is None):
            raise ValueError(f"{endpoint}: a line over the network needs keys on both ends")
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.SNDHWM, SEND_HIGH_WATER)
        self._socket.setsockopt(zmq.RCVHWM, RECEIVE_HIGH_WATER)
        if address.server_key is not None and keys is not None:
            unlock(self._socket, address.server_key, keys)
        monitor = self._socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        try:
            self._socket.connect(endpoint)
        except zmq.ZMQError as error:
            self._context.destroy(linger=0)
            self._context = self._socket = None
            raise EngineFailure(f"cannot connect to {endpoint}: {error}") from error
        self._readers = [
            SocketReader(self._socket, self._receive),
            SocketReader(monitor, lambda _: self._break(endpoint)),
        ]
        self._pinging = asyncio.create_task(self._ping(endpoint))

    def generate(self, request: Request) -> UnitStream:
        """As `TokenSource.generate`; a slow reader gets deltas merged.

        Raises NotReady or Overloaded if the unit cannot take or finish the request, InvalidValue if
        an open request has the same id.
        """
        return self._streams.generate(request)

    def _submit(self, request: Request) -> None:
        request_id = request.request_id
        if self._socket is None or self._is_lost:
            raise NotReady("the unit does not answer", code="replica_lost")
        if request_id in self._streams:
            raise InvalidValue(f"request id {request_id!r} is in use", "request_id")
        if not self._post(Submit(request)):
            raise Overloaded("too many messages wait for the unit")

    def _abort(self, request_id: str) -> None:
        self._post(Abort(request_id))

    def feed(self, message: PartMessage) -> None:
        """Tell the unit about a part of a batch.

        Nothing happens where the queue to the unit is full: its lines then run unplanned.
        """
        if isinstance(message, BatchPart):
            self._post(FeedPart(message))
        elif isinstance(message, LineOver):
            self._post(EndLine(message))
        else:
            self._post(EndPart(message))

    async def request_move(self, model: str, order: WeightOrder) -> None:
        """Give an operator's order to the unit; return with the first report after it took it.

        Raises ModelNotFound or MoveRefused where the unit refuses, NotReady or Overloaded where it
        cannot be asked or is lost before it answers.
        """
        call_id = f"move-{next(self._call_ids)}"
        if self._socket is None or self._is_lost:
            raise NotReady("the unit does not answer", code="replica_lost")
        if not self._post(MoveWeights(call_id, model, order)):
            raise Overloaded("too many messages wait for the unit")
        answered = self._moves[call_id] = asyncio.get_running_loop().create_future()
        try:
            answer = await answered
        finally:
            del self._moves[call_id]
        if answer.code:
            raise _refusal(answer)
        before_s = self._stats_at_s
        while self._stats_at_s == before_s:
            if self._is_lost:
                raise NotReady("the unit does not answer", code="replica_lost")
            await asyncio.sleep(REPORT_POLL_S)

    def stats(self) -> UnitStats | None:
        """Return the unit's latest report, None before the first."""
        return self._stats

    def stats_age_s(self) -> float:
        """Return the seconds since the latest report; infinite before the first."""
        return asyncio.get_running_loop().time() - self._stats_at_s

    def is_broken(self) -> bool:
        """True if the server ended the connection and nothing has been heard since."""
        return self._is_broken

    async def close(self) -> None:
        """End the connection; open requests fail, and the unit aborts them. Idempotent."""
        pinging, self._pinging = self._pinging, None
        if pinging is not None:
            pinging.cancel()
            await asyncio.gather(pinging, return_exceptions=True)
        readers, self._readers = self._readers, []
        for reader in readers:
            reader.close()
        context, self._context, self._socket = self._context, None, None
        if context is not None:
            context.destroy(linger=0)
        self._lose("the connection to the unit was closed")

    def _post(self, message: Message) -> bool:
        """Send without waiting. Return False if the queue is full or the connection closed."""
        if self._socket is None:
            return False
        try:
            self._socket.send(encode(message), zmq.NOBLOCK)
        except zmq.Again:
            return False
        finally:
            for reader in self._readers:
                reader.poke()
        return True

    def _receive(self, data: bytes) -> None:
        try:
            message = decode(data)
        except ValueError as error:
            logger.warning("the unit sent garbage: %s", error)
        else:
            self._hear(message)

    def _hear(self, message: Message) -> None:
        self._silent_pings = 0
        self._is_lost = self._is_broken = False
        if isinstance(message, Deltas):
            self._streams.put(message.deltas)
        elif isinstance(message, Stats):
            self._stats = message.stats
            self._stats_at_s = asyncio.get_running_loop().time()
        elif isinstance(message, Refused):
            self._streams.fail(message.request_id, _unavailable(message))
        elif isinstance(message, MoveAnswer):
            answered = self._moves.get(message.call_id)
            if answered is not None and not answered.done():
                answered.set_result(message)
        else:
            logger.warning("the unit sent %s", type(message).__name__)

    def _break(self, endpoint: str) -> None:
        self._is_broken = True
        self._lose(f"the connection to {endpoint} broke")
        self._post(Ping())  # waits for zmq to reconnect, and makes us known there

    async def _ping(self, endpoint: str) -> None:
        """Count unanswered pings, not seconds: a stalled event loop is no sign of a dead server."""
        while True:
            self._post(Ping())
            await asyncio.sleep(self._silence_s / PINGS_PER_SILENCE)
            self._silent_pings += 1
            if self._silent_pings > PINGS_PER_SILENCE:
                self._lose(f"no sign of life from {endpoint} for {self._silence_s:g} s")

    def _lose(self, reason: str) -> None:
        if self._streams and not self._is_lost:
            logger.warning("%s: %d requests lose their unit", reason, len(self._streams))
        self._is_lost = True
        self._streams.fail_all(NotReady(reason, code="replica_lost"))
        for answered in self._moves.values():
            if not answered.done():
                answered.set_exception(NotReady(reason, code="replica_lost"))


def _refusal(answer: MoveAnswer) -> MuxClusterError:
    if answer.code == ModelNotFound.code:
        return ModelNotFound(answer.message, "model")
    if answer.code == MoveRefused.code:
        return MoveRefused(answer.message)
    return NotReady(answer.message, code=answer.code)


def _unavailable(refused: Refused) -> Unavailable:
    kind = Overloaded if refused.code == Overloaded.code else NotReady
    return kind(refused.message, refused.retry_after_s, refused.code)
