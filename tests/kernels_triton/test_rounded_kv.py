"""The Triton kernels, interpreted, keep the rules of keys and values in 8 bits."""

from functools import partial

from muxcluster.kernels.triton_ops.kv_write import kv_write
from muxcluster.kernels.triton_ops.paged_decode import paged_decode
from muxcluster.kernels.triton_ops.paged_prefill import paged_prefill
from muxcluster.kernels.triton_ops.prefix_attention import prefix_attention
from tests.kernels.rounded_kv_rules import RoundedKvRules


class TestRoundedKv(RoundedKvRules):
    kv_write = staticmethod(kv_write)
    decodes_in = (
        paged_decode,
        partial(paged_decode, num_splits=3, split_tokens=16, tile_tokens=16),
    )
    paged_prefill = staticmethod(paged_prefill)
    prefix_attention = staticmethod(prefix_attention)
