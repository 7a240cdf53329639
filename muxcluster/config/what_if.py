"""What-if changes to the configuration, each written as one word, such as `rate:chat=x2`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

from pydantic import ValidationError

from muxcluster.config.facts import (
    ModelFacts,
    known_facts,
    quantised,
    read_facts,
    with_kv_dtype,
)
from muxcluster.config.load import Config, ConfiguredModel
from muxcluster.config.problems import first_problem
from muxcluster.config.schema import FileSection, ModelSection, NodeSection
from muxcluster.core.errors import ConfigError
from muxcluster.core.kvshape import KvDtype
from muxcluster.core.residency import Residency
from muxcluster.placement.names import nearest
from muxcluster.placement.shapes.known import SHAPES
from muxcluster.placement.shapes.shape import ShapeError
from muxcluster.placement.shapes.weight_format import QUANTIZE

# Keys of `add` and their names in the file.
_KEYS = {
    "rate": "rate",
    "shape": "shape",
    "prompt": "prompt_tokens",
    "output": "output_tokens",
    "weight": "weight",
    "max_model_len": "max_model_len",
    "max_seqs": "max_seqs",
}
_WHOLE = ("max_model_len", "max_seqs")
FORMS = (
    "add:NAME,rate=2 or remove:NAME or rate:NAME=5 or rate:NAME=x2 or batch:NAME=2e9 or "
    "gpus:NODE=4 or residency:NAME=on-demand or quantize:NAME=int8 or kv_dtype:NAME=int8"
)


class _Refused(ValueError):
    """A change that cannot be made, with the reason."""


def changed(config: Config, change: str, where: str = "--what-if") -> Config:
    """Return the configuration after `change`.

    where: what the changes are called to whom they are asked of. Raises ConfigError: one line with
    the change and why.
    """
    verb, _, rest = change.partition(":")
    make = _VERBS.get(verb.strip())
    try:
        if make is None or not rest.strip():
            raise _Refused(f"expected {FORMS}")
        return make(config, rest.strip())
    except ValidationError as error:
        raise first_problem(Path(f"{where} {change}"), FileSection, {}, error) from error
    except _Refused as error:
        raise ConfigError(f"{where} {change}", "", str(error)) from error


def _add(config: Config, text: str) -> Config:
    name, *pairs = (part.strip() for part in text.split(","))
    if not name:
        raise _Refused("a model needs a name: add:NAME,rate=2")
    given = _settings(pairs)
    like = next((model for model in config.models if model.name == name), None)
    section: dict[str, Any] = {"rate": 1.0, "name": _new_name(config, name), **given}
    if like is not None and "shape" not in given:
        section = {**like.section.model_dump(), **section}
        return _with(config, _model(section, like.path, like.facts))
    section.setdefault("shape", name)
    names = [*SHAPES, *(model.name for model in config.models)]
    try:
        facts = known_facts(section["shape"])
    except ShapeError as error:
        if "shape" in given:
            raise _Refused(str(error)) from error
        raise _Refused(f"{name!r} is no known shape or model{nearest(name, names)}") from error
    return _with(config, _model(section, None, facts))


def _settings(pairs: list[str]) -> dict[str, Any]:
    """The keys of the file that "rate=2" and the like set."""
    given: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = (part.strip() for part in pair.partition("="))
        if not equals or key not in _KEYS:
            raise _Refused(f"{pair!r} is not KEY=VALUE{nearest(key, _KEYS)}")
        if key == "shape":
            given[key] = value
        else:
            given[_KEYS[key]] = _number(key, value, whole=key in _WHOLE)
    return given


def _number(key: str, text: str, *, whole: bool = False) -> float | int:
    try:
        return int(text) if whole else float(text)
    except ValueError as error:
        raise _Refused(f"{key}={text!r} is no {'whole ' if whole else ''}number") from error


def _new_name(config: Config, name: str) -> str:
    """Return `name`, else NAME-2, NAME-3 and so on: the first that no model has."""
    taken = {model.name for model in config.models}
    number, found = 1, name
    while found in taken:
        number += 1
        found = f"{name}-{number}"
    return found


def _model(values: Mapping[str, Any], path: Path | None, facts: ModelFacts) -> ConfiguredModel:
    section = ModelSection.model_validate(values)
    length = section.max_model_len or facts.max_context
    if length > facts.max_context:
        raise _Refused(f"max_model_len={length} is more than {facts.max_context}")
    return ConfiguredModel(section, path, facts, length)


def _with(config: Config, model: ConfiguredModel) -> Config:
    return replace(config, models=(*config.models, model))


def _remove(config: Config, name: str) -> Config:
    gone = _named(config, name)
    left = tuple(model for model in config.models if model is not gone)
    if not left:
        raise _Refused("no model would be left")
    return replace(config, models=left)


def _rate(config: Config, text: str) -> Config:
    """ "chat=5", "chat=x2"."""
    name, equals, value = (part.strip() for part in text.rpartition("="))
    if not equals:
        raise _Refused("expected rate:NAME=5 or rate:NAME=x2")
    model = _named(config, name)
    number = _number("rate", value.removeprefix("x"))
    rate = model.section.rate * number if value.startswith("x") else number
    return _with_setting(config, model, "rate", float(rate))


def _batch(config: Config, text: str) -> Config:
    """ "chat=2e9" tokens a day, of the lengths that the file gives; "chat=0" is none."""
    name, equals, value = (part.strip() for part in text.rpartition("="))
    if not equals:
        raise _Refused("expected batch:NAME=2e9, tokens a day")
    model = _named(config, name)
    tokens = _number("batch", value)
    old = model.section.batch
    lengths = {} if old is None else old.model_dump(include={"prompt_tokens", "output_tokens"})
    batch = {"tokens_per_day": float(tokens), **lengths} if tokens else None
    return _with_setting(config, model, "batch", batch)


def _residency(config: Config, text: str) -> Config:
    """ "chat=on-demand"."""
    model, value = _chosen(config, text, "residency", [each.value for each in Residency])
    return _with_setting(config, model, "residency", value)


def _quantize(config: Config, text: str) -> Config:
    """ "chat=int8", "chat=none"."""
    model, value = _chosen(config, text, "quantize", [*QUANTIZE, "none"])
    shape = replace(model.facts.shape, weights=None)
    facts = replace(model.facts, shape=shape, is_rounded=False)
    if model.path is not None:
        facts = read_facts(model.path)
    try:
        facts = quantised(facts, value)
    except ShapeError as error:
        raise _Refused(str(error)) from error
    if facts.shape.weights is not None and model.section.backend == "dense":
        raise _Refused("the dense backend runs no quantised weights")
    facts = _stored(facts, model.section)
    return _with_setting(config, model, "quantize", value, facts)


def _kv_dtype(config: Config, text: str) -> Config:
    """ "chat=int8", "chat=auto"."""
    model, value = _chosen(config, text, "kv_dtype", get_args(KvDtype))
    if value != "auto" and model.section.backend == "dense":
        raise _Refused("the dense backend keeps keys and values in the model's dtype")
    section = ModelSection.model_validate({**model.section.model_dump(), "kv_dtype": value})
    return _with_setting(config, model, "kv_dtype", value, _stored(model.facts, section))


def _stored(facts: ModelFacts, section: ModelSection) -> ModelFacts:
    """Return the facts with keys and values stored as the section asks."""
    try:
        return with_kv_dtype(facts, section.kv_dtype)
    except ShapeError as error:
        raise _Refused(str(error)) from error


def _chosen(
    config: Config, text: str, verb: str, values: Sequence[str]
) -> tuple[ConfiguredModel, str]:
    """Return the model and the value of NAME=VALUE, one of `values`."""
    name, equals, value = (part.strip() for part in text.rpartition("="))
    if not equals:
        raise _Refused(f"expected {verb}:NAME=VALUE with one of {', '.join(values)}")
    model = _named(config, name)
    if value not in values:
        raise _Refused(f"{value!r} is none of {', '.join(values)}{nearest(value, values)}")
    return model, value


def _with_setting(
    config: Config,
    model: ConfiguredModel,
    key: str,
    value: object,
    facts: ModelFacts | None = None,
) -> Config:
    """facts: of the changed model, None: as before."""
    section = {**model.section.model_dump(), key: value}
    new = replace(model, section=ModelSection.model_validate(section), facts=facts or model.facts)
    models = tuple(new if each is model else each for each in config.models)
    return replace(config, models=models)


def _gpus(config: Config, text: str) -> Config:
    """ "a=4"; "a=0" is the cluster without node a."""
    name, equals, value = (part.strip() for part in text.rpartition("="))
    if not equals:
        raise _Refused("expected gpus:NODE=4")
    nodes = {node.name: node for node in config.cluster.listed()}
    if name not in nodes:
        raise _Refused(f"no node {name!r}{nearest(name, nodes)}")
    count = _number("gpus", value, whole=True)
    if count:
        nodes[name] = NodeSection.model_validate({**nodes[name].model_dump(), "gpus": count})
    else:
        del nodes[name]
    if not nodes:
        raise _Refused("no node would be left")
    cluster = config.cluster.model_copy(update={"nodes": list(nodes.values())})
    return replace(config, cluster=cluster)


def _named(config: Config, name: str) -> ConfiguredModel:
    for model in config.models:
        if model.name == name:
            return model
    raise _Refused(f"no model {name!r}{nearest(name, [model.name for model in config.models])}")


_VERBS: Mapping[str, Callable[[Config, str], Config]] = {
    "add": _add,
    "remove": _remove,
    "rate": _rate,
    "batch": _batch,
    "gpus": _gpus,
    "residency": _residency,
    "quantize": _quantize,
    "kv_dtype": _kv_dtype,
}
