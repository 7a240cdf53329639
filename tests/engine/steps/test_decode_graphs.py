"""Decode steps recorded once and replayed: the tokens of the plain path, and nothing else touched.

The tape stands for a CUDA graph: on a replay no Python of the step runs.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from muxcluster.core.job import Side
from muxcluster.core.sampling import SamplingParams
from muxcluster.engine.steps import runner
from muxcluster.engine.steps.device.captures import Step
from muxcluster.engine.steps.device.decode_graphs import MOST_FAILURES, batch_sizes, sizes_ahead
from tests.amounts import slow
from tests.engine.conftest import ModelBuilder
from tests.engine.driver import Driver, Running, drivers, ragged, unit_of
from tests.engine.latents import needs_latents
from tests.engine.tape import TapeCapture
from tests.oracles import GreedyOracle

pytestmark = pytest.mark.usefixtures("torch_only")

SIDES = (Side.LEFT, Side.RIGHT)
FAMILIES = ("llama", "qwen3", "opt", "mixtral", *slow("mistral", "qwen2", "gemma2", "gpt_oss"))


DRAWN = SamplingParams(temperature=1.3, top_k=40, top_p=0.95, min_p=0.01, seed=11)
EDITED = SamplingParams(
    temperature=0.8,
    seed=12,
    repetition_penalty=1.2,
    frequency_penalty=0.3,
    logit_bias=((5, 2.0),),
    min_tokens=3,
    logprobs=2,
    prompt_logprobs=1,
)


@pytest.fixture
def tape(monkeypatch: pytest.MonkeyPatch) -> TapeCapture:
    """Modules of transformers, as on a GPU."""
    monkeypatch.setattr(runner, "is_fusible", lambda model: False)
    return TapeCapture(monkeypatch)


def grow_and_shrink(driver: Driver, sampling: SamplingParams | None = None) -> list[Running]:
    """Ten sequences of both sides come one by one and go at different lengths."""
    options = (sampling,) if sampling else (SamplingParams(temperature=0.0),)
    prompts = ragged(driver.spec.vocab_size, 10, seed=4)
    everyone: list[Running] = []
    for number, prompt in enumerate(prompts):
        everyone.append(driver.admit(prompt, *options, side=SIDES[number % 2]))
        driver.step([everyone[-1]], chunk=1000)
        driver.step([s for s in everyone if len(s.output) < 5 + s.row], chunk=1)
    while running := [s for s in everyone if len(s.output) < 5 + s.row]:
        driver.step(running, chunk=1, max_steps=min(5 + s.row - len(s.output) for s in running))
    return everyone


def check(directory: Path, sequences: list[Running], kv_dtype: str = "auto") -> None:
    oracle = GreedyOracle(directory, kv_dtype)
    for s in sequences:
        oracle.check(s.tokens[: s.num_prompt], s.output)
    assert oracle.num_near_ties <= 1


@pytest.mark.parametrize("family", FAMILIES)
def test_batches_that_grow_and_shrink_yield_hugging_faces_tokens(
    tiny: ModelBuilder, family: str, tape: TapeCapture
) -> None:
    (driver,) = drivers(unit_of(tiny(family)), tape)
    sequences = grow_and_shrink(driver)
    assert len({tuple(s.output[:5]) for s in sequences}) == 10
    check(tiny(family), sequences)
    assert tape.captures == 4  # of 1, 2, 4 and 8 rows
    assert tape.replays > 12


@needs_latents
@pytest.mark.parametrize("family", ["deepseek_v2", "deepseek_v3"])
def test_latents_are_read_by_recorded_steps_too(
    tiny: ModelBuilder, family: str, tape: TapeCapture
) -> None:
    (driver,) = drivers(unit_of(tiny(family)), tape)
    check(tiny(family), grow_and_shrink(driver))
    assert tape.replays > 12
    assert tape.num_calls["latent_attention"] > 0


def test_our_own_decoder_is_recorded_as_well(
    tiny: ModelBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    (driver,) = drivers(unit_of(tiny("llama")), TapeCapture(monkeypatch))
    check(tiny("llama"), grow_and_shrink(driver))


@pytest.mark.parametrize("kv_dtype", ["int8", *slow("fp8_e4m3")])
def test_keys_and_values_in_8_bits_are_recorded_too(
    tiny: ModelBuilder, kv_dtype: str, tape: TapeCapture
) -> None:
    (driver,) = drivers(unit_of(tiny("llama"), kv_dtype=kv_dtype), tape)
    check(tiny("llama"), grow_and_shrink(driver), kv_dtype)
    assert tape.replays > 12


def test_mixed_jobs_and_several_steps_after_a_prompt(tiny: ModelBuilder, tape: TapeCapture) -> None:
    directory = tiny("qwen3")
    unit = unit_of(directory)
    (driver,) = drivers(unit, tape)
    check(directory, driver.run(ragged(unit.models[0].vocab_size), 12))
    late = [driver.admit([5, 6, 7]), driver.admit([8])]
    driver.step(late, chunk=10, max_steps=4)
    assert [len(s.output) for s in late] == [4, 4]
    check(directory, late)


def test_recording_and_rows_that_fill_up_touch_no_sequence(
    tiny: ModelBuilder, tape: TapeCapture
) -> None:
    (driver,) = drivers(unit_of(tiny("llama")), tape)
    sequences = [driver.admit(p, side=s) for p, s in zip(([1, 2, 3], [4]), SIDES, strict=True)]
    driver.step(sequences, chunk=10)
    arena, model = driver.runner.arena, driver.runner.arena.model(driver.spec.name)
    own = (arena.pool, model.tables, model.history[:-1], model.from_right)
    before = [tensor.clone() for tensor in own]
    driver.runner.record(0)
    assert tape.captures == 5  # of 1, 2, 4, 8 and 12 rows
    assert all(torch.equal(a, b) for a, b in zip(own, before, strict=True))
    driver.grow(sequences[0], 4)
    driver.step(sequences[:1], chunk=1)
    driver.step(sequences[:1], chunk=1)
    changed = (arena.pool != before[0]).any(1).sum()
    assert changed == driver.spec.shape.blocks_per_column  # those of the one column it has
    changed = model.history[:-1] != before[2]
    assert changed.nonzero().tolist() == [[0, 4], [0, 5]]


def test_recording_for_the_hosts_sampler_touches_no_sequence_either(
    tiny: ModelBuilder, tape: TapeCapture
) -> None:
    (driver,) = drivers(unit_of(tiny("llama")), tape)
    plain, edited = driver.admit([1, 2, 3]), driver.admit([4, 5], EDITED)
    driver.step([plain, edited], chunk=10)
    driver.step([plain], chunk=1)  # the buffers are now at its next place
    arena = driver.runner.arena
    blocks = arena.model(driver.spec.name).tables[plain.row, :, :, 0].flatten().long()
    before = arena.pool[blocks]
    driver.step([edited], chunk=1)
    assert torch.equal(arena.pool[blocks], before)


def test_a_step_is_recorded_once_a_size_and_place(tiny: ModelBuilder, tape: TapeCapture) -> None:
    (driver,) = drivers(unit_of(tiny("llama")), tape)
    rows = [driver.admit([number + 1]) for number in range(8)]
    for num_rows in (8, 5, 7, 6, 8):
        driver.step(rows[:num_rows], chunk=1)
    assert tape.captures == 1
    tape.place = 3
    driver.step(rows, chunk=1)
    assert tape.captures == 2
    check(tiny("llama"), rows)


class Refusing(TapeCapture):
    """Captures as a GPU does, and fails at some attempts, counted from 1."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, fails: Callable[[int], bool]) -> None:
        super().__init__(monkeypatch)
        self.attempts = 0
        self.fails = fails

    def capture(self, step: Step) -> Step:
        self.attempts += 1
        if self.fails(self.attempts):
            step()
            raise RuntimeError("operation not permitted when stream is capturing")
        return super().capture(step)


def test_steps_that_cannot_be_captured_run_as_they_are_and_after_three_no_more_are_tried(
    tiny: ModelBuilder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    capture = Refusing(monkeypatch, lambda attempt: True)
    (driver,) = drivers(unit_of(tiny("llama")), capture)
    sequences = grow_and_shrink(driver)
    assert [(each.levelname, each.message) for each in caplog.records] == [
        (
            "ERROR",
            f"llama decodes {size} rows without a CUDA graph: "
            "operation not permitted when stream is capturing",
        )
        for size in (1, 2, 4)
    ] + [("ERROR", "llama: no more CUDA graphs after 3 failures")]
    assert capture.attempts == MOST_FAILURES == 3
    check(tiny("llama"), sequences)


def test_one_failed_size_does_not_keep_others_from_being_recorded(
    tiny: ModelBuilder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    capture = Refusing(monkeypatch, lambda attempt: attempt in (1, 2))
    (driver,) = drivers(unit_of(tiny("llama")), capture)
    driver.runner.record(0)
    assert capture.attempts == 5  # of 12, 8, 4, 2 and 1 rows
    assert capture.captures == 3
    check(tiny("llama"), grow_and_shrink(driver))
    assert [each.message.partition(" rows")[0] for each in caplog.records] == [
        "llama decodes 12",
        "llama decodes 8",
    ]
    assert capture.attempts == 5  # what failed is not tried again
    assert capture.replays > 12


def test_a_size_that_is_not_recorded_runs_on_the_next_larger_one(
    tiny: ModelBuilder, tape: TapeCapture
) -> None:
    (driver,) = drivers(unit_of(tiny("llama")), tape)
    rows = [driver.admit([number + 1, 7]) for number in range(5)]
    driver.step(rows, chunk=2)
    driver.runner.record(0)
    tape.captures = tape.replays = 0
    monitored = driver.runner.record_next
    driver.runner.record_next = lambda: False  # the worker is never idle
    for num_rows in (5, 3, 1, 5):
        driver.step(rows[:num_rows], chunk=1, max_steps=2)
    assert (tape.captures, tape.replays) == (0, 8)
    assert not monitored()  # 8, 4 and 1 rows were recorded ahead
    check(tiny("llama"), rows)


def test_what_was_met_is_recorded_when_the_worker_is_idle_the_most_wanted_first(
    tiny: ModelBuilder, tape: TapeCapture
) -> None:
    (driver,) = drivers(unit_of(tiny("llama")), tape)
    rows = [driver.admit([number + 1, 7]) for number in range(3)]
    driver.step(rows, chunk=2)
    record_next = driver.runner.record_next
    driver.runner.record_next = lambda: False
    driver.step(rows[:1], chunk=1)
    driver.step(rows, chunk=1)
    driver.step(rows, chunk=1)
    assert (tape.captures, tape.replays) == (0, 0)
    assert record_next()
    driver.step(rows, chunk=1)
    assert (tape.captures, tape.replays) == (1, 1)  # of 4 rows
    driver.step(rows[:1], chunk=1)
    assert (tape.captures, tape.replays) == (1, 2)  # with three rows that fill up
    assert record_next()
    assert not record_next()
    driver.step(rows[:1], chunk=1)
    assert (tape.captures, tape.replays) == (2, 3)
    check(tiny("llama"), rows)


def test_a_worker_that_is_never_idle_records_what_it_met_often(
    tiny: ModelBuilder, tape: TapeCapture
) -> None:
    (driver,) = drivers(unit_of(tiny("llama")), tape)
    rows = [driver.admit([1, 2, 3])]
    driver.step(rows, chunk=3)
    driver.runner.record_next = lambda: False
    while not tape.captures:
        driver.step(rows, chunk=1)
        assert len(rows[0].output) <= 40
    assert len(rows[0].output) > 20
    driver.step(rows, chunk=1)
    assert (tape.captures, tape.replays) == (1, 2)
    check(tiny("llama"), rows)


def test_a_model_that_asks_the_device_is_not_recorded(
    tiny: ModelBuilder, tape: TapeCapture, caplog: pytest.LogCaptureFixture
) -> None:
    """This rotary embedding looks at the largest position."""
    rope = {"rope_type": "dynamic", "rope_theta": 5000.0, "factor": 2.0}
    directory = tiny("llama", rope_parameters=rope)
    (driver,) = drivers(unit_of(directory), tape)
    check(directory, driver.run(ragged(driver.spec.vocab_size, 3), 6))
    (warning,) = [each.message for each in caplog.records]
    assert warning.startswith("llama-rope")
    assert "decodes without CUDA graphs, which cannot capture aten" in warning
    assert "asks the device" in warning
    assert tape.captures == 0


def test_a_step_goes_on_from_one_whose_result_nobody_has_seen(
    tiny: ModelBuilder, tape: TapeCapture
) -> None:
    (driver,) = drivers(unit_of(tiny("llama")), tape)
    rows = [driver.admit([1, 2, 3]), driver.admit([4, 5], DRAWN)]
    driver.step(rows, chunk=10)
    for s in rows:
        driver.grow(s, len(s.tokens) + 8)
    jobs = [driver.decode_job(rows, ahead=0, max_steps=3), driver.decode_job(rows, 3, max_steps=2)]
    first, second = (driver.runner.launch(job) for job in jobs)
    later, earlier = second.result(), first.result()
    (plain,) = drivers(unit_of(tiny("llama")))
    same = [plain.admit([1, 2, 3]), plain.admit([4, 5], DRAWN)]
    plain.step(same, chunk=10)
    plain.step(same, chunk=1, max_steps=5)
    for row, s in enumerate(same):
        got = [*earlier.tokens[3 * row : 3 * row + 3], *later.tokens[2 * row : 2 * row + 2]]
        assert got == s.output[1:]


@pytest.mark.parametrize("sampling", [DRAWN, EDITED])
def test_the_seed_decides_as_it_does_on_the_cpu(
    tiny: ModelBuilder, tape: TapeCapture, sampling: SamplingParams
) -> None:
    unit = unit_of(tiny("llama"))
    (plain,), (replayed,) = drivers(unit), drivers(unit, tape)
    for expected, got in zip(
        grow_and_shrink(plain, sampling), grow_and_shrink(replayed, sampling), strict=True
    ):
        assert got.output == expected.output
        for entries, others in (
            (got.logprobs, expected.logprobs),
            (got.prompt_logprobs, expected.prompt_logprobs),
        ):
            assert [e.token for e in entries] == [e.token for e in others]
            for entry, other in zip(entries, others, strict=True):
                assert entry.logprob == pytest.approx(other.logprob, abs=2e-4)
    assert tape.replays > 12


def test_a_batch_with_one_row_that_needs_the_host(tiny: ModelBuilder, tape: TapeCapture) -> None:
    unit = unit_of(tiny("llama"))
    (plain,), (replayed,) = drivers(unit), drivers(unit, tape)
    outputs = []
    for driver in (plain, replayed):
        rows = [driver.admit([3, 4]), driver.admit([5, 6], EDITED), driver.admit([7, 8], DRAWN)]
        driver.step(rows, chunk=10)
        for _ in range(2):  # as it is, then recorded
            driver.step(rows, chunk=1, max_steps=3)
            driver.step(rows[::2], chunk=1, max_steps=3)
        outputs.append([s.output for s in rows])
        assert len(rows[1].logprobs) == len(rows[1].output) == 7
    assert outputs[0] == outputs[1]
    assert tape.replays == 6


@pytest.mark.parametrize(
    "ask",
    [
        lambda x: bool(x.max() > 2),
        lambda x: x.max().item(),
        lambda x: x.tolist(),
        lambda x: x.numpy(),
        lambda x: x[x > 1],
        lambda x: x.nonzero(),
        lambda x: torch.equal(x, x),
    ],
)
def test_the_tape_notices_a_question(tape: TapeCapture, ask: Callable[[torch.Tensor], Any]) -> None:
    numbers = torch.arange(4)
    with torch.inference_mode(), pytest.raises(RuntimeError, match="asks the device"):
        tape.capture(lambda: ask(numbers))


@pytest.mark.parametrize(
    ("most", "share", "sizes"),
    [
        (96, 1.0, [1, 2, 4, 8, 16, 32, 64, 96]),
        (96, 0.7, [1, 4, 16, 64]),
        (96, 0.5, [1, 4, 16]),
        (96, 0.3, [1, 4, 16]),
        (256, 1.0, [1, 2, 4, 8, 16, 32, 64, 128, 256]),
        (256, 0.3, [1, 4, 16, 64]),
        (8, 0.1, [1]),
        (1, 1.0, [1]),
        (3, 1.0, [1, 2, 3]),
    ],
)
def test_few_sizes_are_recorded_ahead_and_fewer_on_small_shares(
    most: int, share: float, sizes: list[int]
) -> None:
    assert sizes_ahead(most, share) == sizes
    assert set(sizes) <= set(batch_sizes(most))


@pytest.mark.parametrize("most", [1, 3, 8, 64, 100, 256, 700])
def test_sizes_serve_every_batch_and_few_rows_fill_up(most: int) -> None:
    sizes = batch_sizes(most)
    assert sizes == sorted(set(sizes))
    assert sizes[-1] == most
    for num_rows in range(1, most + 1):
        size = next(size for size in sizes if size >= num_rows)
        assert size <= max(num_rows + 3, 8 * -(-num_rows // 8), int(1.25 * num_rows))
