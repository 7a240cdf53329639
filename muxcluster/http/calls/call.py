"""A checked call: the prompts of one HTTP request, its sampling and its limits."""

import time
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from muxcluster.core.batch_part import LinePlace
from muxcluster.core.inputs.images.prompt_image import PromptImage
from muxcluster.core.request import Request, ServiceClass, Slo
from muxcluster.core.sampling import SamplingParams
from muxcluster.http.calls.admission import Admission
from muxcluster.http.calls.model_text import ModelText
from muxcluster.http.keys.meter import Meter
from muxcluster.text.tools.output import OutputRules
from muxcluster.text.validation.sampling import choice_seed


@dataclass(frozen=True, slots=True, eq=False)
class Prompt:
    """One prompt of a call."""

    text: str  # for `echo`, else empty
    tokens: NDArray[np.int32]  # [n]
    # output tokens shown; 0 only with echo, when the engine computes one for prompt logprobs, and
    # for embeddings
    max_tokens: int
    images: tuple[PromptImage, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Tokenised:
    """The prompts of one body, as tokens of `model`."""

    model: ModelText
    prompts: tuple[Prompt, ...]

    @property
    def num_tokens(self) -> int:
        return sum(len(prompt.tokens) for prompt in self.prompts)


@dataclass(frozen=True, slots=True)
class RequestHead:
    """What a call's HTTP headers say, and when it arrived."""

    request_id: str  # the client's or a new one
    timeout_s: float | None = None  # the client's own limit
    arrived_s: float = field(default_factory=time.monotonic)  # on time.monotonic()
    wants_timing: bool = False  # `usage` reports the parts of the time
    meter: Meter | None = None  # of its key; None: nothing is checked and nothing counted
    # W3C trace context of the caller: its trace and the span in which it asks; empty without one
    trace_id: str = ""
    parent_span_id: str = ""
    is_sampled: bool = True  # the caller records that trace

    @property
    def models(self) -> tuple[str, ...] | None:
        """Models that its key may use; None: all."""
        return None if self.meter is None else self.meter.key.models


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """One HTTP request after all checks; it has len(prompts) * n choices, prompt by prompt."""

    call_id: str  # the id that the client sees
    engine_id: str  # prefix of the engine's request ids, unique even if a client repeats its own
    model: ModelText
    prompts: tuple[Prompt, ...]
    n: int
    sampling: SamplingParams
    head: RequestHead
    admission: Admission  # released at the end of the call's stream
    timeout_s: float
    stop: tuple[str, ...] = ()
    include_stop: bool = False
    skip_special_tokens: bool = True
    echo: bool = False
    returns_token_ids: bool = False  # beside the text
    labels_tokens_by_id: bool = False  # in log-probabilities
    service_class: ServiceClass = ServiceClass.INTERACTIVE
    slo: Slo | None = None
    priority: int = 0
    cache_salt: str = ""
    line: LinePlace | None = None  # of a planned batch
    # How outputs are divided into content, reasoning and tool calls; None: all is content
    output: OutputRules | None = None
    embeds: bool = False  # each choice is the vector of a prompt
    # Choices that are at the engine at a time, None: all
    most_at_once: int | None = None

    @property
    def deadline_s(self) -> float:
        """The end of the call's time, on time.monotonic()."""
        return self.head.arrived_s + self.timeout_s

    @property
    def runs_in_turns(self) -> bool:
        """True if the call has more choices than it may have at the engine at once."""
        return self.most_at_once is not None and self.num_choices > self.most_at_once

    @property
    def num_choices(self) -> int:
        """Choices over all prompts."""
        return len(self.prompts) * self.n

    @property
    def num_prompt_tokens(self) -> int:
        """Prompt tokens over all prompts, each counted once whatever `n` is."""
        return sum(len(prompt.tokens) for prompt in self.prompts)

    @property
    def tells_tokens_apart(self) -> bool:
        """True if tokens that come at once are still told apart, not only their texts."""
        return self.sampling.logprobs is not None or self.returns_token_ids

    def prompt_of(self, index: int) -> Prompt:
        """Return the prompt that choice `index` continues."""
        return self.prompts[index // self.n]

    def request(self, index: int) -> Request:
        """Return the engine's request for choice `index`."""
        prompt = self.prompt_of(index)
        served = self.model.served
        sampling = replace(
            self.sampling,
            seed=choice_seed(self.sampling.seed, index % self.n),
            max_tokens=max(1, prompt.max_tokens),
            min_tokens=min(self.sampling.min_tokens, max(1, prompt.max_tokens)),
        )
        return Request(
            request_id=f"{self.engine_id}-{index}",
            model=served.unit_model,
            prompt_tokens=prompt.tokens,
            sampling=sampling,
            service_class=self.service_class,
            slo=self.slo,
            priority=self.priority,
            cache_salt=self.cache_salt,
            cacheable=sampling.prompt_logprobs is None,
            line=self.line,
            tenant="" if self.head.meter is None else self.head.meter.key.name,
            adapter=served.unit_adapter,
            adapter_path="" if served.loaded is None else served.loaded.path,
            images=prompt.images,
        )
