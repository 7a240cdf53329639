"""Grammar engines side by side: masks of 64 rows on one thread, without model or process."""

import json
import random
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from muxcluster.constraints import grammars
from muxcluster.constraints.matching import TokenMasks
from muxcluster.constraints.vocabulary import Vocabulary

try:
    import xgrammar
except ImportError as error:
    xgrammar = None
    WHY_NOT = f"{error}"


class Matcher(Protocol):
    """The state of one row."""

    def fill(self) -> NDArray[np.uint32]:
        """Return the mask."""
        ...

    def accept(self, token: int) -> bool:
        """Consume a token; return False if the row is complete."""
        ...


class Llguidance:
    """llguidance, with what our matching does around it left out."""

    def __init__(self, masks: TokenMasks, schema: Mapping[str, Any]) -> None:
        self._masks = masks
        self._matcher = masks.compile(grammars.json_schema(schema, "schema"))
        self._bits = np.zeros(masks.num_words, np.uint32)

    def fill(self) -> NDArray[np.uint32]:
        self._masks.fill(self._matcher, self._bits)
        return self._bits

    def accept(self, token: int) -> bool:
        return bool(self._matcher.consume_token(token)) and not self._matcher.is_stopped()


class Xgrammar:
    """xgrammar."""

    def __init__(self, compiler: Any, schema: Mapping[str, Any], vocab_size: int) -> None:
        self._matcher = xgrammar.GrammarMatcher(compiler.compile_json_schema(json.dumps(schema)))
        self._mask = xgrammar.allocate_token_bitmask(1, vocab_size)
        self._bits = self._mask.numpy().view(np.uint32)[0]

    def fill(self) -> NDArray[np.uint32]:
        self._matcher.fill_next_token_bitmask(self._mask, 0)
        return self._bits

    def accept(self, token: int) -> bool:
        return bool(self._matcher.accept_token(token)) and not self._matcher.is_terminated()


def makers(
    vocabulary: Vocabulary, masks: TokenMasks, schema: Mapping[str, Any]
) -> dict[str, Callable[[], Matcher]]:
    """How each engine that is installed makes the matcher of a new row."""
    found: dict[str, Callable[[], Matcher]] = {"llguidance": lambda: Llguidance(masks, schema)}
    if xgrammar is not None:
        size = len(vocabulary.tokens)
        info = xgrammar.TokenizerInfo(
            list(vocabulary.tokens), vocab_size=size, stop_token_ids=list(vocabulary.end_tokens)
        )
        compiler = xgrammar.GrammarCompiler(info, max_threads=1)
        found["xgrammar"] = lambda: Xgrammar(compiler, schema, size)
    return found


def run(
    make: Callable[[], Matcher], num_rows: int, num_steps: int, seed: int
) -> tuple[float, list[float]]:
    """Return ms to the first row's matcher, and ms that the masks of all rows took, by step.

    A row samples any of the allowed tokens, and one that is complete begins anew.
    """
    begin_s = time.perf_counter()
    rows = [make()]
    first_ms = 1e3 * (time.perf_counter() - begin_s)
    rows += [make() for _ in range(num_rows - 1)]
    chance, found = random.Random(seed), []
    for _ in range(num_steps):
        taken_s = 0.0
        for at, row in enumerate(rows):
            begin_s = time.perf_counter()
            bits = row.fill()
            taken_s += time.perf_counter() - begin_s
            allowed = np.flatnonzero(np.unpackbits(bits.view(np.uint8), bitorder="little"))
            token = int(allowed[chance.randrange(len(allowed))])
            begin_s = time.perf_counter()
            goes_on = row.accept(token)
            taken_s += time.perf_counter() - begin_s
            if not goes_on:
                rows[at] = make()
        found.append(1e3 * taken_s)
    return first_ms, found
