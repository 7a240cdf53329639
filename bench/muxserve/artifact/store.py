"""Cache of results by all their inputs, code included, to continue an interrupted bench."""

import os
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from muxcluster.sim.cases.case_key import code_key, key_of

Kept = TypeVar("Kept", bound=BaseModel)


def _code() -> str:
    """Of the simulator, and of the scripts of bench/muxserve."""
    digest = sha256(code_key().encode())
    for path in sorted(Path(__file__).parents[1].rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class Store:
    """A JSON file a result."""

    folder: Path | None  # None keeps nothing
    _code: str = field(default_factory=_code)

    def read(self, kind: type[Kept], *case: object) -> Kept | None:
        """What is known of a case; None for nothing, or for a file that cannot be read."""
        if self.folder is None:
            return None
        try:
            return kind.model_validate_json(self._path(self.folder, case).read_bytes())
        except (OSError, ValidationError):
            return None

    def write(self, value: BaseModel, *case: object) -> None:
        """Know it from now on. Raises OSError."""
        if self.folder is None:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self._path(self.folder, case)
        part = path.with_suffix(f".{os.getpid()}.part")
        part.write_text(value.model_dump_json(), encoding="utf-8")
        part.replace(path)

    def _path(self, folder: Path, case: tuple[object, ...]) -> Path:
        return folder / f"{key_of(self._code, *case)}.json"
