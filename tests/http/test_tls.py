"""HTTPS: served as plain HTTP is, refused to others, with certificates that change."""

import asyncio
import json
import os
import shutil
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import yaml

from muxcluster.cluster.ingress.serve_app import build_app, settings_of
from muxcluster.config.load import load_config
from muxcluster.core.errors import ConfigError, EngineFailure
from muxcluster.core.inputs import tls_files as tls_files_module
from muxcluster.core.inputs.tls_files import TlsFiles
from muxcluster.core.inputs.web_url import HttpAddress
from muxcluster.http.app import create_app
from muxcluster.http.server import connections as connections_module
from muxcluster.http.server import tls as tls_module
from muxcluster.http.server.connection import HeadLimits
from muxcluster.http.server.listener import Listener
from muxcluster.http.settings import ApiSettings, ConnectionLimits
from tests.http.certificates import make_certificate, trusting
from tests.http.listeners import (
    CLOSING,
    PATIENCE_S,
    connected,
    exchange,
    free_port,
    listening,
    received,
    status_of,
)


def loops() -> Iterator[Any]:
    """Serve's replicas run on uvloop where it is installed."""
    yield pytest.param(asyncio.new_event_loop, id="asyncio")
    try:
        import uvloop
    except ImportError:
        return
    yield pytest.param(uvloop.new_event_loop, id="uvloop")


@pytest.fixture
def files(tmp_path: Path) -> TlsFiles:
    return make_certificate(tmp_path / "tls")


@pytest.fixture
def statuses() -> list[int]:
    """Of the listener's own refusals."""
    return []


@pytest.fixture(params=list(loops()))
def port(
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    backend: Any,
    says: Any,
    files: TlsFiles,
    statuses: list[int],
) -> Iterator[int]:
    monkeypatch.setattr(tls_module, "RENEW_PERIOD_S", 0.05)
    says("hello world")
    limits = HeadLimits(timeout_s=600.0, on_refused=statuses.append)
    app = create_app(backend, ApiSettings())
    with listening(app, limits, tls=files, new_loop=request.param) as number:
        yield number


def wait_for(is_so: Callable[[], bool], patience_s: float = PATIENCE_S) -> None:
    deadline_s = time.monotonic() + patience_s
    while not is_so():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def test_a_client_streams_and_trusts_the_certificate(port: int, files: TlsFiles) -> None:
    with (
        httpx.Client(verify=trusting(files)) as http,
        openai.OpenAI(
            base_url=f"https://127.0.0.1:{port}/v1", api_key="x", http_client=http, max_retries=0
        ) as client,
    ):
        stream = client.completions.create(model="tiny", prompt="hi", max_tokens=50, stream=True)
        assert "".join(chunk.choices[0].text for chunk in stream) == "hello world"


def test_plain_http_is_told_what_is_wrong(port: int, statuses: list[int]) -> None:
    answer = exchange(port, CLOSING)
    assert status_of(answer) == 400
    assert "https://" in json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["message"]
    assert statuses == [400]


def test_what_is_neither_gets_nothing(port: int, files: TlsFiles) -> None:
    """A broken handshake, and a client that leaves at once."""
    assert b"HTTP" not in exchange(port, b"\x16\x03\x01\x00\x05hello" + bytes(100))
    connected(port).close()
    assert status_of(exchange(port, CLOSING, tls=trusting(files))) == 200


def test_a_handshake_that_does_not_come_ends(
    port: int, files: TlsFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls_module, "GREETING_S", 0.2)
    with connected(port) as silent, connected(port) as half:
        half.sendall(b"\x16\x03\x01")
        assert received(silent) == received(half) == b""


def test_clients_that_begin_no_handshake_hold_no_place(
    port: int, files: TlsFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oldest of them ends when there are too many."""
    monkeypatch.setattr(tls_module, "MOST_GREETINGS", 4)
    silent = [connected(port) for _ in range(12)]
    try:
        assert status_of(exchange(port, CLOSING, tls=trusting(files))) == 200
        assert received(silent[0]) == b""
    finally:
        for each in silent:
            each.close()


@pytest.mark.parametrize("new_loop", list(loops()))
@pytest.mark.parametrize("limits", [ConnectionLimits(per_address=2), ConnectionLimits(most=2)])
def test_connections_without_a_place_end_whatever_their_clients_do(
    monkeypatch: pytest.MonkeyPatch,
    backend: Any,
    files: TlsFiles,
    new_loop: Callable[[], asyncio.AbstractEventLoop],
    limits: ConnectionLimits,
) -> None:
    """Refused, or closed for a new one: clients that say nothing after the handshake."""
    monkeypatch.setattr(connections_module, "GRACE_S", 0.0)
    app = create_app(backend, ApiSettings())
    heads = HeadLimits(timeout_s=600.0)
    with listening(app, heads, tls=files, connections=limits, new_loop=new_loop) as port:
        silent = [connected(port, trusting(files)) for _ in range(12)]
        try:
            if limits.per_address is not None:
                with connected(port, trusting(files)) as client:
                    assert status_of(received(client)) == 429
            # asyncio would wait for them for 30 s
            wait_for(lambda: sum(map(is_closed, silent)) == 10, 20.0)
        finally:
            for each in silent:
                each.close()


def is_closed(client: socket.socket) -> bool:
    """Whether the server has closed it. Takes what came beneath TLS, which answers nothing."""
    with socket.socket(fileno=os.dup(client.fileno())) as plain:
        plain.setblocking(False)
        try:
            while plain.recv(65536):
                pass
        except BlockingIOError:
            return False
        except ConnectionResetError:
            return True
    return True


def test_files_that_go_while_they_are_read_end_no_renewal(
    port: int,
    files: TlsFiles,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(tls_files_module, "_check_readable", lambda file: None)
    Path(files.key).unlink()
    with pytest.raises(ConfigError, match="cert.pem: it or .*key.pem cannot be read: No such"):
        files.context()
    wait_for(lambda: "certificate stays as it was" in caplog.text)
    new = make_certificate(tmp_path / "tls", "renewed")
    wait_for(lambda: shows(port, new))


def test_a_renewed_certificate_is_used_and_a_wrong_one_is_not(
    port: int, files: TlsFiles, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    new = make_certificate(tmp_path / "new", "renewed")
    assert not shows(port, new)
    shutil.copy(new.cert, files.cert)  # not yet its key
    shutil.copy(new.key, files.key)
    wait_for(lambda: shows(port, new))
    Path(files.key).write_text("nothing")
    wait_for(lambda: "certificate stays as it was" in caplog.text)
    assert shows(port, new)


def shows(port: int, files: TlsFiles) -> bool:
    """Whether the server shows this certificate."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with connected(port, context) as client:
        assert isinstance(client, ssl.SSLSocket)
        shown = client.getpeercert(binary_form=True)
    return shown == ssl.PEM_cert_to_DER_cert(Path(files.cert).read_text())


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda files, folder: Path(files.key).unlink(), "key.pem: cannot be read: No such file"),
        (lambda files, folder: Path(files.cert).write_text("x"), "cert.pem: it and .* in PEM"),
        (
            lambda files, folder: shutil.copy(make_certificate(folder / "b").key, files.key),
            "key.pem: is not the key of .*cert.pem",
        ),
        (
            lambda files, folder: make_certificate(folder / "tls", passphrase=b"secret"),
            "key.pem: has a passphrase",
        ),
    ],
    ids=["missing", "no-pem", "another-key", "passphrase"],
)
def test_files_that_cannot_be_used(
    files: TlsFiles, tmp_path: Path, spoil: Callable[[TlsFiles, Path], object], message: str
) -> None:
    spoil(files, tmp_path)
    with pytest.raises(ConfigError, match=message):
        files.context()
    listener = Listener(HttpAddress("127.0.0.1", free_port()), tls=files)
    with pytest.raises(EngineFailure, match="pem"):
        asyncio.run(listener.start(create_app_that_is_not_asked))


async def create_app_that_is_not_asked(scope: Any, receive: Any, send: Any) -> None:
    raise AssertionError("nobody can connect")


def test_the_files_of_a_configuration(files: TlsFiles, tmp_path: Path) -> None:
    """Relative to the file, and read before anything starts."""
    file = tmp_path / "muxcluster.yaml"
    models = [{"name": "tiny", "shape": "llama-2-7b"}]
    server = {"tls": {"cert": "tls/cert.pem", "key": "tls/key.pem"}}
    file.write_text(yaml.safe_dump({"models": models, "server": server}))
    assert settings_of(load_config(file)).tls == files
    assert files.context().minimum_version is ssl.TLSVersion.TLSv1_2
    with pytest.raises(ConfigError, match="server.tls: Serve's own proxy"):
        build_app(file)
    Path(files.key).unlink()
    with pytest.raises(ConfigError, match="key.pem: cannot be read"):
        settings_of(load_config(file))


def test_a_socket_that_is_bound_is_free_again_after_the_end(files: TlsFiles) -> None:
    async def scenario() -> None:
        address = HttpAddress("127.0.0.1", free_port())
        for _ in range(2):
            listener = Listener(address, tls=files)
            await listener.start(create_app_that_is_not_asked)
            await listener.close()
        with pytest.raises(OSError):
            socket.create_connection((address.host, address.port), timeout=1)

    asyncio.run(scenario())
