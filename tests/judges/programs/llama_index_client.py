"""LlamaIndex's models for servers like OpenAI's."""

from checks import EMBEDDER, MODEL, URL, run
from llama_index.core.llms import ChatMessage
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from llama_index.llms.openai_like import OpenAILike

OURS = {"api_base": f"{URL}/v1", "api_key": "none", "max_retries": 0}
HI = [ChatMessage(role="user", content="Hi")]


def model(**more):
    return OpenAILike(model=MODEL, context_window=1024, max_tokens=8, **OURS, **more)


def completion():
    assert model(is_chat_model=False).complete("Many models").raw is not None


def chat():
    assert model(is_chat_model=True).chat(HI).message.role == "assistant"


def chat_streamed():
    assert list(model(is_chat_model=True).stream_chat(HI))


async def chat_awaited():
    assert (await model(is_chat_model=True).achat(HI)).message.role == "assistant"


def embeddings():
    found = OpenAILikeEmbedding(model_name=EMBEDDER, **OURS).get_text_embedding_batch(["a", "b"])
    assert len(found) == 2


run(completion, chat, chat_streamed, chat_awaited, embeddings)
