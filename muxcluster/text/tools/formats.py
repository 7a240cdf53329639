"""The formats in which model families write tool calls, and which of them a chat template has."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from muxcluster.text.tools import calls, harmony
from muxcluster.text.tools.calls import Read

NONE, AUTO = "none", "auto"


@dataclass(frozen=True, slots=True)
class Written:
    """The texts around calls, as their models were trained to write them.

    begin and end stand around the arguments of one call, `{name}` in begin for the tool's name;
    prefix and suffix around all calls of an output. field: where arguments are no JSON object, the
    texts around each of them, `{name}` in the first for its name.
    """

    begin: str
    end: str
    separator: str = ""
    prefix: str = ""
    suffix: str = ""
    field: tuple[str, str] | None = None

    def begin_of(self, name: str) -> str:
        """Return the text before the arguments of a call of the tool `name`."""
        return self.begin.replace("{name}", name)


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """How calls are written.

    name: as in `models[].tool_format`. openers: marks before calls, anywhere in an output. marks:
    all texts that may be special tokens. bare_starts: first characters of an output that may be a
    call without a mark. is_in_template: the model's chat template describes the tools; otherwise we
    do (`described`). has_channels: outputs are messages with channels, and a call is one of these.
    """

    name: str
    read: Read
    written: Written
    openers: tuple[str, ...] = ()
    marks: tuple[str, ...] = ()
    bare_starts: str = ""
    may_repeat: bool = True  # templates show several calls of one output
    is_in_template: bool = True
    has_channels: bool = False

    @property
    def is_bare(self) -> bool:
        """True if an output may begin with a call that has no mark."""
        return bool(self.bare_starts)

    @property
    def trigger(self) -> str:
        """The text with which every call in free text begins; "" if they have none of their own."""
        start = self.written.prefix + self.written.begin
        return next((mark for mark in self.openers if start.startswith(mark)), "")


HERMES = ToolFormat(
    "hermes",
    calls.hermes,
    Written('<tool_call>\n{"name": "{name}", "arguments": ', "}\n</tool_call>", "\n"),
    openers=("<tool_call>",),
    marks=("<tool_call>", "</tool_call>"),
)
QWEN3_CODER = ToolFormat(
    "qwen3_coder",
    calls.qwen3_coder,
    Written(
        "<tool_call>\n<function={name}>\n",
        "</function>\n</tool_call>",
        "\n",
        field=("<parameter={name}>\n", "\n</parameter>\n"),
    ),
    openers=("<tool_call>",),
    marks=("<tool_call>", "</tool_call>"),
)
LLAMA3 = ToolFormat(
    "llama3",
    calls.llama3,
    Written('{"name": "{name}", "parameters": ', "}", "; "),
    openers=("<|python_tag|>",),
    marks=("<|python_tag|>",),
    bare_starts="{",
    may_repeat=False,
)
MISTRAL = ToolFormat(
    "mistral",
    calls.mistral,
    Written('{"name": "{name}", "arguments": ', "}", ", ", "[TOOL_CALLS][", "]"),
    openers=("[TOOL_CALLS]",),
    marks=("[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"),
)
MISTRAL_NAMED = ToolFormat(
    "mistral",
    calls.mistral,
    Written("[TOOL_CALLS]{name}[ARGS]", ""),
    openers=MISTRAL.openers,
    marks=MISTRAL.marks,
)
_DEEPSEEK_MARKS = tuple(
    f"<｜tool▁{part}｜>" for part in ("calls▁begin", "call▁begin", "sep", "call▁end", "calls▁end")
)
_BEGIN_ALL, _BEGIN, _SEPARATOR, _END, _END_ALL = _DEEPSEEK_MARKS
DEEPSEEK = ToolFormat(
    "deepseek",
    calls.deepseek,
    Written(
        f"{_BEGIN}function{_SEPARATOR}{{name}}\n```json\n",
        f"\n```{_END}",
        "\n",
        _BEGIN_ALL,
        _END_ALL,
    ),
    openers=(_BEGIN_ALL,),
    marks=_DEEPSEEK_MARKS,
)
DEEPSEEK_NAMED = ToolFormat(
    "deepseek",
    calls.deepseek,
    Written(f"{_BEGIN}{{name}}{_SEPARATOR}", _END, "", _BEGIN_ALL, _END_ALL),
    openers=DEEPSEEK.openers,
    marks=DEEPSEEK.marks,
)
HARMONY = ToolFormat(
    "harmony",
    harmony.call,
    Written(
        f"{harmony.TO}{harmony.NAMESPACE}{{name}}{harmony.CHANNEL}commentary json{harmony.MESSAGE}",
        harmony.CALL,
        f"{harmony.START}{harmony.AUTHOR}",
    ),
    marks=harmony.MARKS,
    may_repeat=False,
    has_channels=True,
)
JSON = ToolFormat(
    "json",
    calls.plain_json,
    Written('{"name": "{name}", "arguments": ', "}", "\n"),
    bare_starts="{[`",
    is_in_template=False,
)
_REMEDY = "with models[].tool_format: json, we describe tools to it in a system message"
# what only templates of formats that are not read here contain, and what to call those
_UNKNOWN_SIGNS = {
    "<function=": "an XML",
    "<arg_key>": "GLM's XML",
    "<|python_start|>": "Llama 4's",
    "<|START_ACTION|>": "Command's",
    "<|tool_calls_section_begin|>": "Kimi's",
    "<minimax:tool_call>": "MiniMax's XML",
    "functools[": "Phi's",
}


@dataclass(frozen=True, slots=True)
class ModelTools:
    """Whether tools of a model can be called. refusal: why not, if format is None."""

    format: ToolFormat | None
    refusal: str = ""


def tools_of(setting: str, template: str) -> ModelTools:
    """Return the format of a model's calls.

    setting: `models[].tool_format`. template: the source of its chat template, "" without one.
    """
    if setting == NONE:
        return ModelTools(None, "models[].tool_format is none")
    if setting == JSON.name:
        return ModelTools(JSON)
    if re.search(r"\btools\b", template) is None:
        return ModelTools(None, f"its chat template describes no tools; {_REMEDY}")
    if setting == AUTO:
        return _detected(template)
    return ModelTools(_named(setting, template))


def _named(name: str, template: str) -> ToolFormat:
    """Return a family's format, in the variant of the template."""
    if name == "mistral":
        return MISTRAL_NAMED if "[ARGS]" in template else MISTRAL
    if name == "deepseek":
        return DEEPSEEK if "```json" in template else DEEPSEEK_NAMED
    return {each.name: each for each in (HERMES, QWEN3_CODER, LLAMA3, HARMONY)}[name]


def _detected(template: str) -> ModelTools:
    if "<function=" in template and "<parameter=" in template:
        return ModelTools(QWEN3_CODER)
    if harmony.is_template(template):
        return ModelTools(HARMONY)
    for sign, name in _UNKNOWN_SIGNS.items():
        if sign in template:
            message = f"its chat template has {name} format, which is not read here; {_REMEDY}"
            return ModelTools(None, message)
    signs: Sequence[tuple[str, Sequence[str]]] = (
        ("hermes", HERMES.openers),
        ("mistral", MISTRAL.openers),
        ("deepseek", DEEPSEEK.openers),
        ("llama3", ("<|python_tag|>", "ipython")),
    )
    for name, texts in signs:
        if any(text in template for text in texts):
            return ModelTools(_named(name, template))
    return ModelTools(None, f"its chat template has a format that is not known here; {_REMEDY}")
