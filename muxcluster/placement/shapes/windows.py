"""Which layers of a model see only the last tokens, from its config.json."""

from collections.abc import Callable, Mapping
from typing import Any

from muxcluster.placement.shapes.config_values import first_integer, flag, integer, listed

# The windows of families whose files may leave theirs out. A file without one of mistral says that
# there is none.
_DEFAULTS: Mapping[str, int] = {
    "cohere2": 4096,
    "gemma2": 4096,
    "gemma3_text": 4096,
    "gpt_oss": 128,
}
# Families that have windows only where `use_sliding_window` says so.
_VISION = ("qwen2_5_vl", "qwen2_5_vl_text", "qwen2_vl", "qwen2_vl_text")
_ASKED = frozenset({"qwen2", "qwen2_moe", "qwen3", "qwen3_moe", *_VISION})
_Rule = Callable[[Mapping[str, Any], int], bool]


def _every(_: Mapping[str, Any], layer: int) -> bool:
    return layer >= 0


def _last(config: Mapping[str, Any], layer: int) -> bool:
    first = integer(config, "max_window_layers", 0) if "max_window_layers" in config else 28
    return layer >= first


def _alternating(config: Mapping[str, Any], layer: int) -> bool:
    return layer % 2 == 0 and layer < (first_integer(config, ("max_window_layers",)) or layer + 1)


def _all_but_each(period: int) -> _Rule:
    """All but every so many-th layer."""

    def rule(config: Mapping[str, Any], layer: int) -> bool:
        found = first_integer(config, ("sliding_window_pattern",)) or period
        return (layer + 1) % found > 0

    return rule


# Whether a layer has a window, by its number, where a file does not list the types of layers.
_RULES: Mapping[str, _Rule] = {
    **dict.fromkeys(("mistral", "mixtral", "phi3", "phimoe", "starcoder2", "qwen3_moe"), _every),
    **dict.fromkeys(("qwen2", "qwen3", *_VISION), _last),
    **dict.fromkeys(("gemma2", "gpt_oss", "qwen2_moe"), _alternating),
    "gemma3_text": _all_but_each(6),
    "cohere2": _all_but_each(4),
}


def window_fields(config: Mapping[str, Any], kind: str, num_layers: int) -> dict[str, Any]:
    """Return `window` and `window_layers` of a `ModelShape`; none where all layers see all tokens.

    config: of the language model, without nulls. kind: its model_type; of an unknown one the file
    must list the types of layers. Raises ShapeError.
    """
    window = integer(config, "sliding_window", 0) or _DEFAULTS.get(kind, 0)
    if not window or not flag(config, "use_sliding_window", kind not in _ASKED):
        return {}
    if "layer_types" in config:
        types = listed(config, "layer_types")[:num_layers]
        layers = [i for i, name in enumerate(types) if name == "sliding_attention"]
    else:
        rule = _RULES.get(kind)
        layers = [layer for layer in range(num_layers) if rule is not None and rule(config, layer)]
    return {"window": window, "window_layers": tuple(layers)} if layers else {}
