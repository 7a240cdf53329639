"""API keys, as HTTP headers can carry them."""


def checked_key(key: str) -> str:
    """Return `key`. Raises ValueError, whose message shows none of it.

    A file of secrets often ends in a line break, with which no client could ever send the key.
    """
    if not key:
        raise ValueError("the key is empty")
    if key != key.strip() or not all(" " <= character <= "~" for character in key):
        raise ValueError(
            "a key is plain ASCII text on one line, with no space or line break at its ends"
        )
    return key
