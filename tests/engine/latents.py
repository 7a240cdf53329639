"""Skips tests of latent attention where this version of transformers keeps no latents."""

import pytest
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3Attention

needs_latents = pytest.mark.skipif(
    not hasattr(DeepseekV3Attention, "expand_kv"),
    reason="layers of this version of transformers expand latents at once",
)
