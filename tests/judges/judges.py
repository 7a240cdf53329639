"""The judges: what each needs, and how it is run."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Judge:
    """One program that speaks to the server as its users would."""

    name: str
    # Requirements of pip, or of npm for a script for Node; the first is the one that is judged
    needs: tuple[str, ...]
    script: str  # of `programs`
    is_node: bool = False


JUDGES = (
    Judge("openai", ("openai",), "openai_client.py"),
    Judge("openai-node", ("openai", "zod"), "openai_client.mjs", is_node=True),
    Judge("anthropic", ("anthropic",), "anthropic_client.py"),
    Judge("langchain", ("langchain-openai", "langchain-anthropic"), "langchain_client.py"),
    Judge(
        "llama-index",
        ("llama-index-llms-openai-like", "llama-index-embeddings-openai-like"),
        "llama_index_client.py",
    ),
    Judge("litellm", ("litellm",), "litellm_client.py"),
    Judge("instructor", ("instructor",), "instructor_client.py"),
    Judge("pydantic-ai", ("pydantic-ai-slim[openai]",), "pydantic_ai_client.py"),
    Judge("schemathesis", ("schemathesis",), "schemathesis_cli.py"),
    Judge("guidellm", ("guidellm",), "guidellm_cli.py"),
)
