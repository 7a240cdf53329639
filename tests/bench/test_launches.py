"""A decode layer on a GPU takes few launches, and no copies between its kernels."""

import pytest

from bench.kernels.launches import MOST_LAUNCHES, layer_launches, prompt_launches

PRODUCTS = {"_add_rms_norm": 2, "_rotary": 1, "write_kernel": 1, "_silu_mul": 1, "aten.mm": 4}
KERNELS = {**PRODUCTS, "decode_kernel": 1, "merge_kernel": 1}


@pytest.mark.parametrize("family", MOST_LAUNCHES)
def test_a_fused_layer_is_four_products_and_our_kernels(family: str) -> None:
    launches = layer_launches(family)
    assert launches == KERNELS
    assert launches.total() <= MOST_LAUNCHES[family]


def test_transformers_layers_take_far_more() -> None:
    """So the count sees what fusing saves."""
    assert layer_launches("llama", fuses=False).total() > 25


def test_whole_prompts_take_one_call_of_torchs_attention_and_no_copies() -> None:
    launches = prompt_launches("llama", [(0, 700), (0, 31), (0, 2)])
    assert launches == {**PRODUCTS, "aten._varlen_attn": 1}


def test_chunks_and_cached_prefixes_keep_our_kernel() -> None:
    assert prompt_launches("llama", [(512, 700), (16, 31)]) == {**PRODUCTS, "prefill_kernel": 1}


def test_a_mixed_step_gathers_and_scatters_each_kind() -> None:
    launches = prompt_launches("llama", [(0, 700), (512, 64), (90, 1)])
    attention = {"aten._varlen_attn": 1, "prefill_kernel": 1, "decode_kernel": 1, "merge_kernel": 1}
    copies = {"aten.index": 5, "aten.index_put_": 3}  # keys and values of the whole prompt, too
    assert launches == {**PRODUCTS, **attention, **copies}
