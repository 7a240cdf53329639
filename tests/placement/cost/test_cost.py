"""The roofline: hand-computed corners, and the directions in which time must move."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muxcluster.placement.cost import Roofline, Tuning, cost_for, read_muxserve, slowdown
from muxcluster.placement.cost.roofline import all_reduces_s, prefill_work, saturation
from muxcluster.placement.hardware import GPUS, cpu
from muxcluster.placement.shapes.known import SHAPES

A100 = GPUS["A100-80GB"]
LLAMA = SHAPES["llama-2-7b"]
COST = Roofline(A100)


def test_one_decode_reads_all_weights_once() -> None:
    read = (LLAMA.num_params - LLAMA.embedding_params) * 2
    floor = read / (A100.bandwidth * Tuning().bandwidth)
    seconds = COST.decode_s(LLAMA, 1, 1.0, 1, 1)
    assert floor < seconds < 1.6 * floor
    assert COST.decode_draw(LLAMA, 1, 1.0, 1, 1) == pytest.approx(floor / seconds, rel=0.01)


def test_a_long_prefill_is_bound_by_compute() -> None:
    flops = 2 * (LLAMA.num_params - 2 * LLAMA.embedding_params) * 2048
    floor = flops / (A100.flops * Tuning().compute)
    seconds = COST.prefill_s(LLAMA, 1, 1.0, 1, 2048)
    assert floor < seconds < 1.2 * floor
    assert COST.prefill_draw(LLAMA, 1, 1.0, 1, 2048) < 0.2


@given(
    tp=st.sampled_from([1, 2, 4, 8]),
    share=st.floats(0.1, 1.0),
    batch=st.integers(1, 512),
    tokens=st.integers(1, 4096),
    name=st.sampled_from(sorted(SHAPES)),
)
def test_directions(tp, share, batch, tokens, name) -> None:
    shape = SHAPES[name]
    for predict in (COST.prefill_s, COST.decode_s):
        seconds = predict(shape, tp, share, batch, tokens)
        assert seconds > 0
        assert predict(shape, tp, share, batch + 1, tokens) >= seconds
        assert predict(shape, tp, share, batch, tokens + 64) >= seconds
        assert predict(shape, tp, 1.0, batch, tokens) <= seconds
        assert predict(shape, tp, share, 2 * batch, tokens) < 2.001 * seconds
    assert COST.prefill_s(shape, tp, share, 1, 4096) > COST.decode_s(shape, tp, share, 1, 4096)
    for draw in (COST.prefill_draw, COST.decode_draw):
        assert 0 < draw(shape, tp, share, batch, tokens) <= 1


def test_half_of_the_sms_is_nearly_enough_for_decode_but_not_for_prefill() -> None:
    decode = [COST.decode_s(LLAMA, 1, share, 8, 500) for share in (0.5, 1.0)]
    prefill = [COST.prefill_s(LLAMA, 1, share, 1, 2048) for share in (0.5, 1.0)]
    assert 1.02 * decode[1] < decode[0] < 1.25 * decode[1]
    assert 1.5 * prefill[1] < prefill[0] < 2 * prefill[1]


def test_saturation_bends_at_the_knee_and_ends_at_one() -> None:
    assert saturation(1.0, 0.4) == 1.0
    assert saturation(0.2, 0.4) == pytest.approx(2 * saturation(0.1, 0.4), rel=0.05)
    assert saturation(0.8, 0.4) < 1.1 * saturation(0.6, 0.4)


def test_two_gpus_are_faster_but_not_twice() -> None:
    one, two = (COST.decode_s(SHAPES["llama-2-70b"], tp, 1.0, 32, 1000) for tp in (1, 2))
    assert one / 2 < two < one


def test_ranks_send_their_hidden_states_twice_a_layer_in_a_ring() -> None:
    """Each of n ranks sends 2 (n - 1) / n of the states in an all-reduce, and there are two."""
    prompt, hidden, itemsize = 1000, LLAMA.hidden_size, 2
    alike = Tuning(all_reduce_s=0.0)
    work = prefill_work(LLAMA, itemsize, 4, 1.0, 1, prompt)
    sent = 2 * 2 * 3 / 4 * prompt * hidden * itemsize
    expected = sent / (A100.link * alike.link)
    assert all_reduces_s(work, A100, itemsize, alike) == pytest.approx(expected)


def test_a_host_that_launches_slowly_sets_a_floor_that_no_gpu_goes_below() -> None:
    slow = Roofline(A100, tuning=Tuning(decode_layer_s=1e-3))
    for tp, share in ((1, 1.0), (8, 1.0), (8, 0.5)):
        seconds = slow.decode_s(LLAMA, tp, share, 1, 1)
        assert seconds == pytest.approx(LLAMA.num_layers * 1e-3, rel=0.02)


@pytest.mark.parametrize(("phase", "most"), [("prefill", 0.10), ("decode", 0.20)])
def test_the_uncalibrated_roofline_is_near_the_published_profile(data_dir, phase, most) -> None:
    profile = read_muxserve(data_dir / "muxserve" / "llama_a100_profile.json")
    predict = COST.prefill_s if phase == "prefill" else COST.decode_s
    off = sorted(
        abs(
            predict(model.shape, cell.tp, cell.share, cell.batch, cell.tokens) / cell.seconds[0] - 1
        )
        for model in profile.models
        for cell in model.cells[::5]
        if cell.phase == phase
    )
    assert off[len(off) // 2] < most


def test_a_cpu_divides_by_cores() -> None:
    shares = cpu(2, 2**34).shares
    assert shares == (0.5, 1.0)
    assert cpu(1, 2**34).shares == (1.0,)


def test_without_a_profile_the_cost_is_the_roofline() -> None:
    assert cost_for(A100, 2) == Roofline(A100, 2)


draws = st.lists(st.floats(0, 1), max_size=6)


@given(draws, st.integers(0, 5), st.floats(0, 1))
def test_slowdown_never_falls_as_draws_rise(given_draws, index, more) -> None:
    factor = slowdown(given_draws)
    assert factor >= 1
    assert slowdown([*given_draws, more]) >= factor
    raised = list(given_draws)
    if index < len(raised):
        raised[index] = max(raised[index], more)
        assert slowdown(raised) >= factor


def test_slowdown_by_hand() -> None:
    assert slowdown([]) == slowdown([0.9]) == slowdown([0.0, 0.0]) == 1.0
    assert 1.0 < slowdown([0.2, 0.3]) < 1.1
    assert 2.0 <= slowdown([1.0, 1.0]) < 2.3
