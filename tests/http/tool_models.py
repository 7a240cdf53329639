"""Model directories whose chat templates know tools or reasoning, and servers of them."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import openai
from tokenizers import AddedToken
from tokenizers import Tokenizer as FastTokenizer

from muxcluster.demo.tokenizer_training import write_tokenizer
from muxcluster.http.app import create_app
from muxcluster.http.settings import ApiSettings
from muxcluster.text.tokenizer import Tokenizer
from tests.http.fakes import EOS, FakeBackend, make_tokenizer, running_server, served_model
from tests.http.live_server import NAME, configured
from tests.text.tools import templates

TAGS = ("<think>", "</think>")
MARKS = ("<tool_call>", "</tool_call>")
VOCAB_SIZE = 512  # of `tool_model`
END_OF_THINKING = VOCAB_SIZE - 3  # the id of its "</think>"


def make_model(
    directory: Path, template: str, *, special: Sequence[str] = (), plain: Sequence[str] = ()
) -> Path:
    """The model of `make_tokenizer` with another template and more tokens.

    special: those that are skipped when text is shown; plain: those that are not.
    """
    make_tokenizer(directory)
    fast = FastTokenizer.from_file(str(directory / "tokenizer.json"))
    fast.add_special_tokens([AddedToken(text, special=True) for text in special])
    fast.add_tokens([AddedToken(text, special=False) for text in plain])
    fast.save(str(directory / "tokenizer.json"))
    config = {"chat_template": template, "eos_token": EOS}
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    return directory


def tool_model(folder: Path) -> Path:
    """A configuration of a model with random weights that knows tools and thinks in tags.

    It thinks if its template is given `opens`, which opens the tag.
    """
    file = configured(folder)
    model = folder / NAME
    write_tokenizer(model, VOCAB_SIZE - len(TAGS) - len(MARKS))
    fast = FastTokenizer.from_file(str(model / "tokenizer.json"))
    fast.add_tokens([AddedToken(text, special=False) for text in (*TAGS, *MARKS)])
    fast.save(str(model / "tokenizer.json"))
    config = json.loads((model / "tokenizer_config.json").read_text())
    config["chat_template"] = templates.HERMES + "{% if opens %}{{ '<think>\\n' }}{% endif %}"
    (model / "tokenizer_config.json").write_text(json.dumps(config))
    return file


class ScriptedModel:
    """A model that says what it is told to, behind a real server.

    says: its next outputs, the last one again and again.
    """

    def __init__(self, directory: Path, **settings: str) -> None:
        """settings: of the model, such as `tool_format`."""
        served = replace(served_model(directory, max_model_len=4096), **settings)
        self.tokenizer = Tokenizer.load(directory)
        self.backend = FakeBackend([served])
        self.says: list[str] = ["ok"]
        self.backend.script = lambda request: self._next()
        self.client: openai.OpenAI

    def _next(self) -> list[int]:
        text = self.says.pop(0) if len(self.says) > 1 else self.says[0]
        return [*self.tokenizer.encode(text, False), *self.backend.served[0].eos_token_ids]

    def prompt(self, index: int = -1) -> str:
        """The text of a request's prompt."""
        tokens = self.backend.requests[index].prompt_tokens.tolist()
        return self.tokenizer.decode(tokens, skip_special_tokens=False)

    def ask(self, *, stream: bool = False, **fields):
        """One chat completion by the openai client."""
        fields = {"messages": [{"role": "user", "content": "Hi"}], **fields}
        return self.client.chat.completions.create(model="tiny", stream=stream, **fields)


@contextmanager
def served(directory: Path, **settings: str) -> Iterator[ScriptedModel]:
    """A scripted model with a client of its server."""
    model = ScriptedModel(directory, **settings)
    app = create_app(model.backend, ApiSettings())
    with (
        running_server(app) as url,
        openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client,
    ):
        model.client = client
        yield model


def gathered(chunks, index: int = 0) -> dict:
    """One choice of a stream, put together as clients do; checks the order of a call's deltas."""
    found: dict = {"content": "", "reasoning": "", "calls": [], "finish": None}
    for chunk in chunks:
        for choice in chunk.choices:
            if choice.index != index:
                continue
            delta = choice.delta
            found["content"] += delta.content or ""
            found["reasoning"] += getattr(delta, "reasoning_content", None) or ""
            for call in delta.tool_calls or ():
                _add_call(found["calls"], call)
            if choice.finish_reason is not None:
                assert found["finish"] is None
                found["finish"] = choice.finish_reason
    return found


def _add_call(calls: list[dict], call) -> None:
    if call.id is not None:
        assert call.index == len(calls)
        assert (call.type, call.function.arguments) == ("function", "")
        calls.append({"id": call.id, "name": call.function.name, "arguments": ""})
    else:
        assert call.index == len(calls) - 1
        assert call.function.name is None
        calls[call.index]["arguments"] += call.function.arguments
