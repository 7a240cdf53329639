"""Fair turns of tenants that wait for one model: start-time fair queueing, counted in tokens.

Goyal et al., "Start-time Fair Queueing", 1996; tokens as cost as in VTC (Sheng et al., "Fairness in
Serving Large Language Models", 2024).
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(slots=True)
class _Tenant:
    """Virtual times of one tenant.

    latest: start of its latest request. end: where its next one starts, if that is later than now.
    served: the end of those that were admitted. num_waiting: requests that were not yet.
    """

    latest: int = 0
    end: int = 0
    served: int = 0
    num_waiting: int = 0


class TenantTurns:
    """Virtual time of a model's queue: the start of the latest request that was admitted.

    A request starts where the one before it of its tenant ends, or now, whichever is later. So
    tenants with requests waiting get equal tokens, one that comes does not wait behind the backlog
    of others, and one that was away has saved up nothing. A tenant's own requests keep their order.
    """

    def __init__(self) -> None:
        self._now = 0
        self._tenants: dict[str, _Tenant] = {}

    def begin(self, tenant: str, num_tokens: int) -> int:
        """Return the virtual start of a new request that is expected to take `num_tokens` >= 1."""
        known = self._tenants.setdefault(tenant, _Tenant())
        known.num_waiting += 1
        known.latest = max(self._now, known.end)
        known.end = known.latest + num_tokens
        return known.latest

    def admit(self, tenant: str, start: int, num_tokens: int) -> None:
        """Note that a request has memory for the first time. start, num_tokens: as for `begin`."""
        self._now = max(self._now, start)
        known = self._tenants[tenant]
        known.num_waiting -= 1
        known.served = max(known.served, start + num_tokens)

    def withdraw(self, tenant: str, start: int) -> None:
        """Note that a request ended before it was admitted."""
        known = self._tenants[tenant]
        known.num_waiting -= 1
        if not known.num_waiting:
            known.end = known.served
        elif start == known.latest:
            # those before it keep their starts, and the next one takes this
            known.latest, known.end = start - 1, start

    def correct(self, tenant: str, num_tokens: int) -> None:
        """Note that a request took so many tokens more, or fewer, than expected."""
        known = self._tenants.get(tenant)
        if known is not None:
            known.served = max(0, known.served + num_tokens)
            least = known.latest + 1 if known.num_waiting else 0
            known.end = max(least, known.end + num_tokens)

    def clear(self) -> None:
        """Forget who took what: nobody waits, so that nobody has to stand back."""
        self._tenants.clear()

    def check(self, waiting: Mapping[str, int]) -> None:
        """Raise AssertionError unless so many requests of each tenant wait for the first time."""
        found = {name: each.num_waiting for name, each in self._tenants.items() if each.num_waiting}
        assert found == waiting, "a turn is lost"
        assert all(each.end >= each.latest for each in self._tenants.values() if each.num_waiting)
