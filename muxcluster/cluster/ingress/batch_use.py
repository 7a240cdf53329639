"""Counts what the lines of batches use, for the keys that made the batches."""

import uuid
from collections.abc import Callable

from muxcluster.batch.service.answers import Answer, Answerer, OnTokens
from muxcluster.batch.store.entry import Entry
from muxcluster.batch.store.job import Use
from muxcluster.core.batch_part import LinePlace
from muxcluster.http.keys.ring import KeyRing
from muxcluster.tenants.messages import Settlement


class CountedAnswerer:
    """An `Answerer` whose lines are counted as requests of the batch's owner."""

    def __init__(
        self, answerer: Answerer, keys: KeyRing, owner_of: Callable[[str], str | None]
    ) -> None:
        """owner_of: returns the owner of an open batch."""
        self._answerer = answerer
        self._keys = keys
        self._owner_of = owner_of

    @property
    def used(self) -> Use:
        return self._answerer.used

    async def answer(
        self,
        line: int,
        entry: Entry,
        batch_id: str,
        on_tokens: OnTokens,
        place: LinePlace | None = None,
    ) -> Answer:
        """As `Answerer.answer`."""
        answer = await self._answerer.answer(line, entry, batch_id, on_tokens, place)
        owner = self._owner_of(batch_id)
        if owner:
            use = answer.result.use
            ended = Settlement(
                uuid.uuid4().hex,
                self._keys.name_of(owner),
                entry.model,
                num_prompt_tokens=use.prompt,
                num_output_tokens=use.output,
                num_cached_tokens=use.cached,
            )
            self._keys.settle(ended)
        return answer
