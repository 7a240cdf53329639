"""Waiting requests come out by class, priority and arrival."""

import random

from muxcluster.core.request import ServiceClass
from muxcluster.scheduling.live import LiveRequest
from muxcluster.scheduling.queues import Waiting
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
