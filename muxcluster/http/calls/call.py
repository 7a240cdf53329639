"""A checked call: the prompts of one HTTP request and how each is to be continued."""

import time
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from muxcluster.core.request import Request, ServiceClass, Slo
from muxcluster.core.sampling import SamplingParams
from muxcluster.http.calls.admission import Admission
from muxcluster.http.calls.model_text import ModelText
from muxcluster.text.validation.sampling import choice_seed


@dataclass(frozen=True, slots=True, eq=False)
class Prompt:
    """One prompt. text: what `echo` shows, else empty. tokens: int32 [n].

    max_tokens: output tokens shown; 0 only with echo (the engine then runs for one token at most,
    where prompt logprobs are wanted).
    """

    text: str
    tokens: NDArray[np.int32]
    max_tokens: int


@dataclass(frozen=True, slots=True, eq=False)
class Tokenised:
    """The prompts of one body, as tokens of `model`."""

    model: ModelText
    prompts: tuple[Prompt, ...]

    @property
    def num_tokens(self) -> int:
        """Tokens of all its prompts."""
        return sum(len(prompt.tokens) for prompt in self.prompts)


@dataclass(frozen=True, slots=True)
class RequestHead:
    """How a call came. request_id: the client's or a new one. arrived_s: time.monotonic() then.

    timeout_s: the client's own time limit. wants_timing: usage shall tell where the time went.
    """

    request_id: str
    timeout_s: float | None = None
    arrived_s: float = field(default_factory=time.monotonic)
    wants_timing: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """One HTTP request after all checks; it has len(prompts) * n choices, prompt by prompt.

    call_id: the id clients see. engine_id: prefix of the engine's request ids, unique even where
    a client repeats its own id. admission: its room in the queue, released by whoever ends it.
    """

    call_id: str
    engine_id: str
    model: ModelText
    prompts: tuple[Prompt, ...]
    n: int
    sampling: SamplingParams
    head: RequestHead
    admission: Admission
    timeout_s: float
    stop: tuple[str, ...] = ()
    include_stop: bool = False
    skip_special_tokens: bool = True
    echo: bool = False
    service_class: ServiceClass = ServiceClass.INTERACTIVE
    slo: Slo | None = None
    priority: int = 0
    cache_salt: str = ""

    @property
    def deadline_s(self) -> float:
        """When the call's time is over, on time.monotonic()."""
        return self.head.arrived_s + self.timeout_s

    @property
    def num_choices(self) -> int:
        """Choices over all prompts."""
        return len(self.prompts) * self.n

    @property
    def num_prompt_tokens(self) -> int:
        """Prompt tokens over all prompts, each counted once whatever `n` is."""
        return sum(len(prompt.tokens) for prompt in self.prompts)

    def prompt_of(self, index: int) -> Prompt:
        """The prompt that choice `index` continues."""
        return self.prompts[index // self.n]

    def request(self, index: int) -> Request:
        """What the engine is asked for choice `index`."""
        prompt = self.prompt_of(index)
        sampling = replace(
            self.sampling,
            seed=choice_seed(self.sampling.seed, index % self.n),
            max_tokens=max(1, prompt.max_tokens),
            min_tokens=min(self.sampling.min_tokens, max(1, prompt.max_tokens)),
        )
        return Request(
            request_id=f"{self.engine_id}-{index}",
            model=self.model.served.name,
            prompt_tokens=prompt.tokens,
            sampling=sampling,
            service_class=self.service_class,
            slo=self.slo,
            priority=self.priority,
            cache_salt=self.cache_salt,
            cacheable=sampling.prompt_logprobs is None,
        )
