"""A stand-in for the Hugging Face hub: what huggingface_hub asks of it, over local HTTP."""

import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from tests.local_http import QuietHandler, running

TOKEN = "hf_of_a_reader"


@dataclass
class Repository:
    """The files of a repository; every revision has the same ones."""

    directory: Path
    revisions: tuple[str, ...] = ("main",)
    needs_token: bool = False
    is_gated: bool = False

    @property
    def commit(self) -> str:
        return hashlib.sha1(str(self.directory).encode()).hexdigest()

    def files(self) -> list[str]:
        found = (path for path in self.directory.rglob("*") if path.is_file())
        return sorted(str(path.relative_to(self.directory)) for path in found)


@dataclass
class Hub:
    """Repositories by id, and what was asked of them."""

    repositories: dict[str, Repository]
    url: str = ""
    calls: list[str] = field(default_factory=list)

    def downloads(self) -> set[str]:
        """Names of files whose content was sent."""
        found = (re.match(r"GET /.+?/resolve/[^/]+/(.+)", call) for call in self.calls)
        return {match[1] for match in found if match}


@contextmanager
def running_hub(repositories: dict[str, Repository]) -> Iterator[Hub]:
    """A hub on a free port until the block ends."""
    hub = Hub(repositories)
    handler = type("Handler", (_Handler,), {"hub": hub})
    with running(handler) as url:
        hub.url = url
        yield hub


class _Handler(QuietHandler):
    hub: Hub

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.calls.append(f"{self.command} {path}")
        if found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/(revision|tree)/(.+)", path):
            repository = self._repository(found[1])
            if repository is not None and self._has(repository, found[3]):
                self.send(json.dumps(_listing(found[1], repository, found[2])).encode())
        elif found := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            repository = self._repository(found[1])
            if repository is not None and self._has(repository, found[2]):
                data = (repository.directory / found[3]).read_bytes()
                etag = hashlib.sha1(data).hexdigest()
                self.send(data, headers={"ETag": f'"{etag}"', "X-Repo-Commit": repository.commit})
        else:
            self._refuse(404, "EntryNotFound")

    def _repository(self, repo: str) -> Repository | None:
        found = self.hub.repositories.get(repo)
        has_token = self.headers["Authorization"] == f"Bearer {TOKEN}"
        if found is None or (found.needs_token and not has_token):
            self._refuse(401, "RepoNotFound")
            return None
        if found.is_gated and not has_token:
            self._refuse(403, "GatedRepo")
            return None
        return found

    def _has(self, repository: Repository, revision: str) -> bool:
        if revision in (*repository.revisions, repository.commit):
            return True
        self._refuse(404, "RevisionNotFound")
        return False

    def _refuse(self, status: int, code: str) -> None:
        self.send(b"{}", status, {"X-Error-Code": code})


def _listing(repo: str, repository: Repository, kind: str) -> Any:
    if kind == "revision":
        siblings = [{"rfilename": name} for name in repository.files()]
        return {"_id": "1", "id": repo, "sha": repository.commit, "siblings": siblings}
    return [
        {
            "type": "file",
            "path": name,
            "size": (repository.directory / name).stat().st_size,
            "oid": hashlib.sha1((repository.directory / name).read_bytes()).hexdigest(),
        }
        for name in repository.files()
    ]
