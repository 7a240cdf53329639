"""The measured cost: directions, outliers, gaps, what lies beyond, held-out cells."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muxcluster.placement.cost import (
    Cell,
    MixedCell,
    Profile,
    ProfiledModel,
    Roofline,
    Tuning,
    Turn,
    read_muxserve,
)
from muxcluster.placement.cost.calibrate import calibrated
from muxcluster.placement.cost.measured import MeasuredCost
from muxcluster.placement.cost.mixed import MixedFactors
from muxcluster.placement.hardware import GPUS, cpu
from muxcluster.placement.shapes.known import SHAPES

A100 = GPUS["A100-80GB"]
SHAPE = SHAPES["llama-7b"]
TRUTH = Roofline(
    replace(A100, bandwidth_knee=0.55),
    2,
    Tuning(compute=0.5, bandwidth=0.7, kernels_s=2e-4, decode_layer_s=1.5e-4),
)
GRID = tuple(product((0.3, 0.5, 0.8, 1.0), (1, 4, 16, 64), (32, 128, 512)))


def predict(cost, cell, shape=SHAPE) -> float:
    ask = cost.prefill_s if cell.phase == "prefill" else cost.decode_s
    return ask(shape, cell.tp, cell.share, cell.batch, cell.tokens)


def cells_of(truth=TRUTH, noise=0.0, tps=(1,), seed=0) -> list[Cell]:
    draw = np.random.default_rng(seed)
    found = []
    for phase, tp, (share, batch, tokens) in product(("prefill", "decode"), tps, GRID):
        cell = Cell(phase=phase, tp=tp, share=share, batch=batch, tokens=tokens, seconds=(1.0,))
        seconds = predict(truth, cell) * float(np.exp(draw.normal(scale=noise)))
        found.append(replace(cell, seconds=(seconds,)))
    return found


def measured(cells, gpu=A100) -> MeasuredCost:
    return MeasuredCost(gpu, 2, [ProfiledModel(name="m", shape=SHAPE, cells=tuple(cells))])


def errors(cost, cells) -> np.ndarray:
    return np.array([abs(predict(cost, cell) / np.median(cell.seconds) - 1) for cell in cells])


def assert_directions(cost, tp, share, batch, tokens, more) -> None:
    for ask in (cost.prefill_s, cost.decode_s):
        seconds = ask(SHAPE, tp, share, batch, tokens)
        assert 0 < seconds < np.inf
        assert ask(SHAPE, tp, share, batch * more, tokens) >= seconds * (1 - 1e-9)
        assert ask(SHAPE, tp, share, batch, tokens * more) >= seconds * (1 - 1e-9)
        assert ask(SHAPE, tp, min(1.0, share * more), batch, tokens) <= seconds * (1 + 1e-9)
    for draw in (cost.prefill_draw, cost.decode_draw):
        assert 0 < draw(SHAPE, tp, share, batch, tokens) <= 1


jobs = st.fixed_dictionaries(
    {
        "tp": st.sampled_from([1, 2]),
        "share": st.floats(0.02, 1.0),
        "batch": st.floats(1, 20_000),
        "tokens": st.floats(1, 300_000),
        "more": st.floats(1, 8),
    }
)


@settings(max_examples=25)
@given(st.data())
def test_directions_hold_for_any_profile(data) -> None:
    """Random seconds at random cells: holes, outliers and contradictions included."""
    seed = data.draw(st.integers(0, 2**32 - 1))
    draw = np.random.default_rng(seed)
    cells = [cell for cell in cells_of(noise=0.05, seed=seed) if draw.random() < draw.random()]
    spoilt = [
        replace(cell, seconds=tuple(cell.seconds[0] * np.exp(draw.normal(size=2))))
        if draw.random() < 0.2
        else cell
        for cell in cells or cells_of()[:1]
    ]
    cost = measured(spoilt)
    for _ in range(8):
        assert_directions(cost, **data.draw(jobs))


CLEAN = measured(cells_of())


@given(jobs)
def test_directions(job) -> None:
    assert_directions(CLEAN, **job)


def test_cells_are_reproduced() -> None:
    assert errors(CLEAN, cells_of()).max() < 0.03
    noisy = cells_of(noise=0.02)
    assert np.median(errors(measured(noisy), noisy)) < 0.02
    assert errors(measured(noisy), noisy).max() < 0.1


@pytest.mark.parametrize("factor", [3.0, 1 / 3])
@pytest.mark.parametrize("index", [0, 29, 50, 71, 95])
def test_one_outlier_does_not_count(factor, index) -> None:
    cells = cells_of(noise=0.01)
    spoilt = list(cells)
    spoilt[index] = replace(spoilt[index], seconds=(cells[index].seconds[0] * factor,))
    clean, robust = measured(cells), measured(spoilt)
    change = [abs(predict(robust, cell) / predict(clean, cell) - 1) for cell in cells]
    assert change[index] < 0.1
    assert np.delete(change, index).max() < 0.04


def test_holes_are_filled() -> None:
    cells = cells_of(noise=0.01)
    present = [cell for cell in cells if not (cell.batch == 16 and cell.tokens == 512)]
    present = [cell for cell in present if cell.share != 0.8]
    assert errors(measured(present), cells).max() < 0.1


def test_beyond_the_measured_range_the_truth_is_followed() -> None:
    for phase, share, batch, tokens in (
        ("prefill", 1.0, 1, 8192),
        ("decode", 1.0, 64, 8192),
        ("decode", 1.0, 256, 512),
        ("prefill", 0.1, 4, 512),
        ("decode", 0.2, 4, 128),
    ):
        cell = Cell(phase=phase, tp=1, share=share, batch=batch, tokens=tokens, seconds=(1.0,))
        assert predict(CLEAN, cell) == pytest.approx(predict(TRUTH, cell), rel=0.15)


def test_unknown_shapes_and_tp_are_predicted_by_a_roofline_fitted_to_the_profile() -> None:
    other = SHAPES["llama-13b"]
    cell = Cell(phase="decode", tp=1, share=0.4, batch=16, tokens=256, seconds=(1.0,))
    assert predict(CLEAN, cell, other) == predict(CLEAN.roofline, cell, other)
    assert predict(CLEAN, cell, other) == pytest.approx(predict(TRUTH, cell, other), rel=0.1)
    two = replace(cell, tp=2)
    assert predict(CLEAN, two) == predict(CLEAN.roofline, two)


def test_constants_that_no_cell_depends_on_stay() -> None:
    models = [ProfiledModel(name="m", shape=SHAPE, cells=tuple(cells_of()))]
    tuning, usual = calibrated(A100, 2, models).tuning, Tuning()
    assert (tuning.link, tuning.all_reduce_s) == pytest.approx((usual.link, usual.all_reduce_s))
    assert tuning.compute == pytest.approx(0.5, rel=0.1)
    assert tuning.bandwidth == pytest.approx(0.7, rel=0.15)


def test_no_efficiency_above_one_but_on_a_cpu() -> None:
    fast = [replace(cell, seconds=(cell.seconds[0] / 50,)) for cell in cells_of()]
    models = [ProfiledModel(name="m", shape=SHAPE, cells=tuple(fast))]
    assert calibrated(A100, 2, models).tuning.compute <= 1
    slow = replace(A100, is_cpu=True, flops=cpu(2, 2**34).flops)
    cells = tuple(cells_of(Roofline(replace(slow, flops=1.4 * slow.flops), 2, Tuning(compute=0.9))))
    assert (
        calibrated(slow, 2, [ProfiledModel(name="m", shape=SHAPE, cells=cells)]).tuning.compute > 1
    )


@pytest.fixture(scope="module")
def published(data_dir) -> Profile:
    return read_muxserve(data_dir / "muxserve" / "llama_a100_profile.json")


def test_held_out_cells_of_the_published_profile(published) -> None:
    draw = np.random.default_rng(5)
    off = {"prefill": [], "decode": []}
    kept, held = [], []
    for model in published.models:
        is_held = draw.random(len(model.cells)) < 0.2
        cells = np.array(model.cells, dtype=object)
        held += [(model.shape, cell) for cell in cells[is_held]]
        kept.append(replace(model, cells=tuple(cells[~is_held])))
    cost = MeasuredCost(A100, 2, kept)
    for shape, cell in held:
        off[cell.phase].append(abs(predict(cost, cell, shape) / cell.seconds[0] - 1))
    assert np.median(off["prefill"]) < 0.03
    assert np.median(off["decode"]) < 0.04
    assert np.percentile(off["prefill"] + off["decode"], 90) < 0.1


def test_the_published_profile_is_monotone_once_smoothed(published) -> None:
    cost = MeasuredCost(A100, 2, [model for model in published.models if model.shape == SHAPE])
    draw = np.random.default_rng(0)
    for _ in range(300):
        batch, tokens = np.exp(draw.uniform(0, np.log((9000, 200_000))))
        share, more = draw.uniform(0.05, 1), draw.uniform(1, 3)
        assert_directions(cost, int(draw.choice([1, 2])), share, batch, tokens, more)


MIX = MixedFactors(shared=0.2, large=1.05, rest=0.9)


def with_mixed() -> MeasuredCost:
    """Mixed jobs as `MIX` has them of the parts that the cost model without them predicts."""
    plain, found = measured(cells_of()), []
    fixed_s = plain.decode_s(SHAPE, 1, 1.0, 1, 1)
    for rows, prompts, tokens in product((1, 16, 64), (1, 4), (32, 512)):
        parts_s = (
            plain.prefill_s(SHAPE, 1, 1.0, prompts, tokens),
            plain.decode_s(SHAPE, 1, 1.0, rows, 128),
        )
        seconds = (MIX.seconds(*parts_s, fixed_s),)
        found.append(MixedCell(1, 1.0, rows, 128, prompts, tokens, seconds))
    turns = tuple(
        Turn(rows, new, (0.001 + 2e-5 * rows + 4e-5 * new,) * 3)
        for rows in (1, 8, 32)
        for new in (0, rows)
    )
    return MeasuredCost(
        A100, 2, [ProfiledModel("m", SHAPE, tuple(cells_of()), tuple(found), turns)]
    )


def test_mixed_jobs_are_fitted_to_mixed_cells() -> None:
    cost = with_mixed()
    fixed_s = cost.decode_s(SHAPE, 1, 1.0, 1, 1)
    for prefill_s, decode_s in product((0.5 * fixed_s, 0.05, 0.4), (1.2 * fixed_s, 0.06)):
        expected = MIX.seconds(prefill_s, decode_s, fixed_s)
        assert cost.mixed_s(SHAPE, 1, 1.0, prefill_s, decode_s) == pytest.approx(expected, rel=0.02)
    other = SHAPES["llama-13b"]
    assert cost.mixed_s(other, 1, 1.0, 0.05, 0.02) == pytest.approx(0.06)


def test_without_mixed_cells_half_of_the_smaller_part_is_paid() -> None:
    for cost in (measured(cells_of()), Roofline(A100)):
        assert cost.mixed_s(SHAPE, 1, 1.0, 0.05, 0.02) == 0.05 + 0.02 / 2
        assert cost.mixed_s(SHAPE, 1, 1.0, 0.02, 0.05) == 0.05 + 0.02 / 2
        assert cost.turn_s(64, 8) == 0.0


@given(
    st.tuples(*[st.floats(0, 2)] * 3), st.floats(1e-4, 1), st.floats(1e-4, 1), st.floats(1e-4, 1)
)
def test_a_mixed_job_never_falls_when_a_part_grows(factors, prefill_s, decode_s, fixed_s) -> None:
    mix = MixedFactors(*factors)
    whole_s = mix.seconds(prefill_s, decode_s, fixed_s)
    assert whole_s >= max(prefill_s, decode_s)
    for more in (1.001, 1.5, 10.0):
        assert mix.seconds(more * prefill_s, decode_s, fixed_s) >= whole_s * (1 - 1e-9)
        assert mix.seconds(prefill_s, more * decode_s, fixed_s) >= whole_s * (1 - 1e-9)


def test_turns_are_a_line_in_rows_and_new_rows() -> None:
    cost = with_mixed()
    for rows, new in ((1, 0), (1, 1), (20, 3), (100, 50)):
        assert cost.turn_s(rows, new) == pytest.approx(0.001 + 2e-5 * rows + 4e-5 * new)


def test_turns_of_steps_and_of_prompts_are_lines_of_their_own() -> None:
    steps = tuple(Turn(rows, 0, (0.002 + 1e-5 * rows,) * 3) for rows in (1, 4, 16))
    prompts = tuple(Turn(rows, rows, (0.001 + 4e-5 * rows,) * 3) for rows in (1, 4, 16))
    models = [ProfiledModel("m", SHAPE, tuple(cells_of()), (), steps + prompts)]
    cost = MeasuredCost(A100, 2, models)
    assert cost.turn_s(64, 0) == pytest.approx(0.00264)
    assert cost.turn_s(64, 4) == pytest.approx(0.00116 + 60e-5)
    half = (cost.turn_s(64, 0) + 0.001 + 63.5e-5) / 2 + 2e-5
    assert cost.turn_s(64, 0.5) == pytest.approx(half)
