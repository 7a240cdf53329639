"""LoRA adapters in PEFT's format (Hu et al. 2021), checked before any tensor is read.

An adapter is a folder with adapter_config.json and adapter_model.safetensors. For some linears of
its base model, W of [out, in], it holds A of [rank, in] and B of [out, rank]; the linear then
computes W x + scale * B A x.
"""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from muxcluster.core.errors import LoadError
from muxcluster.core.inputs.json_file import parse_nested, read_json_object

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"

_DTYPES = frozenset({"F64", "F32", "F16", "BF16"})
_MOST_HEADER_BYTES = 100 * 2**20  # the limit of the safetensors format
_TENSOR = re.compile(
    r"base_model\.model\.(?P<module>[\w.]+)\.lora_(?P<side>[AB])(\.default)?\.weight"
)

# Keys of adapter_config.json that do not change what a trained adapter computes, or that are read
# here. Any other key with a value that means something is refused.
_KNOWN = frozenset(
    {
        *("alpha_pattern", "lora_alpha", "peft_type", "r", "rank_pattern", "use_rslora"),
        *("auto_mapping", "base_model_name_or_path", "exclude_modules", "fan_in_fan_out"),
        *("inference_mode", "init_lora_weights", "layers_pattern", "layers_to_transform"),
        *("lora_dropout", "megatron_core", "peft_version", "qalora_group_size", "revision"),
        *("runtime_config", "target_modules", "task_type", "eva_config", "corda_config"),
        *("loftq_config", "bias"),
    }
)
# What adapters may also change, by the end of a tensor's name
_FOREIGN: Mapping[str, str] = {
    "lora_magnitude_vector": "DoRA (use_dora) is not supported",
    "lora_magnitude_vector.weight": "DoRA (use_dora) is not supported",
    "lora_embedding_A": "embeddings cannot be adapted",
    "lora_embedding_B": "embeddings cannot be adapted",
    "lora_B.bias": "biases (lora_bias) are not supported",
}
# Initial values that are taken out of the base model's own weights
_CHANGES_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")


@dataclass(frozen=True, slots=True)
class AdaptedModule:
    """What an adapter adds to one linear of its base model."""

    module: str  # the linear's name in the base, such as model.layers.0.self_attn.q_proj
    rank: int
    in_features: int
    out_features: int
    scale: float
    # down, up: names of A and B in the file
    down: str
    up: str

    @property
    def num_elements(self) -> int:
        """Numbers in A and B."""
        return self.rank * (self.in_features + self.out_features)


@dataclass(frozen=True, slots=True)
class AdapterFiles:
    """An adapter's content but for its numbers."""

    directory: Path
    modules: tuple[AdaptedModule, ...]  # at least one; by name

    @property
    def weights(self) -> Path:
        """The file with its tensors."""
        return self.directory / WEIGHTS

    @property
    def num_elements(self) -> int:
        """Numbers in all of its tensors."""
        return sum(each.num_elements for each in self.modules)


def read_adapter(directory: Path) -> AdapterFiles:
    """Return what the adapter in `directory` adapts.

    Raises LoadError, naming the file and the key or tensor at fault, for what is no adapter of
    PEFT's kind LoRA, or has more than A and B of linears.
    """
    file = directory / CONFIG
    config = read_json_object(file)
    _check_supported(config, file)
    scales = _Scales.of(config, file)
    weights = directory / WEIGHTS
    sides: dict[str, dict[str, tuple[str, tuple[int, int]]]] = {}
    for name, shape in _matrices(weights):
        found = _TENSOR.fullmatch(name)
        if found is None:
            raise LoadError(weights, f"tensor {name!r:.200}: {_why_foreign(name)}")
        sides.setdefault(found["module"], {})[found["side"]] = (name, shape)
    if not sides:
        raise LoadError(weights, "holds no tensors: the adapter adapts nothing")
    modules = (_module(each, sides[each], scales, weights) for each in sorted(sides))
    return AdapterFiles(directory, tuple(modules))


def _check_supported(config: Mapping[str, Any], file: Path) -> None:
    kind = config.get("peft_type")
    if kind != "LORA":
        raise LoadError(file, f"peft_type is {kind!r:.80}: only LORA is supported")
    if config.get("bias", "none") != "none":
        raise LoadError(file, f"bias is {config['bias']!r:.80}: adapted biases are not supported")
    start = config.get("init_lora_weights")
    if isinstance(start, str) and start.lower().startswith(_CHANGES_BASE):
        message = (
            f"init_lora_weights {start!r:.80} changes the base model's weights: convert it to "
            "plain LoRA (PEFT's path_initial_model_for_weight_conversion)"
        )
        raise LoadError(file, message)
    for key, value in config.items():
        if key not in _KNOWN and value not in (None, False, "", [], {}):
            raise LoadError(file, f"{key!r:.80} is {value!r:.80}, which is not supported")


@dataclass(frozen=True, slots=True)
class _Scales:
    """Ranks and scales by module."""

    file: Path
    rank: int
    alpha: float
    ranks: tuple[tuple[re.Pattern[str], int], ...]
    alphas: tuple[tuple[re.Pattern[str], float], ...]
    is_by_root: bool  # alpha is divided by the root of the rank (Kalajdzievski 2023)

    @classmethod
    def of(cls, config: Mapping[str, Any], file: Path) -> "_Scales":
        """Raises LoadError naming the key at fault."""
        return cls(
            file,
            _rank(config.get("r"), "r", file),
            _alpha(config.get("lora_alpha"), "lora_alpha", file),
            tuple(
                (pattern, _rank(value, "rank_pattern", file))
                for pattern, value in _patterns(config, "rank_pattern", file)
            ),
            tuple(
                (pattern, _alpha(value, "alpha_pattern", file))
                for pattern, value in _patterns(config, "alpha_pattern", file)
            ),
            bool(config.get("use_rslora")),
        )

    def rank_of(self, module: str) -> int:
        return next((rank for pattern, rank in self.ranks if pattern.match(module)), self.rank)

    def scale_of(self, module: str) -> float:
        """Return what B A of the module is multiplied by."""
        found = (alpha for pattern, alpha in self.alphas if pattern.match(module))
        rank = self.rank_of(module)
        return next(found, self.alpha) / (math.sqrt(rank) if self.is_by_root else rank)


def _patterns(
    config: Mapping[str, Any], key: str, file: Path
) -> Iterator[tuple[re.Pattern[str], Any]]:
    """Yield what modules' names are matched with, as PEFT does: the whole name or its end."""
    patterns = config.get(key) or {}
    if not isinstance(patterns, dict):
        raise LoadError(file, f"{key} is {patterns!r:.80}, expected an object")
    for pattern, value in patterns.items():
        try:
            yield re.compile(rf"(.*\.)?({pattern})$"), value
        except re.error as error:
            message = f"{key}: {pattern!r:.80} is no regular expression: {error}"
            raise LoadError(file, message) from error


def _rank(value: object, key: str, file: Path) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value < 2**16:
        raise LoadError(file, f"{key} is {value!r:.80}, expected a positive rank")
    return value


def _alpha(value: object, key: str, file: Path) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= 1e9:
        return float(value)
    raise LoadError(file, f"{key} is {value!r:.80}, expected a number")


def _why_foreign(name: str) -> str:
    for end, reason in _FOREIGN.items():
        if name.endswith(f".{end}"):
            return reason
    return (
        "only lora_A and lora_B of linear layers are supported, no whole weights (modules_to_save)"
    )


def _module(
    module: str,
    sides: Mapping[str, tuple[str, tuple[int, int]]],
    scales: _Scales,
    weights: Path,
) -> AdaptedModule:
    for side, other in (("A", "B"), ("B", "A")):
        if side not in sides:
            raise LoadError(weights, f"tensor {sides[other][0]} has no lora_{side} beside it")
    (down, down_shape), (up, up_shape) = sides["A"], sides["B"]
    rank = scales.rank_of(module)
    for name, size in ((down, down_shape[0]), (up, up_shape[1])):
        if size != rank:
            message = f"tensor {name} has rank {size}, {CONFIG} asks for {rank}"
            raise LoadError(weights, message)
    scale = scales.scale_of(module)
    return AdaptedModule(module, rank, down_shape[1], up_shape[0], scale, down, up)


def _matrices(file: Path) -> Iterator[tuple[str, tuple[int, int]]]:
    """Yield name and shape of every tensor of a safetensors file. Raises LoadError.

    What is no matrix of floats is refused, unless its name says of itself what is wrong.
    """
    for name, entry in _header(file).items():
        if name == "__metadata__":
            continue
        if not isinstance(entry, dict):
            raise LoadError(file, f"corrupt or incomplete: no header of tensor {name!r:.200}")
        dtype, shape = entry.get("dtype"), _matrix_shape(entry.get("shape"))
        if _TENSOR.fullmatch(name) is None:
            yield name, (0, 0)
            continue
        if not isinstance(dtype, str) or dtype not in _DTYPES:
            raise LoadError(file, f"tensor {name} is of {dtype!r:.80}, expected a type of floats")
        if shape is None:
            given = entry.get("shape")
            raise LoadError(file, f"tensor {name} has shape {given!r:.80}, expected a matrix")
        yield name, shape


def _matrix_shape(shape: object) -> tuple[int, int] | None:
    """Return the shape of a matrix; None for anything else."""
    if not isinstance(shape, list) or len(shape) != 2:
        return None
    is_filled = all(isinstance(size, int) and size > 0 for size in shape)
    return (shape[0], shape[1]) if is_filled else None


def _header(file: Path) -> Mapping[str, Any]:
    """Return the header of a safetensors file, whose length is checked against it."""
    try:
        with file.open("rb") as opened:
            size = int.from_bytes(opened.read(8), "little")
            data = opened.read(size) if 2 <= size <= _MOST_HEADER_BYTES else b""
        num_bytes = file.stat().st_size
    except FileNotFoundError as error:
        raise LoadError(file, "no such file: adapters must be in safetensors") from error
    except OSError as error:
        raise LoadError(file, f"cannot be read: {error.strerror}") from error
    try:
        header = parse_nested(data)
        ends = [entry["data_offsets"][1] for name, entry in header.items() if name[:2] != "__"]
        is_whole = num_bytes == 8 + size + max(ends, default=0)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
        raise LoadError(file, "corrupt or incomplete: its header cannot be read") from error
    if not is_whole:
        raise LoadError(file, f"corrupt or incomplete: it has {num_bytes:,} bytes")
    found: Mapping[str, Any] = header
    return found
