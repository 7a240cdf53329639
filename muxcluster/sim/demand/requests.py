"""Conversion of arrivals to requests: lengths are real, tokens are placeholders."""

from functools import lru_cache

import numpy as np

from muxcluster.core.request import Request
from muxcluster.core.sampling import SamplingParams
from muxcluster.workload.arrival import Arrival

_MAX_TOKENS = 2**20
# Prompts and outputs are slices of this: only their lengths matter.
TOKENS = np.zeros(_MAX_TOKENS, dtype=np.int32)
TOKENS.flags.writeable = False


@lru_cache(maxsize=65_536)
def sampling_of(num_output: int) -> SamplingParams:
    """Return parameters for exactly `num_output` tokens."""
    return SamplingParams(max_tokens=num_output, ignore_eos=True)


def request_of(arrival: Arrival) -> Request:
    """Return a request that gets exactly `arrival.output_tokens` tokens (or fills the context).

    Without a known prefix it is not cacheable, because all placeholders are equal.
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
