"""The Llama of bench/serving.py as OpenVINO's intermediate representation.

Written with the library's own operators: a Llama whose cache is a state, as its exporters write it;
GenAI's pipeline turns that into paged attention. Needs openvino and numpy alone.
"""

import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
from openvino import opset13 as ops
from openvino.op.util import Variable, VariableInfo

# Arithmetic: what OpenVINO chooses by itself, what the others compute in, and weights of 8 bits as
# its exporters write them, with a scale a row, of all linears.
KINDS: Mapping[str, Mapping[str, str]] = {
    "default": {},
    "fp32": {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"},
    "int8": {},
}

Weights = Mapping[str, np.ndarray]
Config = Mapping[str, Any]


def read_weights(file: Path) -> Weights:
    """The fp32 tensors of a safetensors file."""
    raw = file.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8 : 8 + length])
    start = 8 + length
    found = {}
    for name, entry in header.items():
        if name != "__metadata__":
            first, last = entry["data_offsets"]
            part = raw[start + first : start + last]
            found[name] = np.frombuffer(part, np.float32).reshape(entry["shape"])
    return found


class Llama:
    """Builds the graph: input_ids, attention_mask, position_ids, beam_idx to logits."""

    def __init__(self, config: Config, weights: Weights, *, in_int8: bool) -> None:
        """in_int8: linears."""
        self._config = config
        self._in_int8 = in_int8
        self._weights = weights
        self._sinks: list[Any] = []
        self._tokens = _parameter([-1, -1], "input_ids")
        self._mask = _parameter([-1, -1], "attention_mask")
        self._positions = _parameter([-1, -1], "position_ids")
        self._beams = _parameter([-1], "beam_idx", np.int32)

    def model(self) -> ov.Model:
        """The whole model."""
        hidden = ops.gather(self._constant("model.embed_tokens.weight"), self._tokens, _int(0))
        batch = ops.gather(ops.shape_of(self._tokens), _int([0]), _int(0))
        turns = self._turns()
        mask = self._bias()
        for layer in range(self._config["num_hidden_layers"]):
            hidden = self._layer(f"model.layers.{layer}", hidden, batch, turns, mask)
        logits = self._linear("lm_head", self._norm("model.norm", hidden))
        result = ops.result(logits)
        result.output(0).set_names({"logits"})
        inputs = [self._tokens, self._mask, self._positions, self._beams]
        return ov.Model([result], self._sinks, inputs, "llama")

    def _layer(self, name: str, hidden: Any, batch: Any, turns: Any, mask: Any) -> Any:
        config = self._config
        heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
        normed = self._norm(f"{name}.input_layernorm", hidden)
        projected = [
            self._heads(self._linear(f"{name}.self_attn.{part}_proj", normed), count)
            for part, count in (("q", heads), ("k", kv_heads), ("v", kv_heads))
        ]
        query, key, value = (*(self._turn(each, turns) for each in projected[:2]), projected[2])
        key, value = (
            self._repeat(self._cached(f"{name}.{kind}", each, batch))
            for kind, each in (("key", key), ("value", value))
        )
        attended = ops.scaled_dot_product_attention(query, key, value, mask, causal=False)
        flat = ops.reshape(ops.transpose(attended, _int([0, 2, 1, 3])), _int([0, 0, -1]), True)
        hidden = ops.add(hidden, self._linear(f"{name}.self_attn.o_proj", flat))
        normed = self._norm(f"{name}.post_attention_layernorm", hidden)
        gate = ops.swish(self._linear(f"{name}.mlp.gate_proj", normed))
        wide = ops.multiply(gate, self._linear(f"{name}.mlp.up_proj", normed))
        return ops.add(hidden, self._linear(f"{name}.mlp.down_proj", wide))

    def _constant(self, name: str) -> Any:
        return ops.constant(self._weights[name], np.float32, name)

    def _linear(self, name: str, inputs: Any) -> Any:
        if not self._in_int8:
            return ops.matmul(inputs, self._constant(f"{name}.weight"), False, True)
        weight = self._weights[f"{name}.weight"]
        scales = np.maximum(np.abs(weight).max(1, keepdims=True) / 127, np.float32(1e-12))
        values = ops.constant(np.rint(weight / scales).astype(np.int8), np.int8, name)
        wide = ops.multiply(ops.convert(values, np.float32), ops.constant(scales, np.float32))
        return ops.matmul(inputs, wide, False, True)

    def _norm(self, name: str, inputs: Any) -> Any:
        squares = ops.reduce_mean(ops.power(inputs, _float(2)), _int([-1]), True)
        root = ops.sqrt(ops.add(squares, _float(self._config["rms_norm_eps"])))
        return ops.multiply(ops.divide(inputs, root), self._constant(f"{name}.weight"))

    def _heads(self, inputs: Any, count: int) -> Any:
        """[batch, tokens, count * head_dim] to [batch, count, tokens, head_dim]."""
        shape = _int([0, 0, count, self._config["head_dim"]])
        return ops.transpose(ops.reshape(inputs, shape, True), _int([0, 2, 1, 3]))

    def _turns(self) -> tuple[Any, Any]:
        """Cosines and sines [batch, 1, tokens, head_dim]."""
        size = self._config["head_dim"]
        theta = self._config["rope_parameters"]["rope_theta"]
        inverse = 1 / theta ** (np.arange(0, size, 2, dtype=np.float32) / size)
        places = ops.convert(ops.unsqueeze(self._positions, _int(-1)), np.float32)
        half = ops.multiply(places, ops.constant(inverse.reshape(1, 1, -1), np.float32))
        angles = ops.unsqueeze(ops.concat([half, half], -1), _int(1))
        return ops.cos(angles), ops.sin(angles)

    def _turn(self, heads: Any, turns: tuple[Any, Any]) -> Any:
        first, second = ops.split(heads, _int(-1), 2).outputs()
        turned = ops.concat([ops.multiply(second, _float(-1)), first], -1)
        return ops.add(ops.multiply(heads, turns[0]), ops.multiply(turned, turns[1]))

    def _cached(self, name: str, fresh: Any, batch: Any) -> Any:
        """Earlier entries of every beam, then `fresh`, along the tokens' axis."""
        kv_heads, size = self._config["num_key_value_heads"], self._config["head_dim"]
        info = VariableInfo()
        info.data_shape = ov.PartialShape([-1, kv_heads, -1, size])
        info.data_type = ov.Type.f32
        info.variable_id = name
        variable = Variable(info)
        shape = ops.concat([batch, _int([kv_heads]), _int([0]), _int([size])], 0)
        past = ops.read_value(ops.broadcast(_float(0), shape), variable)
        whole = ops.concat([ops.gather(past, self._beams, _int(0)), fresh], 2)
        self._sinks.append(ops.assign(whole, variable))
        return whole

    def _repeat(self, cached: Any) -> Any:
        """Each KV head once per query head of its group."""
        heads, kv_heads = self._config["num_attention_heads"], self._config["num_key_value_heads"]
        size = self._config["head_dim"]
        wide = ops.unsqueeze(cached, _int(2))
        shape = ops.constant(np.array([1, 1, heads // kv_heads, 1, 1]), np.int64)
        copies = ops.broadcast(wide, shape, broadcast_spec="BIDIRECTIONAL")
        return ops.reshape(copies, _int([0, heads, -1, size]), True)

    def _bias(self) -> Any:
        """Causal and padding mask as one is written for a state; paged attention drops it."""
        total = ops.gather(ops.shape_of(self._mask), _int(1), _int(0))
        fresh = ops.gather(ops.shape_of(self._tokens), _int(1), _int(0))
        keys = ops.range(_int(0), total, _int(1), "i64")
        rows = ops.range(ops.subtract(total, fresh), total, _int(1), "i64")
        later = ops.greater(ops.unsqueeze(keys, _int(0)), ops.unsqueeze(rows, _int(1)))
        masked = ops.equal(ops.unsqueeze(self._mask, _int([1, 2])), _int(0))
        hidden = ops.logical_or(ops.unsqueeze(later, _int([0, 1])), masked)
        return ops.select(hidden, _float(np.finfo(np.float32).min), _float(0))


def _parameter(shape: Sequence[int], name: str, dtype: Any = np.int64) -> Any:
    node = ops.parameter(list(shape), dtype)
    node.set_friendly_name(name)
    node.output(0).set_names({name})
    return node


def _int(value: Any) -> Any:
    return ops.constant(np.array(value, dtype=np.int64))


def _float(value: float) -> Any:
    return ops.constant(np.float32(value))


def write_model(source: Path, folder: Path, *, in_int8: bool) -> None:
    """The pipeline's directory: the graph, and the configuration it looks into."""
    folder.mkdir()
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    model = Llama(config, read_weights(source / "model.safetensors"), in_int8=in_int8).model()
    ov.save_model(model, folder / "openvino_model.xml", compress_to_fp16=False)
    for name in ("config.json", "generation_config.json"):
        if (source / name).exists():
            (folder / name).write_bytes((source / name).read_bytes())
