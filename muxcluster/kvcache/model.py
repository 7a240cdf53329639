"""A model as the KV cache sees it, and the cache's answer when memory is short."""

from dataclasses import dataclass

from muxcluster.core.kvshape import KvShape


@dataclass(frozen=True, slots=True)
class KvModel:
    """One model of the unit."""

    name: str
    shape: KvShape
    max_seqs: int  # rows: sequences that may hold blocks at the same time
    max_model_len: int  # most tokens of one sequence
    prefix_caching: bool = True  # False frees every column of a sequence that closes
    shared_prefix_tokens: int = 0  # see `PrefixGroups`
    # True if a column holds each token's KV in its place. Else a job that writes to a column may
    # write to all of it, and it is lent and saved whole.
    is_positional: bool = True


@dataclass(frozen=True, slots=True)
class Shortage:
    """The answer "not now": nothing was taken because `blocks` blocks are missing."""

    blocks: int
    by_quota: bool  # the model's own quota lacks blocks; else only the pool is full
