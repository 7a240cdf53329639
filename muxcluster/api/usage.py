"""What a call is billed."""

from collections.abc import Iterable

from muxcluster.api.call import Call
from muxcluster.api.choice import ChoiceDelta


class UsageTally:
    """Running token counts of one call."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._output: dict[int, int] = {}
        self._cached: dict[int, int] = {}

    @classmethod
    def of(cls, call: Call, deltas: Iterable[ChoiceDelta]) -> "UsageTally":
        """The tally after `deltas`."""
        tally = cls(call)
        for delta in deltas:
            tally.add(delta)
        return tally

    def add(self, delta: ChoiceDelta) -> None:
        """Counts `delta`, whose num_output_tokens is cumulative per choice."""
        self._output[delta.index] = max(delta.num_output_tokens, self._output.get(delta.index, 0))
        if delta.index % self._call.n == 0:
            self._cached[delta.index] = delta.num_cached_tokens

    def value(self) -> dict[str, object]:
        """OpenAI's `usage` object; a prompt counts once however many choices it has."""
        num_prompt, num_output = self._call.num_prompt_tokens, sum(self._output.values())
        return {
            "prompt_tokens": num_prompt,
            "completion_tokens": num_output,
            "total_tokens": num_prompt + num_output,
            "prompt_tokens_details": {"cached_tokens": sum(self._cached.values())},
        }
