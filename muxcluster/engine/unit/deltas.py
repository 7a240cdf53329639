"""Splits the arrays that a step produced into one delta per request."""

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
            yield request_id, TokenDelta(tuple(tokens[start:end]), logprobs, prompt_logprobs)
        start = end
    for event in output.events:
        if isinstance(event, Finished):
            yield event.request_id, TokenDelta(finished=event)
        elif isinstance(event, Rejected):
            yield event.request_id, TokenDelta(rejected=event)
