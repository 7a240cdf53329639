"""Shapes of well-known models, for planning without their weights (from their config.json)."""

from collections.abc import Mapping
from types import MappingProxyType

from placement.shapes import ModelShape


def _llama(
    layers: int, hidden: int, heads: tuple[int, int], inner: int, vocab: int, context: int
) -> ModelShape:
    """Gated MLP, rotary positions, untied embeddings; heads: (query, KV)."""
    return ModelShape(layers, hidden, *heads, hidden // heads[0], inner, vocab, context)


def _opt(layers: int, hidden: int, heads: int) -> ModelShape:
    return ModelShape(
        num_layers=layers,
        hidden_size=hidden,
        num_heads=heads,
        num_kv_heads=heads,
        head_dim=hidden // heads,
        intermediate_size=4 * hidden,
        vocab_size=50272,
        max_position=2048,
        gated_mlp=False,
        tied_embeddings=True,
        learned_positions=True,
    )


SHAPES: Mapping[str, ModelShape] = MappingProxyType(
    {
        "llama-7b": _llama(32, 4096, (32, 32), 11008, 32000, 2048),
        "llama-13b": _llama(40, 5120, (40, 40), 13824, 32000, 2048),
        "llama-30b": _llama(60, 6656, (52, 52), 17920, 32000, 2048),
        "llama-65b": _llama(80, 8192, (64, 64), 22016, 32000, 2048),
        "llama-2-7b": _llama(32, 4096, (32, 32), 11008, 32000, 4096),
        "llama-2-13b": _llama(40, 5120, (40, 40), 13824, 32000, 4096),
        "llama-2-70b": _llama(80, 8192, (64, 8), 28672, 32000, 4096),
        "llama-3-8b": _llama(32, 4096, (32, 8), 14336, 128256, 8192),
        "llama-3-70b": _llama(80, 8192, (64, 8), 28672, 128256, 8192),
        "llama-3.1-8b": _llama(32, 4096, (32, 8), 14336, 128256, 131072),
        "mistral-7b": _llama(32, 4096, (32, 8), 14336, 32000, 32768),
        "qwen2.5-7b": _llama(28, 3584, (28, 4), 18944, 152064, 131072),
        "qwen2.5-14b": _llama(48, 5120, (40, 8), 13824, 152064, 131072),
        "qwen2.5-32b": _llama(64, 5120, (40, 8), 27648, 152064, 131072),
        "qwen3-8b": _llama(36, 4096, (32, 8), 12288, 151936, 40960),
        "mixtral-8x7b": ModelShape(
            32, 4096, 32, 8, 128, 14336, 32000, 32768, num_experts=8, experts_per_token=2
        ),
        "opt-1.3b": _opt(24, 2048, 32),
        "opt-6.7b": _opt(32, 4096, 32),
        "opt-13b": _opt(40, 5120, 40),
        "opt-30b": _opt(48, 7168, 56),
        "opt-66b": _opt(64, 9216, 72),
    }
)
