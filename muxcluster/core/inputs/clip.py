"""Foreign text in our messages: shortened, and without control characters."""

MAX_CHARS = 100


def clip(text: str) -> str:
    """Return the first characters of `text` in quotes, control characters escaped."""
    shown = repr(text[:MAX_CHARS])
    return f"{shown}... ({len(text)} characters)" if len(text) > MAX_CHARS else shown


def plain(text: str) -> str:
    """Return `text` if it is short and printable, else `clip(text)`."""
    return text if len(text) <= MAX_CHARS and text.isprintable() else clip(text)
