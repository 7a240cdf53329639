"""Keeps prompts of batch lines that were tokenised for a plan until the lines run."""

import math
from collections import defaultdict
from collections.abc import Mapping

from muxcluster.http.calls.call import Tokenised


class KeptPrompts:
    """Tokenised prompts by batch and line.

    Only one event loop may change it; any thread may `find`.
    """

    def __init__(self, max_tokens: float = math.inf) -> None:
        """max_tokens: of all kept prompts, four bytes each; further prompts are not kept."""
        self._max_tokens = max_tokens
        self._num_tokens = 0
        self._batches: dict[str, dict[int, Tokenised]] = defaultdict(dict)

    @property
    def num_tokens(self) -> int:
        return self._num_tokens

    def keep(self, batch_id: str, lines: Mapping[int, Tokenised]) -> None:
        """Add prompts by line; those of lines that are kept already stay as they are."""
        kept = self._batches[batch_id]
        for line, tokenised in lines.items():
            num_tokens = tokenised.num_tokens
            if line not in kept and self._num_tokens + num_tokens <= self._max_tokens:
                kept[line] = tokenised
                self._num_tokens += num_tokens

    def find(self, batch_id: str, line: int) -> Tokenised | None:
        """Return the prompts of a line and keep them; None if there are none."""
        kept = self._batches.get(batch_id)
        return None if kept is None else kept.get(line)

    def take(self, batch_id: str, line: int) -> Tokenised | None:
        """Return and forget the prompts of a line; None if there are none."""
        found = self.find(batch_id, line)
        if found is not None:
            del self._batches[batch_id][line]
            self._num_tokens -= found.num_tokens
        return found

    def drop(self, batch_id: str) -> None:
        """Forget a batch that has ended. Idempotent."""
        for tokenised in self._batches.pop(batch_id, {}).values():
            self._num_tokens -= tokenised.num_tokens
