"""Arrays of a step become one delta per request, ends included."""

import numpy as np

from muxcluster.core.events import Finished, FinishReason, Preempted, StepOutput, TokenDelta
from muxcluster.core.job import TokenLogprobs
from muxcluster.engine.unit.deltas import deltas_of

A_LOGPROB = TokenLogprobs(token=5, logprob=-0.5, rank=1)


def step(ids: list[str], tokens: list[int], counts: list[int], **rest: object) -> StepOutput:
    fields: dict[str, object] = {"logprobs": {}, "prompt_logprobs": {}, "events": (), **rest}
    return StepOutput(ids, np.asarray(tokens, np.int32), np.asarray(counts, np.int32), **fields)


def test_tokens_go_to_their_rows_and_empty_rows_get_nothing() -> None:
    output = step(["a", "b", "c"], [5, 6, 7], [1, 0, 2], logprobs={0: (A_LOGPROB,)})
    assert deltas_of([output]) == {
        "a": TokenDelta((5,), (A_LOGPROB,)),
        "c": TokenDelta((6, 7)),
    }


def test_steps_merge_in_order_and_the_end_comes_with_the_last_tokens() -> None:
    end = Finished("a", FinishReason.LENGTH)
    outputs = [step(["a"], [1], [1]), step(["a"], [2], [1], events=(Preempted("b"), end))]
    assert deltas_of(outputs) == {"a": TokenDelta((1, 2), finished=end)}


def test_prompt_logprobs_travel_without_tokens() -> None:
    output = step(["a"], [], [0], prompt_logprobs={0: (A_LOGPROB,)})
    assert deltas_of([output]) == {"a": TokenDelta(prompt_logprobs=(A_LOGPROB,))}
