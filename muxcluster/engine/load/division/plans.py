"""Plans of tensor parallelism: transformers' own, and ours where it has none or a part of one.

A plan gives the style of each linear, expert weight or module of a model's body by name; "*" stands
for the number of a layer. What it does not name is whole on every rank.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

BY_OUTPUT, BY_INPUT = "colwise", "rowwise"
PACKED = "packed_colwise"  # two matrices in one, each divided by output
QKV = "colwise_qkv"  # ours: queries, keys and values in one matrix, each divided by heads
EXPERTS = "moe_tp_experts"  # a module whose results the ranks add
BY_HEAD = "heads"  # ours: one number a query head
# Ours, of merged experts whose inputs lie before their outputs: gate and up alternate among these,
# and are divided in pairs; divided by input; whole on the first rank and zero on others.
PAIRED, TRANSPOSED, ONCE = "paired_colwise", "transposed_rowwise", "once"

# Styles that we need not carry out: whole weights (of latents, too), and vocabularies, which are
# always divided.
IGNORED = frozenset(
    {
        *("replicate", "replicated", "replicated_with_grad_allreduce", "embedding_rowwise"),
        "mla_kv_a_proj",
    }
)

Plan = Mapping[str, str]


def _layers(prefix: str, by_output: tuple[str, ...], by_input: tuple[str, ...]) -> dict[str, str]:
    styles = {BY_OUTPUT: by_output, BY_INPUT: by_input}
    return {f"{prefix}.{name}": style for style, names in styles.items() for name in names}


_HEADS = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
_GATED = ("gate_proj", "up_proj")
# All heads read the same latents, which every rank makes whole.
_LATENT = _layers("layers.*.self_attn", ("q_proj", "q_b_proj", "kv_b_proj"), ("o_proj",))
# The library gathers what merged matrices make, as its chunks of rows would mix them.
_MERGED_MLP = {"layers.*.mlp.gate_up_proj": PACKED, "layers.*.mlp.down_proj": BY_INPUT}

# By model type; entries are added to the library's, or take their place.
OWN_PLANS: Mapping[str, Plan] = MappingProxyType(
    {
        "deepseek_v2": _LATENT,
        "deepseek_v3": _LATENT,
        "glm": _MERGED_MLP,
        "glm4": _MERGED_MLP,
        "glm4_moe_lite": {
            **_LATENT,
            **_layers("layers.*.mlp.shared_experts", _GATED, ("down_proj",)),
        },
        "gpt_oss": {
            **_layers("layers.*", _HEADS, ("self_attn.o_proj",)),
            "layers.*.self_attn.sinks": BY_HEAD,
            "layers.*.mlp.experts": EXPERTS,
            "layers.*.mlp.experts.gate_up_proj": PAIRED,
            "layers.*.mlp.experts.gate_up_proj_bias": PAIRED,
            "layers.*.mlp.experts.down_proj": TRANSPOSED,
            "layers.*.mlp.experts.down_proj_bias": ONCE,
        },
        "hunyuan_v1_dense": {
            **_layers("layers.*", _HEADS, ("self_attn.o_proj",)),
            **_layers("layers.*.mlp", _GATED, ("down_proj",)),
        },
        "minicpm3": _LATENT,
        "opt": _layers("decoder.layers.*", (*_HEADS, "fc1"), ("self_attn.out_proj", "fc2")),
        "phi3": {
            "layers.*.self_attn.qkv_proj": QKV,
            "layers.*.self_attn.o_proj": BY_INPUT,
            **_MERGED_MLP,
        },
        "qwen2_moe": _layers("layers.*.mlp.shared_expert", _GATED, ("down_proj",)),
        "solar_open": _layers("layers.*.mlp.shared_experts", _GATED, ("down_proj",)),
    }
)


def plan_of(config: Any) -> Plan:
    """Return the plan of the model of a configuration of transformers, empty if there is none."""
    library = getattr(config, "base_model_tp_plan", None) or {}
    return {**library, **OWN_PLANS.get(config.model_type, {})}
