"""Who reads what: routing, refusals, silence and loss of clients, without sockets."""

import numpy as np
import pytest

from muxcluster.channel.codec import (
    Abort,
    EndLine,
    EndPart,
    FeedPart,
    MoveAnswer,
    MoveWeights,
    Ping,
    Ready,
    Refused,
    Submit,
)
from muxcluster.channel.peers import Peer, Peers
from muxcluster.core.batch_part import BatchPart, LineOver, LinePlace, PartMessage, PartOver
from muxcluster.core.errors import ContextLengthExceeded, MoveRefused, NotReady
from muxcluster.core.events import Finished, FinishReason, Rejected, TokenDelta
from muxcluster.core.request import Request
from muxcluster.core.residency import WeightOrder
from muxcluster.core.sampling import SamplingParams


def submit(request_id: str) -> Submit:
    return Submit(Request(request_id, "m", np.arange(3, dtype=np.int32), SamplingParams()))


def end(request_id: str) -> dict[str, TokenDelta]:
    return {request_id: TokenDelta(finished=Finished(request_id, FinishReason.LENGTH))}


class Unit:
    """Records what it is told; refuses with `error` where that is set."""

    def __init__(self) -> None:
        self.submitted: list[str] = []
        self.aborted: list[str] = []
        self.error: Exception | None = None
        self.fed: list[PartMessage] = []
        self.moved: list[tuple[str, WeightOrder]] = []
        self.peers = Peers(self.submit, self.aborted.append, 3, self.feed, self.move)

    def feed(self, message: PartMessage) -> None:
        if self.error is not None:
            raise self.error
        self.fed.append(message)

    def move(self, model: str, order: WeightOrder) -> None:
        if self.error is not None:
            raise self.error
        self.moved.append((model, order))

    def submit(self, request: Request) -> None:
        if self.error is not None:
            raise self.error
        self.submitted.append(request.request_id)

    def peer(self, identity: bytes) -> Peer:
        return next(peer for peer in self.peers if peer.identity == identity)


def test_deltas_go_to_the_client_that_submitted() -> None:
    unit = Unit()
    unit.peers.hear(b"1", submit("a"))
    unit.peers.hear(b"2", submit("b"))
    unit.peers.route({"a": TokenDelta((1,)), "b": TokenDelta((2,)), "c": TokenDelta((3,))})
    unit.peers.route({"a": TokenDelta((4,))})
    assert unit.peer(b"1").deltas == {"a": TokenDelta((1, 4))}
    assert unit.peer(b"2").deltas == {"b": TokenDelta((2,))}


def test_after_its_end_a_request_is_forgotten_and_its_id_free() -> None:
    unit = Unit()
    unit.peers.hear(b"1", submit("a"))
    unit.peers.route(end("a"))
    unit.peers.route({"a": TokenDelta((9,))})
    assert unit.peer(b"1").deltas == end("a")
    unit.peers.hear(b"1", Abort("a"))
    assert unit.aborted == []
    unit.peers.hear(b"2", submit("a"))
    assert unit.submitted == ["a", "a"]


def test_only_its_reader_may_abort_a_request() -> None:
    unit = Unit()
    unit.peers.hear(b"1", submit("a"))
    unit.peers.hear(b"2", Abort("a"))
    assert unit.aborted == []
    unit.peers.hear(b"1", Abort("a"))
    assert unit.aborted == ["a"]


def test_a_request_id_in_use_is_rejected_and_the_first_goes_on() -> None:
    unit = Unit()
    unit.peers.hear(b"1", submit("a"))
    unit.peers.hear(b"2", submit("a"))
    delta = unit.peer(b"2").deltas["a"]
    assert delta.rejected is not None and delta.rejected.code == "invalid_value"
    unit.peers.route({"a": TokenDelta((1,))})
    assert unit.peer(b"1").deltas == {"a": TokenDelta((1,))}
    assert unit.submitted == ["a"]


def test_what_the_unit_raises_reaches_the_client() -> None:
    unit = Unit()
    unit.error = ContextLengthExceeded("too long")
    unit.peers.hear(b"1", submit("a"))
    unit.error = NotReady("draining", 7, "server_shutting_down")
    unit.peers.hear(b"1", submit("b"))
    rejected = Rejected("a", "context_length_exceeded", "too long")
    assert unit.peer(b"1").deltas == {"a": TokenDelta(rejected=rejected)}
    assert unit.peer(b"1").refused == [Refused("b", "server_shutting_down", "draining", 7)]
    unit.error = None
    unit.peers.hear(b"1", submit("b"))
    assert unit.submitted == ["b"]


def test_a_silent_client_is_aborted_once_then_forgotten() -> None:
    unit = Unit()
    unit.peers.hear(b"1", submit("a"))
    for _ in range(2):
        unit.peers.tick()
    unit.peers.hear(b"1", Ping())
    for _ in range(2):
        unit.peers.tick()
    assert unit.aborted == []
    unit.peers.tick()
    assert unit.aborted == ["a"]
    # Its connection may still work: the end is routed to it.
    unit.peers.route(end("a"))
    assert unit.peer(b"1").deltas == end("a")
    for _ in range(3):
        unit.peers.tick()
    assert list(unit.peers) == []
    assert unit.aborted == ["a"]


def test_a_lost_clients_requests_are_aborted_and_their_output_dropped() -> None:
    unit = Unit()
    for request_id in ("a", "b"):
        unit.peers.hear(b"1", submit(request_id))
    unit.peers.hear(b"2", submit("c"))
    unit.peers.lose(unit.peer(b"1"))
    unit.peers.route({"a": TokenDelta((1,)), "c": TokenDelta((2,))})
    assert unit.aborted == ["a", "b"]
    assert [peer.identity for peer in unit.peers] == [b"2"]


def test_other_messages_are_logged_and_ignored(caplog: pytest.LogCaptureFixture) -> None:
    unit = Unit()
    unit.peers.hear(b"1", Ready())
    assert "Ready" in caplog.text
    assert unit.submitted == []


def _part(part_id: str) -> BatchPart:
    return BatchPart(part_id, "m", "dfs", {}, np.ones(2), np.ones(2), {}, 1.0)


def test_parts_go_to_the_unit_and_end_with_their_client() -> None:
    unit, first, second = Unit(), _part("p"), _part("q")
    for part in (first, second):
        unit.peers.hear(b"1", FeedPart(part))
    over = LineOver(LinePlace("p", 1))
    unit.peers.hear(b"1", EndLine(over))
    unit.peers.hear(b"1", EndPart(PartOver("q")))
    unit.peers.hear(b"1", submit("a"))
    assert unit.fed == [first, second, over, PartOver("q")]
    unit.peers.lose(unit.peer(b"1"))
    assert unit.aborted == ["a"]
    assert unit.fed[4:] == [PartOver("p")]


def test_a_part_that_the_unit_cannot_feed_is_only_logged(caplog: pytest.LogCaptureFixture) -> None:
    unit = Unit()
    unit.error = ValueError("unknown order")
    unit.peers.hear(b"1", FeedPart(_part("p")))
    assert "unknown order" in caplog.text
    unit.error = None
    unit.peers.lose(unit.peer(b"1"))
    assert unit.fed == []


def test_parts_of_a_silent_client_end_with_its_requests() -> None:
    unit = Unit()
    unit.peers.hear(b"1", FeedPart(_part("p")))
    for _ in range(3):
        unit.peers.tick()
    assert unit.fed[1:] == [PartOver("p")]


@pytest.mark.parametrize(
    ("error", "code"),
    [(None, ""), (MoveRefused("it stays"), "move_refused"), (NotReady("no"), "model_loading")],
)
def test_an_order_for_weights_is_answered_to_who_gave_it(
    error: Exception | None, code: str
) -> None:
    unit = Unit()
    unit.error = error
    unit.peers.hear(b"1", Ping())
    unit.peers.hear(b"2", MoveWeights("c", "m", WeightOrder.HOLD))
    message = "" if error is None else error.message  # type: ignore[attr-defined]
    assert unit.peer(b"2").answers == [MoveAnswer("c", code, message)]
    assert unit.peer(b"1").answers == []
    assert unit.moved == ([("m", WeightOrder.HOLD)] if error is None else [])


def test_a_unit_that_moves_nothing_says_so() -> None:
    peers = Peers(lambda _: None, lambda _: None, 3)
    peers.hear(b"1", MoveWeights("c", "m", WeightOrder.WAKE))
    (peer,) = peers
    assert [answer.code for answer in peer.answers] == ["move_refused"]
