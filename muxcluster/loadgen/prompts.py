"""Random prompts of about a given number of tokens, and their request bodies."""

import json
import random
import urllib.error
import urllib.request
from dataclasses import dataclass
from http.client import HTTPException

SAMPLE_WORDS = 200
TOKENS_PER_WORD = 1.5  # assumed for servers without /tokenize
_CONSONANTS, _VOWELS = "bcdfghjklmnprstvw", "aeiou"


@dataclass(frozen=True, slots=True)
class Prompts:
    """Model, lengths and kind of the requests."""

    model: str
    input_len: int  # input_len, output_len: tokens; the input's is approximate
    output_len: int
    is_chat: bool = False  # chat completions instead of completions
    ignore_eos: bool = True
    seed: int = 0

    @property
    def path(self) -> str:
        return "/v1/chat/completions" if self.is_chat else "/v1/completions"

    def bodies(self, num_prompts: int, tokens_per_word: float) -> list[bytes]:
        """Return JSON bodies of `num_prompts` streamed requests; the same seed gives the same
        bodies."""
        rng = random.Random(self.seed)
        num_words = max(1, round(self.input_len / tokens_per_word))
        return [self._body(words(rng, num_words)) for _ in range(num_prompts)]

    def _body(self, text: str) -> bytes:
        asked: dict[str, object] = {"prompt": text}
        if self.is_chat:
            asked = {"messages": [{"role": "user", "content": text}]}
        fields = {
            "model": self.model,
            **asked,
            "max_tokens": self.output_len,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self.ignore_eos:
            fields["ignore_eos"] = True
        return json.dumps(fields).encode()


def words(rng: random.Random, num_words: int) -> str:
    """Return pronounceable nonsense, so that no two prompts share a prefix."""
    syllables = [
        "".join(rng.choice(_CONSONANTS) + rng.choice(_VOWELS) for _ in range(rng.randint(1, 3)))
        for _ in range(num_words)
    ]
    return " ".join(syllables)


def tokens_per_word(url: str, model: str, key: str | None = None) -> float:
    """Measure it with the server's /tokenize; without one, return a guess."""
    sample = words(random.Random(0), SAMPLE_WORDS)
    body = json.dumps({"model": model, "prompt": sample}).encode()
    headers = {"Content-Type": "application/json"}
    if key is not None:
        headers["Authorization"] = f"Bearer {key}"
    request = urllib.request.Request(f"{url.rstrip('/')}/tokenize", body, headers)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            count = int(json.load(answer)["count"])
    except (OSError, ValueError, LookupError, TypeError, RecursionError, HTTPException):
        return TOKENS_PER_WORD
    return max(0.1, count / SAMPLE_WORDS)
