"""What comes back up: tokens of a step in arrays, objects only for the rare events."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
    """A request ended; sent exactly once per request that was accepted.

    stop_token: the end token that stopped it (also its last output token), else None.
    num_cached_tokens: prompt tokens taken from the prefix cache at first admission.
    queue_s, prefill_s, decode_s: seconds from add to first launch, to first token, to the end.
    preempted_s, restore_s: seconds it waited to be launched again after preemptions and failed
    jobs, and seconds of recomputing what was lost. Disjoint: these five sum to end minus add.
    decode_running_s: the part of decode_s spent in running jobs; the rest waited for a turn.
    recovery_s, num_recoveries: filled in by the ingress: losses of the request's unit, and seconds
    from its last output before each to its submission to the next unit.
    message: for people, when the reason is `error`. code: for programs, then; "poison_request":
    it fails whenever it runs, "non_finite_logits": so it does because its logits are NaN or
    infinite, "replica_lost": the unit failed with it.
    """

    request_id: str
    reason: FinishReason
    stop_token: int | None = None
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    queue_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    preempted_s: float = 0.0
    restore_s: float = 0.0
    decode_running_s: float = 0.0
    recovery_s: float = 0.0
    num_recoveries: int = 0
    message: str = ""
    code: str = ""


@dataclass(frozen=True, slots=True)
class Preempted:
    """A running request gave up its blocks and waits again; it will go on by itself."""

    request_id: str


@dataclass(frozen=True, slots=True)
class Rejected:
    """A request that can never run here (it counts as its one and only end)."""

    request_id: str
    code: str
    message: str


Event = Finished | Preempted | Rejected


@dataclass(frozen=True, slots=True, eq=False)
class StepOutput:
    """Outcome of one completed job, or of an abort.

    request_ids: [rows]. tokens: int32 [sum(counts)], surplus after an end token already cut.
    counts: int32 [rows]. logprobs, prompt_logprobs: as in `JobResult`, keyed by row.
    Tokens of a request always come before its `Finished`.
    """

    request_ids: Sequence[str]
    tokens: NDArray[np.int32]
    counts: NDArray[np.int32]
    logprobs: Mapping[int, tuple[TokenLogprobs, ...]]
    prompt_logprobs: Mapping[int, tuple[TokenLogprobs, ...]]
    events: tuple[Event, ...] = ()


@dataclass(frozen=True, slots=True)
class TokenDelta:
    """New output of one request on its way to one reader (ingress or Python caller).

    finished or rejected is set on the last delta, and only there.
    """

    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    finished: Finished | None = None
    rejected: Rejected | None = None


def merge(first: TokenDelta, second: TokenDelta) -> TokenDelta:
    """Both deltas of one request as one; `first` came earlier."""
    return TokenDelta(
        tokens=first.tokens + second.tokens,
        logprobs=first.logprobs + second.logprobs,
        prompt_logprobs=first.prompt_logprobs + second.prompt_logprobs,
        finished=first.finished or second.finished,
        rejected=first.rejected or second.rejected,
    )
