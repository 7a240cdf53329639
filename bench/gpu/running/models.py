"""Models with random weights for benches on a GPU: a config.json, no download."""

import json
from pathlib import Path
from typing import Any

from muxcluster.core.kvshape import KvShape, block_bytes
from muxcluster.core.unitspec import ModelSpec
from muxcluster.placement.shapes.known import SHAPES
from muxcluster.placement.shapes.shape import ModelShape

# What the benches call a shape, and what `placement` calls it.
KNOWN = {"1b": "llama-3.2-1b", "3b": "llama-3.2-3b", "8b": "llama-3-8b"}
# Their stand-ins in a dry run.
_TINY = {
    "1b": ModelShape(2, 64, 4, 2, 16, 128, 512, 4096, tied_embeddings=True),
    "3b": ModelShape(2, 96, 6, 2, 16, 128, 512, 4096, tied_embeddings=True),
    "8b": ModelShape(3, 64, 4, 2, 16, 128, 512, 4096),
}
_BLOCK_TOKENS = 16
_ITEMSIZES = {"float32": 4, "bfloat16": 2, "float16": 2}


def shape_of(size: str, *, tiny: bool) -> ModelShape:
    """The shape that `size`, a key of `KNOWN`, stands for."""
    return _TINY[size] if tiny else SHAPES[KNOWN[size]]


def hf_config(shape: ModelShape, **others: Any) -> dict[str, Any]:
    """A Llama of that shape in the words of config.json, and no end token."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": shape.hidden_size,
        "num_hidden_layers": shape.num_layers,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads,
        "head_dim": shape.head_dim,
        "intermediate_size": shape.intermediate_size,
        "vocab_size": shape.vocab_size,
        "max_position_embeddings": shape.max_position,
        "tie_word_embeddings": shape.tied_embeddings,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500_000.0,
        "bos_token_id": None,
        "eos_token_id": None,
        **others,
    }


def write_model(folder: Path, shape: ModelShape) -> Path:
    """`folder`, made, with a config.json in it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(hf_config(shape)), encoding="utf-8")
    return folder


def spec_of(name: str, folder: Path, shape: ModelShape, dtype: str, **others: Any) -> ModelSpec:
    """Of the model in `folder`, with random weights. others: fields of ModelSpec."""
    itemsize = _ITEMSIZES[dtype]
    fields = {
        "max_model_len": min(4096, shape.max_position),
        "load_format": "dummy",
        "prefix_caching": False,
        "weight_bytes": shape.active_params * itemsize,
        **others,
    }
    return ModelSpec(
        name=name,
        path=str(folder),
        shape=KvShape(shape.num_layers, shape.num_kv_heads, shape.head_dim, itemsize),
        vocab_size=shape.vocab_size,
        eos_token_ids=(),
        dtype=dtype,
        **fields,
    )


def bytes_of_block(dtype: str) -> int:
    """Bytes of a block as the configuration would choose them."""
    return block_bytes(_BLOCK_TOKENS, _ITEMSIZES[dtype])


def blocks_for(spec: ModelSpec, sequences: int, tokens: int, num_bytes: int) -> int:
    """Blocks of `num_bytes` that hold so many sequences of `tokens` tokens each."""
    columns = -(-tokens // spec.shape.block_tokens(num_bytes))
    return sequences * columns * spec.shape.blocks_per_column
