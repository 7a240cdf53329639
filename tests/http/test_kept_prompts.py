"""Prompts are kept from a batch's plan to its lines, and no longer."""

import asyncio

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from muxcluster.http.app import create_app
from muxcluster.http.calls.call import Prompt, RequestHead, Tokenised
from muxcluster.http.calls.kept_prompts import KeptPrompts
from muxcluster.http.calls.model_text import ModelTexts
from muxcluster.http.service import tokenise
from muxcluster.text.schemas import ChatBody, CompletionBody
from muxcluster.text.validation.body import parse

STEPS = st.lists(
    st.tuples(st.sampled_from(["keep", "take", "drop"]), st.integers(0, 1), st.integers(0, 4)),
    max_size=40,
)


def made(num_tokens: int) -> Tokenised:
    return Tokenised(None, (Prompt("", np.zeros(num_tokens, np.int32), 1),))  # type: ignore[arg-type]


@given(STEPS, st.integers(0, 12))
def test_random_steps_keep_to_the_limit(steps: list[tuple[str, int, int]], limit: int) -> None:
    kept = KeptPrompts(limit)
    oracle: dict[tuple[str, int], Tokenised] = {}
    for step, number, line in steps:
        batch_id = f"b{number}"
        if step == "keep":
            prompts = made(line + 1)
            held = sum(each.num_tokens for each in oracle.values())
            if (batch_id, line) not in oracle and held + line + 1 <= limit:
                oracle[batch_id, line] = prompts
            kept.keep(batch_id, {line: prompts})
        elif step == "take":
            assert kept.take(batch_id, line) is oracle.pop((batch_id, line), None)
        else:
            kept.drop(batch_id)
            oracle = {key: each for key, each in oracle.items() if key[0] != batch_id}
        assert kept.num_tokens == sum(each.num_tokens for each in oracle.values()) <= limit
        for key, each in oracle.items():
            assert kept.find(*key) is each


@pytest.mark.parametrize("echo", [False, True])
def test_a_call_runs_with_the_tokens_it_is_given(backend, served, echo) -> None:
    service = create_app(backend).state.service
    texts = service._texts
    model = texts.find("tiny")
    bodies = [
        parse(CompletionBody, {"model": "tiny", "prompt": ["one", "two"], "echo": echo}),
        parse(ChatBody, {"model": "tiny", "messages": [{"role": "user", "content": "x"}]}),
    ]
    for body in bodies:
        own = asyncio.run(service.prepare(body, RequestHead("r")))
        given_tokens = tokenise(body, model)
        for mine, theirs in zip(own.prompts, given_tokens.prompts, strict=True):
            assert mine.tokens.tolist() == theirs.tokens.tolist()
            assert (mine.text, mine.max_tokens) == (theirs.text, theirs.max_tokens)
        call = asyncio.run(service.prepare(body, RequestHead("r"), given_tokens))
        assert call.prompts is given_tokens.prompts
        # another tokenizer may have come under the same name
        stale = Tokenised(ModelTexts.load([served]).find("tiny"), given_tokens.prompts)
        call = asyncio.run(service.prepare(body, RequestHead("r"), stale))
        assert call.prompts is not given_tokens.prompts
