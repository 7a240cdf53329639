"""The plain-torch kernels keep the rules of keys and values in 8 bits."""

from torch import Tensor

from muxcluster.kernels.attention.paged_decode import paged_decode
from muxcluster.kernels.attention.paged_prefill import paged_prefill
from muxcluster.kernels.attention.prefix_attention import prefix_attention
from muxcluster.kernels.kv_write import kv_write
from tests.kernels.rounded_kv_rules import RoundedKvRules


def contiguous(query: Tensor, pool: Tensor, table: Tensor, *rows: Tensor, **options) -> Tensor:
    """Tables in which a pool of fp32 would be read in place."""
    return paged_decode(query, pool, table.contiguous(), *rows, **options)


class TestRoundedKv(RoundedKvRules):
    kv_write = staticmethod(kv_write)
    decodes_in = (paged_decode, contiguous)
    paged_prefill = staticmethod(paged_prefill)
    prefix_attention = staticmethod(prefix_attention)
