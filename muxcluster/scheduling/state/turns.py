"""Fair turns of tenants that wait for one model: start-time fair queueing, counted in tokens.

Goyal et al., "Start-time Fair Queueing", 1996; tokens as cost as in VTC (Sheng et al., "Fairness in
Serving Large Language Models", 2024).
"""

from dataclasses import dataclass


@dataclass(slots=True)
class _Tenant:
    """Virtual times of one tenant.

    start: of its latest request that waits, 0 if none does. end: where its next one starts, if that
    is later than now. served: the end of those that were admitted.
    """

    start: int = 0
    end: int = 0
    served: int = 0


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
        known.start = max(self._now, known.end)
        known.end = known.start + num_tokens
        return known.start

    def admit(self, tenant: str, start: int, num_tokens: int) -> None:
        """Note that a request has memory. start, num_tokens: as for `begin`."""
        self._now = max(self._now, start)
        known = self._tenants.get(tenant)
        if known is not None:
            known.served = max(known.served, start + num_tokens)

    def withdraw(self, tenant: str, start: int, end: int) -> None:
        """Note that a request ended before it was admitted. start, end: of the tenant's latest one
        that still waits; 0 if none does."""
        known = self._tenants.get(tenant)
        if known is not None:
            known.start, known.end = start, max(known.served, end)

    def correct(self, tenant: str, num_tokens: int) -> None:
        """Note that a request took so many tokens more, or fewer, than expected."""
        known = self._tenants.get(tenant)
        if known is not None:
            known.end = max(known.start + 1, known.end + num_tokens)
            known.served = max(0, known.served + num_tokens)

    def clear(self) -> None:
        """Forget who took what: nobody waits, so that nobody has to stand back."""
        self._tenants.clear()
