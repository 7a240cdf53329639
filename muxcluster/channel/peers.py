"""The clients of one unit: their requests, what is still to be sent, their silence. No I/O."""

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from muxcluster.channel.codec import (
    Abort,
    EndLine,
    EndPart,
    FeedPart,
    Message,
    MoveAnswer,
    MoveWeights,
    Ping,
    Refused,
    Submit,
)
from muxcluster.core.batch_part import PartMessage, PartOver
from muxcluster.core.errors import InvalidValue, MoveRefused, RequestError, Unavailable
from muxcluster.core.events import Rejected, TokenDelta, merge
from muxcluster.core.request import Request
from muxcluster.core.residency import WeightOrder

logger = logging.getLogger(__name__)


def ignore_parts(_: PartMessage) -> None:
    """Feed nothing: the lines of parts run as they come."""


def refuse_move(model: str, _: WeightOrder) -> None:
    """Move nothing. Raises MoveRefused."""
    raise MoveRefused(f"the weights of {model} cannot be moved")


@dataclass(slots=True, eq=False)
class Peer:
    """One connected client.

    request_ids: its open requests. part_ids: its parts of batches. deltas, refused, answers: still
    to be sent to it; deltas of one request are merged, so a slow client takes memory for its tokens
    and no more.
    """

    identity: bytes
    request_ids: set[str] = field(default_factory=set)
    part_ids: set[str] = field(default_factory=set)
    deltas: dict[str, TokenDelta] = field(default_factory=dict)
    refused: list[Refused] = field(default_factory=list)
    answers: list[MoveAnswer] = field(default_factory=list)
    silent_ticks: int = 0

    def owe(self, request_id: str, delta: TokenDelta) -> None:
        """Add output that is to be sent."""
        earlier = self.deltas.get(request_id)
        self.deltas[request_id] = delta if earlier is None else merge(earlier, delta)


class Peers:
    """All clients. An accepted request has one reader until its last delta is routed.

    on_submit, on_abort, on_feed, on_move: the unit's. If a client is silent for `max_silent_ticks`
    ticks its requests are aborted; after twice as many it is forgotten.
    """

    def __init__(
        self,
        on_submit: Callable[[Request], None],
        on_abort: Callable[[str], None],
        max_silent_ticks: int,
        on_feed: Callable[[PartMessage], None] = ignore_parts,
        on_move: Callable[[str, WeightOrder], None] = refuse_move,
    ) -> None:
        self._on_submit = on_submit
        self._on_abort = on_abort
        self._on_feed = on_feed
        self._on_move = on_move
        self._max_silent_ticks = max_silent_ticks
        self._peers: dict[bytes, Peer] = {}
        self._readers: dict[str, Peer] = {}

    def __iter__(self) -> Iterator[Peer]:
        return iter(list(self._peers.values()))

    def hear(self, identity: bytes, message: Message) -> None:
        """Take a message of the client `identity`, known or new."""
        peer = self._peers.setdefault(identity, Peer(identity))
        peer.silent_ticks = 0
        if isinstance(message, Submit):
            self._submit(peer, message.request)
        elif isinstance(message, Abort):
            if self._readers.get(message.request_id) is peer:
                self._on_abort(message.request_id)
        elif isinstance(message, FeedPart | EndLine | EndPart):
            self._feed(peer, message)
        elif isinstance(message, MoveWeights):
            self._move(peer, message)
        elif not isinstance(message, Ping):
            logger.warning("a client sent %s", type(message).__name__)

    def _submit(self, peer: Peer, request: Request) -> None:
        request_id = request.request_id
        try:
            if request_id in self._readers:
                raise InvalidValue(f"request id {request_id!r} is in use", "request_id")
            self._on_submit(request)
        except RequestError as error:
            rejected = Rejected(request_id, error.code, error.message)
            peer.owe(request_id, TokenDelta(rejected=rejected))
        except Unavailable as error:
            peer.refused.append(Refused(request_id, error.code, error.message, error.retry_after_s))
        else:
            # Output cannot be routed before this: it is routed on the thread that runs this.
            self._readers[request_id] = peer
            peer.request_ids.add(request_id)

    def _feed(self, peer: Peer, message: FeedPart | EndLine | EndPart) -> None:
        if isinstance(message, FeedPart):
            try:
                self._on_feed(message.part)
            except ValueError as error:
                logger.warning("a part of a batch is not fed: %s", error)
            else:
                peer.part_ids.add(message.part.part_id)
        elif isinstance(message, EndPart):
            peer.part_ids.discard(message.over.part_id)
            self._on_feed(message.over)
        else:
            self._on_feed(message.over)

    def _move(self, peer: Peer, message: MoveWeights) -> None:
        code = text = ""
        try:
            self._on_move(message.model, message.order)
        except (RequestError, Unavailable) as error:
            code, text = error.code, error.message
        peer.answers.append(MoveAnswer(message.call_id, code, text))

    def route(self, deltas: Mapping[str, TokenDelta]) -> None:
        """Hand new output of the unit to its readers; that of unknown requests is dropped."""
        for request_id, delta in deltas.items():
            peer = self._readers.get(request_id)
            if peer is None:
                continue
            peer.owe(request_id, delta)
            if delta.finished is not None or delta.rejected is not None:
                del self._readers[request_id]
                peer.request_ids.discard(request_id)

    def tick(self) -> None:
        """Count one tick; messages that arrived before it have been taken."""
        for peer in self:
            peer.silent_ticks += 1
            if peer.silent_ticks == self._max_silent_ticks:
                if peer.request_ids:
                    logger.warning("a client is silent: %d requests end", len(peer.request_ids))
                self._end_all(peer)
            if peer.silent_ticks >= 2 * self._max_silent_ticks:
                self.lose(peer)

    def lose(self, peer: Peer) -> None:
        """Abort and forget the requests of a client that cannot be reached."""
        del self._peers[peer.identity]
        for request_id in peer.request_ids:
            del self._readers[request_id]
        self._end_all(peer)

    def _end_all(self, peer: Peer) -> None:
        """Abort the requests, then forget the parts, so that none of their lines starts."""
        for request_id in sorted(peer.request_ids):
            self._on_abort(request_id)
        for part_id in sorted(peer.part_ids):
            self._on_feed(PartOver(part_id))
        peer.part_ids.clear()
