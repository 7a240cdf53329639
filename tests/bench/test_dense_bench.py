"""The bench of dense re-batching: its methods agree, what it counts, its claims and picture."""

from pathlib import Path
from xml.sax.saxutils import escape

import pytest
import torch
from transformers import AutoModelForCausalLM

from bench.rebatching.methods import Baton, decoupled, static
from bench.rebatching.picture import draw
from bench.rebatching.queries import LONG, SHORT, Query, fewest_steps, mixed, quantiles
from bench.rebatching.record import BATON_PD, STATIC, Done, Measured, claims_of, curves_of, rows_of
from bench.rebatching.scaling import BatonScaling
from bench.rebatching.trace import Trace, Work, thinned, watched
from muxcluster.demo.models import build_model
from muxcluster.engine.dense.model import DenseModel

BATCH = 2
QUERIES = [Query([7, 8, 9], 6), Query([11] * 12, 1), Query([5, 6], 3), Query([3, 4, 5, 6], 4)]


@torch.inference_mode()
def test_all_methods_give_the_same_answers(tmp_path: Path) -> None:
    path = build_model(tmp_path / "model", "llama", num_hidden_layers=1, vocab_size=300)
    plain = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    model = DenseModel.of(plain)
    row_bytes = model.layout.row_bytes
    expected = Trace(len(QUERIES))
    with watched(plain) as work:
        static(plain, row_bytes, QUERIES, BATCH, expected)
    assert [len(each) for each in expected.tokens] == [6, 1, 3, 4]
    assert (work.forwards, work.computed_tokens) == (6 + 4, 2 * (12 + 5) + 2 * (4 + 3))
    assert work.read_slots == 2 * sum(range(12, 18)) + 2 * sum(range(4, 8))
    assert expected.peak_bytes == row_bytes.of(2, 12 + 5)

    same = Trace(2)
    with watched(plain) as work:
        static(plain, row_bytes, [Query([5, 6], 2), Query([7, 8], 2)], BATCH, same)
    assert work.read_slots == 2 * (2 + 3)

    free = BatonScaling(row_bytes, 1 << 40, BATCH)
    tight = BatonScaling(row_bytes, row_bytes.of(2, 7), BATCH, room=1.0)
    for scaling, ahead in ((free, None), (free, BATCH), (tight, BATCH), (tight, None)):
        trace = Trace(len(QUERIES))
        baton = Baton(model, scaling, ahead=ahead)
        baton.run(QUERIES, trace)
        assert trace.tokens == expected.tokens
        assert len(trace.ended_s) == len(QUERIES)
        assert trace.memory[-1][1] == 0
        if ahead is not None:
            assert trace.peak_bytes <= scaling.limit_bytes
            assert (baton.num_saved > 0) == (scaling is tight)

    trace = Trace(len(QUERIES))
    with watched(plain) as work:
        decoupled(model, QUERIES, BATCH, trace)
    assert trace.tokens == expected.tokens
    assert work.computed_tokens == (3 + 12) + 2 * 5 + (2 + 4) + 2 * 3


def test_mixed_queries_are_one_to_one_to_two() -> None:
    def is_long(length: int) -> bool:
        assert length in range(2 * SHORT[0], 2 * SHORT[1] + 1) or length >= 2 * LONG[0]
        return length >= 2 * LONG[0]

    asked = mixed(40, 2, 300, seed=1)
    kinds = [(is_long(len(query.prompt)), is_long(query.num_tokens)) for query in asked]
    assert [kinds.count(kind) for kind in ((True, False), (False, True), (False, False))] == [
        10,
        10,
        20,
    ]
    assert asked == mixed(40, 2, 300, seed=1)


def test_steps_and_quantiles_by_hand() -> None:
    assert fewest_steps(QUERIES, BATCH) == pytest.approx((6 + 4) / 7)
    assert fewest_steps(QUERIES, 4) == 1
    assert quantiles([30, 10, 20], [0.1, 0.99, 0.5]) == [10, 30, 20]


def test_thinning_keeps_peaks() -> None:
    assert thinned([(0.1, 1), (0.2, 9), (0.3, 2), (0.4, 3)], 2) == [(0.2, 9), (0.4, 3)]
    assert thinned([]) == []


def done(seconds: float) -> Done:
    trace = Trace(2)
    trace.tokens = [[1], [2]]
    trace.ended_s = [seconds / 2, seconds]
    trace.memory = [(0.0, 10), (seconds / 4, 30), (seconds, 0)]
    return Done(trace, seconds, Work(3, 4, 5))


def test_claims_are_of_the_median_run(tmp_path: Path) -> None:
    runs = {STATIC: [done(9.0), done(2.0), done(4.0)], BATON_PD: [done(1.0)] * 3}
    found = [Measured(8, True, runs), Measured(2, False, runs)]
    cut, speedup = claims_of(found)
    assert (cut.name, cut.value, cut.baseline) == ("time_cut_over_static_batch_8_long", 0.75, 0.599)
    assert (speedup.name, speedup.value) == ("speedup_over_static_batch_2", 4.0)
    row = list(rows_of(found[0]))[1]
    assert (row["speedup"], row["paper_speedup"], row["mean_kv_mb"]) == (4.0, 2.494, 0.0)
    assert done(4.0).trace.mean_bytes == pytest.approx(10 / 4 + 30 * 3 / 4)
    for file in (tmp_path / "one.svg", tmp_path / "two.svg"):
        draw({each.name: curves_of(each) for each in found}, file)
    text = (tmp_path / "one.svg").read_text(encoding="utf-8")
    assert escape(BATON_PD) in text
    assert text == (tmp_path / "two.svg").read_text(encoding="utf-8")
