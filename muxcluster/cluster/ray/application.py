"""The Serve application: its name, its logging, and the reason in what Serve says of a failure."""

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

APP = "muxcluster"
STAND_IN = "muxcluster-stand-in"  # the ingresses that answer while those of `APP` are replaced
SERVE_LOGGING: Mapping[str, Any] = MappingProxyType(
    {"log_level": "WARNING", "enable_access_log": False}
)


def raised_line(message: str) -> str | None:
    """Return the last exception line of a traceback in `message`, without its module."""
    found = re.findall(r"^(?:[A-Za-z_]\w*\.)*([A-Z]\w*): (.+)$", message, flags=re.MULTILINE)
    return found[-1][1].strip() if found else None
