"""Uploads: forms of any shape, limits, a full disk, clients that go."""

import errno
import os
import socket
from pathlib import Path

import httpx
import openai
import pytest

from muxcluster.http.settings import ApiSettings
from tests.http.batches.conftest import client_of
from tests.http.fakes import running_server, wait_until


def _folder(tmp_path: Path, name: str) -> list[Path]:
    return list((tmp_path / "batches" / name).iterdir())


def _error(answer: httpx.Response) -> tuple[int, str, str | None]:
    error = answer.json()["error"]
    return answer.status_code, error["code"], error["param"]


@pytest.mark.parametrize("num_bytes", [0, 1, 2**20 - 1, 2**20, 3 * 2**20 + 17])
def test_content_comes_back_byte_by_byte(batch_client, num_bytes):
    data = os.urandom(num_bytes)
    file = batch_client.files.create(file=('a "b" ü.jsonl', data), purpose="batch")
    assert (file.bytes, file.object, file.purpose) == (num_bytes, "file", "batch")
    assert batch_client.files.retrieve(file.id).filename == file.filename
    assert batch_client.files.content(file.id).content == data


def test_what_looks_like_a_boundary_is_content(batch_client):
    data = b"--x\r\n--x--\r\n" * 1000 + b"\r\n--"
    file = batch_client.files.create(file=("in.jsonl", data), purpose="batch")
    assert batch_client.files.content(file.id).content == data


def test_the_file_may_come_before_its_purpose(batch_app):
    body = (
        b'--x\r\nContent-Disposition: form-data; name="file"; filename="in"\r\n\r\nhello\r\n'
        b'--x\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--x--\r\n'
    )
    headers = {"Content-Type": "multipart/form-data; boundary=x"}
    with running_server(batch_app()) as url:
        whole = httpx.post(f"{url}/v1/files", content=body, headers=headers)
        pieces = (body[i : i + 1] for i in range(len(body)))
        bit_by_bit = httpx.post(f"{url}/v1/files", content=pieces, headers=headers)
        cut = httpx.post(f"{url}/v1/files", content=body[:-30], headers=headers)
    assert whole.json()["bytes"] == bit_by_bit.json()["bytes"] == 5
    assert _error(cut) == (400, "invalid_value", None)


def test_forms_that_are_refused(batch_app, tmp_path):
    file = {"file": ("in.jsonl", b"x")}
    with running_server(batch_app()) as url:
        url = f"{url}/v1/files"
        for answer, expected in (
            (httpx.post(url, files=file), (400, "missing_required_parameter", "purpose")),
            (
                httpx.post(url, files=file, data={"purpose": "fine-tune"}),
                (400, "invalid_value", "purpose"),
            ),
            (
                httpx.post(url, files={"purpose": (None, "batch")}),
                (400, "missing_required_parameter", "file"),
            ),
            (
                httpx.post(url, files=file, data={"purpose": "batch", "ttl": "1"}),
                (400, "unsupported_parameter", "ttl"),
            ),
            (
                httpx.post(url, files=[("file", b"x"), ("file", b"y")]),
                (400, "invalid_value", "file"),
            ),
            (httpx.post(url, json={}), (400, "invalid_value", None)),
        ):
            assert _error(answer) == expected
        assert httpx.get(url).json()["data"] == []
    assert _folder(tmp_path, "uploads") == _folder(tmp_path, "files") == []


def test_a_file_over_the_limit(batch_app, tmp_path):
    with client_of(batch_app(max_file_bytes=1000)) as client:
        assert client.files.create(file=b"x" * 1000, purpose="batch").bytes == 1000
        with pytest.raises(openai.APIStatusError) as error:
            client.files.create(file=b"x" * 1001, purpose="batch")
        assert (error.value.status_code, error.value.code) == (413, "content_too_large")
        # the form alone is over the limit: refused by its declared length, unread
        with pytest.raises(openai.APIStatusError) as error:
            client.files.create(file=b"x" * 100_000, purpose="batch")
        assert error.value.status_code == 413
    assert _folder(tmp_path, "uploads") == []


def test_a_file_may_be_larger_than_a_body(batch_app):
    """Bodies of the other routes end at 32 MiB."""
    with client_of(batch_app()) as client:
        assert client.files.create(file=bytes(40 * 2**20), purpose="batch").bytes == 40 * 2**20


def test_a_full_disk_is_told(batch_client, tmp_path, monkeypatch):
    def full(handle, data, offset):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(openai.APIStatusError) as error:
        batch_client.files.create(file=b"hello", purpose="batch")
    monkeypatch.undo()
    assert (error.value.status_code, error.value.code) == (507, "storage_full")
    assert "No space left on device" in error.value.message
    assert str(tmp_path) not in error.value.message
    assert _folder(tmp_path, "uploads") == []
    assert batch_client.files.create(file=b"hello", purpose="batch").bytes == 5


def test_a_client_that_goes_leaves_nothing(batch_app, tmp_path):
    with running_server(batch_app()) as url:
        address = httpx.URL(url)
        with socket.create_connection((address.host, address.port)) as connection:
            connection.sendall(
                b"POST /v1/files HTTP/1.1\r\nHost: x\r\nContent-Length: 10000000\r\n"
                b"Content-Type: multipart/form-data; boundary=x\r\n\r\n--x\r\n"
                b'Content-Disposition: form-data; name="file"\r\n\r\n' + bytes(3 * 2**20)
            )
            assert wait_until(lambda: len(_folder(tmp_path, "uploads")) == 1)
        assert wait_until(lambda: _folder(tmp_path, "uploads") == [])


def test_what_a_crash_left_is_swept(batch_app, tmp_path, says):
    with client_of(batch_app()) as client:
        kept = client.files.create(file=b"hello", purpose="batch")
    (tmp_path / "batches" / "uploads" / "file-half").write_bytes(b"hel")
    (tmp_path / "batches" / "files" / "file-stray").write_bytes(b"hello")
    with client_of(batch_app()) as client:
        assert client.files.content(kept.id).content == b"hello"
    assert _folder(tmp_path, "uploads") == []
    assert [path.name for path in _folder(tmp_path, "files")] == [kept.id]


@pytest.mark.slow
def test_an_upload_that_stalls_is_408_and_leaves_nothing(batch_app, tmp_path):
    app = batch_app(ApiSettings(min_body_bytes_per_s=100, body_window_s=0.5))
    with running_server(app) as url:
        address = httpx.URL(url)
        with socket.create_connection((address.host, address.port)) as connection:
            connection.sendall(
                b"POST /v1/files HTTP/1.1\r\nHost: x\r\nContent-Length: 10000000\r\n"
                b"Content-Type: multipart/form-data; boundary=x\r\n\r\n--x\r\n"
                b'Content-Disposition: form-data; name="file"\r\n\r\n' + bytes(3 * 2**20)
            )
            assert connection.recv(12) == b"HTTP/1.1 408"
        assert wait_until(lambda: _folder(tmp_path, "uploads") == [])
