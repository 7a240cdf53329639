"""Addresses of HTTP servers."""

from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

from muxcluster.core.errors import ConfigError

_LONGEST_HOST = 253


@dataclass(frozen=True, slots=True)
class HttpAddress:
    """Where a server listens."""

    host: str
    port: int


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
