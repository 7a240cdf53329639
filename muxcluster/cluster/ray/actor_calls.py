"""Calls of an actor by the methods of its class, so that arguments and answers have types."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, TypeVar

import ray

P = ParamSpec("P")
R = TypeVar("R")
Method = Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]


async def ask(
    actor: Any, timeout_s: float, method: Method[P, R], *args: P.args, **kwargs: P.kwargs
) -> R:
    """Return the answer of an actor or a Serve deployment to `Class.method`.

    actor: its handle. Raises TimeoutError, RayError and RayServeException where none comes.
    """
    call = getattr(actor, method.__name__).remote(*args, **kwargs)
    answer: R = await asyncio.wait_for(call, timeout_s)
    return answer


def ask_and_wait(
    actor: Any, timeout_s: float, method: Method[P, R], *args: P.args, **kwargs: P.kwargs
) -> R:
    """As `ask` of an actor, on this thread."""
    call = getattr(actor, method.__name__).remote(*args, **kwargs)
    answer: R = ray.get(call, timeout=timeout_s)
    return answer
