"""Seconds that a model's tower takes to embed images, learnt from jobs."""

_PART = 0.2  # weight of an observation


class ImageTimes:
    """Seconds a token of an image, by model and SM share; 0 until a model has embedded one.

    A share that has seen none borrows from the nearest that has, in inverse proportion.
    """

    def __init__(self) -> None:
        self._token_s: dict[str, dict[float, float]] = {}

    def observe(self, model: str, share: float, num_tokens: int, seconds: float) -> None:
        """Learn that images of `num_tokens` (at least 1) took `seconds` to embed."""
        of_model = self._token_s.setdefault(model, {})
        found = seconds / num_tokens
        before = of_model.get(share, found)
        of_model[share] = before + _PART * (found - before)

    def seconds(self, model: str, share: float, num_tokens: int) -> float:
        """Return the predicted seconds of embedding images of `num_tokens`."""
        of_model = self._token_s.get(model)
        if not of_model or not num_tokens:
            return 0.0
        nearest = min(of_model, key=lambda seen: abs(seen - share))
        return num_tokens * of_model[nearest] * nearest / share
