"""Incremental decoding equals decoding at once, whatever the tokens."""

from hypothesis import given
from hypothesis import strategies as st

from muxcluster.text.detokenizer import KEPT, MAX_WINDOW, Detokenizer
from muxcluster.text.tokenizer import Tokenizer

IDS = st.lists(st.integers(0, 450), max_size=120)


def pieces(ids: list[int], cuts: list[int]) -> list[list[int]]:
    """`ids` cut into runs of the lengths in `cuts`, then one by one."""
    runs = []
    for length in [*cuts, *([1] * len(ids))]:
        runs.append(ids[:length])
        ids = ids[length:]
    return runs


def stream(tokenizer: Tokenizer, runs: list[list[int]], skip: bool) -> str:
    decoder = Detokenizer(tokenizer, skip)
    return "".join([*map(decoder.push, runs), decoder.finish()])


@given(ids=IDS, cuts=st.lists(st.integers(0, 9), max_size=20), skip=st.booleans())
def test_random_tokens(tokenizer: Tokenizer, ids, cuts, skip) -> None:
    assert stream(tokenizer, pieces(ids, cuts), skip) == tokenizer.decode(ids, skip)


@given(ids=IDS, cuts=st.lists(st.integers(0, 9), max_size=20))
def test_special_tokens_that_are_kept(tokenizer: Tokenizer, ids, cuts) -> None:
    """They are shown where they stand, and the others are not."""
    special = [token for token in range(tokenizer.vocab_size) if tokenizer.is_special(token)]
    kept = frozenset(special[:1])
    decoder = Detokenizer(tokenizer, kept=kept)
    text = "".join([*map(decoder.push, pieces(ids, cuts)), decoder.finish()])
    shown = [token for token in ids if token in kept or token not in special]
    assert text == tokenizer.decode(shown, skip_special_tokens=False)


@given(text=st.text(max_size=60))
def test_any_text(tokenizer: Tokenizer, text) -> None:
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert stream(tokenizer, [[token] for token in ids], False) == tokenizer.decode(ids, False)


def byte_ids(tokenizer: Tokenizer) -> dict[int, int]:
    """Byte -> the token of just that byte."""
    found = {}
    for token in range(tokenizer.vocab_size):
        data = tokenizer.token_bytes(token)
        if len(data) == 1 and (tokenizer.is_byte(token) or data[0] not in found):
            found[data[0]] = token
    return found


@given(data=st.binary(max_size=80) | st.lists(st.sampled_from(b"\xe2\x82\xac\xf0a"), max_size=80))
def test_any_byte_string(tokenizer: Tokenizer, data) -> None:
    of_byte = byte_ids(tokenizer)
    ids = [of_byte[byte] for byte in bytes(data)]
    text = stream(tokenizer, [[token] for token in ids], False)
    assert text == tokenizer.decode(ids, False)


@given(text=st.text(alphabet="a é€🙂", max_size=30))
def test_what_is_shown_never_changes_nor_holds_half_a_character(tokenizer, text) -> None:
    ids = tokenizer.encode(text, add_special_tokens=False)
    decoder, shown = Detokenizer(tokenizer), ""
    for token in ids:
        shown += decoder.push([token])
        assert "\ufffd" not in shown
        assert tokenizer.decode(ids).startswith(shown)


def test_ascii_is_shown_at_once(tokenizer: Tokenizer) -> None:
    decoder = Detokenizer(tokenizer)
    for token in tokenizer.encode("ab a b.", add_special_tokens=False)[1:]:
        decoder.push([tokenizer.encode("a", add_special_tokens=False)[0]])
        assert decoder.push([token]) == tokenizer.token_text(token)


@given(ids=IDS, split=st.integers(0, 120), skip=st.booleans())
def test_context_is_read_and_not_shown(tokenizer: Tokenizer, ids, split, skip) -> None:
    before, after = ids[:split], ids[split:]
    decoder = Detokenizer(tokenizer, skip, context=before)
    text = decoder.push(after) + decoder.finish()
    shown = tokenizer.decode(before, skip).removesuffix("\ufffd")
    if not before or not tokenizer.is_byte(before[-1]):
        assert shown + text == tokenizer.decode(ids, skip)


def test_the_window_stays_small(tokenizer: Tokenizer) -> None:
    """Even on bytes that never make a character, where fallback runs have ended."""
    lengths: list[int] = []

    class Measured(Tokenizer):
        def decode(self, ids, skip_special_tokens=True):
            lengths.append(len(ids))
            return super().decode(ids, skip_special_tokens)

    measured = Measured(tokenizer._fast)
    of_byte = byte_ids(tokenizer)
    decoder = Detokenizer(measured)
    for index in range(400):
        decoder.push([of_byte[0xE2 if index % 5 else ord("a")]])
    assert max(lengths) <= MAX_WINDOW + 1 + (KEPT if tokenizer.is_byte(of_byte[0]) else 0)
