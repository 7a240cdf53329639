"""Compiling the C++ kernels: once, into a folder that is ours, and told when it cannot be."""

import logging
from pathlib import Path

import pytest

from muxcluster.kernels.native import build
from muxcluster.kernels.native.build import SWITCH, library

SOURCE = 'extern "C" int answer() { return %d; }\n'


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the cache is."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(SWITCH, raising=False)
    library.cache_clear()
    return tmp_path / "cache" / "muxcluster"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "kernels.cpp"
    path.write_text(SOURCE % 41)
    return path


def _answer(source: Path) -> int:
    library.cache_clear()
    found = library((source,))
    assert found is not None
    return int(found.answer())


def test_it_is_compiled_once_and_again_when_the_source_changes(home: Path, source: Path) -> None:
    assert _answer(source) == 41
    (kept,) = home.glob("*.so")
    changed = kept.stat().st_mtime_ns
    assert _answer(source) == 41
    assert kept.stat().st_mtime_ns == changed
    source.write_text(SOURCE % 42)
    assert _answer(source) == 42
    assert len(list(home.glob("*.so"))) == 2


def test_a_library_that_a_crash_cut_off_is_compiled_again(home: Path, source: Path) -> None:
    def cut_off(compiler: object, sources: object, target: Path) -> None:
        target.write_bytes(b"\x7fELF")

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(build, "_compile", cut_off)
        assert library((source,)) is None
    assert _answer(source) == 41
    (kept,) = home.glob("*.so")
    assert kept.stat().st_size > 1000


def test_no_home(
    source: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", no_home)
    assert _answer(source) == 41
    assert "for this process alone" in caplog.text


def test_a_compiler_that_takes_too_long(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    compiler = tmp_path / "slow"
    compiler.write_text('#!/bin/sh\n[ "$1" = --version ] || sleep 60\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setattr(build, "COMPILE_S", 0.2)
    assert library((source,)) is None
    assert "takes longer than" in caplog.text


def test_a_folder_that_others_may_write_is_not_used(home: Path, source: Path) -> None:
    home.mkdir(parents=True)
    home.chmod(0o777)
    assert _answer(source) == 41
    assert not list(home.iterdir())


@pytest.mark.parametrize("text", ["int answer( {", '#error "not this processor"'])
def test_a_source_that_does_not_compile_is_told(
    source: Path, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    source.write_text(text)
    with caplog.at_level(logging.WARNING):
        assert library((source,)) is None
    assert "error" in caplog.text
    assert "products and attention are torch's" in caplog.text


def test_without_a_compiler(
    source: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert library((source,)) is None
    assert "no C++ compiler (no-such-compiler)" in caplog.text


def test_switched_off(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SWITCH, "off")
    assert library((source,)) is None
