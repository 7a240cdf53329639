"""Addresses of HTTP servers."""

import ipaddress
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

from muxcluster.core.errors import ConfigError

_LONGEST_HOST = 253


@dataclass(frozen=True, slots=True)
class HttpAddress:
    """Where a server listens."""

    host: str
    port: int

    def overlaps(self, other: "HttpAddress") -> bool:
        """True if one server cannot listen at both: at one port, at one host or at all hosts."""
        hosts = (self.host, other.host)
        is_met = self.host == other.host or any(map(_is_every_host, hosts))
        return self.port == other.port and is_met


def _is_every_host(host: str) -> bool:
    try:
        return not host or ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def checked_url(url: str, option: str = "--url") -> SplitResult:
    """Return the parts of "http[s]://host[:port][/path]".

    Raises ConfigError, naming `option`, for anything else that no request could be sent to.
    """
    wrong = ConfigError(option, "", f"{url!r:.200} is not http://host:port")
    if any(character <= " " or character == "\x7f" for character in url):
        raise wrong
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
        host.encode("idna")
    except ValueError as error:
        raise wrong from error
    if parts.scheme not in ("http", "https") or not 0 < len(host) <= _LONGEST_HOST or port == 0:
        raise wrong
    return parts
