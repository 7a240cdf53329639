"""Files that are deep, endless or huge are refused in one line; numbers are read as in JSON."""

import json
from pathlib import Path
from typing import Any

import pytest

from muxcluster.config.load import load_config
from muxcluster.config.planfile import read_plan
from muxcluster.config.profiles import read_profile
from muxcluster.core.errors import ConfigError, LoadError
from muxcluster.core.inputs.json_file import MOST_DEPTH, parse_nested, read_json
from muxcluster.placement.compat.curves import read_curves
from muxcluster.placement.compat.errors import CompatError
from muxcluster.placement.cost import Profile, read_muxserve
from muxcluster.workload.files.rows import json_document, json_rows

DEEP = "[" * 3000 + "]" * 3000
SHAPE = "models: [{name: m, shape: opt-125m}]"
CONFIG = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "vocab_size": 100,
    "intermediate_size": 100,
    "max_position_embeddings": 512,
}


def bomb(line: str) -> str:
    """Twelve lines that stand for 9 ** 12 values."""
    first = "a0: &a0 {k: 1}\n"
    return first + "".join(
        f"a{i}: &a{i} {line.replace('X', ', '.join([f'*a{i - 1}'] * 9))}\n" for i in range(1, 13)
    )


def refusal(path: Path, text: str) -> str:
    path.write_text(text, encoding="utf-8", errors="surrogatepass")
    with pytest.raises((ConfigError, LoadError)) as caught:
        load_config(path)
    message = str(caught.value)
    assert message.startswith(str(path)) and "\n" not in message and len(message) < 500
    return message.removeprefix(str(path))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("models: &m [*m]", ":1: not YAML: *m stands for something that it is itself in"),
        ("models: &m\n  <<: *m", ":2: not YAML: *m stands for something that it is itself in"),
        (DEEP, ":1: not YAML: nested more than 32 deep"),
        ("- " * 3000, ":1: not YAML: nested more than 32 deep"),
        ("{a: " * 3000 + "}" * 3000, ":1: not YAML: nested more than 32 deep"),
        (bomb("[X]"), ": not YAML: more than 100,000 values"),
        (bomb("{<<: [X]}"), ": not YAML: more than 100,000 values"),
        (bomb("{? [X] : 1}"), ": not YAML: more than 100,000 values"),
        ("#" * 2**22, ": not readable: larger than 2,097,152 bytes"),
        ("models: 0x" + "f" * 5000, ":1: not YAML: a number of 5002 digits"),
        ("models: 1" + ":59" * 5000, ":1: not YAML: a number of 15001 digits"),
        ("!!int ''", ": not YAML: string index out of range"),
        ("!!timestamp x", ": not YAML: "),
        ("!!bool x", ": not YAML: 'x'"),
        (r'{"a\nb": 1, models: []}', r":1: 'a\nb': unknown key"),
        (r'{"\e[31m": 1, models: []}', r":1: '\x1b[31m': unknown key"),
        (
            "models: [{name: m, shape: " + "x" * 9999 + "}]",
            ":1: models[0].shape: unknown",
        ),
        ("models: [{name: m, path: " + "x" * 9999 + "}]", ":1: models[0].path: a path has 1 to"),
        ("models: [{name: m, path: " + "x" * 300 + "}]", "x: cannot be read: File name too long"),
        (r'models: [{name: m, path: "\0"}]', ":1: models[0].path: a path has 1 to"),
        ("models: [{name: m, path: ~nobody-here/x}]", "path: ~nobody-here is no user"),
    ],
)
def test_hostile_yaml_is_refused_in_one_line(tmp_path: Path, text: str, says: str) -> None:
    assert says in refusal(tmp_path / "muxcluster.yaml", text)


def test_anchors_and_merges_within_the_limits_work(tmp_path: Path) -> None:
    file = tmp_path / "muxcluster.yaml"
    file.write_text(
        "models:\n"
        "  - &first {name: a, shape: opt-125m, rate: 3, slo: &slo {ttft: 1, tpot: 2}}\n"
        "  - {<<: *first, name: b}\n"
        "  - {<<: *first, name: c, slo: *slo, rate: 4}\n"
    )
    a, b, c = (model.section for model in load_config(file).models)
    assert (a.rate, b.rate, c.rate) == (3, 3, 4)
    assert a.slo == b.slo == c.slo


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("max_body_bytes", "1e9", 10**9),
        ("max_body_bytes", "1.5E+6", 1_500_000),
        ("request_timeout_s", "1e3", 1000.0),
        ("request_timeout_s", "1e-3", 0.001),
        ("request_timeout_s", "1E22", 1e22),
        ("host", "'1e9'", "1e9"),
        ("host", "e9", "e9"),
    ],
)
def test_numbers_with_exponents(tmp_path: Path, key: str, text: str, value: Any) -> None:
    file = tmp_path / "muxcluster.yaml"
    file.write_text(f"{SHAPE}\nserver: {{{key}: {text}}}")
    found = getattr(load_config(file).server, key)
    assert found == value and type(found) is type(value)


@pytest.mark.parametrize(
    ("section", "says"),
    [
        ("seed: -1", "models[0].seed: input should be greater than or equal to 0, not -1"),
        ("seed: 10000000000000000000000", "models[0].seed: input should be less than"),
        ("seed: 1e22", "models[0].seed: input should be a valid integer, not 1e+22"),
        ("seed: 1.5", "models[0].seed: input should be a valid integer"),
        ("max_seqs: 1e400", "models[0].max_seqs: input should be a valid integer, not inf"),
    ],
)
def test_numbers_out_of_range(tmp_path: Path, section: str, says: str) -> None:
    text = SHAPE.replace("}", f", {section}}}")
    assert says in refusal(tmp_path / "muxcluster.yaml", text)


@pytest.mark.parametrize("key", [r"abc\n", "", r"a\tb", " abc", "clé", r"a\0"])
@pytest.mark.parametrize("form", ['api_key: "KEY"', 'more_keys: ["KEY"]'])
def test_keys_that_no_header_can_carry(tmp_path: Path, key: str, form: str) -> None:
    text = f"{SHAPE}\nserver: {{{form.replace('KEY', key)}}}"
    message = refusal(tmp_path / "muxcluster.yaml", text)
    assert "key is" in message and "abc" not in message


def test_a_key_with_a_space_inside_is_one(tmp_path: Path) -> None:
    file = tmp_path / "muxcluster.yaml"
    file.write_text(f"{SHAPE}\nserver: {{api_key: open sesame}}")
    assert load_config(file).server.api_key == "open sesame"


def model_refusal(tmp_path: Path, content: str) -> str:
    folder = tmp_path / "model"
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(content)
    file = tmp_path / "muxcluster.yaml"
    file.write_text("models: [{name: m, path: model}]")
    with pytest.raises(LoadError) as caught:
        load_config(file)
    message = str(caught.value)
    assert message.startswith(str(folder / "config.json"))
    assert "\n" not in message and len(message) < 500
    return message


@pytest.mark.parametrize("depth", [MOST_DEPTH + 1, 500, 900, 100_000])
def test_a_deep_config_json(tmp_path: Path, depth: int) -> None:
    deep = "[" * depth + "]" * depth
    content = json.dumps(CONFIG)[:-1] + f', "text_config": {deep}}}'
    assert "nested more than 64 deep" in model_refusal(tmp_path, content)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("num_hidden_layers", 10**9),
        ("num_hidden_layers", 10**22),
        ("hidden_size", 10**400),
        ("rope_parameters", "x"),
        ("rope_parameters", [1]),
        ("eos_token_id", "x" * 9999),
        ("eos_token_id", [10**40]),
        ("text_config", ["x" * 9999]),
    ],
)
def test_values_that_no_model_has(tmp_path: Path, key: str, value: Any) -> None:
    assert key in model_refusal(tmp_path, json.dumps({**CONFIG, key: value}))


def test_a_kind_of_rotary_embedding_that_is_a_list(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    content = {**CONFIG, "rope_parameters": {"rope_type": ["x"]}}
    (folder / "config.json").write_text(json.dumps(content))
    file = tmp_path / "muxcluster.yaml"
    file.write_text("models: [{name: m, path: model}]")
    assert load_config(file).models[0].max_model_len == 512


def test_deep_plans_profiles_and_traces(tmp_path: Path) -> None:
    (tmp_path / "muxcluster.yaml").write_text(SHAPE)
    config = load_config(tmp_path / "muxcluster.yaml")
    for depth in (100, 100_000):
        file = tmp_path / "deep.json"
        file.write_text("[" * depth + "]" * depth)
        with pytest.raises(ConfigError, match="nested more than 64 deep"):
            read_plan(file, config)
        with pytest.raises(ConfigError, match="nested more than 64 deep"):
            json_document(file)
        with pytest.raises(ConfigError, match="deep.json:1: not JSON: nested more than"):
            list(json_rows(file))
        with pytest.raises(ValueError, match="nested more than 64 deep"):
            read_profile(file)
        for read in (Profile.read, read_muxserve):
            with pytest.raises(ValueError, match="deep.json"):
                read(file)
        with pytest.raises(CompatError):
            read_curves(file)


def test_a_profile_with_a_number_beyond_floats(tmp_path: Path) -> None:
    file = tmp_path / "profile.json"
    cell = {"phase": "decode", "tp": 1, "share": 10**400, "batch": 1, "tokens": 1, "seconds": [1]}
    model = {"name": "m", "shape": {}, "cells": [cell]}
    content = {"gpu": "cpu", "itemsize": 4, "machine": "", "models": [model]}
    del model["shape"]
    file.write_text(json.dumps(content | {"models": [{"cells": [cell], "name": "m"}]}))
    with pytest.raises(ValueError, match="profile.json"):
        Profile.read(file)


def test_the_deepest_that_is_read() -> None:
    assert parse_nested("[" * MOST_DEPTH + "]" * MOST_DEPTH)
    with pytest.raises(ValueError, match="nested"):
        parse_nested("[" * (MOST_DEPTH + 1) + "]" * (MOST_DEPTH + 1))


def test_a_file_without_an_end_is_read_to_the_limit() -> None:
    with pytest.raises(ValueError, match="larger than 1,000 bytes"):
        read_json(Path("/dev/zero"), 1000)
