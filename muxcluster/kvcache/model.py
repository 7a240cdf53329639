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
    """

    name: str
    shape: KvShape
    max_seqs: int
    max_model_len: int
    prefix_caching: bool = True
    shared_prefix_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Shortage:
    """ "Not now": nothing was taken because `blocks` blocks are missing.

    by_quota: the model's own quota lacks blocks (the pool may lack them too); otherwise the quota
        would do and only the pool is full.
    """

    blocks: int
    by_quota: bool
