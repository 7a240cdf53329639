"""Every model type that the planner divides gives, over ranks, the whole model's logits."""

from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from muxcluster.config.facts import read_facts
from muxcluster.engine.forward.paged_forward import Forward
from muxcluster.engine.load.division.group import RankGroup
from muxcluster.engine.load.paged_loading import load_model
from muxcluster.engine.load.parity import WholeAttention
from muxcluster.placement.shapes.division import part_of
from muxcluster.placement.shapes.families import DIVIDED
from tests.engine.parallel.ranks import on_ranks, rank_model
from tests.models import model_spec

SIZES = {
    "vocab_size": 131,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "qk_rope_head_dim": 16,
    "intermediate_size": 96,
    "ffn_dim": 96,
    "word_embed_proj_dim": 64,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": False,
    "num_local_experts": 4,
    "num_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 48,
    "shared_expert_intermediate_size": 40,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}
NUM_TOKENS = 19


def build(directory: Path, kind: str) -> Path:
    """A tiny model with random weights, biases and norms too."""
    default = AutoConfig.for_model(kind)
    names = {*default.to_dict(), *default.attribute_map}
    spelled_twice = {old for new, old in default.attribute_map.items() if new in SIZES}
    fields = {name: SIZES[name] for name in SIZES if name in names - spelled_twice}
    config = AutoConfig.for_model(kind, **fields)
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(0.2 * torch.randn(parameter.shape) + (parameter.ndim == 1))
    model.save_pretrained(directory)
    return directory


@pytest.mark.slow
@pytest.mark.parametrize("kind", sorted(DIVIDED))
def test_ranks_compute_the_same_and_hold_what_is_counted(tmp_path: Path, kind: str) -> None:
    directory = build(tmp_path / kind, kind)
    facts, spec = read_facts(directory), model_spec(directory, "m")
    assert not facts.undivided
    tokens, wanted = torch.arange(NUM_TOKENS) * 7 % spec.vocab_size, torch.tensor([3, 18])

    def run(model: torch.nn.Module) -> Tensor:
        positions = torch.arange(NUM_TOKENS)
        return Forward(model).logits(tokens, positions, WholeAttention(), wanted)

    def matrices(model: torch.nn.Module) -> int:
        return sum(each.nbytes for each in model.parameters() if each.ndim > 1)

    whole = load_model(spec, "cpu")
    with torch.inference_mode():
        expected = run(whole)
    # what ModelShape leaves out of this type, divided or not
    left_out = matrices(whole) - 4 * facts.shape.num_params
    for size in (2, 4):
        part = rank_model(spec, size)

        def on_rank(group: RankGroup, part=part) -> tuple[Tensor, int]:
            model = load_model(part, "cpu", group)
            return run(model), matrices(model)

        logits, held = zip(*on_ranks(size, on_rank), strict=True)
        limit = 1e-4 * float(expected.abs().max())
        torch.testing.assert_close(logits[0], expected, rtol=0.0, atol=limit)
        assert all(torch.equal(each, logits[0]) for each in logits)
        counted = 4 * part_of(facts.shape, size).num_params
        assert max(held) <= counted + max(0, left_out) + counted // 200
