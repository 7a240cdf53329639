"""Models by their Hugging Face ids, `org/name` or `org/name@revision`, through the hub's own cache.

Where the cache is, whether the network may be used and which token is sent is for `huggingface_hub`
to say, by the variables that everyone knows: HF_HOME, HF_HUB_OFFLINE, HF_TOKEN, HF_ENDPOINT.
"""

import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

try:
    import huggingface_hub as hub
except ImportError:  # the base install plans for shapes and directories only
    hub = None  # type: ignore[assignment]

_ID = re.compile(
    r"(?P<repo>[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95})(?:@(?P<revision>\w[\w./-]{0,254}))?"
)
_CONFIG = (
    *("config.json", "generation_config.json"),
    *("modules.json", "sentence_bert_config.json", "*_Pooling/config.json"),
)
_TEXT = ("*.json", "*.jinja", "*.txt", "*.model", "*.py")
# Folders hold other formats (onnx/, original/), but those of sentence-transformers (1_Pooling/);
# consolidated files hold the same weights once more.
_IGNORED = ("[!0-9]*/*", "consolidated*")


class Wanted(Enum):
    """What of a model is fetched; the values are patterns of file names."""

    CONFIG = _CONFIG  # to plan
    TEXT = _TEXT  # and the tokenizer
    ALL = (*_TEXT, "*.safetensors")  # and the weights, to serve


@dataclass(frozen=True, slots=True)
class HubId:
    """A model on the hub."""

    repo: str  # "org/name"
    revision: str | None = None  # branch, tag or commit; None: the default branch

    def __str__(self) -> str:
        return self.repo if self.revision is None else f"{self.repo}@{self.revision}"

    @classmethod
    def of(cls, text: str) -> "HubId | None":
        """Return the id that `text` is; None if it cannot be one."""
        found = _ID.fullmatch(text)
        return None if found is None else cls(found["repo"], found["revision"])


@dataclass(frozen=True, slots=True)
class Fetching:
    """How models that are named by their id are brought here."""

    wanted: Wanted = Wanted.CONFIG
    tell: Callable[[str], None] = lambda line: None  # gets a line for each model, before it is


class NotFetched(Exception):
    """The model cannot be had; the message is one line and names the remedy."""


def fetch(model: HubId, fetching: Fetching) -> Path:
    """Return the directory of the model in the hub's cache; what is missing there is downloaded.

    On a terminal a bar shows how far that is. Raises NotFetched.
    """
    if hub is None:
        raise NotFetched("Hugging Face ids need huggingface_hub: pip install 'muxcluster[serve]'")
    fetching.tell(f"{model}: from the Hugging Face hub or its cache …")
    download = hub.snapshot_download  # loads the library's modules, which it does when first asked
    # what matters of its warnings is refused below
    hub.utils.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    if not sys.stderr.isatty():  # its bar of files would be drawn into logs too
        hub.utils.disable_progress_bars()  # type: ignore[attr-defined]
    try:
        directory = download(
            model.repo,
            revision=model.revision,
            allow_patterns=list(fetching.wanted.value),
            ignore_patterns=list(_IGNORED),
        )
    # connections fail with errors of the HTTP library, whose root hub.errors has
    except (OSError, ValueError, hub.errors.HTTPError) as error:  # type: ignore[attr-defined]
        raise NotFetched(_reason(model, error)) from error
    path = Path(directory)
    if not (path / "config.json").is_file():
        raise NotFetched("the repository has no config.json; GGUF files are not served")
    if fetching.wanted is Wanted.ALL and not any(path.glob("*.safetensors")):
        raise NotFetched("the repository has no weights in safetensors, the only form served")
    return path


def _reason(model: HubId, error: Exception) -> str:
    """Return what went wrong and what helps, in one line."""
    errors = hub.errors
    if isinstance(error, errors.GatedRepoError):
        return "the repository is gated: accept its terms on its page, and set HF_TOKEN"
    if isinstance(error, errors.RepositoryNotFoundError):
        return "no such repository, or a private one: set HF_TOKEN"
    if isinstance(error, errors.RevisionNotFoundError):
        return f"the repository has no revision {model.revision!r}"
    if isinstance(error, errors.LocalEntryNotFoundError):
        if hub.constants.is_offline_mode():
            return "not, or not all of it, in the cache, and HF_HUB_OFFLINE is set"
        cause = error.__cause__ or error
        return f"not in the cache, and the hub does not answer: {_first_line(cause)}"
    return _first_line(error)


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:200] if lines else type(error).__name__
