"""Plans of tensor parallelism: transformers' own, and ours where it has none or a part of one.

A plan gives the style of each linear, expert weight or module of a model's body by name; "*" stands
for the number of a layer. What it does not name is whole on every rank.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

BY_OUTPUT, BY_INPUT = "colwise", "rowwise"
PACKED = "packed_colwise"  # two matrices in one, each divided by output
EXPERTS = "moe_tp_experts"  # a module whose results the ranks add

# Styles that we need not carry out: whole weights, and vocabularies, which are always divided.
IGNORED = frozenset(
    {"replicate", "replicated", "replicated_with_grad_allreduce", "embedding_rowwise"}
)

Plan = Mapping[str, str]


def _layers(
    prefix: str, by_output: tuple[str, ...], by_input: tuple[str, ...]
) -> dict[str, str]:
    styles = {BY_OUTPUT: by_output, BY_INPUT: by_input}
    return {f"{prefix}.{name}": style for style, names in styles.items() for name in names}


_QKV = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
_SHARED_EXPERT = _layers(
    "layers.*.mlp.shared_expert", ("gate_proj", "up_proj"), ("down_proj",)
)
# By model type; entries are added to the library's.
OWN_PLANS: Mapping[str, Plan] = MappingProxyType(
    {
        "opt": _layers("decoder.layers.*", (*_QKV, "fc1"), ("self_attn.out_proj", "fc2")),
        "qwen2_moe": _SHARED_EXPERT,
    }
)


def plan_of(config: Any) -> Plan:
    """Return the plan of the model of a configuration of transformers, empty if there is none."""
    library = getattr(config, "base_model_tp_plan", None) or {}
    return {**library, **OWN_PLANS.get(config.model_type, {})}
