"""A request outlives its units: no token twice, none missing, no end but one."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muxcluster.core.errors import NotReady, Overloaded
from muxcluster.core.events import Finished, FinishReason, TokenDelta, merge
from muxcluster.core.request import Request
from muxcluster.core.sampling import SamplingParams
from muxcluster.router.recovery import MAX_LOSSES, MAX_LOSSES_IN_A_ROW, Progress, is_loss
from tests.http.fakes import entry

GONE = NotReady("gone", code="replica_lost")


def asked(num_tokens: int, *, prompt_logprobs: int | None = None) -> Request:
    sampling = SamplingParams(max_tokens=num_tokens, logprobs=1, prompt_logprobs=prompt_logprobs)
    return Request("r", "m", np.arange(7, dtype=np.int32), sampling)


def engine(request: Request) -> Sequence[TokenDelta]:
    """A unit's answer, one token a delta: token i is 100 + i whatever came before a recovery.

    As the scheduler does, it reports prompt log-probabilities in two chunks, and none to a request
    that has output already.
    """
    num_done, num_all = len(request.output_tokens), request.sampling.max_tokens
    deltas = []
    if request.sampling.prompt_logprobs is not None and num_done == 0:
        prompt = request.prompt_tokens.tolist()[1:]
        for part in (prompt[:4], prompt[4:]):
            deltas.append(TokenDelta(prompt_logprobs=tuple(entry(token, 1) for token in part)))
    for i in range(num_done, num_all):
        deltas.append(TokenDelta((100 + i,), (entry(100 + i, 1),)))
    end = Finished(request.request_id, FinishReason.LENGTH, queue_s=1.0, prefill_s=2.0, decode_s=4)
    return [*deltas[:-1], replace(deltas[-1], finished=end)]


def merged(deltas: Sequence[TokenDelta]) -> TokenDelta:
    total = TokenDelta()
    for delta in deltas:
        total = merge(total, delta)
    return total


@settings(max_examples=200, deadline=None)
@given(
    num_tokens=st.integers(1, 12),
    cuts=st.lists(st.integers(0, 8), max_size=3),
    wants_prompt=st.booleans(),
    lump=st.booleans(),
)
def test_whatever_is_cut_the_reader_gets_the_undisturbed_stream(
    num_tokens: int, cuts: list[int], wants_prompt: bool, lump: bool
) -> None:
    request = asked(num_tokens, prompt_logprobs=1 if wants_prompt else None)
    undisturbed = merged(engine(request))
    progress, got, ids = Progress(request), [], []
    for cut in [*cuts, None]:
        submission = progress.submission()
        ids.append(submission.request_id)
        assert submission.prompt_tokens is request.prompt_tokens
        assert submission.sampling == request.sampling
        answer = engine(submission)[:cut]
        if lump and answer:
            answer = [merged(answer)]  # what a slow reader gets
        got += [progress.advance(delta) for delta in answer]
        if got and got[-1].finished is not None:
            break
        progress.lose(GONE)
    total = merged(got)
    assert total.tokens == undisturbed.tokens
    assert total.logprobs == undisturbed.logprobs
    assert total.prompt_logprobs == undisturbed.prompt_logprobs
    assert total.finished is not None and total.finished.request_id == "r"
    assert total.finished.num_recoveries == progress.num_losses == len(ids) - 1
    assert len(set(ids)) == len(ids)


def test_an_abort_nobody_asked_for_and_a_failed_unit_are_losses() -> None:
    progress = Progress(asked(3))
    progress.submission()
    for end in (
        Finished("r", FinishReason.ABORT, message="closed"),
        Finished("r", FinishReason.ERROR, message="failed", code="replica_lost"),
    ):
        with pytest.raises(NotReady) as lost:
            progress.advance(TokenDelta((1,), finished=end))
        assert is_loss(lost.value)
    poison = Finished("r", FinishReason.ERROR, code="poison_request")
    assert progress.advance(TokenDelta(finished=poison)).finished is not None


def test_what_else_a_unit_raises_is_final() -> None:
    assert is_loss(NotReady("goes", code="server_shutting_down"))
    assert not is_loss(Overloaded("full"))


def test_a_request_that_gets_nowhere_ends_with_a_clear_error() -> None:
    progress = Progress(asked(3))
    for _ in range(MAX_LOSSES_IN_A_ROW - 1):
        progress.submission()
        progress.lose(GONE)
    with pytest.raises(NotReady, match="lost its unit 4 times: gone") as final:
        progress.lose(GONE)
    assert final.value.code == "replica_lost"


def test_one_that_gets_on_a_little_each_time_ends_too() -> None:
    progress = Progress(asked(1000))
    with pytest.raises(NotReady, match="12 times"):
        for _ in range(MAX_LOSSES):
            progress.submission()
            progress.advance(TokenDelta((1,)))
            progress.lose(GONE)
    assert progress.num_losses == MAX_LOSSES


def test_the_account_keeps_what_lost_units_did() -> None:
    async def run() -> Finished:
        progress = Progress(asked(4))
        first = engine(progress.submission())
        await asyncio.sleep(0.02)
        progress.advance(first[0])
        await asyncio.sleep(0.03)
        progress.advance(first[1])
        progress.lose(GONE)
        await asyncio.sleep(0.04)
        last = [progress.advance(delta) for delta in engine(progress.submission())][-1]
        assert last.finished is not None
        return last.finished

    end = asyncio.run(run())
    assert end.queue_s == 1.0
    assert end.prefill_s > 2.0 + 0.019
    assert end.decode_s > 4.0 + 0.029
    assert end.recovery_s > 0.039
