"""Token ids beside and instead of texts, prompts that are cut, and the route that takes both."""

from typing import Any

import pytest
from starlette.testclient import TestClient

USER = [{"role": "user", "content": "Say hello"}]
SAYS = "hello 🦊 world"  # the fox is several tokens, of which only the last has text
IDS = {"return_token_ids": True}


@pytest.mark.parametrize("width", [1, 3, 50])
def test_completions_have_the_ids(client, says, backend, width) -> None:
    tokens = [*says(SAYS), *backend.served[0].eos_token_ids]
    backend.width = width
    ask: dict[str, Any] = {"model": "tiny", "prompt": "x", "max_tokens": 50, "extra_body": IDS}
    whole = client.completions.create(**ask).choices[0]
    prompt = backend.requests[-1].prompt_tokens.tolist()
    assert (whole.text, whole.token_ids, whole.prompt_token_ids) == (SAYS, tokens, prompt)
    chunks = [chunk.choices[0] for chunk in client.completions.create(**ask, stream=True)]
    assert "".join(chunk.text for chunk in chunks) == SAYS
    assert [chunk.token_ids for chunk in chunks] == [[token] for token in tokens]
    assert chunks[0].prompt_token_ids == prompt
    assert not any(hasattr(chunk, "prompt_token_ids") for chunk in chunks[1:])


def test_choices_have_their_own_ids(client, says, backend) -> None:
    tokens = [*says(SAYS), *backend.served[0].eos_token_ids]
    answer = client.completions.create(
        model="tiny", prompt=["x", "yy"], n=2, max_tokens=50, extra_body=IDS
    )
    assert [choice.token_ids for choice in answer.choices] == [tokens] * 4
    prompts = {tuple(request.prompt_tokens.tolist()) for request in backend.requests}
    found = [tuple(choice.prompt_token_ids) for choice in answer.choices]
    assert set(found) == prompts and len(prompts) == 2
    assert found[0] == found[1] != found[2] == found[3]


@pytest.mark.parametrize("width", [1, 3, 50])
def test_chats_have_the_ids(client, says, backend, width) -> None:
    tokens = [*says(SAYS), *backend.served[0].eos_token_ids]
    backend.width = width
    ask: dict[str, Any] = {"model": "tiny", "messages": USER, "extra_body": IDS}
    whole = client.chat.completions.create(**ask)
    prompt = backend.requests[-1].prompt_tokens.tolist()
    assert (whole.prompt_token_ids, whole.choices[0].token_ids) == (prompt, tokens)
    chunks = list(client.chat.completions.create(**ask, stream=True))
    assert chunks[0].prompt_token_ids == prompt
    assert not any(hasattr(chunk, "prompt_token_ids") for chunk in chunks[1:])
    ids = [chunk.choices[0].token_ids for chunk in chunks]
    assert ids == [[], *([token] for token in tokens)]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == SAYS


def test_nobody_gets_ids_unasked(http, says) -> None:
    says(SAYS)
    for path, body in (
        ("/v1/completions", {"prompt": "x"}),
        ("/v1/chat/completions", {"messages": USER}),
    ):
        for stream in (False, True):
            answer = http.post(path, json={"model": "tiny", "stream": stream, **body})
            assert answer.status_code == 200
            assert "token_ids" not in answer.text


def test_labels_of_logprobs(client, says) -> None:
    tokens = says("hello 🦊")
    extra = {"return_tokens_as_token_ids": True}
    names = [f"token_id:{token}" for token in tokens]
    most = len(tokens)
    found = client.completions.create(
        model="tiny", prompt="x", max_tokens=most, logprobs=1, extra_body=extra
    )
    logprobs = found.choices[0].logprobs
    assert logprobs.tokens == names
    assert [list(tops) for tops in logprobs.top_logprobs] == [[name] for name in names]
    chat = client.chat.completions.create(
        model="tiny",
        messages=USER,
        max_tokens=most,
        logprobs=True,
        top_logprobs=1,
        extra_body=extra,
    )
    content = chat.choices[0].logprobs.content
    assert [item.token for item in content] == names
    assert [item.top_logprobs[0].token for item in content] == names
    assert bytes(byte for item in content for byte in item.bytes) == "hello 🦊".encode()


def test_prompts_are_cut_to_their_last_tokens(client, says, backend, tokenizer) -> None:
    says("ok")
    text = "Many models share one engine"
    tokens = tokenizer.encode(text, True)
    for prompt in (text, tokens):
        answer = client.completions.create(
            model="tiny",
            prompt=prompt,
            echo=True,
            max_tokens=9,
            extra_body={"truncate_prompt_tokens": 3},
        )
        assert backend.requests[-1].prompt_tokens.tolist() == tokens[-3:]
        assert answer.choices[0].text == tokenizer.decode(tokens[-3:]) + "ok"
        assert answer.usage.prompt_tokens == 3
    client.completions.create(
        model="tiny", prompt=text, extra_body={"truncate_prompt_tokens": len(tokens)}
    )
    assert backend.requests[-1].prompt_tokens.tolist() == tokens
    client.chat.completions.create(
        model="tiny", messages=USER, extra_body={"truncate_prompt_tokens": 4}
    )
    kept = backend.requests[-1].prompt_tokens.tolist()
    assert len(kept) == 4
    assert "<|assistant|>".endswith(tokenizer.decode(kept))


def test_prompts_are_cut_to_what_fits(client, says, backend) -> None:
    says("ok")
    prompt = list(range(10, 210)) * 2
    for most, kept in ((56, 200), (None, 255)):
        client.completions.create(
            model="tiny",
            prompt=prompt,
            max_tokens=most,
            extra_body={"truncate_prompt_tokens": -1},
        )
        assert backend.requests[-1].prompt_tokens.tolist() == prompt[-kept:]


def test_invocations_take_chats_and_completions(http: TestClient, says) -> None:
    says("hello")
    chat = http.post("/invocations", json={"model": "tiny", "messages": USER}).json()
    assert chat["choices"][0]["message"]["content"] == "hello"
    text = http.post("/invocations", json={"model": "tiny", "prompt": "x"}).json()
    assert (text["object"], text["choices"][0]["text"]) == ("text_completion", "hello")
    stream = http.post("/invocations", json={"model": "tiny", "prompt": "x", "stream": True})
    assert stream.text.endswith("data: [DONE]\n\n")
    assert http.post("/invocations", json={"model": "tiny"}).json()["error"]["param"] == "prompt"
