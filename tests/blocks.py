"""The block size of tests: their own, or what MUXCLUSTER_TEST_BLOCK_TOKENS asks for.

`make test-blocks` runs the suites of the engine, the KV cache and the kernels with blocks of 32 and
of 64 tokens. Tests whose numbers only hold for one size name it themselves.
"""

import os

import pytest

_ASKED = os.environ.get("MUXCLUSTER_TEST_BLOCK_TOKENS")


def block_tokens(own: int) -> int:
    """Tokens of a block of the widest model; `own` where the environment asks for nothing."""
    return int(_ASKED) if _ASKED else own


def scaled(num_tokens: int, own: int) -> int:
    """As many tokens as fill the blocks that `num_tokens` fill where a block holds `own`."""
    return num_tokens * block_tokens(own) // own


def only_with(own: int) -> pytest.MarkDecorator:
    """For tests whose numbers are those of blocks of `own` tokens."""
    is_other = block_tokens(own) != own
    return pytest.mark.skipif(is_other, reason=f"its numbers are of blocks of {own} tokens")
