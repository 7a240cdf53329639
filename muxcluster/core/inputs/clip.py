"""Text of others in our messages: short, and without control characters."""

MAX_CHARS = 100


def clip(text: str) -> str:
    """The first characters of `text` in quotes, control characters escaped."""
    shown = repr(text[:MAX_CHARS])
    return f"{shown}... ({len(text)} characters)" if len(text) > MAX_CHARS else shown


def plain(text: str) -> str:
    """`text` itself where it is short and printable, else as `clip`."""
    return text if len(text) <= MAX_CHARS and text.isprintable() else clip(text)
