"""The tensors inside a cache of any class: found, and put back changed."""

import copy
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor

Leaf = Tensor | int


def leaves(cache: Any) -> list[Leaf]:
    """Tensors and integers of `cache`, always in the same order for caches of the same model."""
    found: list[Leaf] = []

    def note(leaf: Leaf) -> Leaf:
        found.append(leaf)
        return leaf

    rebuilt(cache, note)
    return found


def rebuilt(cache: Any, change: Callable[[Leaf], Leaf]) -> Any:
    """A cache like `cache` with every tensor and integer as `change` makes it, called in order.

    Tuples, lists, dictionaries and objects of the modules that the cache and transformers' own
    caches come from are looked into; all else is shared with `cache`.
    """
    modules = frozenset({"transformers.cache_utils", type(cache).__module__})
    return _Rebuilding(modules, change).of(cache)


def replaced(cache: Any, values: Iterator[Leaf]) -> Any:
    """`cache` with `values` in the place of its leaves."""
    return rebuilt(cache, lambda _: next(values))


class _Rebuilding:
    def __init__(self, modules: frozenset[str], change: Callable[[Leaf], Leaf]) -> None:
        self._modules = modules
        self._change = change

    def of(self, node: Any) -> Any:
        if isinstance(node, Tensor) or type(node) is int:
            return self._change(node)
        if isinstance(node, dict):
            return {key: self.of(value) for key, value in node.items()}
        if type(node) in (list, tuple):
            return type(node)([self.of(value) for value in node])
        if type(node).__module__ in self._modules and hasattr(node, "__dict__"):
            twin = copy.copy(node)
            for name, value in vars(node).items():
                twin.__dict__[name] = self.of(value)
            return twin
        return node
