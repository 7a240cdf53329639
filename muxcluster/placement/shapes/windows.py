"""Which layers of a model see only the last tokens, from its config.json."""

from collections.abc import Callable, Mapping
from typing import Any

from muxcluster.placement.shapes.config_values import first_integer, flag, integer, listed

# The windows of families whose files may leave theirs out. A file without one of mistral says that
# there is none.
_DEFAULTS: Mapping[str, int] = {"gemma2": 4096, "gemma3_text": 4096, "gpt_oss": 128}
# Families that have windows only where `use_sliding_window` says so.
_ASKED = frozenset({"qwen2", "qwen2_moe", "qwen3", "qwen3_moe"})
_EVERY = frozenset({"mistral", "mixtral", "phi3", "phimoe", "starcoder2"})
# Whether a layer has a window, by its number, where a file does not list the types of layers.
_RULES: Mapping[str, Callable[[Mapping[str, Any], int], bool]] = {
    **dict.fromkeys(_EVERY, lambda _, layer: True),
    **dict.fromkeys(_ASKED, lambda config, layer: layer >= integer(config, "max_window_layers", 0)),
    **dict.fromkeys(("gemma2", "gpt_oss"), lambda _, layer: layer % 2 == 0),
    "gemma3_text": lambda config, layer: (layer + 1) % _period(config, 6) > 0,
    "cohere2": lambda config, layer: (layer + 1) % _period(config, 4) > 0,
}


def _period(config: Mapping[str, Any], default: int) -> int:
    """Every so many-th layer has no window."""
    return first_integer(config, ("sliding_window_pattern",)) or default


def window_fields(config: Mapping[str, Any], kind: str, num_layers: int) -> dict[str, Any]:
    """Return `window` and `window_layers` of a `ModelShape`; none where all layers see all tokens.

    config: of the language model, without nulls. kind: its model_type; of an unknown one the file
    must list the types of layers. Raises ShapeError.
    """
    window = first_integer(config, ("sliding_window",)) or _DEFAULTS.get(kind, 0)
    if not window or not flag(config, "use_sliding_window", kind not in _ASKED):
        return {}
    if "layer_types" in config:
        types = listed(config, "layer_types")[:num_layers]
        layers = [i for i, name in enumerate(types) if name == "sliding_attention"]
    else:
        rule = _RULES.get(kind, lambda _, layer: False)
        layers = [layer for layer in range(num_layers) if rule(config, layer)]
    return {"window": window, "window_layers": tuple(layers)} if layers else {}
