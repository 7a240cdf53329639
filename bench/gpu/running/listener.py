"""Record of a unit's output per request, with times."""

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from time import monotonic

from muxcluster.core.events import TokenDelta


@dataclass(slots=True)
class Heard:
    """Output of one request."""

    tokens: list[int] = field(default_factory=list)  # all output so far
    times_s: list[float] = field(default_factory=list)  # of each token, by `time.monotonic`
    end: str = ""  # empty while it runs, "finished", or why it ended otherwise


class Listener:
    """`hear` is a unit's `on_output`; requests are known by their ids."""

    def __init__(self) -> None:
        self.heard: dict[str, Heard] = {}
        self._num_ended = 0
        self._changed = threading.Condition()

    def hear(self, deltas: Mapping[str, TokenDelta]) -> None:
        """New output, on the unit's thread."""
        now = monotonic()
        with self._changed:
            for request_id, delta in deltas.items():
                heard = self.heard.setdefault(request_id, Heard())
                heard.tokens += delta.tokens
                heard.times_s += [now] * len(delta.tokens)
                if delta.finished is not None or delta.rejected is not None:
                    heard.end = _end_of(delta)
                    self._num_ended += 1
            self._changed.notify_all()

    def wait(self, num_ends: int, until_s: float) -> bool:
        """Until so many requests have ended; False where it is `until_s` before that."""
        with self._changed:
            return self._changed.wait_for(
                lambda: self._num_ended >= num_ends, max(0.0, until_s - monotonic())
            )


def _end_of(delta: TokenDelta) -> str:
    if delta.rejected is not None:
        return f"refused: {delta.rejected.message}"
    assert delta.finished is not None
    reason = delta.finished.reason
    return "finished" if reason == "length" else f"{reason}: {delta.finished.message}"
