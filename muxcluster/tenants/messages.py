"""What ingresses and the process that counts for all of them say to each other."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from muxcluster.core.inputs.carried import Carried
from muxcluster.tenants.keys import KeyTable


@dataclass(frozen=True, slots=True)
class Ask(Carried):
    """A request that wants to run."""

    call_id: str  # unique
    key: str  # its name
    model: str
    num_prompt_tokens: int
    num_tokens: int  # prompt tokens, and the most output tokens of all choices


@dataclass(frozen=True, slots=True)
class LimitState:
    """How much of a limit is left."""

    limit: int
    remaining: int
    reset_s: float  # until all of it is left again, if nothing else comes


@dataclass(frozen=True, slots=True)
class Grant(Carried):
    """The answer to an `Ask`; what is left is given for the limits that the key has."""

    refusal: str = ""  # the limit that is reached, in words; empty: the request may run
    retry_after_s: float = 0.0
    can_never_fit: bool = False  # refused because it asks for more than the whole limit
    requests: LimitState | None = None
    tokens: LimitState | None = None  # a minute's or a day's, of which less is left

    @property
    def is_granted(self) -> bool:
        return not self.refusal


@dataclass(frozen=True, slots=True)
class Settlement(Carried):
    """The end of a request that asked, or of one of a key without limits."""

    call_id: str
    key: str
    model: str
    num_requests: int = 1  # 0: it was refused, or its client left before the answer to its `Ask`
    num_refused: int = 0
    num_prompt_tokens: int = 0
    num_output_tokens: int = 0
    num_cached_tokens: int = 0  # of the prompt, found in the prefix cache

    @property
    def num_tokens(self) -> int:
        return self.num_prompt_tokens + self.num_output_tokens


@dataclass(frozen=True, slots=True)
class UsageQuery(Carried):
    """Which rows of the ledger; None: all."""

    key: str | None = None
    model: str | None = None
    since: str | None = None  # first day, YYYY-MM-DD in UTC
    until: str | None = None  # last day


@dataclass(frozen=True, slots=True)
class UsageRow(Carried):
    """What a key used of a model on a day in UTC."""

    day: str
    key: str
    model: str
    requests: int
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    refused: int

    def plus(self, other: "UsageRow") -> "UsageRow":
        """Return the sum of two rows of one day, key and model."""
        return UsageRow(
            self.day,
            self.key,
            self.model,
            self.requests + other.requests,
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
            self.cached_tokens + other.cached_tokens,
            self.refused + other.refused,
        )


class KeyService(Protocol):
    """The one counter of a cluster, as its ingresses see it.

    Every method raises Unavailable where it does not answer, `usage` StorageFailed where its disk
    cannot be read. caller: id of the ingress, unique to its process.
    """

    async def table(self, caller: str, known_version: str) -> KeyTable | None:
        """Return the valid keys, None if `known_version` is theirs.

        A caller that does not ask for `LOST_S` seconds (`book`) is taken for dead, and its open
        requests end.
        """
        ...

    async def reserve(self, caller: str, asks: Sequence[Ask]) -> list[Grant]:
        """Grant or refuse each request, in their order."""
        ...

    async def settle(self, caller: str, serial: int, settlements: Sequence[Settlement]) -> None:
        """End requests, and write their use to the ledger.

        serial: rises from batch to batch of a caller; a batch that was written already is not
        counted again, so that a caller may repeat one whose answer it lost.
        """
        ...

    async def usage(self, query: UsageQuery) -> list[UsageRow]:
        """Return the ledger's rows, by day, key and model."""
        ...
