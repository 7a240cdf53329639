"""Token counts of a call, as `usage` reports them."""

import time
from collections.abc import Iterable

from muxcluster.http.calls.account import EngineTime
from muxcluster.http.calls.call import Call
from muxcluster.http.calls.choice import ChoiceDelta


class UsageTally:
    """Running token counts of one call."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._output: dict[int, int] = {}
        self._cached: dict[int, int] = {}
        self._reasoning: dict[int, int] = {}
        self._time: EngineTime | None = None

    @classmethod
    def of(cls, call: Call, deltas: Iterable[ChoiceDelta]) -> "UsageTally":
        tally = cls(call)
        for delta in deltas:
            tally.add(delta)
        return tally

    def add(self, delta: ChoiceDelta) -> None:
        """Count `delta`, whose num_output_tokens is cumulative per choice."""
        self._output[delta.index] = max(delta.num_output_tokens, self._output.get(delta.index, 0))
        if delta.index % self._call.n == 0:
            self._cached[delta.index] = delta.num_cached_tokens
        if delta.num_reasoning_tokens is not None:
            self._reasoning[delta.index] = delta.num_reasoning_tokens
        if delta.time is not None:
            self._time = delta.time

    def value(self) -> dict[str, object]:
        """Return OpenAI's `usage` object; a prompt counts once whatever `n` is.

        Reasoning tokens are those of the reasoning with its tags, if the model writes any.
        It has `timing` if the client asked for it: seconds of the choice that ended last.
        """
        num_prompt, num_output = self._call.num_prompt_tokens, sum(self._output.values())
        usage: dict[str, object] = {
            "prompt_tokens": num_prompt,
            "completion_tokens": num_output,
            "total_tokens": num_prompt + num_output,
            "prompt_tokens_details": {"cached_tokens": sum(self._cached.values())},
        }
        if self._reasoning:
            reasoning = sum(self._reasoning.values())
            usage["completion_tokens_details"] = {"reasoning_tokens": reasoning}
        if self._call.head.wants_timing and self._time is not None:
            total_s = time.monotonic() - self._call.head.arrived_s
            usage["timing"] = self._time.within(total_s)
        return usage
