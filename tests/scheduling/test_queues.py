"""Waiting requests come out by class, priority and arrival."""

import random

from muxcluster.core.request import ServiceClass, Slo
from muxcluster.scheduling.state.requests import LiveRequest, Waiting, WaitingQueue
from tests.scheduling.rig import request


def live(order: int, priority: int = 0, service: ServiceClass = ServiceClass.INTERACTIVE):
    asked = request(str(order), priority=priority, service_class=service)
    return LiveRequest.of(asked, order, 0.0, None)


def drain(waiting: Waiting) -> list[LiveRequest]:
    out = []
    while (head := waiting.head) is not None:
        waiting.remove(head)
        out.append(head)
    return out


def test_order_is_class_then_priority_then_arrival() -> None:
    rng = random.Random(0)
    requests = [live(i, rng.randint(-2, 2), rng.choice(list(ServiceClass))) for i in range(60)]
    waiting = Waiting()
    for item in rng.sample(requests, len(requests)):
        waiting.push(item)
    gone = rng.sample(requests, 15)
    for item in gone:
        waiting.remove(item)
    wanted = sorted(
        (item for item in requests if item not in gone),
        key=lambda item: (
            item.request.service_class is ServiceClass.BATCH,
            item.request.priority,
            item.order,
        ),
    )
    assert len(waiting) == len(wanted)
    assert waiting.num_tokens == sum(item.num_tokens for item in wanted) > 0
    assert drain(waiting) == wanted
    assert len(waiting) == waiting.num_tokens == 0


def timed(order: int, now: float) -> LiveRequest:
    return LiveRequest.of(request(str(order)), order, now, Slo(1.0, 1.0), by_deadline=True)


def test_a_late_request_lets_others_go_first_for_a_while() -> None:
    """Targets are 1 s. Doubled alone, the first would be back in front 4 s after it came."""
    queue, late, fresh = WaitingQueue(), timed(0, 0.0), timed(1, 2.5)
    queue.push(late)
    queue.push(fresh)
    queue.renew(3.1, 0.0)
    assert queue.head is fresh
    queue.remove(fresh)
    later = timed(2, 8.0)
    queue.push(later)
    queue.renew(8.0, 10.0)
    assert (queue.head, late.due_s) == (later, 10.0)
    queue.remove(later)
    last = timed(3, 9.5)
    queue.push(last)
    queue.renew(9.6, 10.0)
    assert queue.head is late
    queue.renew(10.1, 10.0)
    assert (queue.head, late.due_s) == (last, 20.0)


def test_a_preempted_request_keeps_its_place() -> None:
    first, second, third = (live(i) for i in range(3))
    waiting = Waiting()
    for item in (first, second, third):
        waiting.push(item)
    waiting.remove(first)
    waiting.remove(second)
    waiting.push(second)
    assert drain(waiting) == [second, third]


def test_huge_priorities_do_not_overflow() -> None:
    low, high = live(0, 2**80), live(1, -(2**80))
    batch = live(2, -(2**80), ServiceClass.BATCH)
    waiting = Waiting()
    for item in (low, batch, high):
        waiting.push(item)
    assert drain(waiting) == [high, low, batch]
    assert batch.seniority < 2**63
