"""The roofline: hand-computed corners, and the directions in which time must move."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from placement.cost.roofline import BANDWIDTH_EFFICIENCY, COMPUTE_EFFICIENCY, Roofline
from placement.hardware import GPUS, cpu
from placement.known_shapes import SHAPES

A100 = GPUS["A100-80GB"]
LLAMA = SHAPES["llama-2-7b"]
COST = Roofline(A100)


def test_one_decode_reads_all_weights_once() -> None:
    read = (LLAMA.num_params - LLAMA.embedding_params) * 2
    floor = read / (A100.bandwidth * BANDWIDTH_EFFICIENCY)
    assert COST.decode_s(LLAMA, 1, 1.0, 1, 1) == pytest.approx(floor, rel=0.3)


def test_a_long_prefill_is_bound_by_compute() -> None:
    flops = 2 * (LLAMA.num_params - 2 * LLAMA.embedding_params) * 2048
    floor = flops / (A100.flops * COMPUTE_EFFICIENCY)
    seconds = COST.prefill_s(LLAMA, 1, 1.0, 1, 2048)
    assert floor < seconds < 1.2 * floor


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


def test_half_of_the_sms_is_enough_for_decode_but_not_for_prefill() -> None:
    decode = [COST.decode_s(LLAMA, 1, share, 8, 500) for share in (0.5, 1.0)]
    prefill = [COST.prefill_s(LLAMA, 1, share, 1, 2048) for share in (0.5, 1.0)]
    assert decode[0] == pytest.approx(decode[1])
    assert prefill[0] > 1.8 * prefill[1]


def test_two_gpus_are_faster_but_not_twice() -> None:
    one, two = (COST.decode_s(SHAPES["llama-2-70b"], tp, 1.0, 32, 1000) for tp in (1, 2))
    assert one / 2 < two < one


def test_a_cpu_divides_by_cores() -> None:
    shares = cpu(2, 2**34).shares
    assert shares == (0.5, 1.0)
    assert cpu(1, 2**34).shares == (1.0,)
