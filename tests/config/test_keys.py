"""Keys of tenants, in the configuration and in a file of their own."""

import re
from pathlib import Path

import pytest

from muxcluster.cluster.ingress.key_host import key_settings_of
from muxcluster.config.keysfile import read_keys
from muxcluster.config.load import load_config
from muxcluster.core.errors import ConfigError
from muxcluster.core.request import ServiceClass
from muxcluster.tenants.keys import KeyLimits, TenantKey

A, B = "a" * 64, "b" * 64
MODELS = "models:\n  - {name: chat, shape: llama-2-7b}\n"
KEYS = f"""\
keys:
  - name: team-a
    sha256: {A}
    models: [chat]
    classes: [batch]
    admin: true
    requests_per_minute: 1
    tokens_per_minute: 2
    tokens_per_day: 3
    concurrent_requests: 4
  - {{name: team-b, sha256: {B}}}
  - {{name: gone, sha256: {"c" * 64}, enabled: false}}
"""
FOUND = (
    TenantKey("team-a", A, ("chat",), (ServiceClass.BATCH,), True, KeyLimits(1, 2, 3, 4)),
    TenantKey("team-b", B),
)


def _indented(text: str) -> str:
    return "".join(f"  {line}\n" for line in text.splitlines())


def test_keys_in_the_configuration(write) -> None:
    config = load_config(write(f"{MODELS}server:\n{_indented(KEYS)}"))
    settings = key_settings_of(config)
    assert settings is not None and settings.keys == FOUND
    assert settings.file is None
    assert settings.directory == str(config.file.parent / "muxcluster-usage")
    assert FOUND[1].may_run_jobs and not FOUND[0].may_run_jobs
    assert key_settings_of(load_config(write(MODELS))) is None


def test_keys_in_a_file_that_a_link_names(write, tmp_path: Path) -> None:
    (tmp_path / "version-1").write_text(KEYS)
    (tmp_path / "keys.yaml").symlink_to("version-1")
    config = load_config(write(f"{MODELS}server: {{keys_file: keys.yaml}}"))
    settings = key_settings_of(config)
    assert settings is not None and settings.keys == ()
    assert settings.file == str(tmp_path / "keys.yaml")
    assert [key.name for key in read_keys(Path(settings.file))] == ["team-a", "team-b", "gone"]
    (tmp_path / "keys.yaml").unlink()
    with pytest.raises(ConfigError, match="no such file"):
        key_settings_of(config)


@pytest.mark.parametrize(
    ("server", "message"),
    [
        (f"keys: [{{name: a, sha256: {A[:-1]}}}]", "keys[0].sha256"),
        (f"keys: [{{name: a, sha256: {A.upper()}}}]", "keys[0].sha256"),
        ("keys: [{name: a, secret: x}]", "keys[0].secret: unknown key"),
        (f"keys: [{{name: a, sha256: {A}, models: []}}]", "keys[0].models"),
        (f"keys: [{{name: a, sha256: {A}, models: [char]}}]", "did you mean chat?"),
        (f"keys: [{{name: a, sha256: {A}, classes: [fast]}}]", "no such choice"),
        (f"keys: [{{name: a, sha256: {A}, requests_per_minute: 0}}]", "requests_per_minute"),
        (f"keys: [{{name: a, sha256: {A}}}, {{name: a, sha256: {B}}}]", "two keys have the name a"),
        (f"keys: [{{name: a, sha256: {A}}}, {{name: b, sha256: {A}}}]", "two keys have the sha256"),
        (f"keys: [{{name: server.api_key, sha256: {A}}}]", "begin with server."),
        ("{keys: [], keys_file: x}", "give either keys or keys_file"),
    ],
)
def test_wrong_keys_are_told_in_one_line(write, server: str, message: str) -> None:
    flow = server if server.startswith("{") else f"{{{server}}}"
    with pytest.raises(ConfigError, match=re.escape(message)) as caught:
        load_config(write(f"{MODELS}server: {flow}"))
    assert "\n" not in str(caught.value) and A not in str(caught.value).replace(f"sha256 {A}", "")


@pytest.mark.parametrize("content", ["", "[]", "keys: 3", "other: []", f"keys: [{{sha256: {A}}}]"])
def test_a_wrong_file_is_told_with_its_name(tmp_path: Path, content: str) -> None:
    file = tmp_path / "keys.yaml"
    file.write_text(content)
    with pytest.raises(ConfigError, match=r"keys\.yaml"):
        read_keys(file)
