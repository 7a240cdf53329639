"""The connections that are open on one port, limited in all and for each client address."""

import asyncio
import contextlib
import ipaddress
import logging
import resource
import time
from collections import Counter
from dataclasses import replace

from muxcluster.core.errors import Overloaded, Unavailable
from muxcluster.http.settings import ConnectionLimits

logger = logging.getLogger(__name__)

RETRY_S = 5
GRACE_S = 1.0  # an idle connection keeps its place for so long, in which its head can come
SPARE_FILES = 1024  # open files of a server process beside its ports': units, batches, logs
NETWORK_BITS = 64  # an IPv6 client has at least so large a network of addresses


class OpenConnections:
    """Counts connections, and closes the one longest idle where a new one has no place.

    A connection is idle while it has no request with a complete head that is not answered. So
    clients that open connections, or begin heads, and wait keep nobody out for longer than
    `GRACE_S`. is_tls: they are of TLS.
    """

    def __init__(self, limits: ConnectionLimits, *, is_tls: bool = False) -> None:
        self._limits = limits
        self._is_tls = is_tls
        self._networks: dict[asyncio.Transport, str] = {}  # of each connection
        self._counts: Counter[str] = Counter()  # of connections, by network
        self._idle: dict[asyncio.Transport, float] = {}  # since when; longest idle first

    def __len__(self) -> int:
        return len(self._networks)

    def enter(self, transport: asyncio.Transport) -> None:
        """Count a connection, which is idle, until `leave`.

        Raises Overloaded if its address has too many, Unavailable if there are too many in all and
        none is idle for `GRACE_S` seconds.
        """
        network = _network_of(transport)
        most = self._limits.per_address
        if most is not None and network and self._counts[network] >= most:
            raise Overloaded(f"{most} connections from this address are open", RETRY_S)
        if len(self) >= self._limits.most:
            self._make_room()
        self._networks[transport] = network
        self._counts[network] += 1
        self._idle[transport] = time.monotonic()

    def leave(self, transport: asyncio.Transport) -> None:
        """Forget a connection. Idempotent, also for one that never entered."""
        self._idle.pop(transport, None)
        network = self._networks.pop(transport, None)
        if network is None:
            return
        self._counts[network] -= 1
        if not self._counts[network]:
            del self._counts[network]

    def cut(self, transport: asyncio.Transport) -> None:
        """Close a connection that is not counted, without waiting for its client."""
        # Over TLS a close waits for the client's own, by default for 30 s. Elsewhere a client that
        # does not read would keep it open.
        if self._is_tls or transport.get_write_buffer_size():
            transport.abort()
        else:
            transport.close()

    def begin_request(self, transport: asyncio.Transport) -> None:
        """Note that a connection has a request to answer."""
        self._idle.pop(transport, None)

    def end_requests(self, transport: asyncio.Transport) -> None:
        """Note that a connection has none any more."""
        if transport in self._networks:
            self._idle.setdefault(transport, time.monotonic())

    def check(self) -> None:
        """Raise AssertionError if the books do not agree."""
        assert self._idle.keys() <= self._networks.keys()
        assert self._counts == Counter(self._networks.values())
        assert len(self) <= self._limits.most

    def _make_room(self) -> None:
        longest = next(iter(self._idle), None)
        if longest is None or time.monotonic() - self._idle[longest] < GRACE_S:
            raise Unavailable(f"{len(self)} connections are open", RETRY_S)
        self.leave(longest)
        self.cut(longest)


def fitting(limits: ConnectionLimits, num_handshakes: int = 0) -> ConnectionLimits:
    """Return `limits` with no more connections than this process may have open files.

    Raises the process's own limit of open files as far as it may and needs to, and warns where that
    is too low. num_handshakes: most at once on all ports, which are no connections yet.
    """
    now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    reserve = SPARE_FILES + num_handshakes
    wanted = limits.most + reserve
    if now != resource.RLIM_INFINITY and now < wanted:
        more = wanted if most == resource.RLIM_INFINITY else min(most, wanted)
        with contextlib.suppress(OSError, ValueError):  # the system allows less than it says
            resource.setrlimit(resource.RLIMIT_NOFILE, (more, most))
        now = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if now == resource.RLIM_INFINITY or now >= wanted:
        return limits
    fewer = min(limits.most, max(now - reserve, now // 2))
    if fewer < limits.most:
        message = "%d connections at most, not %d: a process may have %d open files (ulimit -n)"
        logger.warning(message, fewer, limits.most, now)
    return replace(limits, most=fewer)


def _network_of(transport: asyncio.Transport) -> str:
    """Return the client's address, of IPv6 its network; empty without one (a Unix socket)."""
    peer = transport.get_extra_info("peername")
    if not isinstance(peer, tuple):
        return ""
    host = str(peer[0])
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((int(address), NETWORK_BITS), strict=False))
