"""Two small tokenizers of the two families: byte-level BPE and metaspace with byte fallback."""

import heapq
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as FastTokenizer

from muxcluster.text.tokenizer import Tokenizer

CORPUS = [heapq.__doc__ or "", str.__doc__ or "", json.__doc__ or "", "naïve café 你好 🙂 "] * 4
CONFIG = {
    "bos_token": "<s>",
    "eos_token": {"__type": "AddedToken", "content": "</s>"},
    "tokenizer_class": "TokenizersBackend",
}


def byte_level() -> FastTokenizer:
    """GPT-2's kind: every byte string is a token sequence."""
    fast = FastTokenizer(models.BPE())
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    fast.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<s>", "</s>", "<|user|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    fast.train_from_iterator(CORPUS, trainer)
    return fast


def metaspace() -> FastTokenizer:
    """Llama 2's kind: U+2581 for spaces, unknown characters as <0xNN>, no space at the start."""
    words = ["\u2581", "a", "b", "\u2581a", "\u2581b", "ab", ".", "é", "\ufffd"]
    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2}
    for piece in [*(f"<0x{byte:02X}>" for byte in range(256)), *words]:
        vocab[piece] = len(vocab)
    merges = [("\u2581", "a"), ("\u2581", "b"), ("a", "b")]
    fast = FastTokenizer(models.BPE(vocab, merges, unk_token="<unk>", byte_fallback=True))
    fast.normalizer = normalizers.Sequence(
        [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    )
    fast.decoder = decoders.Sequence(
        [
            decoders.Replace("\u2581", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    fast.add_special_tokens([AddedToken(text, special=True) for text in ("<unk>", "<s>", "</s>")])
    return fast


def save(fast: FastTokenizer, directory: Path, **config: object) -> Path:
    """A model directory with just its text side."""
    directory.mkdir(parents=True, exist_ok=True)
    fast.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(json.dumps({**CONFIG, **config}))
    return directory


KINDS = {"bytes": byte_level, "metaspace": metaspace}


@pytest.fixture
def text_directory(tmp_path: Path) -> Callable[..., Path]:
    """(kind, **entries of tokenizer_config.json) -> directory."""
    return lambda kind, **config: save(KINDS[kind](), tmp_path / kind, **config)


@pytest.fixture(scope="session", params=KINDS)
def tokenizer(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Tokenizer:
    """Each of the two, loaded from a directory."""
    return Tokenizer.load(save(KINDS[request.param](), tmp_path_factory.mktemp("tokenizer")))
