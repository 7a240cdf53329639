"""What the KV cache is told of a model, and its answer when memory is short."""

from dataclasses import dataclass

from muxcluster.core.kvshape import KvShape


@dataclass(frozen=True, slots=True)
class KvModel:
    """One model of the unit.

    max_seqs: slots, that is sequences that may hold blocks at the same time.
    max_model_len: most tokens of one sequence.
    prefix_caching: False frees every column of a sequence that closes.
    shared_prefix_tokens: see `PrefixGroups`.
    is_positional: a column holds what belongs to its tokens, each in its place; else whoever writes
        to a column may write to all of it, and it is lent and saved whole.
    """

    name: str
    shape: KvShape
    max_seqs: int
    max_model_len: int
    prefix_caching: bool = True
    shared_prefix_tokens: int = 0
    is_positional: bool = True


@dataclass(frozen=True, slots=True)
class Shortage:
    """ "Not now": nothing was taken because `blocks` blocks are missing.

    by_quota: the model's own quota lacks blocks (the pool may lack them too); otherwise the quota
        would do and only the pool is full.
    """

    blocks: int
    by_quota: bool
