"""A request that is submitted again when its unit is lost: its output so far, its limits."""

import time
from dataclasses import replace

import numpy as np

from muxcluster.core.errors import MuxClusterError, NotReady
from muxcluster.core.events import FinishReason, TokenDelta
from muxcluster.core.request import Request

# without a new token: the request itself may be what kills its units
MAX_LOSSES_IN_A_ROW = 4
MAX_LOSSES = 12  # in all, for a request that gets a few tokens from each unit
# of NotReady from a unit that is gone or ends; its successor takes the request
LOST_CODES = frozenset({"replica_lost", "server_shutting_down", "model_loading"})


class Progress:
    """The output of one request over its submissions, and their time.

    Output tokens are kept apart from the prompt: penalties, limits and usage need that. Each
    submission has an id of its own, as a unit that was only cut off may still run the old one.
    """

    def __init__(self, request: Request) -> None:
        self._request = request
        self._tokens: list[int] = request.output_tokens.tolist()
        self._num_prompt_logprobs = 0
        self._num_repeated = 0
        self._num_losses = 0
        self._num_in_a_row = 0
        self._prefill_s = self._decode_s = self._recovery_s = 0.0
        self._submitted_s = self._latest_s = time.monotonic()
        self._first_s: float | None = None

    @property
    def num_losses(self) -> int:
        """Submissions that did not end."""
        return self._num_losses

    def submission(self) -> Request:
        """Return the request to send to a unit now, with the output so far."""
        now = time.monotonic()
        self._recovery_s += now - self._latest_s
        self._submitted_s = self._latest_s = now
        self._first_s = None
        if self._num_losses == 0:
            return self._request
        return replace(
            self._request,
            request_id=f"{self._request.request_id}~{self._num_losses}",
            output_tokens=np.array(self._tokens, dtype=np.int32),
        )

    def advance(self, delta: TokenDelta) -> TokenDelta:
        """Return `delta` as the reader gets it: nothing repeated, and times of all submissions.

        Raises NotReady if the unit gave the request up, which is a loss and not an end.
        """
        end = delta.finished
        if end is not None and (end.reason is FinishReason.ABORT or end.code in LOST_CODES):
            # not ours, so nobody is at fault but the unit
            raise NotReady(end.message or "the unit gave the request up", code="replica_lost")
        if delta.tokens:
            self._tokens.extend(delta.tokens)
            self._num_in_a_row = 0
            self._latest_s = time.monotonic()
            self._first_s = self._first_s or self._latest_s
        if delta.prompt_logprobs:
            delta = self._without_repeated(delta)
        return self._with_account(delta) if end is not None else delta

    def _without_repeated(self, delta: TokenDelta) -> TokenDelta:
        """Drop the prompt log-probabilities that an earlier unit has reported."""
        fresh = delta.prompt_logprobs[self._num_repeated :]
        self._num_repeated -= len(delta.prompt_logprobs) - len(fresh)
        self._num_prompt_logprobs += len(fresh)
        return replace(delta, prompt_logprobs=fresh)

    def _with_account(self, delta: TokenDelta) -> TokenDelta:
        end = delta.finished
        assert end is not None
        finished = replace(
            end,
            request_id=self._request.request_id,
            # a recovered request finds its own output in the cache too
            num_cached_tokens=min(end.num_cached_tokens, len(self._request.prompt_tokens)),
            prefill_s=end.prefill_s + self._prefill_s,
            decode_s=end.decode_s + self._decode_s,
            recovery_s=self._recovery_s,
            num_recoveries=self._num_losses,
        )
        return replace(delta, finished=finished)

    def lose(self, error: MuxClusterError) -> None:
        """Count a lost unit. Raises NotReady if the request has lost too many."""
        self._num_losses += 1
        self._num_in_a_row += 1
        self._num_repeated = 0 if self._tokens else self._num_prompt_logprobs
        if self._first_s is not None:
            self._prefill_s += self._first_s - self._submitted_s
            self._decode_s += self._latest_s - self._first_s
        if self._num_in_a_row >= MAX_LOSSES_IN_A_ROW or self._num_losses >= MAX_LOSSES:
            message = f"the request lost its unit {self._num_losses} times: {error}"
            raise NotReady(message, retry_after_s=5, code="replica_lost") from error


def is_loss(error: MuxClusterError) -> bool:
    """True if the request may be sent again, to the unit's successor or another unit."""
    return isinstance(error, NotReady) and error.code in LOST_CODES
