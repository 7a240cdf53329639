"""Server-sent events with a name, which is the `type` in their data."""

from typing import Any

import msgspec


def named_event(data: dict[str, Any]) -> bytes:
    """Return one event."""
    name = str(data["type"]).encode()
    return b"event: " + name + b"\ndata: " + msgspec.json.encode(data) + b"\n\n"
