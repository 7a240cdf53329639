"""From an arrival to what the scheduler wants: lengths are real, tokens are stand-ins."""

from functools import lru_cache

import numpy as np

from muxcluster.core.request import Request
from muxcluster.core.sampling import SamplingParams
from muxcluster.workload.arrival import Arrival

_MAX_TOKENS = 2**20
TOKENS = np.zeros(_MAX_TOKENS, dtype=np.int32)
"""What prompts and outputs are slices of: only their lengths are looked at."""
TOKENS.flags.writeable = False


@lru_cache(maxsize=65_536)
def sampling_of(num_output: int) -> SamplingParams:
    """Exactly so many tokens."""
    return SamplingParams(max_tokens=num_output, ignore_eos=True)


def request_of(arrival: Arrival) -> Request:
    """A request that gets exactly `arrival.output_tokens` tokens (or fills the context).

    Without a known prefix it stays away from the prefix cache, where all stand-ins are alike.
    """
    prefix = arrival.prefix
    length = arrival.prompt_tokens
    return Request(
        arrival.request_id,
        arrival.model,
        TOKENS[:length] if prefix is None else prefix.token_ids(length),
        sampling_of(arrival.output_tokens),
        service_class=arrival.service_class,
        cacheable=prefix is not None,
    )
