"""Images in chats over HTTP: a real server and unit with a tiny model, and OpenAI's client."""

import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import yaml
from PIL import Image
from transformers import PreTrainedTokenizerFast

from muxcluster.core.inputs.images.rules import ImageLimits
from muxcluster.demo.models import build_model
from muxcluster.http.settings import ApiSettings
from tests.engine.vision.models import (
    IMAGE,
    VisionOracle,
    build_vision_model,
    data_url,
    noise_image,
    png_of,
)
from tests.http.live_server import live_server

NAME, OTHER = "vl", "llama"
NUM_TOKENS = 12
BLOCK_TOKENS = 32  # of this model: its heads are a quarter as wide as those that policy speaks of
LIMITS = ImageLimits(most=3, most_bytes=200_000, most_pixels=40_000)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("served")
    build_vision_model(folder / NAME)
    build_model(folder / OTHER, "llama", seed=3)
    content = {
        "models": [
            {"name": name, "path": name, "max_model_len": 512, "max_seqs": 8}
            for name in (NAME, OTHER)
        ],
        "cluster": {"nodes": [{"name": "here", "gpu": "cpu", "cores": 1}]},
        "policy": {"partition": "none", "kv_gb": 0.1, "token_budget": 32, "block_tokens": 8},
    }
    (folder / "muxcluster.yaml").write_text(yaml.safe_dump(content))
    return folder


@pytest.fixture(scope="module")
def url(folder: Path) -> Iterator[str]:
    with live_server(folder / "muxcluster.yaml", ApiSettings(images=LIMITS)) as url:
        yield url


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        yield client


def text(words: str) -> dict[str, object]:
    return {"type": "text", "text": words}


def part(image: Image.Image, form: str = "PNG") -> dict[str, object]:
    url = data_url(png_of(image, form), f"image/{form.lower()}")
    return {"type": "image_url", "image_url": {"url": url}}


def user(*content: object) -> dict[str, Any]:
    return {"role": "user", "content": list(content)}


def prompt_of(folder: Path, messages: Sequence[dict[str, Any]]) -> list[int]:
    """The chat as transformers renders it, with one token for each image."""
    shown = [
        {
            "role": message["role"],
            "content": [
                {"type": "image"} if each["type"] == "image_url" else each
                for each in message["content"]
            ]
            if isinstance(message["content"], list)
            else message["content"],
        }
        for message in messages
    ]
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder / NAME)
    rendered = tokenizer.apply_chat_template(shown, tokenize=False, add_generation_prompt=True)
    return tokenizer(rendered, add_special_tokens=False)["input_ids"]


def asked(client: openai.OpenAI, messages: Sequence[dict[str, Any]], **options: object) -> Any:
    return client.chat.completions.create(
        model=NAME,
        messages=messages,
        temperature=0,
        max_tokens=NUM_TOKENS,
        extra_body={"return_token_ids": True, "ignore_eos": True, **options},
    )


def test_answers_are_hugging_faces(client: openai.OpenAI, folder: Path) -> None:
    """One image, two of them, and a further turn with one; the second time from the cache."""
    oracle = VisionOracle(folder / NAME)
    tall, wide, large = noise_image(70, 30), noise_image(24, 120), noise_image(150, 200)
    first = user(text("What is this?"), part(tall))
    chats = {
        "one": ([first], [tall]),
        "two": ([user(part(wide), text(" and "), part(large, "WEBP"))], [wide, large]),
        "turns": (
            [first, {"role": "assistant", "content": "A picture."}, user(part(wide), text("?"))],
            [tall, wide],
        ),
        "text": ([{"role": "user", "content": "Hello there, who are you?"}], []),
    }
    for name, (messages, images) in chats.items():
        prompt = prompt_of(folder, messages)
        whole, _ = oracle.expanded(prompt, images)
        for is_again in (False, True):
            answer = asked(client, messages)
            oracle.check(prompt, images, answer.choices[0].token_ids)
            assert answer.usage.prompt_tokens == len(whole), name
            cached = answer.usage.prompt_tokens_details.cached_tokens
            assert not is_again or (cached > 0) == (len(whole) > BLOCK_TOKENS), name
    assert oracle.num_near_ties <= 1


def test_streamed_and_several_choices(client: openai.OpenAI) -> None:
    messages = [user(part(noise_image(60, 60, 5)), text("Tell me more."))]
    whole = asked(client, messages, n=2)
    assert len({tuple(choice.token_ids) for choice in whole.choices}) == 1
    stream = client.chat.completions.create(
        model=NAME,
        messages=messages,
        temperature=0,
        max_tokens=NUM_TOKENS,
        stream=True,
        extra_body={"ignore_eos": True},
    )
    pieces = [chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices]
    assert "".join(pieces) == whole.choices[0].message.content


URL = "messages[0].content[0].image_url.url"


@pytest.mark.parametrize(
    ("content", "param"),
    [
        ([{"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}], URL),
        ([{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}], URL),
        ([part(noise_image(300, 300))], URL),
        ([part(noise_image(1, 250))], URL),
        ([part(noise_image(20, 20))] * 4, "messages[0].content[3].image_url"),
        ([text(f"What is {IMAGE}?"), part(noise_image(20, 20))], "messages"),
        ([text(f"What is {IMAGE}?")], "messages"),
    ],
    ids=["fetched", "broken", "large", "long", "many", "mark", "mark alone"],
)
def test_bad_images_are_the_clients_fault(
    client: openai.OpenAI, content: list[dict[str, object]], param: str
) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        asked(client, [user(*content)])
    assert refused.value.param == param
    assert refused.value.code == "invalid_value"


def test_a_prompt_with_images_is_not_cut(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        asked(client, [user(part(noise_image(20, 20)))], truncate_prompt_tokens=9)
    assert refused.value.param == "truncate_prompt_tokens"


def test_an_image_that_the_context_has_no_room_for(client: openai.OpenAI) -> None:
    large = [part(noise_image(180, 220, seed)) for seed in range(3)]
    words = text("word " * 600)
    with pytest.raises(openai.BadRequestError) as refused:
        asked(client, [user(*large, words)])
    assert refused.value.code == "context_length_exceeded"


def test_other_models_take_no_images(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model=OTHER, messages=[user(part(noise_image(20, 20)))])
    assert refused.value.code == "unsupported_parameter"
    assert refused.value.param == "messages[0].content[0].type"
    assert "images" in refused.value.message


def test_the_other_apis_take_no_images(url: str) -> None:
    image = data_url(png_of(noise_image(20, 20)))
    source = {"type": "base64", "media_type": "image/png", "data": image.partition(",")[2]}
    bodies = {
        "/v1/messages": {
            "max_tokens": 5,
            "messages": [user({"type": "image", "source": source})],
        },
        "/v1/responses": {"input": [user({"type": "input_image", "image_url": image})]},
        "/tokenize": {"messages": [user(part(noise_image(20, 20)))]},
    }
    for path, body in bodies.items():
        answer = httpx.post(f"{url}{path}", json={"model": NAME, **body}, timeout=60)
        assert answer.status_code == 400, path
        assert "image" in answer.text, path


def test_lines_of_a_batch_have_images(client: openai.OpenAI, folder: Path) -> None:
    messages = [user(text("What is this?"), part(noise_image(50, 50, 9)))]
    fields = {"model": NAME, "temperature": 0, "max_tokens": NUM_TOKENS, "ignore_eos": True}
    body = {**fields, "messages": messages}
    broken = {**fields, "messages": [user({"type": "image_url", "image_url": {"url": "x"}})]}
    lines = [
        {"custom_id": name, "method": "POST", "url": "/v1/chat/completions", "body": each}
        for name, each in (("good", body), ("bad", broken))
    ]
    file = folder / "lines.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)))
    uploaded = client.files.create(file=file, purpose="batch")
    batch = client.batches.create(
        input_file_id=uploaded.id, endpoint="/v1/chat/completions", completion_window="1h"
    )
    while batch.status in ("validating", "in_progress", "finalizing"):
        time.sleep(0.05)
        batch = client.batches.retrieve(batch.id)
    assert (batch.request_counts.completed, batch.request_counts.failed) == (1, 1)
    answer = json.loads(client.files.content(batch.output_file_id).text)
    alone = asked(client, messages).choices[0].message.content
    assert answer["response"]["body"]["choices"][0]["message"]["content"] == alone
