"""Computes masks: which tokens may come next in rows whose output must match grammars.

A mask is a function of a row's grammar and its output tokens. Matchers of rows are kept, so that
the next call only consumes what is new; a row whose matcher is gone, or saw other tokens, gets a
new one. llguidance is imported here, so this module is for the mask process and for tests.
"""

import json
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Protocol

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper
from llguidance.gbnf_to_lark import gbnf_to_lark
from numpy.typing import NDArray

from muxcluster.constraints.messages import message_rules
from muxcluster.constraints.rows import MaskRow, Masks
from muxcluster.constraints.structural_tags import structural_rules
from muxcluster.constraints.tags import tagged_rules
from muxcluster.constraints.vocabulary import SPECIAL_MARK, Vocabulary
from muxcluster.core.sampling import Constraint

MOST_MATCHERS = 1024  # of rows, of some 100 KB each: more than run at a time in a unit
IDLE_S = 60.0  # a matcher that is not asked for so long is dropped: its request has ended
MOST_GRAMMARS = 128  # compiled, kept for the next request with the same grammar
RECENT_MASKS = 4  # of a row: the ranks of a job, and jobs in a pipeline, may be steps apart
# Most tokens of a run of forced ones. A step computes them together, and as the smallest block of a
# KV pool holds 8 tokens, a row that has so many to compute needs at most one column of blocks more.
MOST_RUN = 8
# llguidance's own limits bound a mask to about 20 ms and compiling to seconds. Of lexer states it
# allows 250,000, of 1 to 2 KB each, in every grammar.
LEXER_STATES = 50_000
MOST_MESSAGE_CHARS = 500
# Forced texts, up to so long, whose tokens are kept: names of properties come again and again.
MOST_TEXTS = 4096
MOST_TEXT_CHARS = 200
# The engine's reasons to stop, which are names.
_PLAIN = {
    "NoExtensionBias": "no token of the model can follow",
    "ParserTooComplex": "the grammar is too complex",
    "LexerTooComplex": "the grammar is too complex",
}


class BadGrammar(Exception):
    """A grammar that cannot be compiled. The text is for its author."""


class TokenMasks:
    """The grammar engine for one vocabulary."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        size, ends = len(vocabulary.tokens), vocabulary.end_tokens
        view = _TokenizerView(vocabulary)
        # Without end tokens the engine adds one of its own, behind the vocabulary.
        self._tokenizer = LLTokenizer(view, eos_token=list(ends)) if ends else LLTokenizer(view)
        self._words_inside = -(-self._tokenizer.vocab_size // 32)
        self.num_words = -(-size // 32)
        self.end_tokens = frozenset(ends)
        self.end_bits = _bits(ends, self.num_words)
        every = _bits(range(size), self.num_words)
        self.text_bits = every & ~self.end_bits
        self._end_words = np.flatnonzero(self.end_bits)
        self._ends_of_words = self.end_bits[self._end_words]
        self._last_word = every[-1]  # without the engine's own end token

    def compile(self, grammar: str) -> LLMatcher:
        """Return a matcher at the start of the grammar. Raises BadGrammar."""
        text = self._serialised(grammar)
        limits = LLParserLimits(max_lexer_states=LEXER_STATES, verbose_errors=False)
        matcher = LLMatcher(self._tokenizer, text, log_level=0, limits=limits)
        if matcher.is_error():
            raise BadGrammar(message_of(matcher))
        return matcher

    def prepared(self, grammar: str) -> LLMatcher:
        """As `compile`, and compute the first mask: copies share what that learns of the lexer."""
        matcher = self.compile(grammar)
        if not matcher.is_stopped():
            self.fill(matcher, np.empty(self.num_words, np.uint32))
        if matcher.is_error():
            raise BadGrammar(message_of(matcher))
        return matcher

    def _serialised(self, grammar: str) -> str:
        """Return the grammar as llguidance takes it. Raises BadGrammar."""
        if grammar.startswith('{"grammars"'):
            return grammar
        value = json.loads(grammar)
        if "gbnf" in value:
            try:
                rules = gbnf_to_lark(value["gbnf"])
            except Exception as error:  # noqa: BLE001 - it raises a plain Exception
                raise BadGrammar(_printable(f"{error}")) from None
            except RecursionError:
                raise BadGrammar("nested too deep") from None
        elif "structural_tag" in value:
            rules = structural_rules(value["structural_tag"], self._vocabulary.specials)
        elif "messages" in value:
            rules = message_rules(value["messages"], self._vocabulary.specials)
        else:
            rules = tagged_rules(value["tagged"], self._vocabulary.specials)
        return json.dumps({"grammars": [{"lark_grammar": rules}]})

    def fill(self, matcher: LLMatcher, bits: NDArray[np.uint32]) -> None:
        """Write the mask of a matcher that has not stopped to `bits`, uint32 [num_words]."""
        is_same = self._words_inside == self.num_words
        inside = bits if is_same else np.empty(self._words_inside, np.uint32)
        # The field of `ctypes` would make an object first.
        address, _ = inside.__array_interface__["data"]
        matcher.unsafe_compute_mask_ptr(address, inside.nbytes)
        if not is_same:
            bits[:] = inside[: self.num_words]
        bits[-1] &= self._last_word

    def has_text(self, bits: NDArray[np.uint32]) -> bool:
        """Return whether a mask allows a token that is no end token."""
        if not (bits[self._end_words] & self._ends_of_words).any():
            return bool(bits.any())  # mostly: an end is rarely allowed
        return bool((bits & self.text_bits).any())


class _TokenizerView(TokenizerWrapper):
    """A vocabulary as llguidance reads it."""

    is_tokenizer_wrapper = True
    bos_token_id = None
    special_token_ids: Sequence[int] = ()

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.tokens = list(vocabulary.tokens)
        ends = vocabulary.end_tokens
        self.eos_token_id = ends[0] if ends else None  # type: ignore[assignment]
        self._encode = vocabulary.encode
        texts = [
            (text, token)
            for token, text in enumerate(self.tokens)
            if text and not text.startswith(SPECIAL_MARK)
        ]
        self._token_of = dict(reversed(texts))
        self._longest = max((len(text) for text, _ in texts), default=1)
        self._kept = lru_cache(MOST_TEXTS)(self._tokens_of)

    def __call__(self, text: str) -> list[int]:
        """Return the model's own tokens of a text that the grammar forces."""
        if len(text) > MOST_TEXT_CHARS:
            return self._tokens_of(text)
        return self._kept(text)

    def _tokens_of(self, text: str) -> list[int]:
        """Return the model's own tokens.

        Tokenizers that normalise text give others' bytes: then the longest tokens that match.
        """
        wanted = text.encode()
        ids = self._encode(text)
        size = len(self.tokens)
        if all(token < size for token in ids):
            found = b"".join(self.tokens[token] for token in ids)
            if found == wanted:
                return ids
        return self._greedy(wanted)

    def _greedy(self, text: bytes) -> list[int]:
        ids, at = [], 0
        while at < len(text):
            for length in range(min(self._longest, len(text) - at), 0, -1):
                token = self._token_of.get(text[at : at + length])
                if token is not None:
                    ids.append(token)
                    at += length
                    break
            else:
                return ids
        return ids


@dataclass(slots=True)
class _Grammar:
    """A compiled grammar; rows copy its matcher, and share the lexer's states with it."""

    matcher: LLMatcher | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)


@dataclass(frozen=True, slots=True)
class _Mask:
    """The mask of one row; no bits if there is an error. run: as in `Masks.runs`; empty: none."""

    bits: NDArray[np.uint32] | None = None
    must_end: bool = False
    error: str | None = None
    run: tuple[int, ...] = ()


class _Row:
    """The matcher of one row, and its last masks.

    is_alone: the lexer's states are not shared with other rows.
    """

    def __init__(
        self, constraint: Constraint, masks: TokenMasks, matcher: LLMatcher, *, is_alone: bool
    ) -> None:
        self.constraint = constraint
        self.is_alone = is_alone
        self.last_used_s = time.monotonic()
        self._lock = threading.Lock()
        self._masks = masks
        self._matcher = matcher
        self._tokens = b""  # consumed so far, as int32
        # Where the grammar begins in the output; None: not yet.
        self._start: int | None = None if constraint.begins_after else 0
        self._recent: dict[int, _Mask] = {}  # by number of output tokens before it

    def mask_after(self, tokens: NDArray[np.int32], *, joins: bool) -> _Mask | None:
        """Return the mask after `tokens`; None if the matcher has consumed others than these.

        joins: consume the run of tokens that must follow, and return it with the mask.
        """
        with self._lock:
            old, all_tokens = self._tokens, tokens.tobytes()
            if not all_tokens.startswith(old[: len(all_tokens)]):
                return None
            num_old, num_all = len(old) // tokens.itemsize, len(tokens)
            if num_all > num_old or num_all not in self._recent:
                if num_all < num_old:
                    return None
                self._tokens = all_tokens
                mask = self._advance(tokens, num_old)
                self._keep(num_all, self._followed(mask, num_all) if joins else mask)
            return self._recent[num_all]

    def _keep(self, num_tokens: int, mask: _Mask) -> None:
        while len(self._recent) >= RECENT_MASKS:
            del self._recent[next(iter(self._recent))]
        self._recent[num_tokens] = mask

    def _followed(self, first: _Mask, num_all: int) -> _Mask:
        """Consume the run that begins with the only token of `first`, the mask after `num_all`.

        Return that mask with it. The mask behind the run is kept if that has come to its end: it is
        asked for next.
        """
        run: list[int] = []
        mask, token = first, self._only_token(first)
        while token is not None and len(run) < MOST_RUN:
            error = self._consume(token)
            mask = self._mask() if error is None else _Mask(error=_unmatched(num_all, error))
            self._tokens += np.int32(token).tobytes()
            run.append(token)
            num_all += 1
            token = self._only_token(mask)
        if run and token is None:
            self._keep(num_all, mask)
        return replace(first, run=tuple(run)) if len(run) > 1 else first

    def _only_token(self, mask: _Mask) -> int | None:
        """Return the token of a mask that allows no other, and no end; None if it is not such."""
        if mask.bits is None or mask.must_end or self._start is None:
            return None
        places = np.flatnonzero(mask.bits)
        if len(places) != 1:
            return None
        word = int(mask.bits[places[0]])
        return None if word & (word - 1) else int(places[0]) * 32 + word.bit_length() - 1

    def _advance(self, tokens: NDArray[np.int32], num_old: int) -> _Mask:
        if self._start is None:
            self._start = _end_of(self.constraint.begins_after, tokens, num_old)
        if self._start is None:
            return _Mask(self._masks.text_bits)
        for at in range(max(self._start, num_old), len(tokens)):
            error = self._consume(int(tokens[at]))
            if error is not None:
                return _Mask(error=_unmatched(at, error))
        return self._mask()

    def _mask(self) -> _Mask:
        """Return the mask where the matcher is."""
        if self._matcher.is_stopped() and not self._matcher.is_error():
            return _Mask(self._masks.end_bits, must_end=True)
        bits = np.empty(self._masks.num_words, np.uint32)
        self._masks.fill(self._matcher, bits)
        if self._matcher.is_error():
            return _Mask(error=message_of(self._matcher))
        return _Mask(bits, must_end=not self._masks.has_text(bits))

    def _consume(self, token: int) -> str | None:
        """Consume a token. Returns what is wrong with it."""
        if self._matcher.is_error():
            return message_of(self._matcher)
        if self._matcher.is_stopped():
            return None if token in self._masks.end_tokens else "the grammar had ended"
        return None if self._matcher.consume_token(token) else message_of(self._matcher)


class Witness(Protocol):
    """Hears of each row whose mask is computed."""

    def begin(self, row: MaskRow) -> bool:
        """Return False for a row that must not be tried."""
        ...

    def end(self, row: MaskRow) -> None:
        """Its mask is there."""
        ...


class Matching:
    """Matchers of the rows of all models, for any number of threads.

    masks: the grammar engine by model.
    """

    def __init__(self, masks: Mapping[str, TokenMasks]) -> None:
        self._masks = masks
        self._lock = threading.Lock()
        self._grammars: OrderedDict[tuple[str, str], _Grammar] = OrderedDict()
        self._rows: OrderedDict[tuple[str, str], _Row] = OrderedDict()

    @property
    def num_matchers(self) -> int:
        """Return how many rows' matchers are kept now."""
        return len(self._rows)

    def prepare(self, model: str, grammar: str) -> None:
        """Compile the grammar, so that the first mask does not wait for it. Raises BadGrammar.

        No lock is held meanwhile: whoever needs the grammar at once may be faster than this thread.
        """
        masks, kept = self._known(model), self._kept(model, grammar)
        if kept.matcher is not None:
            return
        matcher = masks.prepared(grammar)
        with kept.lock:
            if kept.matcher is None:
                kept.matcher = matcher

    def masks(self, rows: Sequence[MaskRow], witness: Witness | None = None) -> Masks:
        """Return the masks of `rows`; `witness` sees each."""
        bits: list[NDArray[np.uint32]] = []
        must_end = np.zeros(len(rows), np.bool_)
        errors: dict[int, str] = {}
        runs: dict[int, tuple[int, ...]] = {}
        for at, row in enumerate(rows):
            mask = self._witnessed(row, witness)
            bits.append(self._nothing(row.model) if mask.bits is None else mask.bits)
            must_end[at] = mask.must_end
            if mask.error is not None:
                errors[at] = mask.error
            if row.joins and mask.run:
                runs[at] = mask.run
        self._drop_idle()
        return Masks(bits, must_end, errors, runs)

    def _witnessed(self, row: MaskRow, witness: Witness | None) -> _Mask:
        if witness is not None and not witness.begin(row):
            return _Mask(error="its grammar takes more memory or time than masks may take")
        try:
            mask = self._mask(row)
        except BadGrammar as error:
            mask = _Mask(error=f"{error}")
        if witness is not None:
            witness.end(row)
        return mask

    def _nothing(self, model: str) -> NDArray[np.uint32]:
        """Return the mask of a row that has none."""
        masks = self._masks.get(model)
        return np.zeros(0 if masks is None else masks.num_words, np.uint32)

    def _mask(self, row: MaskRow) -> _Mask:
        """Return the mask of one row. Raises BadGrammar."""
        key = (row.model, row.request_id)
        with self._lock:
            kept = self._rows.get(key)
        mask = None
        if kept is not None and kept.constraint == row.constraint:
            mask = kept.mask_after(row.tokens, joins=row.joins)
        if kept is None or mask is None:
            kept = self._new_row(row, is_alone=False)
            mask = kept.mask_after(row.tokens, joins=row.joins)
        if mask is not None and mask.error is not None and not kept.is_alone:
            # Other rows may have used up the lexer's states of this grammar.
            with self._lock:
                self._grammars.pop((row.model, row.constraint.grammar), None)
            kept = self._new_row(row, is_alone=True)
            mask = kept.mask_after(row.tokens, joins=row.joins)
        assert mask is not None, "a new row has consumed nothing"
        kept.last_used_s = time.monotonic()
        with self._lock:
            self._rows[key] = kept
            self._rows.move_to_end(key)
        return mask

    def _new_row(self, row: MaskRow, *, is_alone: bool) -> _Row:
        masks = self._known(row.model)
        grammar = row.constraint.grammar
        matcher = masks.compile(grammar) if is_alone else self._copied(row.model, grammar)
        return _Row(row.constraint, masks, matcher, is_alone=is_alone)

    def _known(self, model: str) -> TokenMasks:
        if model not in self._masks:
            raise BadGrammar(f"there is no vocabulary of the model {model!r}")
        return self._masks[model]

    def _copied(self, model: str, grammar: str) -> LLMatcher:
        """Return a matcher at the start of the grammar, compiled if it was not before."""
        masks, kept = self._known(model), self._kept(model, grammar)
        with kept.lock:
            if kept.matcher is None:
                kept.matcher = masks.compile(grammar)
            return kept.matcher.deep_copy()

    def _kept(self, model: str, grammar: str) -> _Grammar:
        """Return the place of the grammar among those that are kept."""
        key = (model, grammar)
        with self._lock:
            kept = self._grammars.setdefault(key, _Grammar())
            self._grammars.move_to_end(key)
            while len(self._grammars) > MOST_GRAMMARS:
                self._grammars.popitem(last=False)
        return kept

    def _drop_idle(self) -> None:
        before_s = time.monotonic() - IDLE_S
        with self._lock:
            while self._rows:
                oldest = next(iter(self._rows))
                is_idle = self._rows[oldest].last_used_s < before_s
                if not is_idle and len(self._rows) <= MOST_MATCHERS:
                    return
                del self._rows[oldest]


def _unmatched(at: int, error: str) -> str:
    return f"output token {at} does not match the grammar: {error}"


def message_of(matcher: LLMatcher) -> str:
    """Return what is wrong with a matcher's grammar or tokens, without the engine's state."""
    text = matcher.get_error().split("\n<")[0].strip()
    return _printable(_PLAIN.get(text, text))


def _printable(text: str) -> str:
    """Return the beginning of a message, which may quote its author, on lines of plain text."""
    shown = text[:MOST_MESSAGE_CHARS]
    return "".join(char if char.isprintable() or char == "\n" else " " for char in shown)


def _bits(tokens: Iterable[int], num_words: int) -> NDArray[np.uint32]:
    """Return a mask that allows `tokens`."""
    allowed = np.zeros(num_words * 32, np.uint8)
    allowed[np.fromiter(tokens, np.intp)] = 1
    return np.packbits(allowed, bitorder="little").view(np.uint32)


def _end_of(run: Sequence[int], tokens: NDArray[np.int32], num_old: int) -> int | None:
    """Return where the first `run` in `tokens` ends; none ends within the first `num_old`."""
    size = len(run)
    for at in range(max(0, num_old - size + 1), len(tokens) - size + 1):
        if np.array_equal(tokens[at : at + size], run):
            return at + size
    return None
