"""What one HTTP request uses of its key's limits."""

import math
import uuid
from typing import Protocol

from muxcluster.core.errors import Overloaded, PermissionDenied
from muxcluster.core.request import ServiceClass
from muxcluster.http.keys.headers import limit_headers
from muxcluster.tenants.keys import TenantKey
from muxcluster.tenants.messages import Ask, Grant, Settlement


class Counter(Protocol):
    """The way to the cluster's counter."""

    async def reserve(self, ask: Ask) -> Grant | None:
        """Return its answer; None where it does not answer, and the request may run."""
        ...

    def settle(self, settlement: Settlement) -> None:
        """Tell it the end of a request, later."""
        ...


class Meter:
    """Reserves a request's tokens before it runs, counts what it used, and settles at its end.

    `Edge` makes one for each request of a key and ends it, however the request ends.
    """

    def __init__(self, key: TenantKey, counter: Counter) -> None:
        self.key = key
        self._counter = counter
        self._call_id = uuid.uuid4().hex
        self._model: str | None = None  # of a request that has asked
        self._grant: Grant | None = None
        self._prompts: dict[int, int] = {}  # tokens by prompt, counted once whatever `n` is
        self._num_output_tokens = 0
        self._num_cached_tokens = 0

    def check_class(self, service_class: ServiceClass) -> None:
        """Raise PermissionDenied if the key may not use the class."""
        if service_class not in self.key.classes:
            message = f"this key may not send requests of class {service_class}"
            raise PermissionDenied(message, "service_tier")

    async def reserve(self, model: str, num_prompt_tokens: int, num_output_tokens: int) -> None:
        """Reserve prompt tokens and the most output tokens. Raises Overloaded over a limit."""
        if self.key.limits.has_any:
            num_tokens = num_prompt_tokens + num_output_tokens
            ask = Ask(self._call_id, self.key.name, model, num_prompt_tokens, num_tokens)
            self._grant = await self._counter.reserve(ask)
        self._model = model
        if self._grant is not None and not self._grant.is_granted:
            message = f"the limit of this key is reached: {self._grant.refusal}"
            raise Overloaded(message, math.ceil(self._grant.retry_after_s))

    def count(
        self, prompt: int, num_prompt_tokens: int, num_output_tokens: int, num_cached_tokens: int
    ) -> None:
        """Count a choice that has ended. prompt: index of the one that it continues."""
        self._prompts[prompt] = num_prompt_tokens
        self._num_output_tokens += num_output_tokens
        self._num_cached_tokens += num_cached_tokens

    def headers(self) -> dict[str, str]:
        """Return the answer's headers about the limits; none before the counter's answer."""
        return {} if self._grant is None else limit_headers(self._grant)

    def another(self) -> "Meter":
        """Return a meter of the same key for what goes on after the request; its user ends it."""
        return Meter(self.key, self._counter)

    def end(self) -> None:
        """Settle the request, if it has asked to run. Idempotent."""
        model, self._model = self._model, None
        if model is None:
            return
        is_refused = self._grant is not None and not self._grant.is_granted
        self._counter.settle(
            Settlement(
                self._call_id,
                self.key.name,
                model,
                num_requests=0 if is_refused else 1,
                num_refused=1 if is_refused else 0,
                num_prompt_tokens=sum(self._prompts.values()),
                num_output_tokens=self._num_output_tokens,
                num_cached_tokens=self._num_cached_tokens,
            )
        )
