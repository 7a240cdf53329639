"""Random weights, for measurements and tests that need no trained model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256

import torch
from torch import Tensor

from muxcluster.engine.load.division.part import Part

DUMMY_STD = 0.02


@dataclass(frozen=True, slots=True)
class DummyWeights:
    """A `WeightSource` that draws each tensor from `seed` and its name, independent of the others.

    A rank's part is cut from the whole tensor, which is freed before the next one is drawn. GPUs of
    different kinds draw different numbers.
    """

    seed: int
    device: str

    def parts(self, names: Sequence[str], like: Tensor, part: Part | None) -> Mapping[str, Tensor]:
        """Return normal numbers of DUMMY_STD; for one axis zeros for biases, ones for scales."""
        whole = self._whole(names[0], like)
        return {names[0]: whole if part is None else part.of(whole)}

    def _whole(self, name: str, like: Tensor) -> Tensor:
        if not like.is_meta:
            return like.detach()
        values = torch.empty(like.shape, dtype=like.dtype, device=self.device)
        if like.ndim == 1:
            return values.fill_(0.0 if name.endswith("bias") else 1.0)
        digest = sha256(f"{self.seed}/{name}".encode()).digest()
        generator = torch.Generator(self.device).manual_seed(int.from_bytes(digest[:7], "little"))
        return values.normal_(0.0, DUMMY_STD, generator=generator)
