"""The unit's end of the channel: a zmq ROUTER on a thread of its own."""

import logging
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass

import zmq

from muxcluster.channel.codec import Deltas, Stats, decode, encode
from muxcluster.channel.curve import Door, Doorkeeper, lock, new_keys
from muxcluster.channel.peers import Peer, Peers, ignore_parts, refuse_move
from muxcluster.core.batch_part import PartMessage
from muxcluster.core.errors import EngineFailure
from muxcluster.core.events import TokenDelta
from muxcluster.core.request import Request
from muxcluster.core.residency import WeightOrder
from muxcluster.core.served import UnitStats

logger = logging.getLogger(__name__)

SEND_HIGH_WATER = 1000  # messages queued for one client; beyond them its deltas are merged here
RECEIVE_HIGH_WATER = 10_000
RETRY_S = 0.02  # how soon a client whose queue was full is tried again


@dataclass(frozen=True, slots=True)
class UnitCalls:
    """What a server calls, on its thread."""

    submit: Callable[[Request], None]  # may raise RequestError or Unavailable for the client
    abort: Callable[[str], None]
    stats: Callable[[], UnitStats]
    # Gets what clients say of parts of batches; may raise ValueError, which is logged
    feed: Callable[[PartMessage], None] = ignore_parts
    # Takes an operator's order for a model's weights; may raise RequestError or Unavailable
    move: Callable[[str, WeightOrder], None] = refuse_move


class UnitServer:
    """Serves one unit at `door`. On tcp it makes a key pair of its own (`server_key` is public).

    Its stats are sent to every client every `stats_s` seconds. The requests of a client that is
    gone, or silent for `silence_s` seconds, are aborted.
    """

    def __init__(
        self,
        door: Door,
        unit: UnitCalls,
        *,
        silence_s: float = 10.0,
        stats_s: float = 0.5,
    ) -> None:
        self._door = door
        self._endpoint = door.endpoint
        self._keys = None if door.client_key is None else new_keys()
        self._doorkeeper: Doorkeeper | None = None
        self._peers = Peers(
            unit.submit, unit.abort, math.ceil(silence_s / stats_s), unit.feed, unit.move
        )
        self._stats = unit.stats
        self._stats_s = stats_s
        self._outbox: deque[Mapping[str, TokenDelta]] = deque()
        self._bound: Future[str] = Future()
        self._lock = threading.Lock()
        self._is_closed = False
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        self._thread = threading.Thread(target=self._run, name="unit server", daemon=True)

    def start(self) -> str:
        """Bind and serve. Return the endpoint with the chosen port.

        Raises EngineFailure if the endpoint cannot be bound.
        """
        self._thread.start()
        return self._bound.result()

    @property
    def server_key(self) -> bytes | None:
        """Return the public key, which is new with every server; None on ipc."""
        return None if self._keys is None else self._keys.public

    @property
    def is_alive(self) -> bool:
        """True from start to close, unless the server's thread has died."""
        return self._thread.is_alive()

    def send(self, deltas: Mapping[str, TokenDelta]) -> None:
        """Send each delta to the client that submitted its request; any thread may call it.

        After `close` nothing is sent.
        """
        with self._lock:
            if not self._is_closed:
                self._outbox.append(deltas)
                self._wake()

    def close(self) -> None:
        """Stop serving; clients see the connection end. Idempotent."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            self._wake()
        if self._thread.ident is not None:
            self._thread.join()
        os.close(self._wake_read)
        os.close(self._wake_write)

    def _wake(self) -> None:
        try:
            os.write(self._wake_write, b"\0")
        except BlockingIOError:
            return  # the pipe is full of earlier calls: the thread will wake

    def _run(self) -> None:
        context = zmq.Context()
        try:
            router = context.socket(zmq.ROUTER)
            router.setsockopt(zmq.LINGER, 0)
            router.setsockopt(zmq.ROUTER_MANDATORY, 1)
            router.setsockopt(zmq.SNDHWM, SEND_HIGH_WATER)
            router.setsockopt(zmq.RCVHWM, RECEIVE_HIGH_WATER)
            if self._keys is not None and self._door.client_key is not None:
                self._doorkeeper = Doorkeeper(context, self._door.client_key)
                lock(router, self._keys)
            if self._bind(router):
                self._serve(router)
        except Exception as error:
            logger.exception("the server of %s died", self._endpoint)
            if not self._bound.done():
                self._bound.set_exception(error)
        finally:
            context.destroy(linger=0)

    def _bind(self, router: zmq.Socket[bytes]) -> bool:
        try:
            router.bind(self._endpoint)
        except zmq.ZMQError as error:
            self._bound.set_exception(EngineFailure(f"cannot bind {self._endpoint}: {error}"))
            return False
        self._bound.set_result(router.getsockopt_string(zmq.LAST_ENDPOINT))
        return True

    def _serve(self, router: zmq.Socket[bytes]) -> None:
        poller = zmq.Poller()
        poller.register(router, zmq.POLLIN)
        poller.register(self._wake_read, zmq.POLLIN)
        if self._doorkeeper is not None:
            poller.register(self._doorkeeper.socket, zmq.POLLIN)
        next_tick = time.monotonic()
        while not self._is_closed:
            wait_s = next_tick - time.monotonic()
            if any(peer.deltas or peer.refused or peer.answers for peer in self._peers):
                wait_s = min(wait_s, RETRY_S)
            ready = dict(poller.poll(max(0, math.ceil(wait_s * 1000))))
            if self._wake_read in ready:
                os.read(self._wake_read, 4096)
            if self._doorkeeper is not None:
                self._doorkeeper.answer()
            self._receive(router)
            while self._outbox:
                self._peers.route(self._outbox.popleft())
            for peer in self._peers:
                self._deliver(router, peer)
            if time.monotonic() >= next_tick:
                next_tick = time.monotonic() + self._stats_s
                self._tick(router)

    def _receive(self, router: zmq.Socket[bytes]) -> None:
        """Take the messages that have arrived, at most a queue of them at a time."""
        for _ in range(RECEIVE_HIGH_WATER):
            try:
                identity, *parts = router.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            try:
                message = decode(b"".join(parts))
            except ValueError as error:
                logger.warning("%s: %s", self._endpoint, error)
            else:
                self._peers.hear(identity, message)

    def _tick(self, router: zmq.Socket[bytes]) -> None:
        self._peers.tick()
        stats = encode(Stats(self._stats()))
        for peer in self._peers:
            self._send(router, peer, stats)

    def _deliver(self, router: zmq.Socket[bytes], peer: Peer) -> None:
        while peer.refused and self._send(router, peer, encode(peer.refused[0])):
            del peer.refused[0]
        while peer.answers and self._send(router, peer, encode(peer.answers[0])):
            del peer.answers[0]
        if peer.deltas and self._send(router, peer, encode(Deltas(peer.deltas))):
            peer.deltas.clear()

    def _send(self, router: zmq.Socket[bytes], peer: Peer, data: bytes) -> bool:
        """Return False if the client's queue is full, or if it is gone (it is forgotten then)."""
        try:
            router.send_multipart([peer.identity, data], zmq.NOBLOCK)
        except zmq.Again:
            return False
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            self._peers.lose(peer)
            return False
        return True
