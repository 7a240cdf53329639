"""Reading of muxcluster.yaml to a checked `Config`: keys, types, names, model directories."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from muxcluster.config.embedding import embedding_of, longest_input
from muxcluster.config.facts import (
    ModelFacts,
    known_facts,
    quantised,
    read_facts,
    with_kv_dtype,
)
from muxcluster.config.hub import Fetching, HubId, NotFetched, Wanted, fetch
from muxcluster.config.problems import first_problem, line_of
from muxcluster.config.schema import (
    AdapterSection,
    BatchSection,
    ClusterSection,
    FileSection,
    ModelSection,
    PolicySection,
    ServerSection,
)
from muxcluster.config.scoring import scoring_of
from muxcluster.config.yamlfile import Location, key_text, read_yaml
from muxcluster.core.errors import ConfigError
from muxcluster.core.inputs.adapters.files import CONFIG as ADAPTER_CONFIG
from muxcluster.core.inputs.adapters.files import AdapterFiles, read_adapter
from muxcluster.core.inputs.tls_files import TlsFiles
from muxcluster.placement.hardware import gpu_named
from muxcluster.placement.names import nearest
from muxcluster.placement.shapes.shape import ShapeError


@dataclass(frozen=True, slots=True)
class ConfiguredAdapter:
    """One adapter of a model."""

    name: str  # in the API
    files: AdapterFiles


@dataclass(frozen=True, slots=True)
class ConfiguredModel:
    """One model of the file."""

    section: ModelSection
    path: Path | None  # its directory, None if only a shape is known
    facts: ModelFacts
    max_model_len: int
    adapters: tuple[ConfiguredAdapter, ...] = ()

    @property
    def name(self) -> str:
        """The model's name in the API."""
        return self.section.name


@dataclass(frozen=True, slots=True)
class Config:
    """A checked configuration file, read from `file` by `load_config`.

    >>> from muxcluster import load_config
    >>> config = load_config("examples/small.yaml")
    >>> config.policy.objective
    'throughput'
    """

    file: Path
    models: tuple[ConfiguredModel, ...]
    cluster: ClusterSection
    policy: PolicySection
    server: ServerSection
    batch: BatchSection = BatchSection()

    @property
    def batch_directory(self) -> Path:
        """Absolute path; relative ones start from the file's own directory."""
        return (self.file.parent / Path(self.batch.directory).expanduser()).resolve()

    @property
    def usage_directory(self) -> Path:
        """Absolute path, as `batch_directory`."""
        return (self.file.parent / Path(self.server.usage_directory).expanduser()).resolve()

    @property
    def store_directory(self) -> Path | None:
        """Absolute path, as `batch_directory`; None without a store."""
        store = self.server.store
        return None if store is None else self._from_file(store.directory)

    @property
    def adapter_folders(self) -> tuple[str, ...]:
        """Absolute paths, as `batch_directory`."""
        return tuple(str(self._from_file(each)) for each in self.server.adapter_folders)

    def _from_file(self, path: str) -> Path:
        return (self.file.parent / Path(path).expanduser()).resolve()

    @property
    def keys_file(self) -> Path | None:
        """Absolute path of the tenants' keys; None without such a file.

        Links stay links: a file that is replaced through one is followed.
        """
        given = self.server.keys_file
        return None if given is None else (self.file.parent / Path(given).expanduser()).absolute()

    @property
    def tls_files(self) -> TlsFiles | None:
        """Absolute paths, as `keys_file`; None without TLS."""
        given = self.server.tls
        if given is None:
            return None
        cert, key = (
            str((self.file.parent / Path(each).expanduser()).absolute())
            for each in (given.cert, given.key)
        )
        return TlsFiles(cert, key)


@dataclass(frozen=True, slots=True)
class _Source:
    """The file and the line of each key, for error messages; and how models are fetched."""

    file: Path
    lines: Mapping[Location, int]
    fetching: Fetching

    def error(self, location: Location, message: str) -> ConfigError:
        return ConfigError(self.file, key_text(location), message, line_of(location, self.lines))


def load_config(path: Path | str, fetching: Fetching | None = None) -> Config:
    """Read the configuration in `path`, without looking at weights.

    fetching: of models that are named by a Hugging Face id; None: what planning needs. Raises
    ConfigError: one line with the file, its line, the key and the nearest valid name; and
    LoadError, naming the file, if a model's config.json is corrupt.

    >>> from muxcluster import load_config
    >>> [model.name for model in load_config("examples/small.yaml").models]
    ['chat-8b', 'code-7b', 'tutor-3b', 'rare-14b']
    """
    file = Path(path)
    content, lines = read_yaml(file)
    return config_of(content, file, fetching, lines)


def config_of(
    content: Any,
    file: Path,
    fetching: Fetching | None = None,
    lines: Mapping[Location, int] | None = None,
) -> Config:
    """Return the configuration with the content of a file; raises as `load_config`.

    file: relative paths start from its directory, and errors name it. lines: those of its keys.
    """
    lines = lines or {}
    if not isinstance(content, dict):
        raise ConfigError(file, "", "expected keys such as models:, cluster: and policy:")
    try:
        section = FileSection.model_validate(content)
    except ValidationError as error:
        raise first_problem(file, FileSection, lines, error) from error
    source = _Source(file, lines, fetching or Fetching())
    _check_names(section, source)
    models = tuple(_model(model, index, source) for index, model in enumerate(section.models))
    return Config(file, models, section.cluster, section.policy, section.server, section.batch)


def _check_names(section: FileSection, source: _Source) -> None:
    first: dict[str, int] = {}
    for index, model in enumerate(section.models):
        if model.name in first:
            message = f"{model.name!r} is already the name of models[{first[model.name]}]"
            raise source.error(("models", index, "name"), message)
        first[model.name] = index
    _check_models_of_keys(section, _with_adapters(section, first, source), source)
    seen: set[str] = set()
    for index, node in enumerate(section.cluster.listed()):
        at: Location = ("cluster", "nodes", index)
        if node.name in seen:
            raise source.error((*at, "name"), f"two nodes are called {node.name!r}")
        seen.add(node.name)
        if node.gpu != "cpu":
            try:
                gpu_named(node.gpu)
            except ValueError as error:
                raise source.error((*at, "gpu"), str(error)) from error


def _with_adapters(section: FileSection, models: Iterable[str], source: _Source) -> list[str]:
    """Return the names of all models and their adapters. Raises ConfigError for one given twice."""
    names = list(models)
    for index, model in enumerate(section.models):
        for place, adapter in enumerate(model.adapters):
            if adapter.name in names:
                at: Location = ("models", index, "adapters", place, "name")
                raise source.error(at, f"{adapter.name!r} is already a model's or adapter's name")
            names.append(adapter.name)
    return names


def _check_models_of_keys(section: FileSection, models: Iterable[str], source: _Source) -> None:
    """Refuse keys of models that the file does not have."""
    names = list(models)
    for index, key in enumerate(section.server.keys or ()):
        for place, name in enumerate(key.models or ()):
            if name not in names:
                message = f"no model is called {name!r}{nearest(name, names)}"
                raise source.error(("server", "keys", index, "models", place), message)


def _model(section: ModelSection, index: int, source: _Source) -> ConfiguredModel:
    at: Location = ("models", index)
    if section.path is None:
        path, facts = None, _known(section.shape or "", (*at, "shape"), source)
    else:
        path = _directory(section, (*at, "path"), source)
        facts = read_facts(path)
    section, facts = _with_task(section, path, facts, at, source)
    longest = facts.max_context
    length = section.max_model_len or longest
    if length > longest:
        message = f"{length} is more than the model's longest context, {longest}"
        raise source.error((*at, "max_model_len"), message)
    facts = _quantised(facts, section, at, source)
    facts = _with_kv_dtype(facts, section, at, source)
    _check_lengths(section, length, at, source)
    _check_backlog(section, length, at, source)
    _check_images(section, facts, at, source)
    adapters = _adapters(section, facts, at, source)
    _check_speculation(section, facts, at, source)
    return ConfiguredModel(section, path, facts, length, adapters)


def _check_images(section: ModelSection, facts: ModelFacts, at: Location, source: _Source) -> None:
    """Refuse what a model that takes images cannot do yet."""
    if not facts.takes_images:
        return
    asked = {
        "adapters": len(section.adapters) > 0,
        "adapter_places": section.adapter_places is not None,
        "backend": section.backend == "dense",
        "quantize": facts.shape.weights is not None,
        "task": facts.embedding is not None,
    }
    for key, is_asked in asked.items():
        if is_asked:
            raise source.error((*at, key), "not for a model that takes images")


def _adapters(
    section: ModelSection, facts: ModelFacts, at: Location, source: _Source
) -> tuple[ConfiguredAdapter, ...]:
    """Return the adapters of a model, whose weights are compared with its own when it is loaded.

    Raises LoadError naming the file at fault.
    """
    key = "adapters" if section.adapters else "adapter_places"
    if not section.adapters and section.adapter_places is None:
        return ()
    if facts.embedding is not None or facts.scoring is not None:
        raise source.error((*at, key), "a model of embeddings or scores has no adapters")
    if facts.is_dense or section.backend == "dense":
        raise source.error((*at, key), "a model on the dense backend has no adapters")
    if facts.shape.num_state_layers:
        raise source.error((*at, key), "a model with states has no adapters")
    paths = [
        _adapter(each, (*at, "adapters", place, "path"), source)
        for place, each in enumerate(section.adapters)
    ]
    return tuple(
        ConfiguredAdapter(each.name, read_adapter(path))
        for each, path in zip(section.adapters, paths, strict=True)
    )


def _adapter(section: AdapterSection, at: Location, source: _Source) -> Path:
    """Return the directory of an adapter, absolute."""
    path = (source.file.parent / Path(section.path).expanduser()).resolve()
    try:
        if not path.is_dir():
            hint = "; ids of the hub are not fetched" if HubId.of(section.path) else ""
            raise source.error(at, f"{_no_directory(path)}{hint}")
        if not (path / ADAPTER_CONFIG).is_file():
            raise source.error(at, f"{path} is no adapter: it has no {ADAPTER_CONFIG}")
    except OSError as error:
        message = f"{section.path:.200}: cannot be read: {error.strerror}"
        raise source.error(at, message) from error
    return path


def _with_task(
    section: ModelSection, path: Path | None, facts: ModelFacts, at: Location, source: _Source
) -> tuple[ModelSection, ModelFacts]:
    """Return section and facts of a model with its task.

    One that does not generate has one output token. That token is nothing, and none of a request's
    decode jobs: the vector or score is its output.
    """
    facts = _with_output(section, path, facts, at, source)
    if facts.embedding is None and facts.scoring is None:
        return section, facts
    refusal = "a model of embeddings or scores has no output tokens"
    if "output_tokens" in section.model_fields_set and section.output_tokens != 1:
        raise source.error((*at, "output_tokens"), refusal)
    if section.batch is not None and section.batch.output_tokens not in (None, 1):
        raise source.error((*at, "batch", "output_tokens"), refusal)
    if facts.is_dense or section.backend == "dense":
        key = "backend" if section.backend == "dense" else "task"
        raise source.error((*at, key), "the dense backend gives no embeddings")
    if facts.is_encoder and section.backend != "auto":
        raise source.error((*at, "backend"), "encoders have one of their own: leave it out")
    longest = None if path is None else longest_input(path)
    facts = replace(
        facts,
        shape=replace(facts.shape, tied_embeddings=True),  # the output layer is left out
        max_context=min(facts.max_context, longest or facts.max_context),
    )
    fields = {**dict(section), "output_tokens": 1.0}
    return ModelSection.model_construct(section.model_fields_set, **fields), facts


def _with_output(
    section: ModelSection, path: Path | None, facts: ModelFacts, at: Location, source: _Source
) -> ModelFacts:
    """Return the facts with what the model answers with, if that is no text."""
    if facts.is_encoder and path is not None:
        scoring = scoring_of(path, section.task)
        if scoring is not None:
            return replace(facts, scoring=scoring)
    elif section.task == "score":
        raise source.error((*at, "task"), "only encoders with a classifier score pairs of texts")
    size = facts.shape.hidden_size
    embedding = embedding_of(path, size, section.task, is_encoder=facts.is_encoder)
    if embedding is None and facts.is_encoder:
        message = "it is an encoder, which generates no text, and has no modules.json of embeddings"
        raise source.error((*at, "task"), message)
    return replace(facts, embedding=embedding)


def _quantised(
    facts: ModelFacts, section: ModelSection, at: Location, source: _Source
) -> ModelFacts:
    """Return the facts with the weights that `quantize` asks for."""
    try:
        found = quantised(facts, section.quantize)
    except ShapeError as error:
        raise source.error((*at, "quantize"), str(error)) from error
    if found.shape.latent is not None and section.backend == "dense":
        raise source.error((*at, "backend"), "dense keeps no latents, but all keys and values")
    if found.shape.weights is not None and section.backend == "dense":
        raise source.error((*at, "backend"), "dense runs no quantised weights")
    return found


def _with_kv_dtype(
    facts: ModelFacts, section: ModelSection, at: Location, source: _Source
) -> ModelFacts:
    """Return the facts with keys and values stored as `kv_dtype` asks."""
    if section.kv_dtype != "auto" and section.backend == "dense":
        raise source.error((*at, "backend"), "dense keeps keys and values in the model's dtype")
    try:
        return with_kv_dtype(facts, section.kv_dtype)
    except ShapeError as error:
        raise source.error((*at, "kv_dtype"), str(error)) from error


def _check_speculation(
    section: ModelSection, facts: ModelFacts, at: Location, source: _Source
) -> None:
    """Refuse to guess the output of a model that has none, or whose backend computes no position
    again."""
    if section.speculation is None:
        return
    if facts.embedding is not None or facts.scoring is not None:
        message = "a model of embeddings or scores has no output tokens"
        raise source.error((*at, "speculation"), message)
    if facts.shape.num_state_layers:
        message = "a model that keeps states of its text cannot take a token back"
        raise source.error((*at, "speculation"), message)
    if facts.is_dense or section.backend == "dense":
        raise source.error((*at, "speculation"), "a model on the dense backend has none")


def _check_lengths(section: ModelSection, longest: int, at: Location, source: _Source) -> None:
    """Refuse mean lengths, where the file gives them, whose sum no request can have."""
    lengths = ("prompt_tokens", "output_tokens")
    given = [name for name in lengths if name in section.model_fields_set]
    mean = section.prompt_tokens + section.output_tokens
    if not given or mean <= longest:
        return
    demand = (
        f"prompt_tokens {section.prompt_tokens:g} and output_tokens {section.output_tokens:g} "
        f"are {mean:g} tokens a request on average"
    )
    if section.max_model_len is not None:
        message = f"{longest} is too short for the demand: {demand}"
        raise source.error((*at, "max_model_len"), message)
    message = f"the model's longest context is {longest}, but {demand}"
    raise source.error((*at, given[0]), message)


def _check_backlog(section: ModelSection, longest: int, at: Location, source: _Source) -> None:
    """Refuse mean lengths of batch requests, where the file gives them, that none can have."""
    backlog = section.batch
    if backlog is None:
        return
    given = [name for name in ("prompt_tokens", "output_tokens") if getattr(backlog, name)]
    # defaults of a model with a short context are cut (config.planner_input)
    part = min(1.0, longest / (section.prompt_tokens + section.output_tokens))
    mean = (backlog.prompt_tokens or part * section.prompt_tokens) + (
        backlog.output_tokens or part * section.output_tokens
    )
    if given and mean > longest:
        message = (
            f"batch requests of {mean:g} tokens on average, prompt and output; the model's longest "
            f"context is {longest}"
        )
        raise source.error((*at, "batch", given[0]), message)


def _known(name: str, at: Location, source: _Source) -> ModelFacts:
    try:
        return known_facts(name)
    except ShapeError as error:
        raise source.error(at, str(error)) from error


def _directory(section: ModelSection, at: Location, source: _Source) -> Path:
    """Return the model directory, absolute; relative ones start from the file's own directory.

    What is no directory and has the form of a Hugging Face id is fetched.
    """
    text = section.path or ""
    path = (source.file.parent / Path(text).expanduser()).resolve()
    try:
        if not path.is_dir():
            model = HubId.of(text)
            if model is not None and not path.exists():
                return _fetched(model, path, section, at, source)
            raise source.error(at, _no_directory(path))
        if not (path / "config.json").is_file():
            raise source.error(at, f"{path} is no model directory: it has no config.json")
    except OSError as error:
        message = f"{text:.200}: cannot be read: {error.strerror}"
        raise source.error(at, message) from error
    return path


def _fetched(
    model: HubId, path: Path, section: ModelSection, at: Location, source: _Source
) -> Path:
    """Return the directory of a model on the hub. path: the directory that is not there."""
    fetching = source.fetching
    if section.load_format == "dummy" and fetching.wanted is Wanted.ALL:
        fetching = replace(fetching, wanted=Wanted.TEXT)
    try:
        return fetch(model, fetching)
    except NotFetched as error:
        beside = f"{_no_directory(path)}; and " if path.parent.is_dir() else ""
        raise source.error(at, f"{beside}{model} on the Hugging Face hub: {error}") from error


def _no_directory(path: Path) -> str:
    if path.exists():
        gguf = "; GGUF files are not served" if path.suffix.lower() == ".gguf" else ""
        return f"{path} is no directory, but a file{gguf}"
    beside = path.parent
    names = [entry.name for entry in beside.iterdir()] if beside.is_dir() else []
    hint = nearest(path.name, names) if len(names) < 1000 else ""
    return f"no such directory: {path}{hint}"
