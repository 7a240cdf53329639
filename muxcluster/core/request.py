"""One user call, from arrival to its last token, as every layer below HTTP sees it."""

from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from muxcluster.core.batch_part import LinePlace
from muxcluster.core.inputs.images.prompt_image import PromptImage
from muxcluster.core.sampling import SamplingParams


class ServiceClass(StrEnum):
    """Classes of service (papers: RT and BE)."""

    INTERACTIVE = "interactive"
    BATCH = "batch"


@dataclass(frozen=True, slots=True)
class Slo:
    """Latency targets in seconds: time to first token, time per output token."""

    ttft_s: float
    tpot_s: float


def _no_tokens() -> NDArray[np.int32]:
    return np.empty(0, dtype=np.int32)


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """A request for the engine."""

    request_id: str
    model: str
    # int32 [num_prompt_tokens]. A simulator may pass a zero-stride array: only the length is read
    # unless the prefix cache or a worker needs the ids.
    prompt_tokens: NDArray[np.int32]
    sampling: SamplingParams
    # int32 [n], produced before a recovery; they count as output, not as prompt
    output_tokens: NDArray[np.int32] = field(default_factory=_no_tokens)
    service_class: ServiceClass = ServiceClass.INTERACTIVE
    slo: Slo | None = None  # None means no target
    priority: int = 0  # vLLM's sign, lower runs earlier
    cache_salt: str = ""  # prefixes are shared only among equal salts
    # False keeps the request away from the prefix cache (prompt logprobs need that)
    cacheable: bool = True
    # A line of a planned batch: a unit that has its part starts it when it has room
    line: LinePlace | None = None
    tenant: str = ""  # whose it is; tenants that wait for a model get equal turns
    adapter: str = ""  # of `ModelSpec.adapters`, by name; empty: the model itself
    # Directory of an adapter that is not of `ModelSpec.adapters`: `adapter` is its unit id
    adapter_path: str = ""
    images: tuple[PromptImage, ...] = ()  # of the prompt, in order


@dataclass(frozen=True, slots=True, eq=False)
class PinnedPrefix:
    """Keep the prefix `tokens` (int32 [n]): batch requests of `model` with it will follow."""

    pin_id: str  # a known id is rebound to this prefix
    model: str
    tokens: NDArray[np.int32]
    cache_salt: str = ""  # of the requests
    adapter: str = ""  # of the requests
