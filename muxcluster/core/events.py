"""Output of a unit: tokens of a step in arrays, and objects for the rare events."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from muxcluster.core.job import TokenLogprobs


class FinishReason(StrEnum):
    """Why a request ended. Only `stop` and `length` reach OpenAI clients as finish_reason."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Finished:
    """A request ended; sent exactly once per request that was accepted."""

    request_id: str
    reason: FinishReason
    # The end token that stopped it (also its last output token), else None
    stop_token: int | None = None
    num_cached_tokens: int = 0  # prompt tokens taken from the prefix cache at first admission
    num_preemptions: int = 0
    # queue_s, prefill_s, decode_s: seconds from add to first launch, to first token, to the end
    queue_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    # preempted_s, restore_s: seconds of waiting for a launch after preemptions and failed jobs, and
    # of recomputing what was lost. These five are disjoint and sum to end minus add.
    preempted_s: float = 0.0
    restore_s: float = 0.0
    # The part of decode_s spent in running jobs; the rest waited for a turn
    decode_running_s: float = 0.0
    mask_wait_s: float = 0.0  # the part of these that waited for what its constraint allows
    # The part of queue_s and preempted_s during which its model was not resident
    waking_s: float = 0.0
    # recovery_s, num_recoveries: set by the ingress: number of times the request lost its unit, and
    # seconds from the last output before each loss to the submission to the next unit
    recovery_s: float = 0.0
    num_recoveries: int = 0
    message: str = ""  # for people, when the reason is `error`
    # For programs, when the reason is `error`: "poison_request": it fails whenever it runs;
    # "non_finite_logits": it fails because its logits are NaN or infinite; "replica_lost": the unit
    # failed while it ran; "model_failed": its model's weights cannot be loaded
    code: str = ""
    # num_drafted, num_accepted: draft tokens that were checked, and those of them in the output
    num_drafted: int = 0
    num_accepted: int = 0


@dataclass(frozen=True, slots=True)
class Preempted:
    """A running request lost its blocks and waits to be resumed by the scheduler."""

    request_id: str


@dataclass(frozen=True, slots=True)
class Rejected:
    """A request that can never run here; no `Finished` follows."""

    request_id: str
    code: str
    message: str


Event = Finished | Preempted | Rejected


@dataclass(frozen=True, slots=True, eq=False)
class StepOutput:
    """Outcome of one completed job, or of an abort."""

    request_ids: Sequence[str]  # [rows]
    tokens: NDArray[np.int32]  # int32 [sum(counts)], surplus after an end token already cut
    counts: NDArray[np.int32]  # int32 [rows]
    # logprobs, prompt_logprobs: as in `JobResult`, keyed by row
    logprobs: Mapping[int, tuple[TokenLogprobs, ...]]
    prompt_logprobs: Mapping[int, tuple[TokenLogprobs, ...]]
    events: tuple[Event, ...] = ()  # a request's `Finished` never comes before its tokens
    vectors: Mapping[int, bytes] = field(default_factory=dict)  # as in `JobResult`, keyed by row


@dataclass(frozen=True, slots=True)
class TokenDelta:
    """New output of one request for one reader (ingress or Python caller).

    `finished` or `rejected` is set on the last delta, and only there.
    """

    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    finished: Finished | None = None
    rejected: Rejected | None = None
    vector: bytes = b""  # of a request of an embedding model, with its only token; float32


def merge(first: TokenDelta, second: TokenDelta) -> TokenDelta:
    """Merge two successive deltas of one request."""
    return TokenDelta(
        tokens=first.tokens + second.tokens,
        logprobs=first.logprobs + second.logprobs,
        prompt_logprobs=first.prompt_logprobs + second.prompt_logprobs,
        finished=first.finished or second.finished,
        rejected=first.rejected or second.rejected,
        vector=first.vector or second.vector,
    )
