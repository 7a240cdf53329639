"""Results of simulated requests, in columns; ended requests keep no objects."""

from collections.abc import Callable, Mapping

import numpy as np

from muxcluster.core.events import Finished, FinishReason
from muxcluster.workload.arrival import Arrival
from muxcluster.workload.metrics.records import CLASSES, Ending, Records, RowLog

_NO_PARTS = (0.0,) * 6
_CLASS = {service_class: index for index, service_class in enumerate(CLASSES)}


class RequestTable:
    """Open requests as objects, ended ones as rows of `ROW` (86 bytes each)."""

    def __init__(self, context: Mapping[str, int]) -> None:
        """context: most tokens of a sequence, by model."""
        self._context = context
        self._index = {name: index for index, name in enumerate(context)}
        self._open: dict[str, Arrival] = {}
        self._first_s: dict[str, float] = {}
        self._log = RowLog()

    def __len__(self) -> int:
        """Return the number of requests that have not ended."""
        return len(self._open)

    def add(self, arrival: Arrival) -> None:
        """Add a request. Raises ValueError where an open one has the same id."""
        if arrival.request_id in self._open:
            raise ValueError(f"two open requests have the id {arrival.request_id!r}")
        self._open[arrival.request_id] = arrival

    def first_token(self, request_id: str, now: float) -> None:
        """Note that a request got a token at `now`; only the first one counts."""
        self._first_s.setdefault(request_id, now)

    def finish(self, event: Finished, now: float) -> Arrival:
        """Note that a request got its last token at `now`; return it."""
        assert event.reason is FinishReason.LENGTH, f"{event} in a simulation"
        arrival = self._open.pop(event.request_id)
        first_s = self._first_s.pop(event.request_id)
        prompt = arrival.prompt_tokens
        longest = max(self._context[arrival.model] - prompt, 1)
        parts = event.queue_s, event.prefill_s, event.decode_s, event.preempted_s, event.restore_s
        self._keep(
            arrival,
            (first_s, now, min(arrival.output_tokens, longest)),
            Ending.FINISHED,
            (*parts, event.waking_s),
        )
        return arrival

    def reject(self, request_id: str) -> Arrival:
        """Note that a request was refused; return it."""
        arrival = self._open.pop(request_id)
        self._keep(arrival, (np.nan, np.nan, 0), Ending.REJECTED, _NO_PARTS)
        return arrival

    def leave(self, num_output: Callable[[Arrival], int], now: float) -> None:
        """Stop recording at `now`: open requests are unfinished, with `num_output` tokens.

        Their last token counts as just arrived.
        """
        for request_id, arrival in self._open.items():
            first_s = self._first_s.get(request_id)
            output = (np.nan, np.nan, 0) if first_s is None else (first_s, now, num_output(arrival))
            self._keep(arrival, output, Ending.UNFINISHED, _NO_PARTS)
        self._open.clear()
        self._first_s.clear()

    def records(self) -> Records:
        """Return all requests that ended, in the order of their ends."""
        return Records(tuple(self._index), self._log.rows())

    def _keep(
        self,
        arrival: Arrival,
        output: tuple[float, float, int],
        ending: Ending,
        parts: tuple[float, ...],
    ) -> None:
        """output: time of the first token, of the last one, number of tokens. parts: from queue_s
        on, as in `ROW`."""
        first_s, last_s, num_output = output
        lengths = arrival.prompt_tokens, num_output
        times = arrival.time_s, first_s, last_s
        kind = _CLASS[arrival.service_class], int(ending)
        self._log.add((self._index[arrival.model], *times, *lengths, *kind, *parts))
