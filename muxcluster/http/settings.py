"""Settings of the HTTP server."""

from dataclasses import dataclass, field

from muxcluster import __version__
from muxcluster.batch.service.settings import BatchSettings
from muxcluster.core.inputs.carried import Carried
from muxcluster.core.inputs.images.rules import ImageLimits
from muxcluster.core.inputs.tls_files import TlsFiles
from muxcluster.core.inputs.web_url import HttpAddress
from muxcluster.core.request import ServiceClass
from muxcluster.tenants.keys import KeySettings


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """Limits of what is open at once; more is refused with 429."""

    interactive: int = 512  # requests of one model that wait for their first token
    batch: int = 4096  # the same, of the batch class
    open_calls: int = 16_384  # HTTP requests being read, answered or streamed
    body_bytes: int = 512 * 2**20  # of the bodies of these

    def of(self, service_class: ServiceClass) -> int:
        """Return the limit of waiting requests of a model in this class."""
        return self.batch if service_class is ServiceClass.BATCH else self.interactive


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Limits of connections that are open at once, on each port by itself.

    At `most` a new connection takes the place of the one that has had no request for longest; where
    all have one it gets 503. Over `per_address` it gets 429.
    """

    most: int = 16_384
    per_address: int | None = None  # of one client address (IPv6: one /64 network); None: no limit


@dataclass(frozen=True, slots=True)
class StoreSettings(Carried):
    """Where responses of `/v1/responses` are kept, and how many."""

    directory: str  # absolute, on the head's node
    days: int  # how long each is kept
    most_key_bytes: int  # of a key; beyond them its oldest give way
    version: str = __version__  # of muxcluster, as `ApiSettings.version`


@dataclass(frozen=True, slots=True)
class ApiSettings(Carried):
    """Settings of the HTTP server that an operator may choose."""

    api_key: str | None = None  # bearer token of every route but the health routes; None: open
    more_keys: tuple[str, ...] = ()  # also valid; files and batches belong to the key used
    admin_key: str | None = None  # valid too, and alone does what operators do; None: nobody may
    keys: KeySettings | None = None  # of tenants, with limits; valid too
    max_body_bytes: int = 32 * 2**20
    header_timeout_s: float = 10.0  # longest time for a client to send a request's head
    min_body_bytes_per_s: int = 512  # minimum speed of a body, over each `body_window_s` seconds
    body_window_s: float = 10.0
    lenient: bool = False  # ignore unknown request fields instead of refusing them
    request_timeout_s: float = 600.0  # longest time of a request; a client may ask for less
    restart_limit_s: float = 120.0  # how long requests wait for a lost unit
    queues: QueueLimits = field(default_factory=QueueLimits)
    connections: ConnectionLimits = field(default_factory=ConnectionLimits)
    images: ImageLimits = field(default_factory=ImageLimits)  # of a request
    tls: TlsFiles | None = None  # None: plain HTTP
    admin: HttpAddress | None = None  # where operators' routes are; None: at the port of all others
    adapter_folders: tuple[str, ...] = ()  # absolute: adapters below them may be loaded
    store: StoreSettings | None = None  # of /v1/responses; None: no response is kept
    request_log: str | None = None  # file that gets a line of JSON per request
    audit_log: str | None = None  # file that gets a line of JSON per admin act; None: the log
    traces: str | None = None  # OTLP endpoint that gets spans of requests
    stats_period_s: float = 0.25  # how often the metrics read the units' statistics
    inline_chars: int = 4096  # longer prompts are rendered and tokenised on a thread
    request_id_header: bool = True  # send X-Request-Id; False if a proxy in front does
    batch: BatchSettings | None = None  # None: no files and no batches
    # Of muxcluster, which the processes with these settings have: others are replaced
    version: str = __version__
