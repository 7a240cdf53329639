"""Serving from Python: one unit in this process and its workers, without Ray or HTTP."""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from muxcluster.api.sampling import SamplingParams, body_fields
from muxcluster.config.load import Config
from muxcluster.config.planner_input import nodes_of
from muxcluster.config.planning import plan_for
from muxcluster.config.units import served_models, unit_specs
from muxcluster.core.errors import ConfigError, NotReady
from muxcluster.core.inputs.images.rules import ImageLimits
from muxcluster.core.unitspec import UnitSpec
from muxcluster.engine.load.weights import check_weight_files
from muxcluster.engine.unit.local import LocalUnitClient
from muxcluster.http.calls.model_text import ModelTexts
from muxcluster.http.metrics.requests import Metrics
from muxcluster.http.service import CompletionService
from muxcluster.http.settings import ApiSettings, QueueLimits
from muxcluster.placement.names import nearest
from muxcluster.placement.plan import Plan
from muxcluster.router.backend import RoutedBackend
from muxcluster.text.rendering.pool import RenderPool

Prompt = str | Sequence[int] | Sequence[Mapping[str, str]]
_DEFAULTS = SamplingParams()


@dataclass(frozen=True, slots=True)
class Output:
    """What a request has produced: all of it, or in a stream what is new.

    >>> from muxcluster import Output
    >>> Output("Hel", (7,)) + Output("lo", (9,), finish_reason="length")
    Output(text='Hello', tokens=(7, 9), finish_reason='length', stop_reason=None, \
num_cached_tokens=0)
    """

    text: str = ""
    tokens: tuple[int, ...] = ()  # without those of a stop string and after it
    finish_reason: str | None = None  # "stop" or "length"; None: more follows
    # The stop string or extra stop token that ended it, None for an end token of the model
    stop_reason: str | int | None = None
    num_cached_tokens: int = 0  # prompt tokens found in the prefix cache; known at the end

    def __add__(self, later: "Output") -> "Output":
        """Return this and the `later` output of the same request as one."""
        return Output(
            self.text + later.text,
            self.tokens + later.tokens,
            later.finish_reason,
            later.stop_reason,
            later.num_cached_tokens,
        )


class Unit:
    """Serves the models of one unit in this process and its workers, without Ray or HTTP.

    An async context manager: entering it loads the models, leaving it ends what is open and every
    process. Any number of requests may run at a time; the scheduler, the KV pool and the prefix
    cache are those of `muxcluster serve`. It belongs to one event loop.

    >>> import asyncio
    >>> from muxcluster import SamplingParams, Unit, load_config
    >>> async def main():
    ...     params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
    ...     async with Unit(load_config("muxcluster.yaml")) as unit:
    ...         text = ""
    ...         async for output in unit.stream("tiny-llama", "Once upon a time", params):
    ...             text += output.text
    ...         whole = await unit.generate("tiny-llama", "Once upon a time", params)
    ...         print(text == whole.text, len(whole.tokens), whole.finish_reason)
    >>> asyncio.run(main())
    True 4 length
    """

    def __init__(
        self, config: Config, plan: Plan | None = None, *, unit_id: str | None = None
    ) -> None:
        """Check everything that can be checked before weights are read; start nothing.

        plan: None plans for the configuration. unit_id: which of the plan's units runs here; None
        is the only one. Raises ConfigError, InfeasiblePlan, LoadError.
        """
        self._spec = _spec_of(config, plan, unit_id)
        for model in self._spec.models:
            if model.load_format != "dummy":
                check_weight_files(Path(model.path))
        self._served = [model for model in served_models(config) if model.unit_model in self.models]
        self._settings = _settings_of(config)
        self._client = LocalUnitClient(self._spec)
        self._templates = RenderPool()
        self._service: CompletionService | None = None
        self._was_entered = False

    @property
    def models(self) -> tuple[str, ...]:
        """Names of the models that it serves."""
        return tuple(model.name for model in self._spec.models)

    async def __aenter__(self) -> Self:
        """Load the models. Raises LoadError naming the file at fault, EngineFailure."""
        if self._was_entered:
            raise RuntimeError("a Unit is entered once: make another")
        self._was_entered = True
        try:
            texts = await asyncio.to_thread(ModelTexts.load, self._served, self._templates)
            await self._client.start()
        except BaseException:
            await self._close()
            raise
        backend = RoutedBackend(self._served, dict.fromkeys(self.models, self._client))
        self._service = CompletionService(backend, texts, Metrics(), self._settings)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._service = None
        await self._close()

    async def _close(self) -> None:
        await self._client.close()
        self._templates.close()

    async def stream(
        self, model: str, prompt: Prompt, params: SamplingParams = _DEFAULTS
    ) -> AsyncGenerator[Output, None]:
        """Yield a request's output as it comes; the last one has a `finish_reason`.

        prompt: text, token ids, or messages (`[{"role": "user", "content": "Hello"}]`), which the
        model's chat template renders. Closing the generator ends the request. Raises RequestError
        where the request can never succeed, Unavailable where it may be sent again, EngineFailure.
        """
        if self._service is None:
            raise NotReady("the unit is not open: use it in `async with Unit(...) as unit`")
        fields = {"model": model, **_prompt_field(prompt), **body_fields(params)}
        async with aclosing(self._service.generate(fields)) as deltas:
            async for delta in deltas:
                if delta.tokens or delta.text or delta.finish_reason:
                    yield Output(
                        delta.text,
                        delta.tokens,
                        delta.finish_reason,
                        delta.stop_reason,
                        delta.num_cached_tokens,
                    )

    async def generate(
        self, model: str, prompt: Prompt, params: SamplingParams = _DEFAULTS
    ) -> Output:
        """Return a request's whole output. Arguments and errors are those of `stream`."""
        whole = Output()
        async with aclosing(self.stream(model, prompt, params)) as outputs:
            async for output in outputs:
                whole += output
        return whole


def _spec_of(config: Config, plan: Plan | None, unit_id: str | None) -> UnitSpec:
    nodes = nodes_of(config)
    specs = unit_specs(config, plan or plan_for(config, nodes), nodes)
    by_id = {spec.unit_id: spec for spec in specs}
    if unit_id is None and len(specs) == 1:
        return specs[0]
    if unit_id is None:
        message = f"the plan has {len(specs)} units: name one of {', '.join(by_id)} as unit_id"
        raise ConfigError(config.file, "", message)
    if unit_id not in by_id:
        message = f"the plan has no unit {unit_id!r}{nearest(unit_id, by_id)}"
        raise ConfigError(config.file, "", message)
    return by_id[unit_id]


def _prompt_field(prompt: Prompt) -> dict[str, object]:
    """Return the body's field for a prompt; an empty list is an empty prompt."""
    if isinstance(prompt, str):
        return {"prompt": prompt}
    items = list(prompt)
    return {"messages" if items and isinstance(items[0], Mapping) else "prompt": items}


def _settings_of(config: Config) -> ApiSettings:
    """Return the file's limits of requests; no socket is opened, so the others have no use."""
    server = config.server
    queues = QueueLimits(server.max_queued, server.max_queued_batch)
    images = ImageLimits(server.max_images, server.max_image_bytes, server.max_image_pixels)
    return ApiSettings(request_timeout_s=server.request_timeout_s, queues=queues, images=images)
