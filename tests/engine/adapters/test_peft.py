"""Tokens with an adapter are PEFT's own, of an adapter that PEFT wrote; skipped where it is not
installed."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from muxcluster.core.request import Request
from muxcluster.core.unitspec import AdapterSpec
from tests.engine.conftest import ModelBuilder
from tests.engine.units import greedy, prompts, running, spec_of

NUM_TOKENS = 16
NEAR_TIE = 1e-4

pytestmark = [pytest.mark.usefixtures("fast_children"), pytest.mark.filterwarnings("ignore")]


@pytest.mark.parametrize("family", ["llama", "qwen3"])
@pytest.mark.parametrize("options", [{"r": 4}, {"r": 6, "use_rslora": True, "lora_alpha": 3}])
def test_tokens_are_pefts(
    family: str, options: dict[str, object], tiny: ModelBuilder, tmp_path: Path
) -> None:
    peft = pytest.importorskip("peft")
    base = tiny(family)
    config = peft.LoraConfig(
        task_type="CAUSAL_LM",
        target_modules="all-linear",
        init_lora_weights=False,  # B is random too
        lora_dropout=0.1,
        rank_pattern={"q_proj": 3},
        **options,
    )
    torch.manual_seed(0)
    plain = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    model = peft.get_peft_model(plain, config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.normal_(std=0.2)
    model.save_pretrained(tmp_path / "adapter")
    model.eval()
    spec = spec_of([base])
    adapters = (AdapterSpec("adapter", str(tmp_path / "adapter")),)
    spec = replace(spec, models=(replace(spec.models[0], adapters=adapters),))
    asked = prompts(base.name, 3, 512)
    with running(spec) as (unit, sink):
        for request_id, prompt in asked.items():
            tokens = np.array(prompt, dtype=np.int32)
            unit.submit(
                Request(request_id, base.name, tokens, greedy(NUM_TOKENS), adapter="adapter")
            )
        sink.wait_for_ends(len(asked))
    for request_id, prompt in asked.items():
        output = sink.tokens[request_id]
        assert len(output) == NUM_TOKENS
        with torch.inference_mode():
            logits = model(torch.tensor([[*prompt, *output]])).logits[0, len(prompt) - 1 : -1]
        chosen = logits.gather(1, torch.tensor(output)[:, None])[:, 0]
        assert float((logits.max(-1).values - chosen).max()) < NEAR_TIE
        with torch.inference_mode(), model.disable_adapter():
            without = model(torch.tensor([[*prompt, *output]])).logits[0, len(prompt) - 1 : -1]
        assert without.argmax(-1).tolist() != output, "the adapter changes nothing"
