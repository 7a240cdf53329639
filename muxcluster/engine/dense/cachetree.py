"""Finds the tensors inside a cache of any class, and puts changed ones back."""

import copy
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor

Leaf = Tensor | int


def leaves(cache: Any) -> list[Leaf]:
    """Return tensors and integers of `cache`, always in the same order for caches of one model."""
    found: list[Leaf] = []

    def note(leaf: Leaf) -> Leaf:
        found.append(leaf)
        return leaf

    rebuilt(cache, note)
    return found


def rebuilt(cache: Any, change: Callable[[Leaf], Leaf]) -> Any:
    """Return a copy of `cache` with each tensor and integer replaced by `change` of it, in order.

    Looks into tuples, lists, dictionaries, and objects of the modules that define the cache and
    transformers' own caches; everything else is shared with `cache`.
    """
    modules = frozenset({"transformers.cache_utils", type(cache).__module__})
    return _Rebuilding(modules, change).of(cache)


def replaced(cache: Any, values: Iterator[Leaf]) -> Any:
    """Return `cache` with `values` in the place of its leaves."""
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
