"""Settings of the HTTP surface."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ApiSettings:
    """What an operator may choose about the edge.

    api_key: bearer token every route but the health ones asks for; None means open.
    max_body_bytes: largest request body. lenient: unknown request fields pass (and are dropped).
    request_timeout_s: longest a request may take; a client may ask for less.
    restart_limit_s: how long a lost unit may take to come back before requests give it up.
    stats_period_s: how often units' statistics are read for the metrics.
    inline_chars: prompts longer than this are rendered and tokenised on a thread.
    request_id_header: answer with X-Request-Id (False where the proxy in front already does).
    """

    api_key: str | None = None
    max_body_bytes: int = 32 * 2**20
    lenient: bool = False
    request_timeout_s: float = 600.0
    restart_limit_s: float = 120.0
    stats_period_s: float = 0.25
    inline_chars: int = 4096
    request_id_header: bool = True
