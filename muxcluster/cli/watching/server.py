"""What `top` and `trace` have in common: the calls of a server that answers in JSON."""

import http.client
import json
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import quote

from muxcluster.cli.terminal.asking import answer_at, bearer
from muxcluster.core.errors import Unavailable
from muxcluster.core.inputs.web_url import checked_url

TIMEOUT_S = 5.0
_PARTS = {"cluster", "units", "models", "events"}  # of a snapshot


@dataclass(frozen=True, slots=True)
class LiveServer:
    """A running server; key: its admin key, or where it has none any key."""

    url: str
    key: str | None

    @classmethod
    def at(cls, url: str, api_key: str | None, admin_key: str | None) -> Self:
        """Return the server. Raises ConfigError for what is no address."""
        checked_url(url)
        return cls(url.rstrip("/").removesuffix("/v1"), admin_key or api_key)

    def live(self) -> dict[str, Any]:
        """Return what it does now.

        Raises ConfigError where it refuses to tell, Unavailable where it does not answer.
        """
        found = self._json("v1/cluster/live")
        if not found.keys() >= _PARTS:
            raise Unavailable(f"no muxcluster server answers at {self.url}, but another one")
        return found

    def request(self, request_id: str) -> dict[str, Any]:
        """Return where the time of a request that ended went. Raises as `live`."""
        return self._json(f"v1/cluster/requests/{quote(request_id, safe='')}")

    def _json(self, path: str) -> dict[str, Any]:
        with answer_at(self.url, path, None, bearer(self.key), TIMEOUT_S) as answer:
            try:
                found = json.loads(answer.read())
            except (OSError, ValueError, RecursionError, http.client.HTTPException) as error:
                raise Unavailable(f"{self.url} does not answer in JSON: {error}") from error
        if not isinstance(found, dict):
            raise Unavailable(f"no muxcluster server answers at {self.url}, but another one")
        return found
