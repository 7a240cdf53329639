"""OpenAI's headers about what is left of a key's limits."""

import math

from muxcluster.tenants.messages import Grant


def limit_headers(grant: Grant) -> dict[str, str]:
    """Return the headers of an answer: those of the limits that the key has."""
    headers = {}
    for name, state in (("requests", grant.requests), ("tokens", grant.tokens)):
        if state is not None:
            headers[f"x-ratelimit-limit-{name}"] = str(state.limit)
            headers[f"x-ratelimit-remaining-{name}"] = str(state.remaining)
            headers[f"x-ratelimit-reset-{name}"] = duration(state.reset_s)
    if grant.can_never_fit:
        headers["x-should-retry"] = "false"
    return headers


def duration(seconds: float) -> str:
    """Return seconds as OpenAI writes them: `17ms` below a second, else `1s`, `6m0s`, `1h2m3s`."""
    if seconds < 1.0:
        milliseconds = math.ceil(max(0.0, seconds) * 1000)
        return f"{milliseconds}ms" if 0 < milliseconds < 1000 else f"{milliseconds // 1000}s"
    whole = math.ceil(seconds)
    hours, minutes = whole // 3600, whole // 60 % 60
    if hours:
        return f"{hours}h{minutes}m{whole % 60}s"
    return f"{minutes}m{whole % 60}s" if minutes else f"{whole}s"
