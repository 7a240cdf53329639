"""Accepted requests until their ends, and the queues in which they wait."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from heapq import heappop, heappush, heapreplace

import numpy as np
from numpy.typing import NDArray

from muxcluster.core.events import Finished, FinishReason
from muxcluster.core.hashing import extend_hashes, root_hash
from muxcluster.core.inputs.images.prompt_image import block_marks
from muxcluster.core.job import Side
from muxcluster.core.request import PinnedPrefix, Request, ServiceClass, Slo
from muxcluster.core.unitspec import ModelSpec
from muxcluster.scheduling.state.draft_record import DraftRecord
from muxcluster.scheduling.state.suspicion import Suspicion

_PRIORITY_LIMIT = 2**20
_ORDER_BITS = 40
_START_BITS = 64
_NO_TARGET_S = 10.0  # TTFT of a request without a target, for its place in a queue by deadlines
_LEAST_TARGET_S = 0.001  # a target of nearly 0 would be doubled too many times


class Stage(StrEnum):
    """What a request does or waits for; it is in one stage at a time."""

    QUEUE = "queue"  # waits for its first launch
    PREFILL = "prefill"  # until the first token, turns waited for between chunks too
    DECODE = "decode"  # from token to token
    PREEMPTED = "preempted"  # gave up its memory, or its job failed: waits to be launched again
    RESTORE = "restore"  # recomputes lost keys and values, until its next token


_WAITING = (Stage.QUEUE, Stage.PREEMPTED)
_HOLDING = (Stage.PREFILL, Stage.DECODE, Stage.RESTORE)
_NOTHING = dict.fromkeys(Stage, 0.0)


class TimeAccount:
    """Seconds by stage on the scheduler's clock; they sum to the time since the start."""

    __slots__ = ("_next", "_seconds", "_since_s", "_stage", "decode_running_s", "mask_wait_s")

    def __init__(self, now: float, *, has_output: bool) -> None:
        """has_output: the request comes from a lost unit with output: its prefill is a restore."""
        self._seconds = _NOTHING.copy()
        self._stage = Stage.QUEUE
        self._since_s = now
        self._next = Stage.RESTORE if has_output else Stage.PREFILL
        self.decode_running_s = 0.0  # the part of decode that was spent in running jobs
        self.mask_wait_s = 0.0  # the part of these that waited for what a constraint allows

    @property
    def has_started(self) -> bool:
        """True from the first launch on."""
        return self._stage is not Stage.QUEUE

    def launch(self, now: float) -> None:
        """Note that it is in a job: the waiting before it is over."""
        if self._stage in _WAITING:
            self._enter(self._next, now)

    def sample(self, now: float) -> None:
        """Note that all its tokens are computed and it got one more: it decodes."""
        self._enter(Stage.DECODE, now)

    def set_back(self, now: float, *, keeps_memory: bool) -> None:
        """Note that its job failed or it lost its row: it waits to be launched again."""
        if self._stage not in _WAITING:
            self._next = self._stage
            self._enter(Stage.PREEMPTED, now)
        if self._next is Stage.DECODE and not keeps_memory:
            self._next = Stage.RESTORE

    def held_s(self, now: float) -> float:
        """Return the seconds since its first launch, waits without memory left out."""
        running_s = 0.0 if self._stage in _WAITING else now - self._since_s
        return running_s + sum(self._seconds[stage] for stage in _HOLDING)

    def close(self, now: float) -> dict[Stage, float]:
        """Return the seconds by stage at the end."""
        self._enter(self._stage, now)
        return self._seconds

    def _enter(self, stage: Stage, now: float) -> None:
        self._seconds[self._stage] += now - self._since_s
        self._stage, self._since_s = stage, now


@dataclass(slots=True, eq=False)
class LiveRequest:
    """A request that has not ended; it waits, or it holds a row."""

    request: Request
    order: int  # arrival number in the unit
    account: TimeAccount
    added_s: float
    slo: Slo | None  # its own or its model's; None for the batch class
    output: NDArray[np.int32]  # int32 [n], output tokens known when it last began to wait
    row: int | None = None
    hashes: list[bytes] = field(default_factory=list)  # of its first full blocks, where needed
    deadline_s: float = math.inf  # of its next token; inf: no target
    has_sampled: bool = False  # it got a token here
    num_cached_tokens: int = 0  # of its prompt, found in the prefix cache at first admission
    num_preemptions: int = 0
    drafts: DraftRecord | None = None  # of its draft tokens; None: it had none
    # num_drafted, num_accepted: draft tokens that were checked, and those in the output
    num_drafted: int = 0
    num_accepted: int = 0
    suspicion: Suspicion | None = None  # after a failed job, until it is cleared
    num_prompt_logprobs: int = 0  # prompt positions already reported: recompute repeats none
    absent_before_s: float = 0.0  # seconds for which its model was not resident before it came
    # Place in the queue, the smallest first: by class, priority and virtual start or arrival; or by
    # (priority, when the first token is due, order) where the packing goes by deadlines.
    turn: tuple[int, float, int] = (0, 0.0, 0)
    start: int = 0  # virtual, see TenantTurns
    expected_tokens: int = 0  # with which its tenant's turn was counted; 0: with none
    waits_in_turn: bool = False  # until it is admitted for the first time
    # One number for (class, priority, order), or the order alone where the packing is blind to
    # classes; the smallest is the most senior.
    seniority: int = 0

    @classmethod
    def of(
        cls,
        request: Request,
        order: int,
        now: float,
        slo: Slo | None,
        *,
        is_class_blind: bool = False,
        by_deadline: bool = False,
    ) -> "LiveRequest":
        """Return `request`, accepted at `now`; `slo` is the model's target where it has none.

        is_class_blind, by_deadline: see seniority and turn.
        """
        is_batch = request.service_class is ServiceClass.BATCH
        target = None if is_batch else request.slo or slo
        account = TimeAccount(now, has_output=len(request.output_tokens) > 0)
        live = cls(request, order, account, now, target, request.output_tokens)
        live.deadline_s = math.inf if target is None else now + target.ttft_s
        live.seniority = order if is_class_blind else order + _rank(request)
        live.turn = (order if is_class_blind else _place(request, order), 0.0, order)
        if by_deadline and not is_batch:
            due_s = now + (_NO_TARGET_S if target is None else target.ttft_s)
            live.turn = (request.priority, due_s, order)
        if len(request.output_tokens):
            live.num_prompt_logprobs = live.num_prompt
        return live

    def wait_in_turn(self, start: int) -> None:
        """Let it wait by its virtual start, behind those of other classes and priorities."""
        self.start, self.waits_in_turn = start, True
        self.turn = (_place(self.request, start), 0.0, self.order)

    @property
    def due_s(self) -> float:
        """When its first token is due, for its place in the queue; 0 where it is not by that."""
        return self.turn[1]

    def double_target(self, arrived_s: float, least_s: float) -> None:
        """Let it wait, being late, as if its target were twice as long and at least `least_s`."""
        priority, due_s, order = self.turn
        target_s = max(due_s - arrived_s, _LEAST_TARGET_S)
        self.turn = priority, arrived_s + max(2 * target_s, least_s), order

    def go_first(self) -> None:
        """Put it first in its queue if it was preempted and has output."""
        if self.has_sampled and self.due_s:
            self.turn = self.turn[0], -math.inf, self.order

    @property
    def prefills_alone(self) -> bool:
        """True for a suspect (faults.py), unless of its decode steps alone."""
        return self.suspicion is not None and not self.suspicion.is_decoding

    @property
    def side(self) -> Side:
        """End of a block it fills from: interactive left, batch right (BROS §5)."""
        return side_of(self.request.service_class)

    @property
    def num_prompt(self) -> int:
        return len(self.request.prompt_tokens)

    @property
    def num_tokens(self) -> int:
        """Prompt and output tokens known when it last began to wait."""
        return self.num_prompt + len(self.output)

    def extend_hashes(
        self, spec: ModelSpec, output: NDArray[np.int32], num_columns: int, block_tokens: int
    ) -> list[bytes]:
        """Return the hashes of its first `num_columns` blocks.

        spec: of its model. output: all output so far.
        """
        if len(self.hashes) < num_columns:
            start, end = len(self.hashes) * block_tokens, num_columns * block_tokens
            prompt = self.request.prompt_tokens[start:end]
            num_prompt = self.num_prompt
            rest = output[max(start - num_prompt, 0) : max(end - num_prompt, 0)]
            tokens = np.concatenate((prompt, rest)) if len(rest) else prompt
            first = len(self.hashes)
            marks = block_marks(self.request.images, first, num_columns - first, block_tokens)
            self.hashes.extend(extend_hashes(self._parent(spec), tokens, block_tokens, marks))
        return self.hashes[:num_columns]

    def _parent(self, spec: ModelSpec) -> bytes:
        if self.hashes:
            return self.hashes[-1]
        return chain_root(spec, self.request, self.side)

    def finished(
        self,
        reason: FinishReason,
        now: float,
        *,
        stop_token: int | None = None,
        code: str = "",
        message: str = "",
    ) -> Finished:
        """Return the event that ends it at `now`."""
        seconds = self.account.close(now)
        return Finished(
            self.request.request_id,
            reason,
            stop_token=stop_token,
            num_cached_tokens=self.num_cached_tokens,
            num_preemptions=self.num_preemptions,
            num_drafted=self.num_drafted,
            num_accepted=self.num_accepted,
            queue_s=seconds[Stage.QUEUE],
            prefill_s=seconds[Stage.PREFILL],
            decode_s=seconds[Stage.DECODE],
            preempted_s=seconds[Stage.PREEMPTED],
            restore_s=seconds[Stage.RESTORE],
            decode_running_s=self.account.decode_running_s,
            mask_wait_s=self.account.mask_wait_s,
            message=message,
            code=code,
        )


def side_of(service_class: ServiceClass) -> Side:
    """Return the end of a block that requests of the class fill from."""
    return Side.RIGHT if service_class is ServiceClass.BATCH else Side.LEFT


def chain_root(spec: ModelSpec, request: Request | PinnedPrefix, side: Side) -> bytes:
    """Return the hash from which those of a request's blocks are chained; spec: of its model.

    request: or a prefix of such requests. Sides lay tokens out in opposite order, and share
    prefixes only where no order is asked for. Adapters never share any.
    """
    salt = request.cache_salt if spec.is_unordered else f"{request.cache_salt}\0{side}"
    return root_hash(spec.name, salt, request.adapter)


def _rank(request: Request) -> int:
    """Class, then priority, above all bits of an order."""
    priority = max(-_PRIORITY_LIMIT, min(request.priority, _PRIORITY_LIMIT - 1))
    is_batch = request.service_class is ServiceClass.BATCH
    return (int(is_batch) * 2 * _PRIORITY_LIMIT + priority + _PRIORITY_LIMIT) << _ORDER_BITS


def _place(request: Request, number: int) -> int:
    """Class, then priority, above all bits of an order or a virtual start, which has more."""
    return (_rank(request) << _START_BITS) + number


class WaitingQueue:
    """A priority queue of live requests by turn; removal is lazy."""

    def __init__(self) -> None:
        # The first in turn, read many times a step; None where the queue is hidden
        self.head: LiveRequest | None = None
        self.is_hidden = False
        self._heap: list[tuple[tuple[int, float, int], LiveRequest]] = []
        self._members: dict[int, LiveRequest] = {}

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[LiveRequest]:
        """Yield the requests, in the order in which they came here."""
        return iter(self._members.values())

    def find_head(self) -> None:
        """Set `head` after a change."""
        while self._heap and not self._is_valid(*self._heap[0]):
            heappop(self._heap)
        self.head = self._heap[0][1] if self._heap and not self.is_hidden else None

    def _is_valid(self, turn: tuple[int, float, int], live: LiveRequest) -> bool:
        return live.order in self._members and live.turn == turn

    def push(self, live: LiveRequest) -> None:
        """Add `live`, at the place that its turn gives it."""
        self._members[live.order] = live
        heappush(self._heap, (live.turn, live))
        self.find_head()

    def renew(self, now: float, least_s: float) -> None:
        """Let requests that can still be in time go before those that are late for a first token.

        A late one waits as if its target were `least_s`, then twice that, and so on: it falls
        behind, but not forever. Serving the oldest first under overload would make all late.
        """
        while (head := self.head) is not None and 0.0 < head.due_s < now:
            head.double_target(head.added_s, least_s)
            heapreplace(self._heap, (head.turn, head))
            self.find_head()

    def remove(self, live: LiveRequest) -> None:
        """Remove `live`, which is here."""
        del self._members[live.order]
        if self.head is live:
            self.find_head()


class Waiting:
    """The waiting requests of one model, by class.

    It is open or not; in one that is not, no queue has a head, and nothing is admitted.
    """

    def __init__(self) -> None:
        self._interactive, self._batch = WaitingQueue(), WaitingQueue()
        self.suspects = WaitingQueue()  # of both classes: those whose prompts must run alone
        self.by_class = {
            ServiceClass.INTERACTIVE: self._interactive,
            ServiceClass.BATCH: self._batch,
        }
        self._length = 0
        self.num_interactive = 0
        self.num_tokens = 0  # to compute before all of them have decoded one
        self.is_open = True

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[LiveRequest]:
        """Yield all of them."""
        for queue in self._queues:
            yield from queue

    @property
    def _queues(self) -> tuple[WaitingQueue, ...]:
        return self._interactive, self._batch, self.suspects

    @property
    def has_open(self) -> bool:
        """True where a request waits and may be admitted."""
        return self._length > 0 and self.is_open

    def set_open(self, *, is_open: bool) -> None:
        """Open or close it."""
        self.is_open = is_open
        for queue in self._queues:
            queue.is_hidden = not is_open
            queue.find_head()

    @property
    def oldest_s(self) -> float:
        """When the first of them was added, as far as queues are in that order; inf: it is closed,
        or nobody waits."""
        heads = [queue.head for queue in self._queues]
        return min([each.added_s for each in heads if each is not None], default=math.inf)

    @property
    def head(self) -> LiveRequest | None:
        """The most senior request of any class; no suspect."""
        interactive, batch = self._interactive.head, self._batch.head
        if interactive is None or (batch is not None and batch.seniority < interactive.seniority):
            return batch
        return interactive

    def push(self, live: LiveRequest) -> None:
        self._length += 1
        self.num_interactive += live.side is Side.LEFT
        self.num_tokens += live.num_tokens
        self._queue(live).push(live)

    def remove(self, live: LiveRequest) -> None:
        """Remove `live`."""
        self._queue(live).remove(live)
        self._length -= 1
        self.num_interactive -= live.side is Side.LEFT
        self.num_tokens -= live.num_tokens

    @contextmanager
    def closed(self) -> Iterator[None]:
        """Hide all requests but suspects, which no packing then admits."""
        for queue in self.by_class.values():
            queue.head = None
        try:
            yield
        finally:
            for queue in self.by_class.values():
                queue.find_head()

    def _queue(self, live: LiveRequest) -> WaitingQueue:
        if live.prefills_alone:
            return self.suspects
        return self.by_class[live.request.service_class]
