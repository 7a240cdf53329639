"""OpenAI's own client against the real server: every way of asking, for every model."""

import math

import openai
import pytest
from openai import OpenAI

NAMES = ("llama-a", "qwen-b", "opt-c")
NOISE = {"ignore_eos": True}
CHAT = [{"role": "user", "content": "Say something about locks."}]


def test_list_and_retrieve(client: OpenAI) -> None:
    assert {model.id for model in client.models.list()} == set(NAMES)
    assert client.models.retrieve("qwen-b").id == "qwen-b"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("unknown")


@pytest.mark.parametrize("model", NAMES)
def test_a_chat_counts_its_tokens(client: OpenAI, model: str) -> None:
    answer = client.chat.completions.create(
        model=model, messages=CHAT, max_tokens=12, extra_body=NOISE
    )
    assert answer.model == model and answer.choices[0].finish_reason == "length"
    assert answer.choices[0].message.role == "assistant" and answer.choices[0].message.content
    assert answer.usage is not None and answer.usage.completion_tokens == 12
    assert answer.usage.prompt_tokens > 5
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 12


@pytest.mark.parametrize("model", NAMES)
def test_a_stream_adds_up_to_the_whole(client: OpenAI, model: str) -> None:
    arguments = {"model": model, "messages": CHAT, "max_tokens": 16, "temperature": 0}
    whole = client.chat.completions.create(**arguments, extra_body=NOISE)
    stream = client.chat.completions.create(
        **arguments, stream=True, stream_options={"include_usage": True}, extra_body=NOISE
    )
    chunks = list(stream)
    pieces = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(pieces) == whole.choices[0].message.content
    assert sum(1 for piece in pieces if piece) > 1
    reasons = [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices]
    assert reasons[-1] == "length" and not any(reasons[:-1])
    assert chunks[-1].usage == whole.usage and not chunks[-1].choices


def test_models_answer_differently(client: OpenAI) -> None:
    texts = {
        client.completions.create(model=model, prompt="x", max_tokens=16, temperature=0)
        .choices[0]
        .text
        for model in NAMES
    }
    assert len(texts) == 3


def test_two_choices_of_one_seed_differ_and_repeat(client: OpenAI) -> None:
    def ask(seed: int) -> list[str]:
        answer = client.completions.create(
            model="llama-a", prompt="A b c", max_tokens=12, n=2, seed=seed, extra_body=NOISE
        )
        assert [choice.index for choice in answer.choices] == [0, 1]
        assert answer.usage is not None and answer.usage.completion_tokens == 24
        return [choice.text for choice in answer.choices]

    first = ask(7)
    assert first == ask(7) and first != ask(8)
    assert first[0] != first[1]


def test_a_stop_string_ends_the_text_before_it(client: OpenAI) -> None:
    arguments = {"model": "qwen-b", "prompt": "Once", "max_tokens": 24, "temperature": 0}
    whole = client.completions.create(**arguments, extra_body=NOISE).choices[0].text
    stop = whole[len(whole) // 2 : len(whole) // 2 + 3]
    cut = client.completions.create(**arguments, stop=stop, extra_body=NOISE).choices[0]
    assert cut.finish_reason == "stop" and cut.text == whole[: whole.index(stop)]


def test_logprobs_are_probabilities_of_the_best_tokens(client: OpenAI) -> None:
    answer = client.chat.completions.create(
        model="opt-c",
        messages=CHAT,
        max_tokens=5,
        temperature=0,
        logprobs=True,
        top_logprobs=3,
        extra_body=NOISE,
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None and logprobs.content is not None and len(logprobs.content) == 5
    for entry in logprobs.content:
        tops = [top.logprob for top in entry.top_logprobs]
        assert tops == sorted(tops, reverse=True) and len(tops) == 3
        assert entry.logprob == pytest.approx(tops[0], abs=1e-6)  # greedy takes the best
        assert sum(map(math.exp, tops)) <= 1.0 + 1e-6


def test_prompts_as_lists_and_as_tokens(client: OpenAI) -> None:
    many = client.completions.create(
        model="llama-a", prompt=["One", "Two"], max_tokens=4, extra_body=NOISE
    )
    assert [choice.index for choice in many.choices] == [0, 1]
    ids = client.completions.create(
        model="llama-a", prompt=[5, 6, 7, 8], max_tokens=4, extra_body=NOISE
    )
    assert ids.usage is not None and ids.usage.prompt_tokens == 4


def test_echo_returns_the_prompt_first(client: OpenAI) -> None:
    answer = client.completions.create(
        model="llama-a", prompt="Echo this", max_tokens=4, echo=True, logprobs=1, extra_body=NOISE
    )
    choice = answer.choices[0]
    assert choice.text.startswith("Echo this")
    assert choice.logprobs is not None and choice.logprobs.token_logprobs is not None
    assert choice.logprobs.token_logprobs[0] is None
    assert all(value is not None for value in choice.logprobs.token_logprobs[1:])


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": -1}, "temperature"),
        ({"max_tokens": 10**6}, "max_tokens"),
        ({"extra_body": {"no_such_field": 1}}, "no_such_field"),
        ({"prompt": [10**6]}, "prompt"),
    ],
)
def test_bad_input_names_its_field_and_harms_nobody(
    client: OpenAI, fields: dict[str, object], param: str
) -> None:
    arguments: dict[str, object] = {"model": "llama-a", "prompt": "x", "max_tokens": 4, **fields}
    with pytest.raises(openai.BadRequestError) as refused:
        client.completions.create(**arguments)
    assert refused.value.param == param
    fine = client.completions.create(model="llama-a", prompt="x", max_tokens=4, extra_body=NOISE)
    assert fine.usage is not None and fine.usage.completion_tokens == 4


def test_an_unknown_model_is_not_found(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as refused:
        client.completions.create(model="nope", prompt="x")
    assert refused.value.code == "model_not_found"
