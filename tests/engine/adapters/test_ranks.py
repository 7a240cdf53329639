"""Adapters of models that are divided over ranks: each has its part of A or of B."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from muxcluster.core.unitspec import AdapterSpec
from muxcluster.engine.adapters.forward import AdaptedForward
from muxcluster.engine.adapters.tokens import NO_ADAPTER, AdapterTokens
from muxcluster.engine.decoders.kernel_decoder import KernelDecoder
from muxcluster.engine.forward.paged_forward import Forward
from muxcluster.engine.load.division.group import RankGroup
from muxcluster.engine.load.paged_loading import load_model
from muxcluster.engine.load.parity import WholeAttention
from muxcluster.engine.steps.runner import load_forward
from tests.adapters import ATTENTION, LLAMA, merged, write_adapter
from tests.engine.conftest import ModelBuilder
from tests.engine.driver import unit_of
from tests.engine.parallel.ranks import on_ranks, over_ranks
from tests.models import model_spec

TOKENS = torch.tensor([3, 1, 4, 1, 5, 9, 2])
POSITIONS = torch.arange(len(TOKENS))


@torch.inference_mode()
def logits_of(directory: Path) -> Tensor:
    forward = Forward(load_model(model_spec(directory, "oracle"), "cpu"))
    return forward.logits(TOKENS, POSITIONS, WholeAttention(), None)


@pytest.mark.parametrize("fuses", [True, False])
@pytest.mark.parametrize(
    ("family", "targets"),
    [
        ("llama", LLAMA),
        ("mistral", ("v_proj", "o_proj", "up_proj")),  # one KV head, on both ranks
        ("opt", ("q_proj", "v_proj", "out_proj", "fc1", "fc2")),
        ("mixtral", ATTENTION),
    ],
)
def test_logits_are_those_of_merged_weights(
    tiny: ModelBuilder, tmp_path: Path, family: str, targets: tuple[str, ...], fuses: bool
) -> None:
    base = tiny(family)
    paths = [
        write_adapter(tmp_path / f"rank-{rank}", base, rank=rank, targets=targets, seed=rank)
        for rank in (3, 6)
    ]
    wanted = [logits_of(base)]
    wanted += [logits_of(merged(tmp_path / f"merged-{each.name}", base, each)) for each in paths]
    adapters = tuple(AdapterSpec(each.name, str(each)) for each in paths)
    unit = replace(over_ranks(unit_of(base, adapters=adapters)), fuses_layers=fuses)

    def logits(group: RankGroup) -> list[Tensor]:
        forward = load_forward(unit.models[0], unit, group)
        assert isinstance(forward, AdaptedForward)
        is_fused = fuses and family in ("llama", "mistral")
        assert isinstance(forward.plain, KernelDecoder if is_fused else Forward)
        found = []
        for adapter in (NO_ADAPTER, 0, 1):
            rows = np.full(len(TOKENS), adapter, dtype=np.int32)
            tokens = AdapterTokens.of(rows, torch.device("cpu"))
            found.append(forward.of(tokens).logits(TOKENS, POSITIONS, WholeAttention(), None))
        return found

    first, second = on_ranks(2, logits)
    for expected, one, other in zip(wanted, first, second, strict=True):
        limit = 1e-4 * float(expected.abs().max())
        torch.testing.assert_close(one, expected, rtol=0.0, atol=limit)
        assert torch.equal(one, other)
    assert not torch.allclose(first[1], first[2], atol=0.1)
