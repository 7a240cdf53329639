"""A line that can be tapped and cut: bytes pass between a client and a server, or vanish."""

import selectors
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Relay:
    """Listens on `port`; what passed is in `passed`; after `cut` both ends hear nothing."""

    def __init__(self, target_port: int) -> None:
        self._target = ("127.0.0.1", target_port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self.passed = bytearray()
        self.num_connections = 0
        self._is_cut = False
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def cut(self) -> None:
        """As a cable pulled: no byte passes, no connection is made or reset."""
        self._is_cut = True

    def close(self) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._listener, selectors.EVENT_READ)
            while not self._over.wait(0.001):
                for key, _ in () if self._is_cut else selector.select(0.02):
                    if key.fileobj is self._listener:
                        self._connect(selector)
                    elif key.fd in selector.get_map():  # else its other end has just closed it
                        self._pass(selector, key)
            for key in list(selector.get_map().values()):
                key.fileobj.close()  # type: ignore[union-attr]  # all of them are sockets

    def _connect(self, selector: selectors.BaseSelector) -> None:
        near, _ = self._listener.accept()
        far = socket.create_connection(self._target)
        self.num_connections += 1
        selector.register(near, selectors.EVENT_READ, far)
        selector.register(far, selectors.EVENT_READ, near)

    def _pass(self, selector: selectors.BaseSelector, key: selectors.SelectorKey) -> None:
        source, sink = key.fileobj, key.data
        assert isinstance(source, socket.socket)
        try:
            data = source.recv(65536)
            sink.sendall(data)
        except OSError:
            data = b""
        self.passed += data
        if not data:
            for end in (source, sink):
                selector.unregister(end)
                end.close()


@contextmanager
def relayed(endpoint: str) -> Iterator[Relay]:
    """A relay in front of "tcp://127.0.0.1:PORT"."""
    relay = Relay(int(endpoint.rpartition(":")[2]))
    try:
        yield relay
    finally:
        relay.close()
