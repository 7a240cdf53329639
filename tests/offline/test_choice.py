"""Choosing an order: samples are like the job, and the fastest by its own predictions is taken."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from bench.traces.batchmix import Kind, mixed_job
from muxcluster.offline.choice import (
    Choice,
    Unplanned,
    compare_orders,
    sample_job,
    summary_of,
)
from muxcluster.offline.feed.feeder import BatchFeeder, Room
from muxcluster.offline.order.orders import ORDERS
from muxcluster.offline.predictor import Prediction, UseOverTime
from muxcluster.offline.prefix.prompts import Prompts, flat_prompts, take_prompts
from tests.offline.blend_cases import MODEL
from tests.offline.naive import few_prompts, prompts_of

KINDS = [Kind(0.4, 7, 300, 100, 20), Kind(0.3, 1000, 200, 60, 3), Kind(0.3, 1, 0, 80, 150)]
NO_USE = UseOverTime(1.0, np.zeros(1), np.zeros(1), np.zeros(1))


def _job(count: int, seed: int = 0) -> Unplanned:
    job = mixed_job(KINDS, count, np.random.default_rng(seed))
    prompts = flat_prompts(job.ids, job.offsets)
    return Unplanned(prompts, job.output_tokens, MODEL, 1e9, 16, seed)


def _told(seconds: float) -> Prediction:
    return Prediction(seconds, 10, 10, 0, 0, 0, NO_USE)


class _Told:
    """Predicts what it was told, one after the other, and keeps what it was asked."""

    def __init__(self, seconds: list[float]) -> None:
        self._left = list(seconds)
        self.orders: list[list[int]] = []

    def predict(
        self, prompts: Prompts, output_tokens: NDArray[np.int64], feeder: BatchFeeder
    ) -> Prediction:
        self.orders.append([fed.number for fed in feeder.take(Room(0.0, 1e15, 0.0, 1 << 40))])
        return _told(self._left.pop(0))


@pytest.mark.parametrize("seed", range(4))
def test_a_sample_shares_as_the_job_does_and_has_its_density(seed: int) -> None:
    job = _job(6000, seed)
    whole = job.with_tree()
    sample = summary_of(sample_job(job, whole, 1000).with_tree())
    wanted = summary_of(whole)
    assert 800 <= sample.num_requests <= 1200
    assert abs(sample.sharing - wanted.sharing) < 0.03
    assert abs(sample.density / wanted.density - 1) < 0.1


def test_a_sample_keeps_requests_whole_and_in_order_of_arrival() -> None:
    job = _job(500)
    sample = sample_job(job, job.with_tree(), 100)
    ends = zip(job.prompts.offsets[:-1], job.prompts.offsets[1:], job.output_tokens, strict=True)
    asked = [(job.prompts.ids[a:b].tobytes(), int(output)) for a, b, output in ends]
    number = -1
    for i, output in enumerate(sample.output_tokens.tolist()):
        a, b = sample.prompts.offsets[i : i + 2]
        number = asked.index((sample.prompts.ids[a:b].tobytes(), output), number + 1)


def test_a_small_job_is_its_own_sample() -> None:
    job = _job(50)
    assert sample_job(job, job.with_tree(), 50) is job


@given(few_prompts, st.data())
def test_taken_prompts_are_those_asked_for(sequences, data) -> None:
    numbers = data.draw(st.lists(st.integers(0, len(sequences) - 1), min_size=1, max_size=9))
    taken = take_prompts(prompts_of(sequences), np.array(numbers, dtype=np.int64))
    wanted = prompts_of([sequences[number] for number in numbers])
    assert np.array_equal(taken.ids, wanted.ids)
    assert np.array_equal(taken.offsets, wanted.offsets)
    assert np.array_equal(taken.lengths, wanted.lengths)


@given(st.permutations(range(len(ORDERS))))
def test_the_least_prediction_is_taken(ranks: list[int]) -> None:
    told = _Told([float(rank + 1) for rank in ranks])
    choice = compare_orders(_job(30), told, tuple(ORDERS))
    assert tuple(ORDERS)[ranks.index(0)] == choice.best
    assert all(sorted(order) == list(range(30)) for order in told.orders)


def test_plans_that_are_told_no_lengths_do_not_depend_on_them() -> None:
    job = _job(60)
    other = replace(job, output_tokens=job.output_tokens[::-1].copy())
    handed = {}
    for are_known in (True, False):
        told = [_Told([1.0]), _Told([1.0])]
        for predictor, each in zip(told, (job, other), strict=True):
            compare_orders(each, predictor, ("blend",), are_known=are_known)
        handed[are_known] = [predictor.orders for predictor in told]
    assert handed[True][0] != handed[True][1]
    assert handed[False][0] == handed[False][1]


def test_of_equal_predictions_the_first_is_taken() -> None:
    choice = Choice({"dfs": _told(2.0), "blend": _told(2.0)}, summary_of(_job(10).with_tree()))
    assert choice.best == "dfs"


def test_shares_of_nothing_are_nothing() -> None:
    nothing = Prediction(0.0, 0, 0, 0, 0, 3, NO_USE)
    assert (nothing.tokens_per_s, nothing.saving_ratio) == (0.0, 0.0)
