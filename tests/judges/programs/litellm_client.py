"""LiteLLM."""

import litellm
from checks import EMBEDDER, MODEL, NO_THINKING, URL, run

OURS = {"api_base": f"{URL}/v1", "api_key": "none", "num_retries": 0}
USER = [{"role": "user", "content": "Hi"}]
CHAT = {"model": f"openai/{MODEL}", "messages": USER, "max_tokens": 8, **OURS}


def chat():
    assert litellm.completion(**CHAT).usage.completion_tokens > 0


def chat_streamed():
    assert len(list(litellm.completion(**CHAT, stream=True))) > 1


async def chat_awaited():
    assert (await litellm.acompletion(**CHAT)).usage.completion_tokens > 0


def hosted_vllm():
    fields = {**CHAT, "model": f"hosted_vllm/{MODEL}", "extra_body": NO_THINKING}
    assert litellm.completion(**fields).usage.completion_tokens > 0


def text_completion():
    model = f"text-completion-openai/{MODEL}"
    answer = litellm.text_completion(model=model, prompt="Many", max_tokens=8, **OURS)
    assert answer.usage.completion_tokens > 0


def embeddings():
    # its default encoding_format is none of OpenAI's
    answer = litellm.embedding(
        model=f"openai/{EMBEDDER}", input=["a", "b"], encoding_format="float", **OURS
    )
    assert len(answer.data) == 2


def responses():
    answer = litellm.responses(
        model=f"openai/{MODEL}", input="Hi", max_output_tokens=8, api_base=f"{URL}/v1", api_key="x"
    )
    assert answer.usage.output_tokens > 0


def anthropic_messages():
    fields = {**CHAT, "model": f"anthropic/{MODEL}", "api_base": URL}
    assert litellm.completion(**fields).usage.completion_tokens > 0


run(
    chat,
    chat_streamed,
    chat_awaited,
    hosted_vllm,
    text_completion,
    embeddings,
    responses,
    anthropic_messages,
)
