"""The tokenizer against transformers' own, and its refusals."""

import json
from itertools import product
from pathlib import Path

import pytest
from tokenizers import Tokenizer as FastTokenizer
from tokenizers import processors
from transformers import AutoTokenizer

from muxcluster.core.errors import LoadError
from muxcluster.text.tokenizer import Tokenizer

TEXTS = ["", "a b ab.", "Hello, wörld! 🙂", "  two  spaces \n\n", "<s>ab</s> ab", "é\u0301 你好"]


@pytest.mark.parametrize("kind", ["bytes", "metaspace"])
@pytest.mark.parametrize("single", [None, "<s> $A", "<s> $A </s>"], ids=["plain", "bos", "both"])
@pytest.mark.parametrize("config", [{}, {"add_bos_token": True}], ids=["", "flag"])
def test_ids_equal_transformers(text_directory, kind, single, config) -> None:
    path = text_directory(kind, **config)
    if single is not None:
        add_post_processor(path, single)
    ours, theirs = Tokenizer.load(path), AutoTokenizer.from_pretrained(path)
    assert ours.vocab_size == len(theirs)
    for text, add in product(TEXTS, (True, False)):
        ids = theirs.encode(text, add_special_tokens=add)
        assert ours.encode(text, add) == ids
        for skip in (True, False):
            expected = theirs.decode(ids, skip_special_tokens=skip)
            assert ours.decode(ids, skip_special_tokens=skip) == expected
    assert (ours.encode("a")[0] == ours.encode("<s>", False)[0]) == (single is not None)


def add_post_processor(path: Path, single: str) -> None:
    fast = FastTokenizer.from_file(str(path / "tokenizer.json"))
    tokens = [(text, fast.token_to_id(text)) for text in ("<s>", "</s>")]
    fast.post_processor = processors.TemplateProcessing(single=single, special_tokens=tokens)
    fast.save(str(path / "tokenizer.json"))


def test_truncation_and_padding_of_the_file_are_ignored(text_directory) -> None:
    path = text_directory("bytes")
    content = json.loads((path / "tokenizer.json").read_text())
    content["truncation"] = {
        "direction": "Right",
        "max_length": 2,
        "strategy": "LongestFirst",
        "stride": 0,
    }
    (path / "tokenizer.json").write_text(json.dumps(content))
    assert len(Tokenizer.load(path).encode("a long enough text")) > 2


def test_bytes_of_all_tokens_make_the_text(tokenizer: Tokenizer) -> None:
    text = "ab é 🙂 naïve\u0000 b."
    ids = tokenizer.encode(text, add_special_tokens=False)
    joined = b"".join(map(tokenizer.token_bytes, ids)).decode()
    assert joined.removeprefix(" ") == text


def test_token_text_keeps_its_space_and_shows_half_characters(tokenizer: Tokenizer) -> None:
    last = tokenizer.encode("b a", add_special_tokens=False)[-1]
    assert (tokenizer.token_text(last), tokenizer.decode([last]).strip()) == (" a", "a")
    half = tokenizer.encode("🙂", add_special_tokens=False)[-1]
    assert tokenizer.token_text(half) == "\ufffd"
    assert tokenizer.token_text(tokenizer.vocab_size + 5) == ""


def test_tokens_named_special_by_the_config_are_skipped(text_directory) -> None:
    path = text_directory("metaspace", additional_special_tokens=["ab"])
    tokenizer = Tokenizer.load(path)
    token_of = {tokenizer.token_text(token): token for token in range(tokenizer.vocab_size)}
    ids = [token_of[" b"], token_of["ab"]]
    assert tokenizer.decode(ids) == "b"
    assert tokenizer.decode(ids, skip_special_tokens=False) == "bab"


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("tokenizer.json", None),
        ("tokenizer.json", "{"),
        ("tokenizer.json", "{}"),
        ("tokenizer_config.json", "not json"),
        ("tokenizer_config.json", "[1]"),
        ("special_tokens_map.json", "\udcff"),
    ],
)
def test_a_missing_or_corrupt_file_is_named(text_directory, file, content) -> None:
    path: Path = text_directory("bytes")
    if content is None:
        (path / file).unlink()
    else:
        (path / file).write_bytes(content.encode(errors="surrogateescape"))
    with pytest.raises(LoadError, match=file):
        Tokenizer.load(path)
