"""Settings of the HTTP surface."""

from dataclasses import dataclass, field

from muxcluster.batch.service.settings import BatchSettings
from muxcluster.core.request import ServiceClass


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """What may be here at once; more is refused with 429.

    interactive, batch: requests of one model and class that wait for their first token.
    open_calls: HTTP requests being read, answered or streamed. body_bytes: of their bodies.
    """

    interactive: int = 512
    batch: int = 4096
    open_calls: int = 16_384
    body_bytes: int = 512 * 2**20

    def of(self, service_class: ServiceClass) -> int:
        """Most waiting requests of a model in this class."""
        return self.batch if service_class is ServiceClass.BATCH else self.interactive


@dataclass(frozen=True, slots=True)
class ApiSettings:
    """What an operator may choose about the edge.

    api_key: bearer token every route but the health ones asks for; None means open.
    more_keys: others that are as good; files and batches belong to the key that made them.
    max_body_bytes: largest request body. lenient: unknown request fields pass (and are dropped).
    header_timeout_s: longest a client may take to send a request's head.
    min_body_bytes_per_s: least pace of a body, over each `body_window_s` seconds.
    request_timeout_s: longest a request may take; a client may ask for less.
    restart_limit_s: how long a lost unit may take to come back before requests give it up.
    queues: limits of what waits. request_log: file that gets a line of JSON per request.
    stats_period_s: how often units' statistics are read for the metrics.
    inline_chars: prompts longer than this are rendered and tokenised on a thread.
    request_id_header: answer with X-Request-Id (False where the proxy in front already does).
    batch: None: there are neither files nor batches.
    """

    api_key: str | None = None
    more_keys: tuple[str, ...] = ()
    max_body_bytes: int = 32 * 2**20
    header_timeout_s: float = 10.0
    min_body_bytes_per_s: int = 512
    body_window_s: float = 10.0
    lenient: bool = False
    request_timeout_s: float = 600.0
    restart_limit_s: float = 120.0
    queues: QueueLimits = field(default_factory=QueueLimits)
    request_log: str | None = None
    stats_period_s: float = 0.25
    inline_chars: int = 4096
    request_id_header: bool = True
    batch: BatchSettings | None = None
