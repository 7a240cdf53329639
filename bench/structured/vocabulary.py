"""A synthetic vocabulary as large as those of today's models."""

import json
import random
from pathlib import Path

LETTERS = "abcdefghijklmnopqrstuvwxyz"
# Runs of what JSON is made of, as real vocabularies have them; Ġ and Ċ stand for space and newline.
MARKS = '{}[]":,.-Ċ0123456789'
WORD_SHARE = 0.9


def widen(tokenizer_json: Path, vocab_size: int, seed: int) -> None:
    """Fill a byte-level tokenizer's vocabulary with random words and runs of marks."""
    tokenizer = json.loads(tokenizer_json.read_text(encoding="utf-8"))
    vocabulary = tokenizer["model"]["vocab"]
    chance, size = random.Random(seed), vocab_size - len(vocabulary)
    known = set(vocabulary.values())
    spare = iter([token for token in range(vocab_size) if token not in known])
    while size > 0:
        letters, longest = (LETTERS, 10) if chance.random() < WORD_SHARE else (MARKS, 5)
        text = "".join(chance.choice(letters) for _ in range(chance.randint(2, longest)))
        text = ("Ġ" if chance.random() < 0.5 else "") + text
        if text not in vocabulary:
            vocabulary[text] = next(spare)
            size -= 1
    tokenizer_json.write_text(json.dumps(tokenizer), encoding="utf-8")
