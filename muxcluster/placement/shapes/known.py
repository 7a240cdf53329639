"""Shapes of well-known models, for planning without their weights (from their config.json)."""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from muxcluster.placement.names import nearest
from muxcluster.placement.shapes.latent import LatentAttention
from muxcluster.placement.shapes.shape import ModelShape, ShapeError
from muxcluster.placement.shapes.weight_format import WeightFormat


def _gated(
    layers: int, hidden: int, heads: tuple[int, int], inner: int, vocab: int, context: int
) -> ModelShape:
    """Gated MLP, rotary positions, untied embeddings; heads: (query, KV)."""
    return ModelShape(layers, hidden, *heads, hidden // heads[0], inner, vocab, context)


def _tied(  # as _gated, but the embedding is the output head too
    layers: int, hidden: int, heads: tuple[int, ...], inner: int, vocab: int, context: int
) -> ModelShape:
    """heads: (query, KV) or (query, KV, head_dim)."""
    query, kv, head_dim = (*heads, hidden // heads[0])[:3]
    return ModelShape(
        layers, hidden, query, kv, head_dim, inner, vocab, context, tied_embeddings=True
    )


def _windowed(shape: ModelShape, window: int, period: int = 0) -> ModelShape:
    """Return `shape` with a window in all layers but every `period`-th; 0: in all."""
    layers = range(shape.num_layers)
    windowed = tuple(i for i in layers if not period or (i + 1) % period)
    return replace(shape, window=window, window_layers=windowed)


def _qwen3(layers: int, hidden: int, heads: tuple[int, int], inner: int, **more: Any) -> ModelShape:
    return ModelShape(layers, hidden, *heads, 128, inner, 151936, 40960, **more)


def _gpt_oss(layers: int, experts: int) -> ModelShape:
    sizes = (layers, 2880, 64, 8, 64, 2880, 201088, 131072)
    shape = ModelShape(
        *sizes,
        num_experts=experts,
        experts_per_token=4,
        weights=WeightFormat("mxfp4", 32, of_experts=True),
    )
    return _windowed(shape, 128, 2)


def _neox(layers: int, hidden: int, heads: int, vocab: int) -> ModelShape:
    head_dim, inner = hidden // heads, 4 * hidden
    return ModelShape(layers, hidden, heads, heads, head_dim, inner, vocab, 2048, gated_mlp=False)


def _falcon(layers: int, hidden: int, heads: tuple[int, int]) -> ModelShape:
    return ModelShape(
        layers, hidden, *heads, 64, 4 * hidden, 65024, 2048, gated_mlp=False, tied_embeddings=True
    )


def _latent(
    layers: tuple[int, int], hidden: int, heads: int, query_rank: int, **more: Any
) -> ModelShape:
    """DeepSeek's attention and experts. layers: (all, those with one MLP in place of experts)."""
    latent = LatentAttention(512, 64, 128, 128, query_rank)
    kv_heads, head_dim = latent.stored_heads
    return ModelShape(
        num_layers=layers[0],
        num_dense_layers=layers[1],
        hidden_size=hidden,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        latent=latent,
        **more,
    )


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


_128K = 131072
_LLAMA = {
    "llama-7b": _gated(32, 4096, (32, 32), 11008, 32000, 2048),
    "llama-13b": _gated(40, 5120, (40, 40), 13824, 32000, 2048),
    "llama-30b": _gated(60, 6656, (52, 52), 17920, 32000, 2048),
    "llama-65b": _gated(80, 8192, (64, 64), 22016, 32000, 2048),
    "llama-2-7b": _gated(32, 4096, (32, 32), 11008, 32000, 4096),
    "llama-2-13b": _gated(40, 5120, (40, 40), 13824, 32000, 4096),
    "llama-2-70b": _gated(80, 8192, (64, 8), 28672, 32000, 4096),
    "llama-3-8b": _gated(32, 4096, (32, 8), 14336, 128256, 8192),
    "llama-3-70b": _gated(80, 8192, (64, 8), 28672, 128256, 8192),
    "llama-3.1-8b": _gated(32, 4096, (32, 8), 14336, 128256, _128K),
    "llama-3.1-70b": _gated(80, 8192, (64, 8), 28672, 128256, _128K),
    "llama-3.1-405b": _gated(126, 16384, (128, 8), 53248, 128256, _128K),
    "llama-3.2-1b": _tied(16, 2048, (32, 8), 8192, 128256, _128K),
    "llama-3.2-3b": _tied(28, 3072, (24, 8), 8192, 128256, _128K),
    "codellama-34b": _gated(48, 8192, (64, 8), 22016, 32000, 16384),
    "tiny-llama-1.1b": _gated(22, 2048, (32, 4), 5632, 32000, 2048),
    "smollm2-135m": _tied(30, 576, (9, 3), 1536, 49152, 8192),
    "smollm2-360m": _tied(32, 960, (15, 5), 2560, 49152, 8192),
    "smollm2-1.7b": _tied(24, 2048, (32, 32), 8192, 49152, 8192),
    "internlm-20b": _gated(60, 5120, (40, 40), 13824, 103168, 4096),
}
_MISTRAL = {
    "mistral-7b": _gated(32, 4096, (32, 8), 14336, 32000, 32768),
    "mistral-7b-v0.1": _gated(32, 4096, (32, 8), 14336, 32000, 4096),
    "mistral-7b-v0.3": _gated(32, 4096, (32, 8), 14336, 32768, 32768),
    "mixtral-8x7b": ModelShape(
        32, 4096, 32, 8, 128, 14336, 32000, 32768, num_experts=8, experts_per_token=2
    ),
    "mixtral-8x22b": ModelShape(
        56, 6144, 48, 8, 128, 16384, 32768, 65536, num_experts=8, experts_per_token=2
    ),
}
_QWEN = {
    "qwen2-7b": _gated(28, 3584, (28, 4), 18944, 152064, _128K),
    "qwen2.5-0.5b": _tied(24, 896, (14, 2), 4864, 151936, 32768),
    "qwen2.5-1.5b": _tied(28, 1536, (12, 2), 8960, 151936, _128K),
    "qwen2.5-3b": _tied(36, 2048, (16, 2), 11008, 151936, 32768),
    "qwen2.5-7b": _gated(28, 3584, (28, 4), 18944, 152064, _128K),
    "qwen2.5-14b": _gated(48, 5120, (40, 8), 13824, 152064, _128K),
    "qwen2.5-32b": _gated(64, 5120, (40, 8), 27648, 152064, _128K),
    "qwen2.5-72b": _gated(80, 8192, (64, 8), 29568, 152064, _128K),
    "qwen3-0.6b": _qwen3(28, 1024, (16, 8), 3072, tied_embeddings=True),
    "qwen3-1.7b": _qwen3(28, 2048, (16, 8), 6144, tied_embeddings=True),
    "qwen3-4b": _qwen3(36, 2560, (32, 8), 9728, tied_embeddings=True),
    "qwen3-8b": _qwen3(36, 4096, (32, 8), 12288),
    "qwen3-14b": _qwen3(40, 5120, (40, 8), 17408),
    "qwen3-32b": _qwen3(64, 5120, (64, 8), 25600),
    "qwen3-30b-a3b": _qwen3(48, 2048, (32, 4), 768, num_experts=128, experts_per_token=8),
    "qwen3-235b-a22b": _qwen3(94, 4096, (64, 4), 1536, num_experts=128, experts_per_token=8),
}
_PHI_AND_GEMMA = {
    "phi-2": _neox(32, 2560, 32, 51200),
    "phi-3-mini-4k": _windowed(_gated(32, 3072, (32, 32), 8192, 32064, 4096), 2047),
    "phi-4": _gated(40, 5120, (40, 10), 17920, 100352, 16384),
    "phi-4-mini": _tied(32, 3072, (24, 8), 8192, 200064, _128K),
    "gemma-2-2b": _windowed(_tied(26, 2304, (8, 4, 256), 9216, 256000, 8192), 4096, 2),
    "gemma-2-9b": _windowed(_tied(42, 3584, (16, 8, 256), 14336, 256000, 8192), 4096, 2),
    "gemma-2-27b": _windowed(_tied(46, 4608, (32, 16, 128), 36864, 256000, 8192), 4096, 2),
    "gemma-3-1b": _windowed(_tied(26, 1152, (4, 1, 256), 6912, 262144, 32768), 512, 6),
    "gemma-3-4b": _windowed(_tied(34, 2560, (8, 4, 256), 10240, 262208, _128K), 1024, 6),
    "gemma-3-12b": _windowed(_tied(48, 3840, (16, 8, 256), 15360, 262208, _128K), 1024, 6),
    "gemma-3-27b": _windowed(_tied(62, 5376, (32, 16, 128), 21504, 262208, _128K), 1024, 6),
}
_GPT_OSS = {"gpt-oss-20b": _gpt_oss(24, 32), "gpt-oss-120b": _gpt_oss(36, 128)}
_V3 = _latent(
    (61, 3),
    7168,
    128,
    1536,
    intermediate_size=2048,
    shared_intermediate_size=2048,
    dense_intermediate_size=18432,
    num_experts=256,
    experts_per_token=8,
    vocab_size=129280,
    max_position=163840,
)
_DEEPSEEK = {
    "deepseek-v2": _latent(
        (60, 1),
        5120,
        128,
        1536,
        intermediate_size=1536,
        shared_intermediate_size=3072,
        dense_intermediate_size=12288,
        num_experts=160,
        experts_per_token=6,
        vocab_size=102400,
        max_position=163840,
    ),
    "deepseek-v2-lite": _latent(
        (27, 1),
        2048,
        16,
        0,
        intermediate_size=1408,
        shared_intermediate_size=2816,
        dense_intermediate_size=10944,
        num_experts=64,
        experts_per_token=6,
        vocab_size=102400,
        max_position=163840,
    ),
    "deepseek-v3": _V3,
    "deepseek-r1": _V3,
}
_UNGATED = {
    "falcon-7b": _falcon(32, 4544, (71, 1)),
    "falcon-40b": _falcon(60, 8192, (128, 8)),
    "pythia-1.4b": _neox(24, 2048, 16, 50304),
    "pythia-6.9b": _neox(32, 4096, 32, 50432),
    "pythia-12b": _neox(36, 5120, 40, 50688),
    "opt-125m": _opt(12, 768, 12),
    "opt-1.3b": _opt(24, 2048, 32),
    "opt-2.7b": _opt(32, 2560, 32),
    "opt-6.7b": _opt(32, 4096, 32),
    "opt-13b": _opt(40, 5120, 40),
    "opt-30b": _opt(48, 7168, 56),
    "opt-66b": _opt(64, 9216, 72),
    "opt-175b": _opt(96, 12288, 96),
}
# By name. "mistral-7b" is v0.2; v0.1's context is its window of 4,096 tokens.
SHAPES: Mapping[str, ModelShape] = MappingProxyType(
    {
        **_LLAMA,
        **_MISTRAL,
        **_QWEN,
        **_PHI_AND_GEMMA,
        **_GPT_OSS,
        **_DEEPSEEK,
        **_UNGATED,
    }
)

_DECORATION = frozenset({"hf", "it", "pt", "instruct", "chat", "base"})
_OTHER_NAMES: Mapping[str, str] = {
    "mistral-7b-v0.2": "mistral-7b",
    "mixtral-8x7b-v0.1": "mixtral-8x7b",
    "mixtral-8x22b-v0.1": "mixtral-8x22b",
    "tinyllama-1.1b-v1.0": "tiny-llama-1.1b",
    "tinyllama-1.1b-intermediate-step-1431k-3t": "tiny-llama-1.1b",
}


def shape_named(name: str) -> ModelShape:
    """The shape of that name, ours ("llama-2-7b") or a Hugging Face repository's, with or without
    its owner, in any case ("meta-llama/Llama-2-7b-chat-hf").

    Raises ShapeError with the nearest names.
    """
    words = name.strip().lower().rsplit("/", 1)[-1].removeprefix("meta-").split("-")
    plain = "-".join(word for word in words if word not in _DECORATION)
    found = SHAPES.get(_OTHER_NAMES.get(plain, plain))
    if found is None:
        raise ShapeError(f"unknown shape {name!r:.80}{nearest(plain[:80], SHAPES)}")
    return found
