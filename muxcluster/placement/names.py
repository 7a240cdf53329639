"""Suggestions for misspelt names."""

from collections.abc import Iterable
from difflib import get_close_matches

_MOST_SHOWN = 4
_MOST_LISTED = 30


def nearest(name: str, valid: Iterable[str]) -> str:
    """Return `; did you mean X?` for the names that begin with `name`, else for the most similar
    one; else list the valid names, or the most similar ones if there are many."""
    names = sorted(valid)
    by_lower = {each.lower(): each for each in names}
    lower = name.lower()
    close = [each for each in names if name and each.lower().startswith(lower)]
    if not close:
        close = [by_lower[each] for each in get_close_matches(lower, by_lower, n=1, cutoff=0.6)]
    if close:
        return f"; did you mean {' or '.join(close[:_MOST_SHOWN])}?"
    if len(names) > _MOST_LISTED:
        likely = get_close_matches(lower, by_lower, n=_MOST_SHOWN, cutoff=0.0)
        return f"; nearest of {len(names)}: {', '.join(by_lower[each] for each in likely)}"
    return f"; valid: {', '.join(names)}" if names else ""
