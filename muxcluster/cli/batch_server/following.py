"""States of a server's batch until it is over: from its events, or by asking again and again."""

import time
from collections.abc import Iterator

from muxcluster.cli.batch_server.client import ApiObject, BatchServer
from muxcluster.cli.batch_server.showing import OVER
from muxcluster.core.errors import ConfigError, Unavailable

POLL_S = 1.0
PATIENCE_S = 600.0  # longest absence of the server: batches survive its restart


def followed(server: BatchServer, batch_id: str) -> Iterator[ApiObject | Unavailable]:
    """Yield the batch whenever it may have changed, the last time when it is over.

    While the server is away, yield why. Servers without events are asked every `POLL_S`. Raises
    ConfigError if there is no such batch, Unavailable if the server stays away.
    """
    answered_s = time.monotonic()
    offers_events = True
    while True:
        try:
            batch = server.batch(batch_id)
            answered_s = time.monotonic()
            yield batch
            if batch["status"] in OVER:
                return
            if offers_events:
                offers_events = False  # of older servers, and through proxies that hold them back
                for batch in _events(server, batch_id):
                    offers_events, answered_s = True, time.monotonic()
                    yield batch
                    if batch["status"] in OVER:
                        return
        except Unavailable as error:
            if time.monotonic() - answered_s > PATIENCE_S:
                raise
            yield error
        time.sleep(POLL_S)


def _events(server: BatchServer, batch_id: str) -> Iterator[ApiObject]:
    """Yield the batch at each of its events; nothing where the server has none."""
    try:
        yield from server.events(batch_id)
    except ConfigError:
        return
