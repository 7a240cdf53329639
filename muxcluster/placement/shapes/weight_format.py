"""How the linears of a model's layers are stored: in the model's dtype, or quantised."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import gcd
from typing import Any, Final, Literal

from muxcluster.placement.shapes.config_values import ShapeError, flag, integer

_SCALE_BYTES = 4  # of a scale, and of a zero point: both are kept in fp32
_MXFP4_BLOCK = 32  # elements of a row that share a scale

Kind = Literal["int4", "int8", "fp8", "mxfp4"]
_KINDS: Final[Mapping[Any, Kind]] = {
    ("int", 4): "int4",
    ("int", 8): "int8",
    ("float", 8): "fp8",
}
_BITS: Final[Mapping[str, int]] = {"int4": 4, "int8": 8, "fp8": 8, "mxfp4": 4}


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """Quantised weights: elements of 4 or 8 bits, and scales.

    An element stands for (value - zero) * scale; some of one row's elements share a scale.
    """

    kind: Kind
    group: int = 0  # neighbouring inputs of one row that share a scale; 0: the whole row
    has_zeros: bool = False  # a zero point beside each scale
    # Products read inputs rounded to 8 bits, with a scale a token found when it runs; False: in the
    # model's dtype
    rounds_inputs: bool = False
    of_experts: bool = False  # experts alone; other linears are in the model's dtype

    @property
    def bits(self) -> int:
        """Bits of an element."""
        return _BITS[self.kind]

    @property
    def name(self) -> str:
        """As people write it: weights, groups, inputs."""
        inputs = "8-bit inputs" if self.rounds_inputs else "inputs as they are"
        of = " experts" if self.of_experts else ""
        sharing = f"groups of {self.group}" if self.group else "rows"
        return f"{self.kind}{of}, {sharing}, {inputs}"

    def bytes_per_weight(self, row_length: int) -> float:
        """Return the bytes of an element with its part of the scales. row_length: of a row."""
        scale = 1 if self.kind == "mxfp4" else _SCALE_BYTES
        scales = scale * (2 if self.has_zeros else 1)
        # where groups do not divide a row, the engine makes smaller ones
        return self.bits / 8 + scales / (gcd(self.group, row_length) or 1)


# What `models[].quantize` makes of an ordinary checkpoint when it is loaded.
QUANTIZE: Final[Mapping[str, WeightFormat]] = {
    "int8": WeightFormat("int8", rounds_inputs=True),
    "int4": WeightFormat("int4", group=128, has_zeros=True),
    "fp8": WeightFormat("fp8"),
}

# And of its output layer, unless that is tied to the embeddings. Every logit depends on it, so its
# inputs stay as they are, and so do 8 bits where the layers have 4.
QUANTIZE_HEAD: Final[Mapping[str, WeightFormat]] = {
    "int8": WeightFormat("int8"),
    "int4": WeightFormat("int8"),
    "fp8": WeightFormat("fp8"),
}


def stored_format(config: Mapping[str, Any]) -> WeightFormat | None:
    """Return the format that a config.json's `quantization_config` tells; None: not quantised.

    Raises ShapeError for a method or a variant of one that cannot be served.
    """
    found = quantisation_of(config)
    if found is None:
        return None
    method = found.get("quant_method")
    read = _METHODS.get(str(method))
    if read is None:
        known = ", ".join(sorted(_METHODS))
        raise ShapeError(f"weights quantised by {method!r:.80} cannot be served (known: {known})")
    return read(found)


def quantisation_of(config: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the `quantization_config` of a config.json, or of its text part. Raises ShapeError."""
    text = config.get("text_config")
    parts = (config, text) if isinstance(text, Mapping) else (config,)
    given = (part.get("quantization_config") for part in parts)
    found = next((each for each in given if each is not None), None)
    if found is not None and not isinstance(found, Mapping):
        raise ShapeError(f"quantization_config is {found!r:.80}, expected an object")
    return found


def _awq(found: Mapping[str, Any]) -> WeightFormat:
    version = str(found.get("version", "gemm")).lower()
    if version != "gemm":
        raise ShapeError(f"AWQ weights of version {version!r:.80} cannot be served, only 'gemm'")
    bits = found.get("bits")
    if bits != 4:
        raise ShapeError(f"AWQ weights of {bits!r:.80} bits cannot be served, only of 4")
    return WeightFormat("int4", _group(found), has_zeros=flag(found, "zero_point", True))


def _gptq(found: Mapping[str, Any]) -> WeightFormat:
    bits = found.get("bits")
    if type(bits) is not int or bits not in (4, 8):
        raise ShapeError(f"GPTQ weights of {bits!r:.80} bits cannot be served, only of 4 or 8")
    kind: Kind = "int4" if bits == 4 else "int8"
    return WeightFormat(kind, _group(found), has_zeros=not flag(found, "sym", True))


def _fp8(found: Mapping[str, Any]) -> WeightFormat:
    size = found.get("weight_block_size", [128, 128])
    return WeightFormat("fp8", group=0 if size is None else _block_columns(size))


def _mxfp4(found: Mapping[str, Any]) -> WeightFormat:
    return WeightFormat("mxfp4", _MXFP4_BLOCK, of_experts=True)


def _compressed_tensors(found: Mapping[str, Any]) -> WeightFormat:
    groups = found.get("config_groups")
    if not isinstance(groups, Mapping) or not groups:
        raise ShapeError("quantization_config has no config_groups")
    formats = {_of_group(str(name), group) for name, group in groups.items()}
    if len(formats) > 1:
        raise ShapeError("config_groups of different formats cannot be served")
    return formats.pop()


def _of_group(name: str, group: Any) -> WeightFormat:
    weights = group.get("weights") if isinstance(group, Mapping) else None
    if not isinstance(weights, Mapping):
        raise ShapeError(f"config_groups.{name} says nothing of weights")
    stored, bits = weights.get("type", "int"), weights.get("num_bits", 8)
    is_named = isinstance(stored, str) and type(bits) is int
    kind = _KINDS.get((stored, bits)) if is_named else None
    strategy = str(weights.get("strategy", "group" if weights.get("group_size") else "tensor"))
    if kind is None or strategy not in ("tensor", "channel", "group", "block"):
        what = f"{weights.get('num_bits')}-bit {weights.get('type')} weights by {strategy!r}"
        raise ShapeError(f"config_groups.{name}: {what:.80} cannot be served")
    if weights.get("actorder") not in (None, False, "weight", "static"):
        raise ShapeError(f"config_groups.{name}: columns in another order cannot be served")
    size = integer(weights, "group_size", 1) if strategy == "group" else 0
    if strategy == "block":
        size = _block_columns(weights.get("block_structure"))
    # FP8 inputs are finer than the product that we have for them: they stay as they are.
    rounds_inputs = kind == "int8" and isinstance(group.get("input_activations"), Mapping)
    has_zeros = not flag(weights, "symmetric", True)
    return WeightFormat(kind, size, has_zeros=has_zeros, rounds_inputs=rounds_inputs)


_METHODS = {
    "awq": _awq,
    "gptq": _gptq,
    "fp8": _fp8,
    "mxfp4": _mxfp4,
    "compressed-tensors": _compressed_tensors,
}


def _group(found: Mapping[str, Any]) -> int:
    """Return group_size, where -1 means a whole row."""
    size = found.get("group_size", 128)
    if type(size) is not int or not (size == -1 or size > 0):
        raise ShapeError(f"group_size is {size!r:.80}, expected a positive number or -1")
    return max(0, size)


def _block_columns(size: Any) -> int:
    """Return the columns of blocks of [rows, columns] elements."""
    is_size = isinstance(size, list | tuple) and len(size) == 2
    if not is_size or not all(isinstance(each, int) and each > 0 for each in size):
        raise ShapeError(f"the size of blocks is {size!r:.80}, expected two numbers")
    return int(size[1])
