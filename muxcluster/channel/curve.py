"""Authentication of tcp connections: CURVE keys on both ends, and the unit's check of clients."""

from dataclasses import dataclass

import zmq
from zmq.utils import z85

from muxcluster.core.directory import KeyPair

ZAP_ENDPOINT = "inproc://zeromq.zap.01"
ZAP_DOMAIN = "unit"
# A frame's length is read before its sender is known; bodies are smaller than this
MAX_FRAME_BYTES = 64 * 2**20
HANDSHAKE_MS = 3000  # A connection that has not proved itself by then is dropped
HEARTBEAT_MS = 1000
# A cut link sends no reset: without any answer for this long the connection is given up
UNREACHABLE_MS = 3000
KEEPALIVE_IDLE_S = 10


def new_keys() -> KeyPair:
    public, secret = zmq.curve_keypair()
    return KeyPair(public, secret)


@dataclass(frozen=True, slots=True)
class Door:
    """The endpoint where a unit listens: "ipc://PATH" in a private folder, or "tcp://NODE_IP:*".

    client_key: public half of the cluster's client key pair, the only one admitted on tcp.
    Raises ValueError for tcp without one.
    """

    endpoint: str
    client_key: bytes | None = None

    def __post_init__(self) -> None:
        if self.client_key is None and not self.endpoint.startswith("ipc://"):
            raise ValueError(f"{self.endpoint}: only clients with a key may be let in there")


class Doorkeeper:
    """Answers libzmq's question about each new CURVE client of `context` (RFC 27, ZAP).

    Belongs to the thread of the socket that it guards. Make it before that socket is bound: without
    an answer libzmq admits every client that knows the unit's public key.
    """

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]", client_key: bytes) -> None:
        self._client_key = z85.decode(client_key)
        self.socket = context.socket(zmq.REP)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.bind(ZAP_ENDPOINT)

    def answer(self) -> None:
        """Answer the questions that have come, without blocking."""
        while True:
            try:
                question = self.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            version, sequence, _domain, _address, _identity, *proof = question
            is_ours = proof == [b"CURVE", self._client_key]
            verdict = [b"200", b"OK"] if is_ours else [b"400", b"unknown key"]
            self.socket.send_multipart([version, sequence, *verdict, b"", b""])


def lock(socket: "zmq.Socket[bytes]", keys: KeyPair) -> None:
    """Admit only clients that a Doorkeeper accepts, encrypted. Call it before bind."""
    socket.setsockopt(zmq.CURVE_SERVER, 1)
    socket.setsockopt(zmq.CURVE_PUBLICKEY, keys.public)
    socket.setsockopt(zmq.CURVE_SECRETKEY, keys.secret)
    socket.setsockopt_string(zmq.ZAP_DOMAIN, ZAP_DOMAIN)
    socket.setsockopt(zmq.MAXMSGSIZE, MAX_FRAME_BYTES)
    _watch_link(socket)


def unlock(socket: "zmq.Socket[bytes]", server_key: bytes, keys: KeyPair) -> None:
    """Have the socket prove `keys` to the server that owns `server_key`. Call it before connect."""
    socket.setsockopt(zmq.CURVE_SERVERKEY, server_key)
    socket.setsockopt(zmq.CURVE_PUBLICKEY, keys.public)
    socket.setsockopt(zmq.CURVE_SECRETKEY, keys.secret)
    socket.setsockopt(zmq.CONNECT_TIMEOUT, UNREACHABLE_MS)
    _watch_link(socket)


def _watch_link(socket: "zmq.Socket[bytes]") -> None:
    socket.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)
    socket.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_MS)
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, UNREACHABLE_MS)
    socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
    socket.setsockopt(zmq.TCP_KEEPALIVE_IDLE, KEEPALIVE_IDLE_S)
