"""Splits the arrays that steps produced into one delta per request, and holds back a batch's."""

from collections.abc import Iterable

from muxcluster.core.events import Finished, Rejected, StepOutput, TokenDelta, merge


def deltas_of(outputs: Iterable[StepOutput]) -> dict[str, TokenDelta]:
    """Return a delta per request with tokens, prompt logprobs or its end, in order of arrival."""
    deltas: dict[str, TokenDelta] = {}
    for output in outputs:
        for request_id, delta in _pieces(output):
            earlier = deltas.get(request_id)
            deltas[request_id] = delta if earlier is None else merge(earlier, delta)
    return deltas


def _pieces(output: StepOutput) -> Iterable[tuple[str, TokenDelta]]:
    tokens = output.tokens.tolist()
    start = 0
    for row, (request_id, count) in enumerate(
        zip(output.request_ids, output.counts.tolist(), strict=True)
    ):
        end = start + count
        prompt_logprobs = output.prompt_logprobs.get(row, ())
        if count or prompt_logprobs:
            logprobs = output.logprobs.get(row, ())
            vector = output.vectors.get(row, b"")
            mine = tuple(tokens[start:end])
            yield request_id, TokenDelta(mine, logprobs, prompt_logprobs, vector=vector)
        start = end
    for event in output.events:
        if isinstance(event, Finished):
            yield event.request_id, TokenDelta(finished=event)
        elif isinstance(event, Rejected):
            yield event.request_id, TokenDelta(rejected=event)


_LEAST_TOKENS = 16  # of a line of a batch that are delivered before its end


class BatchDeltas:
    """Merges the output of batch lines: nobody reads it token by token.

    A delta costs about as much to carry and to read as the scheduling of a row in a step.
    """

    def __init__(self) -> None:
        self._held: dict[str, TokenDelta] = {}
        self._request_ids: set[str] = set()

    def follow(self, request_id: str) -> None:
        """Hold back the output of this request until its end."""
        self._request_ids.add(request_id)

    def due(self, deltas: dict[str, TokenDelta]) -> dict[str, TokenDelta]:
        """Return what is to be delivered now, and keep the rest."""
        if not self._request_ids:
            return deltas
        found = {}
        for request_id, delta in deltas.items():
            if request_id not in self._request_ids:
                found[request_id] = delta
                continue
            earlier = self._held.pop(request_id, None)
            whole = delta if earlier is None else merge(earlier, delta)
            if whole.finished is not None or whole.rejected is not None:
                self._request_ids.discard(request_id)
                found[request_id] = whole
            elif len(whole.tokens) >= _LEAST_TOKENS:
                found[request_id] = whole
            else:
                self._held[request_id] = whole
        return found

    def clear(self) -> None:
        """Forget everything: all requests have ended."""
        self._held.clear()
        self._request_ids.clear()
