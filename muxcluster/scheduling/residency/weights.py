"""Where the weights of one model are, and what is known of its moves."""

import math

from muxcluster.core.request import ServiceClass
from muxcluster.core.residency import MoveKind, Residency, WeightOrder, WeightState
from muxcluster.scheduling.residency.expectation import Expectation
from muxcluster.scheduling.residency.foresight import horizon_s
from muxcluster.scheduling.residency.policy import NO_TARGET_S, Standing, WakePolicy
from muxcluster.scheduling.state.model import ModelState
from muxcluster.scheduling.state.requests import LiveRequest

_GAIN = 0.3  # weight of the last wake in the mean of their seconds
_FIRST_RETRY_S, _LAST_RETRY_S = 0.5, 30.0  # until a move that failed is tried again, doubled
# For so long requests end at once after a wake that could not work, doubled each time in a row: by
# then files may have been repaired, or memory may be free that processes died of.
_FIRST_PAUSE_S, _LAST_PAUSE_S = 30.0, 600.0
_LEAST_TARGET_S = 1e-3


class Weights:
    """The weights of one model. Its queue is open only while its jobs may start.

    state, order, is_leaving and drains_since_s are written by `WeightMoves` alone, by the methods.
    """

    def __init__(self, model: ModelState, policy: WakePolicy, ageing_s: float) -> None:
        """ageing_s: after which batch requests claim a turn like interactive ones."""
        spec = model.spec
        self.model = model
        self.name = spec.name
        self.num_bytes = spec.resident_bytes
        self.parked_bytes = model.table_bytes  # what the unit keeps of it all the time
        self.residency = spec.residency
        self.wake_s = spec.wake_s  # predicted, then the mean of what wakes took
        self.state = WeightState.PARKED
        self.is_leaving = False  # no job of it starts any more: it will be parked
        self.drains_since_s = math.inf  # when it was chosen to leave; then its queue was closed
        self.cause = ""  # why its weights cannot be resident, and its requests end
        # The operator's, while it holds: WAKE until it is resident, PARK until its next wake
        self.order: WeightOrder | None = None
        self.num_wakes = self.num_parks = 0
        # Wakes that nothing waited for, and those of them after which a request came in time
        self.num_ahead = self.num_ahead_used = 0
        self.is_ahead = False  # the last one is such a wake, and no request has come yet
        self.waking_s = 0.0  # of all wakes
        self.is_owed = False  # see Standing
        self.retry_s = -math.inf  # no move is tried before
        self._policy = policy
        self._expectation = Expectation(spec.rate_per_s)
        self._ageing_s = ageing_s
        slo = spec.slo
        self._target_s = NO_TARGET_S if slo is None else max(slo.ttft_s, _LEAST_TARGET_S)
        self._has_measured = False
        self._num_failures = self._num_given_up = 0
        self._ordered_s = math.inf  # when the last WAKE or PIN came
        self._since_s = -math.inf  # of its last wake
        self._tokens_before = 0  # its output tokens at its last wake
        self._last_use_s = -math.inf
        self._due_s = dict.fromkeys(ServiceClass, math.inf)  # of the first that waits for weights
        self._waits_since_s = math.inf
        self._absent_s = 0.0
        self._absent_since_s: float | None = None
        model.waiting.set_open(is_open=False)

    @property
    def is_resident(self) -> bool:
        return self.state is WeightState.RESIDENT

    @property
    def may_run(self) -> bool:
        """True if jobs of the model may start."""
        return self.is_resident and not self.is_leaving

    @property
    def reserves(self) -> bool:
        """True if its memory is taken, or kept for it."""
        is_away = self.state in (WeightState.PARKED, WeightState.COLD)
        return self.residency is Residency.ALWAYS or not is_away

    @property
    def is_awake(self) -> bool:
        """True if it has a part of the KV pool: its weights are here or on their way."""
        return self.reserves and self.state is not WeightState.PARKING

    @property
    def is_claimed(self) -> bool:
        """True if requests or an order wait for its parked weights, or it must be resident."""
        if self.state is not WeightState.PARKED or self.order is WeightOrder.HOLD:
            return False
        return self.stays or self._is_ordered or len(self.model.waiting) > 0

    @property
    def is_put_away(self) -> bool:
        """True if an operator wants its memory back."""
        return self.order in (WeightOrder.PARK, WeightOrder.HOLD)

    @property
    def stays(self) -> bool:
        """True if it is never parked."""
        return self.residency is Residency.ALWAYS or self.order is WeightOrder.PIN

    @property
    def must_leave(self) -> bool:
        """True if it is to be parked though no other model needs its memory."""
        return self.is_resident and self.is_put_away

    @property
    def num_interactive_rows(self) -> int:
        table = self.model.running
        return table.num_live - table.num_batch

    @property
    def has_token(self) -> bool:
        """True if a request of it got a token since its last wake."""
        return self.model.counters.output_tokens > self._tokens_before

    def absent_s(self, now: float) -> float:
        """Return for how long in all it was not resident, counted from the first question on."""
        if self.is_resident:
            return self._absent_s
        if self._absent_since_s is None:
            self._absent_since_s = now
        return self._absent_s + now - self._absent_since_s

    def expect(self, live: LiveRequest, now: float) -> None:
        """Note a request that came; call it before it is in the queue."""
        self._last_use_s = now
        kind = live.request.service_class
        self.num_ahead_used += self.is_ahead
        self.is_ahead = False
        if kind is ServiceClass.INTERACTIVE:
            self._expectation.arrive(now)
        if self.is_resident:
            return
        if not len(self.model.waiting):
            self._forget_claims()
        target_s = self._target_s if live.slo is None else live.slo.ttft_s
        if kind is ServiceClass.BATCH:
            target_s = self._ageing_s
        self._due_s[kind] = min(self._due_s[kind], now + target_s)
        self._waits_since_s = min(self._waits_since_s, now)

    def use(self, now: float) -> None:
        """Note that a job of it ended."""
        self._last_use_s = now
        self._num_given_up = 0

    def obey(self, order: WeightOrder, now: float) -> None:
        """Take an operator's order; `WeightMoves.request` has checked that it can be followed."""
        if order is WeightOrder.UNPIN:
            if self.order is WeightOrder.PIN:
                self.order = None
            return
        if order is WeightOrder.EXPECT:
            self.try_again(now)
            if self.state is WeightState.COLD or self.order is WeightOrder.HOLD:
                return
            order = WeightOrder.WAKE
        if order in (WeightOrder.WAKE, WeightOrder.PIN):
            self._recover()
            if not self._is_ordered:
                self._ordered_s = now
        if order is WeightOrder.WAKE and self.order is WeightOrder.PIN:
            return
        is_done = order is WeightOrder.WAKE and self.is_resident
        self.order = None if is_done else order

    def try_again(self, now: float) -> None:
        """After the pause that `give_up` made, let its requests wait for a wake again."""
        if now >= self.retry_s:
            self._recover()

    def _recover(self) -> None:
        if self.state is WeightState.COLD:
            self.state, self.cause = WeightState.PARKED, ""
            self._forget_failures()

    # Changes of state

    def begin(self, kind: MoveKind, now: float, *, is_ahead: bool = False) -> None:
        """Note that a move of that kind starts. is_ahead: a wake that nothing waits for."""
        if kind is MoveKind.WAKE:
            self.state = WeightState.WAKING
            self.is_ahead = is_ahead
            self.num_ahead += is_ahead
            if self.order is WeightOrder.PARK:  # its next request has come
                self.order = None
            due_s = self._due_s[ServiceClass.BATCH]
            self.is_owed = not self.model.waiting.num_interactive and now >= due_s
        else:
            self._go(WeightState.PARKING, now)

    def arrive(self, now: float, seconds: float | None = None) -> None:
        """Note that the weights are here, after a wake that took `seconds`."""
        self.state, self.cause = WeightState.RESIDENT, ""
        if self.order is WeightOrder.WAKE:
            self.order = None
        if self._absent_since_s is not None:
            self._absent_s += now - self._absent_since_s
        self._absent_since_s = None
        self.stay()
        self._forget_claims()
        if seconds is None:
            return
        self._forget_failures()
        self._since_s = now
        self._tokens_before = self.model.counters.output_tokens
        self.num_wakes += 1
        self.waking_s += seconds
        gain = _GAIN if self._has_measured else 1.0
        self.wake_s += gain * (seconds - self.wake_s)
        self._has_measured = True

    def park(self, now: float) -> None:
        """Note that the weights are in host memory; its requests wait from now on.

        It has no rows.
        """
        self._forget_failures()
        if self.state is WeightState.PARKING:
            self.state = WeightState.PARKED
            self.num_parks += 1
        else:
            self._go(WeightState.PARKED, now)

    def lose(self, now: float) -> None:
        """Note that its processes are gone. It has no rows."""
        is_futile = not self.has_token
        self.park(now)
        if is_futile:  # or processes that never live long would be started without a pause
            self.retry_s = now + _FIRST_RETRY_S

    def _go(self, state: WeightState, now: float) -> None:
        if self._absent_since_s is None:
            self._absent_since_s = now
        self.state = state
        self.is_leaving, self.drains_since_s = False, math.inf
        self.is_ahead = False
        self.model.waiting.set_open(is_open=False)
        # Those in the queue waited for something else before, and may come after who made them wait
        self._forget_claims()
        if len(self.model.waiting):
            self._waits_since_s = now
            self._due_s[ServiceClass.BATCH] = now + self._ageing_s
            self._due_s[ServiceClass.INTERACTIVE] = now + self._target_s

    def fail(self, kind: MoveKind, now: float) -> None:
        """Note that a move failed: it is tried again, each time later."""
        wait_s = min(_LAST_RETRY_S, _FIRST_RETRY_S * 2.0**self._num_failures)
        self._num_failures += 1
        if kind is MoveKind.WAKE:
            self.state, self.is_ahead = WeightState.PARKED, False
        else:
            self.arrive(now)
        self.retry_s = now + wait_s

    def give_up(self, cause: str, now: float) -> None:
        """Note that the weights cannot be resident, and why.

        Requests end at once for a while, longer each time; the first one after that tries again.
        """
        self.state, self.cause = WeightState.COLD, cause
        if self.order is WeightOrder.WAKE:
            self.order = None
        self.retry_s = now + min(_LAST_PAUSE_S, _FIRST_PAUSE_S * 2.0**self._num_given_up)
        self._num_given_up += 1

    def drain(self, now: float) -> None:
        """Close its queue: it was chosen to leave."""
        if self.drains_since_s == math.inf:
            self.drains_since_s = now
            self.model.waiting.set_open(is_open=False)

    def stay(self) -> None:
        """Open its queue: it need not leave."""
        self.is_leaving, self.drains_since_s = False, math.inf
        self.model.waiting.set_open(is_open=True)

    def drained_s(self) -> float:
        """Return when it leaves with its interactive sequences, if it is to leave."""
        return self.drains_since_s + self._policy.drain_s(self.wake_s)

    def _forget_claims(self) -> None:
        self._due_s = dict.fromkeys(ServiceClass, math.inf)
        self._waits_since_s = math.inf

    def _forget_failures(self) -> None:
        self._num_failures, self.retry_s = 0, -math.inf

    # What policies and readers see

    def standing(self, now: float) -> Standing:
        """Return what a policy may know."""
        model, waiting = self.model, self.model.waiting
        has_queued, num_rows = waiting.num_interactive > 0, self.num_interactive_rows
        expected, visit_s = self._foresee(now)
        return Standing(
            name=self.name,
            num_bytes=self.num_bytes,
            residency=self.residency,
            state=self.state,
            wake_s=self.wake_s,
            rate_per_s=self._expectation.hours_per_s(now),
            target_s=self._target_s,
            due_s=self._claim_due_s() if self.is_claimed else math.inf,
            waits_since_s=self._claim_since_s(),
            is_batch_claim=not (has_queued or self._is_ordered),
            is_idle=model.num_live == 0,
            has_interactive=has_queued or num_rows > 0,
            has_interactive_rows=num_rows > 0,
            oldest_queued_s=waiting.oldest_s,
            keeps_until_s=self._since_s
            + self._policy.keeps_s(self.wake_s, has_token=self.has_token),
            is_owed=self.is_owed,
            last_use_s=self._last_use_s,
            is_leaving=self.drains_since_s < math.inf,
            may_try=now >= self.retry_s,
            is_pinned=self.order is WeightOrder.PIN,
            is_put_away=self.is_put_away,
            expected=expected,
            visit_s=visit_s,
            is_ahead=self.is_ahead,
        )

    def _foresee(self, now: float) -> tuple[float, float]:
        """Return the requests expected soon, and the earliest time of the next regular one."""
        if not self._policy.foresees:
            return 0.0, math.inf
        visit = self._expectation.next_visit_s(now)
        expected = self._expectation.expected(now, horizon_s(self.wake_s))
        return expected, math.inf if visit is None else visit[0]

    @property
    def _is_ordered(self) -> bool:
        return self.order in (WeightOrder.WAKE, WeightOrder.PIN)

    def _claim_due_s(self) -> float:
        if self.stays:
            return -math.inf
        due_s = self._ordered_s + self._target_s if self._is_ordered else math.inf
        if self.model.waiting.num_interactive:
            return min(due_s, self._due_s[ServiceClass.INTERACTIVE])
        if len(self.model.waiting):
            return min(due_s, self._due_s[ServiceClass.BATCH])
        return due_s

    def _claim_since_s(self) -> float:
        return min(self._waits_since_s, self._ordered_s if self._is_ordered else math.inf)

    def check(self) -> None:
        """Raise AssertionError where the state contradicts the model's sequences."""
        waiting, table = self.model.waiting, self.model.running
        is_draining = self.drains_since_s < math.inf
        assert waiting.is_open == (self.is_resident and not is_draining), "a queue is open or not"
        assert self.is_resident or not table.num_live, f"{self.name} is away and has rows"
        assert not (self.is_leaving and not is_draining), f"{self.name} leaves unasked"
        assert (self._absent_since_s is None) or not self.is_resident, "it is counted as away"
        if self.is_claimed and len(waiting):
            assert min(self._due_s.values()) < math.inf, f"{self.name} is waited for unseen"
