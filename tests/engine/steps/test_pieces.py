"""Rows cut into pieces that run side by side: who is in which, and that nobody can tell."""

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from muxcluster.core.job import Rows, TokenLogprobs
from muxcluster.core.sampling import SamplingParams
from muxcluster.engine.sampling.results import RowsResult
from muxcluster.engine.steps.pieces import PieceThreads, cut
from tests.amounts import slow
from tests.engine.conftest import ModelBuilder
from tests.engine.driver import Driver, Running, drivers, ragged, unit_of

ASKING = SamplingParams(temperature=0.0, logprobs=2, prompt_logprobs=1)
Work = Callable[[Rows], RowsResult]


def rows_of(counts: list[int]) -> Rows:
    size = len(counts)
    return Rows(
        np.arange(size, dtype=np.int32),
        np.zeros(size, np.int32),
        np.array(counts, np.int32),
        np.ones(size, np.bool_),
    )


@pytest.mark.parametrize("num_threads", [2, 3, 8])
def test_pieces_hold_every_row_once_and_are_balanced(num_threads: int) -> None:
    rng = np.random.default_rng(num_threads)
    num_cut = 0
    for _ in range(500):
        counts = rng.integers(1, rng.choice([2, 20, 300]), rng.integers(1, 200)).tolist()
        pieces = cut(rows_of(counts), num_threads)
        assert [row for piece in pieces for row in range(len(counts))[piece]] == [
            *range(len(counts))
        ]
        sizes = [sum(counts[piece]) for piece in pieces]
        assert min(sizes) > 0
        if len(pieces) > 1:
            num_cut += 1
            assert len(pieces) >= num_threads
            assert max(sizes) * num_threads <= 1.3 * sum(counts)
    assert num_cut > 50


@pytest.mark.parametrize(
    ("counts", "num_threads", "why"),
    [
        ([1] * 640, 1, "one thread"),
        ([1] * 67, 2, "too few tokens"),
        ([1] * 30 + [500], 2, "one row has nearly all tokens"),
        ([2000], 2, "one row"),
    ],
)
def test_rows_stay_together(counts: list[int], num_threads: int, why: str) -> None:
    assert cut(rows_of(counts), num_threads) == [slice(0, len(counts))], why


def test_two_threads_halve_a_long_decode_step_and_share_a_long_prefill() -> None:
    assert cut(rows_of([1] * 32), 2) == [slice(0, 32)]
    assert cut(rows_of([1] * 80), 2) == [slice(0, 40), slice(40, 80)]
    assert len(cut(rows_of([100] * 20), 2)) == 8


@pytest.mark.parametrize("family", ["llama", *slow("qwen3", "opt")])
def test_two_threads_say_what_one_says(tiny: ModelBuilder, family: str) -> None:
    """OPT is not fused and never cut. Prompts differ in length, so jobs hold chunks and decodes."""
    directory = tiny(family)
    found: list[tuple[Driver, list[Running]]] = []
    for threads in (1, 2):
        unit = replace(unit_of(directory, max_seqs=24), num_threads=threads)
        (driver,) = drivers(unit)
        prompts = ragged(unit.models[0].vocab_size, 24, seed=3)
        found.append((driver, driver.run(prompts, 20, chunk=9, sampling=ASKING)))
    (_, alone), (driver, cut_up) = found
    for one, two in zip(alone, cut_up, strict=True):
        assert one.output == two.output
        for each, other in zip(_entries(one), _entries(two), strict=True):
            assert (each.token, each.top_tokens) == (other.token, other.top_tokens)
            assert each.logprob == pytest.approx(other.logprob, abs=1e-4)
    first = [len(s.output) for s in cut_up]
    driver.step(cut_up, chunk=1, max_steps=3)
    assert [len(s.output) for s in cut_up] == [3 + size for size in first]
    assert [len(s.logprobs) for s in cut_up] == [len(s.output) for s in cut_up]


def _entries(sequence: Running) -> list[TokenLogprobs]:
    return [*sequence.prompt_logprobs, *sequence.logprobs]


def test_a_fused_model_runs_in_pieces(tiny: ModelBuilder, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    inner = PieceThreads.run

    def run(self: PieceThreads, work: Work, rows: Rows, *rest: Any) -> RowsResult:
        seen.append(len(rows))
        return inner(self, work, rows, *rest)

    monkeypatch.setattr(PieceThreads, "run", run)
    for family, is_cut in (("llama", True), ("opt", False)):
        seen.clear()
        (driver,) = drivers(replace(unit_of(tiny(family), max_seqs=20), num_threads=2))
        driver.run([[3, 4] * 20] * 4, 3, chunk=40)
        assert bool(seen) == is_cut


def nothing(rows: Rows) -> RowsResult:
    return RowsResult(np.zeros((1, len(rows)), np.int32), {0: ()}, {}, np.arange(len(rows)) == 1)


def test_each_piece_has_a_thread_of_one_core_and_rows_keep_their_numbers() -> None:
    torch.set_num_threads(2)
    both = threading.Barrier(2, timeout=30)
    threads: list[tuple[str, int, bool]] = []

    def work(rows: Rows) -> RowsResult:
        both.wait()
        name = threading.current_thread().name
        threads.append((name, torch.get_num_threads(), torch.is_inference_mode_enabled()))
        return nothing(rows)

    pieces = [slice(0, 3), slice(3, 8)]
    result = PieceThreads().run(work, rows_of([1] * 8), pieces, 2)
    assert {(count, mode) for _, count, mode in threads} == {(1, True)}
    assert len({name for name, _, _ in threads}) == 2
    assert torch.get_num_threads() == 2
    assert result.tokens.shape == (1, 8)
    assert set(result.logprobs) == {0, 3}
    assert np.flatnonzero(result.is_broken).tolist() == [1, 4]


def test_an_error_comes_after_all_pieces_have_ended() -> None:
    """The job's worker goes on to another job, which no piece of this one may disturb."""
    may_end = threading.Event()
    ended: list[int] = []

    def work(rows: Rows) -> RowsResult:
        if rows.table_rows[0] == 0:
            threading.Timer(0.1, may_end.set).start()
            raise ValueError("broken")
        assert may_end.wait(30)
        ended.append(len(rows))
        return nothing(rows)

    with pytest.raises(ValueError, match="broken"):
        PieceThreads().run(work, rows_of([1] * 8), [slice(0, 3), slice(3, 8)], 2)
    assert ended == [5]
