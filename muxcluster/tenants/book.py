"""The `KeyService` itself: the limits and the ledger of all keys of a cluster, in one process."""

import logging
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from muxcluster.core.errors import StorageFailed
from muxcluster.tenants.keys import KeyTable, TenantKey
from muxcluster.tenants.ledger import Batch, Ledger, day_name
from muxcluster.tenants.limiter import Instant, Limiter
from muxcluster.tenants.messages import Ask, Grant, Settlement, UsageQuery, UsageRow

logger = logging.getLogger(__name__)

LOST_S = 60.0  # an ingress that has not asked for the table for so long is dead
_MOST_LOST = 100_000  # requests of dead ingresses that are remembered


class KeyBook:
    """A `KeyService` over a ledger. One event loop.

    If its process dies, its successor knows the tokens of the day from the ledger; it does not know
    which requests are open, and minutes begin again.
    """

    def __init__(self, directory: Path, clock: Callable[[], Instant]) -> None:
        """clock: returns the present. Raises StorageFailed."""
        self._clock = clock
        today = clock().day
        self._ledger = Ledger(directory, today)
        self._limiter = Limiter()
        self._table: KeyTable | None = None
        self._heard_s: dict[str, float] = {}  # by ingress, monotonic
        # What the disk has refused: sums by day, key and model, and the last batch of each ingress
        self._unwritten: dict[tuple[str, str, str], UsageRow] = {}
        self._taken: dict[str, int] = {}
        # Requests of dead ingresses, in the ledger with their prompt tokens already
        self._lost: dict[str, None] = {}
        name = day_name(today)
        for row in self._ledger.rows(UsageQuery(since=name, until=name)):
            self._limiter.spend(row.key, today, row.prompt_tokens + row.completion_tokens)

    def replace_keys(self, keys: Iterable[TenantKey]) -> None:
        """Make `keys` the valid ones; what they used stays counted."""
        self._table = KeyTable.of(tuple(keys))
        self._limiter.replace_keys(self._table.keys)

    async def table(self, caller: str, known_version: str) -> KeyTable | None:
        """As `KeyService.table`; None before the first `replace_keys`, too."""
        now_s = self._clock().monotonic_s
        if self._heard_s and now_s - max(self._heard_s.values()) > LOST_S / 2:
            # it was this process that stood still, or nobody was there to hear
            self._heard_s = dict.fromkeys(self._heard_s, now_s)
        self._heard_s[caller] = now_s
        for other in [name for name, s in self._heard_s.items() if now_s - s > LOST_S]:
            self._end(other)
        table = self._table
        return None if table is None or table.version == known_version else table

    def _end(self, caller: str) -> None:
        """Settle the open requests of an ingress that is dead with their prompt tokens.

        How many output tokens there were only it knew.
        """
        del self._heard_s[caller]
        lost = self._limiter.open_of(caller)
        rows = []
        for request in lost:
            ask = request.ask
            self._limiter.settle(ask.call_id, ask.num_prompt_tokens)
            ended = Settlement(
                ask.call_id, ask.key, ask.model, num_prompt_tokens=ask.num_prompt_tokens
            )
            rows.append(_row(ended, request.day))
            self._lost[ask.call_id] = None
        while len(self._lost) > _MOST_LOST:
            del self._lost[next(iter(self._lost))]
        if lost:
            logger.warning("an ingress is gone; %d requests end", len(lost))
            self._write(rows, None)

    async def reserve(self, caller: str, asks: Sequence[Ask]) -> list[Grant]:
        now = self._clock()
        return [self._limiter.reserve(ask, caller, now) for ask in asks]

    async def settle(self, caller: str, serial: int, settlements: Sequence[Settlement]) -> None:
        today = self._clock().day
        rows = []
        for each in settlements:
            was_open = self._limiter.settle(each.call_id, each.num_tokens)
            rows.append(_row(self._new_part(each), was_open.day if was_open else today))
        self._write(rows, Batch(caller, serial))

    def _new_part(self, settlement: Settlement) -> Settlement:
        """Return what of a settlement is not in the ledger yet: its ingress may live after all."""
        if settlement.call_id not in self._lost:
            return settlement
        return Settlement(
            settlement.call_id,
            settlement.key,
            settlement.model,
            num_requests=0,
            num_output_tokens=settlement.num_output_tokens,
            num_cached_tokens=settlement.num_cached_tokens,
        )

    def _write(self, rows: Sequence[tuple[int, UsageRow]], batch: Batch | None) -> None:
        """Add rows with their days to the ledger and to the days' tokens.

        What the disk refuses is kept and added with the next rows: limits go on meanwhile.
        """
        if batch is not None and self._taken.get(batch.caller, -1) >= batch.serial:
            return  # its answer was lost, and the disk has refused it
        added = [row for _, row in rows]
        try:
            self._add_unwritten()
            is_new = self._ledger.add(added, self._clock().day, batch)
        except StorageFailed as error:
            if not self._unwritten:
                logger.warning("the use of keys is kept in memory: %s", error)
            self._keep(added, batch)
            is_new = True
        for day, row in rows if is_new else ():
            self._limiter.spend(row.key, day, row.prompt_tokens + row.completion_tokens)

    def _add_unwritten(self) -> None:
        """Write what the disk has refused. Raises StorageFailed if it still does."""
        if self._unwritten:
            self._ledger.add(tuple(self._unwritten.values()), self._clock().day)
            self._unwritten.clear()
            logger.warning("the use of keys is in the ledger again")

    def _keep(self, rows: Sequence[UsageRow], batch: Batch | None) -> None:
        if batch is not None:
            self._taken[batch.caller] = batch.serial
        for row in rows:
            at = (row.day, row.key, row.model)
            kept = self._unwritten.get(at)
            self._unwritten[at] = row if kept is None else kept.plus(row)

    async def usage(self, query: UsageQuery) -> list[UsageRow]:
        return self._ledger.rows(query)

    def close(self) -> None:
        """Write what is left, and close the ledger. Idempotent."""
        try:
            self._add_unwritten()
        except StorageFailed as error:
            logger.error("the use of keys in memory is lost: %s", error)
            self._unwritten.clear()
        self._ledger.close()


def _row(settlement: Settlement, day: int) -> tuple[int, UsageRow]:
    row = UsageRow(
        day_name(day),
        settlement.key,
        settlement.model,
        settlement.num_requests,
        settlement.num_prompt_tokens,
        settlement.num_output_tokens,
        settlement.num_cached_tokens,
        settlement.num_refused,
    )
    return day, row
