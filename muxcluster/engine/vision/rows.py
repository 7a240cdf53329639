"""The images of a model's rows: what their tokens are in a batch."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from muxcluster.core.inputs.images.prompt_image import PromptImage
from muxcluster.core.job import Admission, Rows
from muxcluster.engine.forward.paged_forward import TokenForward
from muxcluster.engine.vision.forward import ForwardWithImages, ImagePiece, VisionForward
from muxcluster.engine.vision.positions import PromptPositions


@dataclass(slots=True, eq=False)
class _Row:
    """A row whose prompt has images.

    images: without pixels once a job begins behind them. The one that computes the last of their
        tokens may fail and come again; what is before a job's start is computed, and a sequence
        whose start goes back is admitted again, with all of its images.
    embedded: by place in `images`, of those of which some tokens are computed and some are not yet.
    """

    images: tuple[PromptImage, ...]
    positions: PromptPositions
    embedded: dict[int, Tensor] = field(default_factory=dict)


class RowImages:
    """Embeds the images of rows when their first tokens are computed, in chunks or at once.

    Nothing of it is shared with other processes: one that goes on with a prompt embeds again the
    image that it finds begun.
    """

    def __init__(self, forward: VisionForward) -> None:
        self._forward = forward
        self._rows: dict[int, _Row] = {}
        self._num_tokens, self._seconds = 0, 0.0  # of images embedded since `taken`

    def admit(self, admission: Admission) -> None:
        """Take the images of a row, and forget those of the sequence that had it before."""
        self._rows.pop(admission.row, None)
        if admission.images:
            positions = PromptPositions.of(admission.images)
            self._rows[admission.row] = _Row(admission.images, positions)

    def taken(self) -> tuple[int, float]:
        """Return the tokens of the images embedded since the last call, and the seconds it took."""
        taken = self._num_tokens, self._seconds
        self._num_tokens, self._seconds = 0, 0.0
        return taken

    def forward_of(self, rows: Rows, positions: Tensor) -> TokenForward:
        """Return the forward of a batch. positions: int64 [tokens], places in the sequences."""
        places = [i for i, row in enumerate(rows.table_rows.tolist()) if row in self._rows]
        if not places:
            return self._forward
        axes = positions.expand(3, -1).clone()
        pieces: list[ImagePiece] = []
        firsts = np.cumsum(rows.counts) - rows.counts
        for place in places:
            row = self._rows[int(rows.table_rows[place])]
            first, start = int(firsts[place]), int(rows.starts[place])
            end = start + int(rows.counts[place])
            own = torch.from_numpy(row.positions.between(start, end))
            axes[:, first : first + end - start] = own.to(axes.device)
            if any(image.end <= start and image.pixels.size for image in row.images):
                row.images = tuple(
                    image.without_pixels() if image.end <= start else image for image in row.images
                )
            pieces += self._pieces(row, start, end, first)
        return ForwardWithImages(self._forward, axes, pieces)

    def _pieces(self, row: _Row, start: int, end: int, first: int) -> Iterator[ImagePiece]:
        """Yield what lies of the row's images between `start` and `end` of its tokens.

        first: place in the batch of the token at `start`.
        """
        for number, image in enumerate(row.images):
            begin, stop = max(start, image.start), min(end, image.end)
            if begin >= stop:
                continue
            if number not in row.embedded:
                assert image.pixels.size, "the image of a prompt came without its pixels"
                row.embedded[number] = self._embedded(image)
            embedded = row.embedded[number]
            if stop == image.end:
                del row.embedded[number]
            mine = embedded[begin - image.start : stop - image.start]
            yield ImagePiece(first + begin - start, mine)

    def _embedded(self, image: PromptImage) -> Tensor:
        begun_s = time.monotonic()
        embedded = self._forward.image(image.pixels)
        if embedded.is_cuda:
            torch.cuda.synchronize(embedded.device)  # its seconds are told apart
        self._num_tokens += image.num_tokens
        self._seconds += time.monotonic() - begun_s
        return embedded
