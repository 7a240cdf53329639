"""Token counts of a call, as `usage` reports them."""

import time
from dataclasses import dataclass

from muxcluster.http.calls.account import EngineTime
from muxcluster.http.calls.call import Call
from muxcluster.http.calls.choice import ChoiceDelta


@dataclass(frozen=True, slots=True)
class TokenCounts:
    """Tokens of a call so far."""

    prompt: int  # a prompt counts once whatever `n` is
    cached: int  # of the prompt, from the prefix cache; 0 until the end
    output: int
    reasoning: int | None  # of the output, with its tags; None if the model writes no reasoning
    # drafted, accepted: tokens that were guessed, and those of them in the output; 0 until the end
    drafted: int = 0
    accepted: int = 0


class UsageTally:
    """Running token counts of one call."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._output: dict[int, int] = {}
        self._cached: dict[int, int] = {}
        self._reasoning: dict[int, int] = {}
        self._drafted: dict[int, tuple[int, int]] = {}
        self._time: EngineTime | None = None

    def add(self, delta: ChoiceDelta) -> None:
        """Count `delta`, whose num_output_tokens is cumulative per choice."""
        self._output[delta.index] = max(delta.num_output_tokens, self._output.get(delta.index, 0))
        if delta.index % self._call.n == 0:
            self._cached[delta.index] = delta.num_cached_tokens
        if delta.num_drafted:
            self._drafted[delta.index] = delta.num_drafted, delta.num_accepted
        if delta.num_reasoning_tokens is not None:
            self._reasoning[delta.index] = delta.num_reasoning_tokens
        if delta.time is not None:
            self._time = delta.time

    def counts(self) -> TokenCounts:
        """Return the counts of all choices."""
        return TokenCounts(
            prompt=self._call.num_prompt_tokens,
            cached=sum(self._cached.values()),
            output=sum(self._output.values()),
            reasoning=sum(self._reasoning.values()) if self._reasoning else None,
            drafted=sum(drafted for drafted, _ in self._drafted.values()),
            accepted=sum(accepted for _, accepted in self._drafted.values()),
        )

    def timing(self) -> dict[str, object]:
        """Return `{"timing": …}`, seconds of the choice that ended last.

        Empty unless the client asked for it, and before an end.
        """
        if not self._call.head.wants_timing or self._time is None:
            return {}
        total_s = time.monotonic() - self._call.head.arrived_s
        return {"timing": self._time.within(total_s)}

    def value(self) -> dict[str, object]:
        """Return OpenAI's `usage` object of chats and completions, with `timing`."""
        counts = self.counts()
        usage: dict[str, object] = {
            "prompt_tokens": counts.prompt,
            "completion_tokens": counts.output,
            "total_tokens": counts.prompt + counts.output,
            "prompt_tokens_details": {"cached_tokens": counts.cached},
        }
        details: dict[str, int] = {}
        if counts.reasoning is not None:
            details["reasoning_tokens"] = counts.reasoning
        if counts.drafted:
            details["accepted_prediction_tokens"] = counts.accepted
            details["rejected_prediction_tokens"] = counts.drafted - counts.accepted
        if details:
            usage["completion_tokens_details"] = details
        return usage | self.timing()
