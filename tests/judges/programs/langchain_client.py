"""LangChain's models for OpenAI's and Anthropic's APIs."""

from checks import EMBEDDER, MODEL, NO_THINKING, URL, run
from langchain_anthropic import ChatAnthropic
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings
from pydantic import BaseModel, Field

TEXT = "Anne, 41, lives in Rome."
OURS = {"model": MODEL, "base_url": f"{URL}/v1", "api_key": "none", "max_retries": 0}


class Person(BaseModel):
    """A person."""

    name: str = Field(max_length=8)
    age: int = Field(ge=0, le=120)


def chat_model(**more):
    return ChatOpenAI(**OURS, extra_body=NO_THINKING, **more)


def chat():
    assert chat_model(max_tokens=8).invoke(TEXT).usage_metadata["output_tokens"] > 0


def chat_streamed():
    assert len(list(chat_model(max_tokens=8).stream(TEXT))) > 1


async def chat_batched():
    assert len(await chat_model(max_tokens=8).abatch([TEXT] * 4)) == 4


def structured():
    model = chat_model(max_tokens=900).with_structured_output(Person, method="json_schema")
    assert isinstance(model.invoke(TEXT), Person)


def tools():
    model = chat_model(max_tokens=900).bind_tools([Person], tool_choice="Person")
    assert model.invoke(TEXT).tool_calls[0]["name"] == "Person"


def responses_api():
    model = chat_model(max_tokens=16, use_responses_api=True)
    assert model.invoke(TEXT).response_metadata["id"].startswith("resp_")


def completion():
    assert isinstance(OpenAI(**OURS, max_tokens=8).invoke(TEXT), str)


def embeddings():
    # its own splitting by length asks the network for OpenAI's tokenizers
    model = OpenAIEmbeddings(**{**OURS, "model": EMBEDDER}, check_embedding_ctx_length=False)
    assert len(model.embed_documents(["one", "two"])) == 2


def anthropic_chat():
    model = ChatAnthropic(model=MODEL, base_url=URL, api_key="none", max_retries=0, max_tokens=8)
    assert model.invoke(TEXT).usage_metadata["output_tokens"] > 0


run(
    chat,
    chat_streamed,
    chat_batched,
    structured,
    tools,
    responses_api,
    completion,
    embeddings,
    anthropic_chat,
)
