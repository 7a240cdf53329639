"""The tiny models themselves: reproducible, loadable by Hugging Face, with a working tokenizer."""

from pathlib import Path

import pytest
from safetensors.torch import load_file
from transformers import AutoTokenizer

from muxcluster.demo.models import FAMILIES, build_model
from muxcluster.demo.text import docstrings
from muxcluster.demo.tokenizer_training import BOS, EOS, write_tokenizer
from muxcluster.text.template import ChatTemplate
from muxcluster.text.tokenizer import Tokenizer
from tests.engine.conftest import ModelBuilder

MESSAGES = [
    {"role": "user", "content": "hi"},
    {"role": "assistant", "content": "yes"},
    {"role": "user", "content": "so?"},
]


def test_a_seed_makes_the_same_files(tmp_path: Path) -> None:
    one, same, other = (
        build_model(tmp_path / name, "mistral", seed=seed)
        for name, seed in (("one", 1), ("same", 1), ("other", 2))
    )
    for file in one.iterdir():
        assert (same / file.name).read_bytes() == file.read_bytes()
    weights = "model.safetensors"
    assert (other / weights).read_bytes() != (one / weights).read_bytes()


@pytest.mark.parametrize("family", FAMILIES)
def test_no_weight_is_left_at_its_default(tiny: ModelBuilder, family: str) -> None:
    tensors = load_file(tiny(family) / "model.safetensors")
    for name, tensor in tensors.items():
        is_small = "norm" in name or tensor.numel() < 8  # a deviation of few numbers is any
        assert tensor.std() > (0.05 if is_small else 0.15), name


def test_unknown_family_and_too_small_a_vocabulary(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="unknown family 'bert'"):
        build_model(tmp_path, "bert")
    with pytest.raises(ValueError, match="at least 259"):
        write_tokenizer(tmp_path, 258)


@pytest.mark.parametrize("family", ["llama", "opt"])
def test_tokenizer(tiny: ModelBuilder, family: str) -> None:
    directory = tiny(family)
    theirs, ours = AutoTokenizer.from_pretrained(directory), Tokenizer.load(directory)
    text = "Return the value of the key – or 東京 🙂\n\tif it is there."
    ids = ours.encode(text)
    assert theirs(text).input_ids == ids
    assert (ids[0], theirs.eos_token_id, theirs.pad_token_id) == (0, 1, 2)
    assert ours.decode(ids) == text
    assert len(theirs) == ours.vocab_size == FAMILIES[family].get("vocab_size", 512)
    assert len(ours.encode("return the value", add_special_tokens=False)) < 8


def test_chat_template(tiny: ModelBuilder) -> None:
    directory = tiny("llama")
    template = ChatTemplate.load(directory)
    assert template is not None
    text = template.render(MESSAGES)
    assert text == f"{BOS}[user]\nhi\n[assistant]\nyes{EOS}\n[user]\nso?\n[assistant]\n"
    theirs = AutoTokenizer.from_pretrained(directory)
    assert text == theirs.apply_chat_template(MESSAGES, tokenize=False, add_generation_prompt=True)


def test_docstrings_are_prose_enough() -> None:
    texts = docstrings()
    assert texts is docstrings()
    assert sum(map(len, texts)) > 100_000
