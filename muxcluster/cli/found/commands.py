"""Commands of other servers, `vllm serve …` and llama.cpp's, as models of ours."""

import json
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from muxcluster.cli.found.models import GGUF, Found, Model, Unserved
from muxcluster.cli.found.names import served_name
from muxcluster.config.hub import HubId

_DTYPES: Mapping[str, str] = {"half": "float16", "float": "float32"}
_THOUSANDS: Mapping[str, int] = {"k": 1000, "K": 1024, "m": 1000**2, "M": 1024**2}


def _count(text: str) -> int:
    """Return vLLM's "4096", "32k" (thousands) or "32K" (1,024s). Raises ValueError."""
    unit = _THOUSANDS.get(text[-1:], 1)
    return int(float(text.rstrip("kKmM")) * unit)


# of vLLM's parsers those whose formats are read here, with our names of these
_TOOL_PARSERS: Mapping[str, str] = {
    "hermes": "hermes",
    "llama3_json": "llama3",
    "qwen3_coder": "qwen3_coder",
    "qwen3_xml": "qwen3_coder",
    "mistral": "mistral",
    "deepseek_v3": "deepseek",
    "deepseek_v31": "deepseek",
}
_REASONING_PARSERS: Mapping[str, str] = {
    "deepseek_r1": "think",
    "deepseek_v3": "think",
    "qwen3": "think",
    "mistral": "mistral",
    "seed_oss": "seed",
}
# vLLM's methods: None where the checkpoint itself says it
_METHODS: Mapping[str, str | None] = {
    "fp8": "fp8",
    "awq": None,
    "awq_marlin": None,
    "gptq": None,
    "gptq_marlin": None,
    "compressed-tensors": None,
    "mxfp4": None,
}
# vLLM's types of keys and values that are stored here too; its FP8 is e4m3
_KV_DTYPES: Mapping[str, str | None] = {
    "auto": None,
    "fp8": "fp8_e4m3",
    "fp8_e4m3": "fp8_e4m3",
}


def _one_of(known: Mapping[str, str | None]) -> Callable[[str], str | None]:
    """Return a reader of the names in `known`, which raises ValueError for others.

    None where nothing needs to be said.
    """

    def read(text: str) -> str | None:
        if text not in known:
            raise ValueError(text)
        return known[text]

    return read


_SPECULATION = frozenset(
    {"method", "num_speculative_tokens", "prompt_lookup_max", "prompt_lookup_min"}
)


def _speculation(text: str) -> dict[str, Any]:
    """Return vLLM's JSON of prompt lookup. Raises ValueError for another method."""
    found: dict[str, Any] = json.loads(text)
    is_lookup = isinstance(found, dict) and found.get("method") == "ngram"
    if not is_lookup or not _SPECULATION.issuperset(found):
        raise ValueError(text)
    return found


# vLLM's option -> key of a model, and how its value is read
_KEYS: Mapping[str, tuple[str, Callable[[str], Any]]] = MappingProxyType(
    {
        "--max-model-len": ("max_model_len", _count),
        "--max-num-seqs": ("max_seqs", _count),
        "--dtype": ("dtype", lambda text: _DTYPES.get(text, text)),
        "--seed": ("seed", int),
        "--tool-call-parser": ("tool_format", _one_of(_TOOL_PARSERS)),
        "--reasoning-parser": ("reasoning", _one_of(_REASONING_PARSERS)),
        "--quantization": ("quantize", _one_of(_METHODS)),
        "--kv-cache-dtype": ("kv_dtype", _one_of(_KV_DTYPES)),
        "--speculative-config": ("speculation", _speculation),
    }
)
_CODE = "--trust-remote-code"
_ADAPTERS = "--lora-modules"  # NAME=PATH of each
# Options whose place is taken by something else, and of the server: nothing is lost
_REPLACED = frozenset(
    {
        *("--host", "--port", "--api-key", "--gpu-memory-utilization", "--tensor-parallel-size"),
        *("--pipeline-parallel-size", "--data-parallel-size", "--enable-prefix-caching"),
        *("--max-num-batched-tokens", "--enable-chunked-prefill", "--download-dir"),
        *("--served-model-name", "--model", "--revision", "--tokenizer", "--enforce-eager"),
        *("--enable-auto-tool-choice", "--enable-lora", _ADAPTERS, "--max-loras"),
        *("--max-lora-rank", "--max-cpu-loras"),
    }
)
_FLAGS = ("--enable-", "--disable-", "--no-", "--enforce-eager", _CODE)  # beginnings; no value
_SEVERAL = ("--served-model-name", _ADAPTERS)  # take all words up to the next option
_ENDS = ("&", "|", ";", "&&", ">", ">>", "2>&1")  # of a command, for a shell
_SHORT: Mapping[str, str] = {"-tp": "--tensor-parallel-size", "-q": "--quantization"}
_GGUF_OPTIONS = ("-m", "--model", "-hf", "--hf-repo", "-mu", "--model-url")


@dataclass(frozen=True, slots=True)
class Command:
    """A command's words, by what they are."""

    options: Mapping[str, list[str]] = field(default_factory=dict)  # "--port" -> ["8000"]
    words: Sequence[str] = ()  # that belong to no option


def model_of(line: str, name: str = "") -> Found | None:
    """Return the model that a command line serves; None if it starts no server that is known.

    name: in the API, else the command's own.
    """
    try:
        words = shlex.split(line, comments=True)
    except ValueError:  # an open quotation mark
        return None
    programs = [Path(word).name for word in words]
    for at, program in enumerate(programs):
        if program.startswith(("llama-server", "llama-cli", "llama_cpp", "koboldcpp", "ollama")):
            options = _parsed(words[at + 1 :]).options
            asked = next((options[key][0] for key in _GGUF_OPTIONS if options.get(key)), "")
            return Unserved(name or asked or program, GGUF)
    start = next((at for at, word in enumerate(words) if _starts_vllm(word)), None)
    return None if start is None else _of_vllm(_parsed(words[start + 1 :]), name)


def models_in(text: str) -> Iterator[Found]:
    """Yield the models of every command in a script; other lines are passed over."""
    for line in re.sub(r"\\\r?\n", " ", text).splitlines():
        found = model_of(line)
        if found is not None:
            yield found


def _starts_vllm(word: str) -> bool:
    image = word.rpartition("/")[2].partition(":")[0]
    return image in ("vllm", "vllm-openai") or word.startswith("vllm.entrypoints")


def _of_vllm(command: Command, name: str) -> Found | None:
    words = [word for word in command.words if word != "serve"]
    options = command.options
    path = next(iter([*words, *options.get("--model", [])]), "")
    if not path:
        return None
    if revision := options.get("--revision"):
        path = f"{path}@{revision[0]}"
    method = next(iter(options.get("--quantization", [])), "fp8")
    if method not in _METHODS:
        return Unserved(name or path, f"--quantization {method}: such weights are not served")
    if path.lower().endswith(".gguf"):
        return Unserved(name or path, GGUF)
    keys, lost = _section(options)
    adapters, unread = _adapters(options.get(_ADAPTERS, []))
    keys |= {"adapters": adapters} if adapters else {}
    lost += [f"{_ADAPTERS} {each}" for each in unread]
    names = options.get("--served-model-name", [])
    note = f"without {', '.join(lost)}" if lost else ""
    return Model(name or (names[0] if names else served_name(path)), path, note, keys)


def _section(options: Mapping[str, list[str]]) -> tuple[dict[str, Any], list[str]]:
    """Return keys of a model, and options that have no counterpart here."""
    keys: dict[str, Any] = {}
    lost = []
    for option, values in options.items():
        if option in _KEYS and values:
            key, read = _KEYS[option]
            try:
                value = read(values[0])
            except ValueError:  # such as --max-model-len auto
                lost.append(f"{option} {values[0]}")
            else:
                keys |= {} if value is None else {key: value}
        elif option == _CODE:
            keys["trust_remote_code"] = True
        elif option not in _REPLACED:
            lost.append(option)
    return keys, lost


def _adapters(values: Sequence[str]) -> tuple[list[dict[str, str]], list[str]]:
    """Return adapters as their model's section has them, and values that name no directory."""
    found, unread = [], []
    for value in values:
        name, _, path = value.partition("=")
        if name and path and (Path(path).is_dir() or HubId.of(path) is None):
            found.append({"name": name, "path": path})
        else:
            unread.append(value)
    return found, unread


def _parsed(words: Sequence[str]) -> Command:
    """Sort words as vLLM does: `--key value`, `--key=value`, flags, and words of their own."""
    options: dict[str, list[str]] = {}
    alone: list[str] = []
    option = ""  # whose value the next word is
    for word in words:
        if word in _ENDS:
            break
        if word.startswith("-") and not word[1:2].isdigit():
            option, has_value, value = word.partition("=")
            if option.startswith("--"):
                option = option.replace("_", "-")
            option = _SHORT.get(option, option)
            options.setdefault(option, []).extend([value] if has_value else [])
            if has_value or option.startswith(_FLAGS):
                option = ""
        elif option:
            options[option].append(word)
            option = option if option in _SEVERAL else ""
        else:
            alone.append(word)
    return Command(options, alone)
