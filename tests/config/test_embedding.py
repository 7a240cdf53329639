"""Which models give embeddings: sentence-transformers' files and `models[].task`."""

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from muxcluster.config.load import Config, load_config
from muxcluster.config.planner_input import nodes_of, problem
from muxcluster.config.planning import plan_for
from muxcluster.config.units import served_models, unit_specs
from muxcluster.core.errors import ConfigError, LoadError
from muxcluster.core.served import EmbeddingOutput, ScoreOutput
from muxcluster.sim.demand.loads import poisson_load
from tests.models import as_embedder

PLAN = "cluster: {nodes: [{name: local, gpu: cpu, cores: 2, memory_gb: 8}]}"
SIZE = 64


@pytest.fixture
def loaded(
    write: Callable[[str], Path], model_directory: Callable[..., Path]
) -> Callable[..., Config]:
    """(keys of the model, change of its directory, entries of config.json) -> configuration."""

    def make(
        keys: str = "", change: Callable[[Path], object] = as_embedder, **entries: object
    ) -> Config:
        change(model_directory("e", **entries))
        return load_config(write(f"models: [{{name: e, path: e{keys}}}]\n{PLAN}"))

    return make


def nothing(directory: Path) -> None:
    """Leave the directory as it is: an ordinary model."""


def test_a_directory_of_sentence_transformers(loaded: Callable[..., Config]) -> None:
    config = loaded()
    (served,) = served_models(config)
    assert served.embedding == EmbeddingOutput(SIZE)
    ((spec,),) = (unit.models for unit in unit_specs(config, plan_for(config)))
    assert (spec.embedding_size, spec.mean_output_tokens) == (SIZE, 1.0)
    assert spec.max_model_len == 2048


def test_without_normalize_the_vectors_stay_as_they_are(loaded: Callable[..., Config]) -> None:
    config = loaded("", lambda path: as_embedder(path, normalises=False))
    assert config.models[0].facts.embedding == EmbeddingOutput(SIZE, is_normalised=False)


def test_a_task_overrides_the_files(loaded: Callable[..., Config]) -> None:
    assert loaded(", task: generate").models[0].facts.embedding is None


def test_an_ordinary_model_embeds_if_asked(loaded: Callable[..., Config]) -> None:
    config = loaded(", task: embed", nothing)
    assert config.models[0].facts.embedding == EmbeddingOutput(SIZE)


def test_an_ordinary_model_generates(loaded: Callable[..., Config]) -> None:
    config = loaded("", nothing)
    assert config.models[0].facts.embedding is None
    ((spec,),) = (unit.models for unit in unit_specs(config, plan_for(config)))
    assert spec.embedding_size == 0


@pytest.mark.parametrize(
    ("entries", "allowed"),
    [
        ({}, {SIZE}),
        ({"is_matryoshka": True}, set(range(1, SIZE + 1))),
        ({"is_matryoshka": True, "matryoshka_dimensions": [8, 32]}, {8, 32, SIZE}),
        ({"is_matryoshka": False}, {SIZE}),
    ],
)
def test_shorter_vectors(
    loaded: Callable[..., Config], entries: dict[str, Any], allowed: set[int]
) -> None:
    embedding = loaded(**entries).models[0].facts.embedding
    assert embedding is not None
    assert {size for size in range(-1, 2 * SIZE) if embedding.allows(size)} == allowed


def test_the_longest_text_is_that_of_sentence_transformers(loaded: Callable[..., Config]) -> None:
    def with_length(path: Path) -> None:
        as_embedder(path)
        (path / "sentence_bert_config.json").write_text('{"max_seq_length": 100}')

    assert loaded("", with_length).models[0].max_model_len == 100


def test_a_short_context_needs_no_lengths(loaded: Callable[..., Config]) -> None:
    assert loaded(max_position_embeddings=64).models[0].section.prompt_tokens == 161


def modules(*kinds: str) -> Callable[[Path], None]:
    def change(directory: Path) -> None:
        as_embedder(directory)
        content = [{"type": f"sentence_transformers.models.{kind}", "path": ""} for kind in kinds]
        (directory / "modules.json").write_text(json.dumps(content))

    return change


def write_in(name: str, text: str) -> Callable[[Path], None]:
    def change(directory: Path) -> None:
        as_embedder(directory)
        (directory / name).write_text(text)

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda path: as_embedder(path, pooling="mean_tokens"),
            "pools by mean; served for this type of model: lasttoken",
        ),
        (write_in("1_Pooling/config.json", "{}"), "pools by nothing; served"),
        (
            write_in("1_Pooling/config.json", '{"pooling_mode": ["cls", "max"]}'),
            "pools by cls, max",
        ),
        (write_in("1_Pooling/config.json", "["), "cannot be read as JSON"),
        (
            modules("Transformer", "Pooling", "Dense"),
            "asks for Transformer, Pooling, Dense; served",
        ),
        (modules("Transformer"), "asks for Transformer; served"),
        (modules(), "asks for no module; served"),
        (write_in("modules.json", "{}"), "is not a JSON list"),
        (write_in("modules.json", "[5]"), "5 is no module"),
        (write_in("modules.json", '[{"type": "a.B", "path": "../x"}]'), "is no module"),
        (write_in("sentence_bert_config.json", "5"), "is not a JSON object"),
    ],
)
def test_what_is_not_served_is_refused_by_the_file(
    loaded: Callable[..., Config], change: Callable[[Path], None], message: str
) -> None:
    with pytest.raises(LoadError, match=message):
        loaded("", change)


def test_newer_files_name_one_mode(loaded: Callable[..., Config]) -> None:
    config = loaded("", write_in("1_Pooling/config.json", '{"pooling_mode": "lasttoken"}'))
    assert config.models[0].facts.embedding == EmbeddingOutput(SIZE)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (", output_tokens: 5", r"models\[0\].output_tokens: a model of embeddings or scores has"),
        (", batch: {queue_tokens: 9, output_tokens: 2}", r"batch.output_tokens: a model of"),
        (", backend: dense", r"models\[0\].backend: the dense backend gives no embeddings"),
        (", max_model_len: 4096", "more than the model's longest context"),
        (", task: rerank", r"models\[0\].task"),
        (", task: score", r"models\[0\].task: only encoders"),
    ],
)
def test_keys_that_contradict_the_task(
    loaded: Callable[..., Config], keys: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        loaded(keys)


@pytest.mark.parametrize(
    ("entries", "kind"),
    [
        ({"model_type": "albert"}, "albert"),
        ({"model_type": "nomic_bert"}, "nomic_bert"),
        ({"is_causal": False}, "llama"),
        ({"use_bidirectional_attention": True}, "llama"),
    ],
)
@pytest.mark.parametrize("change", [nothing, as_embedder])
def test_other_models_whose_tokens_attend_to_later_ones_are_refused(
    loaded: Callable[..., Config],
    entries: dict[str, Any],
    kind: str,
    change: Callable[[Path], object],
) -> None:
    with pytest.raises(LoadError, match=f"config.json: tokens of {kind} attend to later ones"):
        loaded("", change, **entries)


@pytest.mark.parametrize(
    ("kind", "entries", "longest"),
    [
        ("bert", {}, 2048),
        ("xlm-roberta", {"pad_token_id": 1}, 2046),
        ("roberta", {}, 2046),
        ("modernbert", {"pad_token_id": 7}, 2048),
    ],
)
@pytest.mark.parametrize("mode", ["cls_token", "mean_tokens"])
def test_encoders(
    loaded: Callable[..., Config], kind: str, entries: dict[str, Any], longest: int, mode: str
) -> None:
    config = loaded("", partial(as_embedder, pooling=mode), model_type=kind, **entries)
    pooling = mode.partition("_")[0]
    (served,) = served_models(config)
    assert served.embedding == EmbeddingOutput(SIZE, pooling)
    assert served.max_model_len == longest
    ((spec,),) = (unit.models for unit in unit_specs(config, plan_for(config)))
    assert (spec.backend, spec.pooling, spec.embedding_size) == ("encoder", pooling, SIZE)
    assert not spec.prefix_caching


@pytest.mark.parametrize(
    ("keys", "change", "error", "message"),
    [
        ("", as_embedder, LoadError, "pools by lasttoken; served for this type of model: cls and"),
        ("", nothing, ConfigError, r"models\[0\].task: it is an encoder, which generates no text"),
        (", task: generate", as_embedder, ConfigError, r"models\[0\].task: it is an encoder"),
        (", task: embed", nothing, LoadError, "modules.json: no such file, which says how"),
        (", backend: paged", None, ConfigError, r"models\[0\].backend: encoders have one of their"),
        (", quantize: int8", None, ConfigError, "runs no such weights"),
        (", kv_dtype: int8", None, ConfigError, "an encoder keeps no keys and values"),
    ],
)
def test_what_encoders_cannot(
    loaded: Callable[..., Config],
    keys: str,
    change: Callable[[Path], object] | None,
    error: type[Exception],
    message: str,
) -> None:
    change = change or partial(as_embedder, pooling="mean_tokens")
    with pytest.raises(error, match=message):
        loaded(keys, change, model_type="bert")


CLASSIFIER: dict[str, object] = {
    "model_type": "xlm-roberta",
    "architectures": ["XLMRobertaForSequenceClassification"],
    "id2label": {"0": "LABEL_0"},
    "type_vocab_size": 1,
}


@pytest.mark.parametrize(
    ("entries", "is_sigmoid"),
    [
        ({}, True),
        ({"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"}, False),
        ({"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}}, False),
        ({"sentence_transformers": {"version": "5.0"}}, True),
    ],
)
def test_an_encoder_with_a_classifier_scores(
    loaded: Callable[..., Config], entries: dict[str, Any], is_sigmoid: bool
) -> None:
    config = loaded("", nothing, **CLASSIFIER | entries)
    (served,) = served_models(config)
    assert (served.embedding, served.scoring) == (None, ScoreOutput(is_sigmoid))
    ((spec,),) = (unit.models for unit in unit_specs(config, plan_for(config)))
    assert (spec.backend, spec.pooling, spec.embedding_size) == ("encoder", "score", 1)


@pytest.mark.parametrize(
    ("keys", "entries", "error", "message"),
    [
        ("", {"id2label": {"0": "no", "1": "yes"}}, LoadError, "has 2 labels; models that score"),
        ("", {"id2label": None}, LoadError, "has 2 labels"),
        ("", {"type_vocab_size": 2}, LoadError, "by token types, which is not served"),
        ("", {"sbert_ce_default_activation_function": "a.Tanh"}, LoadError, "activation Tanh"),
        (", task: score", {"architectures": ["XLMRobertaModel"]}, LoadError, "names no model"),
        (", task: score", {"model_type": "llama"}, ConfigError, "only encoders with a classifier"),
        (", output_tokens: 3", {}, ConfigError, "has no output tokens"),
    ],
)
def test_classifiers_that_are_refused(
    loaded: Callable[..., Config],
    keys: str,
    entries: dict[str, Any],
    error: type[Exception],
    message: str,
) -> None:
    with pytest.raises(error, match=message):
        loaded(keys, nothing, **CLASSIFIER | entries)


def test_a_shape_is_planned_as_an_embedding_model(write: Callable[[str], Path]) -> None:
    text = "models: [{name: e, shape: llama-2-7b, task: embed, rate: 5, prompt_tokens: 300}]\n"
    config = load_config(write(f"{text}cluster: {{nodes: [{{name: a, gpu: A100-80GB}}]}}"))
    (model,) = config.models
    assert model.facts.embedding == EmbeddingOutput(4096)
    asked = problem(config, nodes_of(config))
    arrivals = list(poisson_load(asked.demands, 1.0).arrivals(0, 100.0))
    assert {each.output_tokens for each in arrivals} == {1}
    assert len({each.prompt_tokens for each in arrivals}) > 100
    (planned,) = plan_for(config).units[0].models
    assert planned.throughput > 0
    chat = replace(config, models=load_config(write(text.replace("embed", "generate"))).models)
    assert planned.throughput >= plan_for(chat).units[0].models[0].throughput
