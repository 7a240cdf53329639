"""The unit's loop over a fake executor: every request ends once, whatever breaks."""

import math
import random
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import pytest

from muxcluster.core.errors import InvalidValue, LoadError, NotReady
from muxcluster.core.events import FinishReason, TokenDelta
from muxcluster.core.served import UnitState
from muxcluster.core.unitspec import UnitSpec
from muxcluster.engine.executor import Outcome, StillRunning
from muxcluster.engine.unit.unit import Unit
from tests.engine.fakes import FakeExecutor, Sink, expected, fake_spec, request

PROMPTS = {f"r{i}": list(range(i + 1, 3 * i + 5)) for i in range(6)}


@contextmanager
def running(executor: FakeExecutor, sink: Sink, spec: UnitSpec | None = None) -> Iterator[Unit]:
    unit = Unit(spec or fake_spec(), sink, executor=executor)
    unit.start()
    try:
        yield unit
    finally:
        unit.close()
        assert executor.is_closed


def submit_all(unit: Unit, num_tokens: int = 9) -> None:
    for i, (request_id, prompt) in enumerate(PROMPTS.items()):
        unit.submit(request(request_id, ("wide", "narrow")[i % 2], prompt, num_tokens))


def check_tokens(sink: Sink, num_tokens: int = 9) -> None:
    for request_id, prompt in PROMPTS.items():
        assert sink.tokens[request_id] == expected(prompt, num_tokens)
        assert sink.reason(request_id) is FinishReason.LENGTH


def check_nothing_leaks(unit: Unit) -> None:
    stats = unit.stats()
    assert stats.free_blocks + sum(m.cached_blocks for m in stats.models) == stats.num_blocks
    assert sum(m.used_blocks for m in stats.models) == 0


@pytest.mark.parametrize(
    "script",
    [
        [],
        ["failed"],
        ["done", "failed", "done", "failed"],
        ["done", "done", "owner lost"],
        ["owner lost", "done", "done", "owner lost", "failed"],
    ],
)
def test_tokens_are_right_whatever_breaks(script: list[str]) -> None:
    sink, executor = Sink(), FakeExecutor(script)
    with running(executor, sink) as unit:
        submit_all(unit)
        sink.wait_for_ends(len(PROMPTS))
        check_tokens(sink)
        check_nothing_leaks(unit)
        assert unit.num_open == 0
        assert unit.last_step_age_s() == 0.0
        assert executor.num_restarts == script.count("owner lost")
    assert sink.threads == {"unit unit-0"}


def test_a_pool_too_small_for_all_preempts_and_still_answers() -> None:
    sink = Sink()
    with running(FakeExecutor(), sink, fake_spec(num_columns=7)) as unit:
        submit_all(unit, num_tokens=40)
        sink.wait_for_ends(len(PROMPTS))
        check_tokens(sink, num_tokens=40)
        check_nothing_leaks(unit)


def test_abort_ends_a_request_once_and_frees_its_blocks() -> None:
    sink = Sink()
    with running(FakeExecutor(), sink) as unit:
        unit.submit(request("long", "wide", [1, 2, 3], 500))
        sink.wait_for_tokens("long", 3)
        unit.abort("long")
        unit.abort("long")
        unit.abort("never seen")
        sink.wait_for_ends(1)
        assert sink.reason("long") is FinishReason.ABORT
        unit.submit(request("long", "wide", [1, 2, 3], 2))  # the id is free again
        del sink.ends["long"]
        sink.wait_for_ends(1)
        check_nothing_leaks(unit)


def test_a_request_that_can_never_run_is_rejected() -> None:
    sink = Sink()
    with running(FakeExecutor(), sink) as unit:
        unit.submit(request("r", "no such model", [1], 1))
        sink.wait_for_ends(1)
        assert sink.ends["r"].rejected is not None
        assert unit.num_open == 0


def test_an_open_id_is_refused() -> None:
    sink, executor = Sink(), FakeExecutor(["hold"])
    with running(executor, sink) as unit:
        unit.submit(request("r", "wide", [1], 1))
        with pytest.raises(InvalidValue):
            unit.submit(request("r", "wide", [2], 1))
        executor.release()
        sink.wait_for_ends(1)
        assert sink.tokens["r"] == expected([1], 1)


def test_close_aborts_what_is_open() -> None:
    sink = Sink()
    with running(FakeExecutor(["hold"]), sink) as unit:
        submit_all(unit)
    assert {sink.reason(request_id) for request_id in PROMPTS} == {FinishReason.ABORT}
    with pytest.raises(NotReady, match="closed"):
        unit.submit(request("late", "wide", [1], 1))
    unit.close()


def test_close_kills_workers_that_do_not_let_go() -> None:
    class Stuck(FakeExecutor):
        killed = threading.Event()

        def wait(self, timeout_s: float | None) -> Sequence[Outcome]:
            self.killed.wait()
            return []

        def kill(self) -> None:
            self.killed.set()

    sink, executor = Sink(), Stuck()
    unit = Unit(fake_spec(), sink, executor=executor)
    unit.start()
    unit.submit(request("r", "wide", [1], 1))
    unit.close(timeout_s=0.2)
    assert sink.reason("r") is FinishReason.ABORT
    assert executor.is_closed


def test_a_broken_loop_ends_every_request_with_error() -> None:
    sink = Sink()
    with running(FakeExecutor(["done", "raise"]), sink) as unit:
        submit_all(unit)
        sink.wait_for_ends(len(PROMPTS))
        assert {sink.reason(request_id) for request_id in PROMPTS} == {FinishReason.ERROR}
        assert unit.last_step_age_s() == math.inf
        with pytest.raises(NotReady) as caught:
            unit.submit(request("late", "wide", [1], 1))
        assert caught.value.code == "replica_lost"


def test_a_sink_that_raises_fails_the_unit_without_a_hang() -> None:
    def broken(deltas: Mapping[str, TokenDelta]) -> None:
        raise RuntimeError("nobody listens")

    executor = FakeExecutor()
    unit = Unit(fake_spec(), broken, executor=executor)
    unit.start()
    unit.submit(request("r", "wide", [1], 5))
    unit.close()
    assert executor.is_closed
    assert unit.num_open == 0


def test_a_failed_start_closes_the_executor() -> None:
    class Corrupt(FakeExecutor):
        def start(self) -> None:
            raise LoadError("model.safetensors", "truncated")

    executor = Corrupt()
    unit = Unit(fake_spec(), Sink(), executor=executor)
    with pytest.raises(LoadError, match="truncated"):
        unit.start()
    assert executor.is_closed
    with pytest.raises(NotReady):
        unit.submit(request("r", "wide", [1], 1))
    unit.close()


def test_the_next_job_is_launched_before_outputs_are_delivered() -> None:
    executor = FakeExecutor()
    launched: list[int] = []
    sink = Sink()

    def spy(deltas: Mapping[str, TokenDelta]) -> None:
        launched.append(len(executor.launched))
        sink(deltas)

    unit = Unit(fake_spec(), spy, executor=executor)
    unit.start()
    unit.submit(request("r", "wide", [1, 2], 4))
    sink.wait_for_ends(1)
    unit.close()
    assert launched == [2, 3, 4, 4]


def test_stats_hand_out_each_job_once() -> None:
    sink = Sink()
    with running(FakeExecutor(), sink) as unit:
        submit_all(unit)
        sink.wait_for_ends(len(PROMPTS))
        jobs = unit.stats().jobs
        assert {job.phase for job in jobs} >= {"prefill", "decode"}
        assert all(job.start_s <= job.end_s and job.num_rows > 0 for job in jobs)
        prefilled = sum(job.num_tokens for job in jobs if job.phase == "prefill")
        assert prefilled == sum(len(prompt) for prompt in PROMPTS.values())
        assert unit.stats().jobs == ()


def test_health_age_grows_while_a_job_hangs() -> None:
    sink, executor = Sink(), FakeExecutor(["hold"])
    with running(executor, sink) as unit:
        unit.submit(request("r", "wide", [1], 1))
        first = unit.last_step_age_s()
        threading.Event().wait(0.01)
        assert unit.last_step_age_s() > first
        executor.release()
        sink.wait_for_ends(1)


def test_many_threads_submit_and_abort_and_every_request_ends_once() -> None:
    sink, executor = Sink(), FakeExecutor(["done"] * 20 + ["failed"] + ["done"] * 20)
    num_threads, num_each = 4, 25

    def client(number: int) -> None:
        rng = random.Random(number)
        for i in range(num_each):
            request_id = f"{number}-{i}"
            prompt = [rng.randrange(900) for _ in range(rng.randrange(1, 40))]
            unit.submit(request(request_id, rng.choice(["wide", "narrow"]), prompt, 5))
            if rng.random() < 0.3:
                unit.abort(request_id)

    with running(executor, sink, fake_spec(num_columns=16)) as unit:
        threads = [threading.Thread(target=client, args=(n,)) for n in range(num_threads)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        sink.wait_for_ends(num_threads * num_each)
        check_nothing_leaks(unit)
        assert unit.num_open == 0


class Ticks:
    """A clock that the test sets."""

    now_s = 0.0

    def now(self) -> float:
        return self.now_s


def test_signs_of_life_are_progress_and_silence_is_not() -> None:
    class Slow(FakeExecutor):
        lives = True

        def wait(self, timeout_s: float | None) -> Sequence[Outcome]:
            outcomes = super().wait(0.01)
            return outcomes or ([StillRunning()] if self.lives else [])

    sink, executor, clock = Sink(), Slow(["hold"]), Ticks()
    unit = Unit(fake_spec(), sink, clock, executor=executor)
    unit.start()
    unit.submit(request("r", "wide", [1], 1))
    for _ in range(3):
        clock.now_s += 100.0
        while unit.last_step_age_s() > 0.0:
            threading.Event().wait(0.01)
    executor.lives = False
    threading.Event().wait(0.1)
    clock.now_s += 100.0
    threading.Event().wait(0.1)
    assert unit.last_step_age_s() == 100.0
    unit.close()


def test_the_state_is_told() -> None:
    class Restarting(FakeExecutor):
        def restart(self) -> None:
            states.append(unit.stats().state)
            ages.append(unit.last_step_age_s())
            super().restart()

    states: list[UnitState] = []
    ages: list[float] = []
    sink = Sink()
    with running(Restarting(["done", "owner lost"]), sink) as unit:
        assert unit.stats().state is UnitState.READY
        submit_all(unit)
        sink.wait_for_ends(len(PROMPTS))
        assert unit.stats().state is UnitState.READY
    assert (states, ages) == ([UnitState.RECOVERING], [0.0])


def test_time_of_loading_again_counts_as_waiting() -> None:
    class SlowToLoad(FakeExecutor):
        def restart(self) -> None:
            threading.Event().wait(0.2)
            super().restart()

    sink = Sink()
    with running(SlowToLoad(["done", "done", "owner lost"]), sink) as unit:
        unit.submit(request("r", "wide", [1, 2, 3], 9))
        sink.wait_for_ends(1)
    end = sink.ends["r"].finished
    assert end is not None
    assert end.preempted_s >= 0.2
    assert end.restore_s > 0.0


def test_a_request_whose_lone_jobs_fail_is_refused_with_the_cause() -> None:
    sink = Sink()
    with running(FakeExecutor(["done", "failed", "failed"]), sink) as unit:
        unit.submit(request("r", "wide", [1, 2, 3], 9))
        sink.wait_for_ends(1)
    end = sink.ends["r"].finished
    assert end is not None
    assert (end.reason, end.code) == (FinishReason.ERROR, "poison_request")
    assert "killed by the test" in end.message
