"""Chooses the unit of a request by its predicted time to first token. No I/O."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from muxcluster.core.hashing import extend_hashes, root_hash
from muxcluster.core.inputs.images.prompt_image import block_marks
from muxcluster.core.request import Request

CHUNK_TOKENS = 64
# chunks of a prompt that are compared, 4,096 tokens: hashing them takes some 50 microseconds
MAX_CHUNKS = 64
MAX_HASHES = 16_384  # chunks remembered of each unit, about two megabytes
SLACK_S = 0.02  # predictions that differ by less say nothing: the emptier unit is taken


class PrefixMemory:
    """Prefixes of prompts that went to one unit, whose KV is likely cached there.

    Keeps the `max_hashes` chunks used last.
    """

    def __init__(self, max_hashes: int = MAX_HASHES) -> None:
        self._max_hashes = max_hashes
        self._sent: OrderedDict[bytes, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sent)

    def num_known(self, chunks: Sequence[bytes]) -> int:
        """Return how many leading chunks went to the unit before."""
        for count, chunk in enumerate(chunks):
            if chunk not in self._sent:
                return count
        return len(chunks)

    def remember(self, chunks: Sequence[bytes]) -> None:
        """Note that a prompt that begins with `chunks` goes to the unit."""
        for chunk in reversed(chunks):  # a beginning is of use longer than what follows it
            self._sent[chunk] = None
            self._sent.move_to_end(chunk)
        while len(self._sent) > self._max_hashes:
            self._sent.popitem(last=False)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A unit that a request may go to, as its `LoadMeter` sees it for the request's model."""

    unit_id: str
    wait_s: float  # until what waits there is prefilled
    token_s: float  # to prefill one token
    num_requests: int  # open there, of all models
    prefixes: PrefixMemory


@dataclass(frozen=True, slots=True)
class Choice:
    """The chosen unit, and how many of the request's tokens it probably has to prefill."""

    unit_id: str
    num_tokens: int


def choose(request: Request, candidates: Sequence[Candidate]) -> Choice:
    """Return the unit for `request` and remember its prefix there; `candidates` is not empty.

    It has the least time of waiting plus prefilling what is not cached, so affinity ends as soon as
    it costs more than the prefill it saves.
    """
    num_tokens = len(request.prompt_tokens) + len(request.output_tokens)
    chunks = _chunks(request) if request.cacheable else ()
    ranked = []
    for unit in candidates:
        num_left = num_tokens - unit.prefixes.num_known(chunks) * CHUNK_TOKENS
        ranked.append((unit.wait_s + num_left * unit.token_s, unit, num_left))
    limit_s = min(expected_s for expected_s, _, _ in ranked) + SLACK_S
    near = [rank for rank in ranked if rank[0] <= limit_s]
    _, chosen, num_left = min(near, key=lambda rank: (rank[1].num_requests, rank[0]))
    chosen.prefixes.remember(chunks)
    return Choice(chosen.unit_id, num_left)


def _chunks(request: Request) -> Sequence[bytes]:
    """Return chained hashes of the first whole chunks of the prompt."""
    tokens = request.prompt_tokens[: MAX_CHUNKS * CHUNK_TOKENS]
    root = root_hash(request.model, request.cache_salt, request.adapter)
    marks = block_marks(request.images, 0, len(tokens) // CHUNK_TOKENS, CHUNK_TOKENS)
    return extend_hashes(root, tokens, CHUNK_TOKENS, marks)
