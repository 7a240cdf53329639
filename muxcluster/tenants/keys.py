"""API keys as tenants: which models and classes each may use, and how much."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from muxcluster import __version__
from muxcluster.core.inputs.carried import Carried
from muxcluster.core.request import ServiceClass


@dataclass(frozen=True, slots=True)
class KeyLimits:
    """Limits of one key over the whole cluster; None: not limited."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None  # prompt and output tokens
    tokens_per_day: int | None = None  # of a day in UTC
    concurrent_requests: int | None = None  # open at once, streamed or not

    @property
    def has_any(self) -> bool:
        return self != KeyLimits()


@dataclass(frozen=True, slots=True)
class TenantKey:
    """One key. Its secret is kept nowhere, only a hash of it."""

    name: str
    sha256: str  # of the secret, hexadecimal, lower case
    models: tuple[str, ...] | None = None  # None: all
    classes: tuple[ServiceClass, ...] = tuple(ServiceClass)
    is_admin: bool = False
    limits: KeyLimits = KeyLimits()

    @property
    def may_run_jobs(self) -> bool:
        """True if it may use files and batches, whose lines no limit holds back and may name any
        model."""
        has_class = ServiceClass.BATCH in self.classes
        return has_class and self.models is None and not self.limits.has_any


@dataclass(frozen=True, slots=True)
class KeyTable(Carried):
    """All keys that are valid now. Equal tables have equal versions."""

    version: str
    keys: tuple[TenantKey, ...]

    @classmethod
    def of(cls, keys: Sequence[TenantKey]) -> "KeyTable":
        found = tuple(keys)
        return cls(hashlib.sha256(repr(found).encode()).hexdigest()[:16], found)


@dataclass(frozen=True, slots=True)
class KeySettings(Carried):
    """Where the keys are, and where their use is kept."""

    directory: str  # of the ledger, an absolute path
    keys: tuple[TenantKey, ...] = ()
    file: str | None = None  # YAML with the keys instead, read again when it changes
    version: str = __version__  # of muxcluster, as `ApiSettings.version`


def digest_of(secret: bytes) -> str:
    """Return the hash of a secret, as `TenantKey.sha256`."""
    return hashlib.sha256(secret).hexdigest()
