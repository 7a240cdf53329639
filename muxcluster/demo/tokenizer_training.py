"""Training of a small byte-level BPE tokenizer with a chat template, for the tiny random models."""

import json
from functools import lru_cache
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from muxcluster.demo.text import docstrings

BOS, EOS, PAD = "<|bos|>", "<|eos|>", "<|pad|>"
BOS_ID, EOS_ID, PAD_ID = 0, 1, 2
SMALLEST_VOCAB = 3 + 256  # The special tokens and every byte

CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}"
    "{{ '[' + message['role'] + ']\\n' + message['content'] }}"
    "{{ eos_token + '\\n' if message['role'] == 'assistant' else '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '[assistant]\\n' }}{% endif %}"
)


def write_tokenizer(directory: Path, vocab_size: int) -> None:
    """Put tokenizer.json and tokenizer_config.json of a `vocab_size` tokenizer into `directory`.

    Token ids 0, 1 and 2 are bos, eos and pad; encoding with special tokens puts bos first.
    Raises ValueError for a vocabulary too small for all bytes.
    """
    if vocab_size < SMALLEST_VOCAB:
        raise ValueError(f"vocab_size must be at least {SMALLEST_VOCAB}, got {vocab_size}")
    (directory / "tokenizer.json").write_text(_trained(vocab_size), encoding="utf-8")
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BOS,
        "eos_token": EOS,
        "pad_token": PAD,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    text = json.dumps(config, indent=2)
    (directory / "tokenizer_config.json").write_text(text, encoding="utf-8")


@lru_cache
def _trained(vocab_size: int) -> str:
    """Return the tokenizer as JSON; trained once a process and size: tests make many models."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[AddedToken(text, special=True) for text in (BOS, EOS, PAD)],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(docstrings(), trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", special_tokens=[(BOS, BOS_ID)]
    )
    text: str = tokenizer.to_str()
    return text
