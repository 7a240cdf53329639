"""Seconds of jobs from measurements, extended by a roofline that is fitted to them."""

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import product
from statistics import median

import numpy as np
import scipy  # its parts are imported when they are first used: most processes need none
from numpy.typing import NDArray

from muxcluster.placement.cost.calibrate import calibrated
from muxcluster.placement.cost.interference import Slowed, fitted_loss, slowdown
from muxcluster.placement.cost.mixed import MeasuredMix, MixedFactors, fitted_factors, usual_mixed_s
from muxcluster.placement.cost.profile import (
    Cell,
    Pair,
    PairedJob,
    Phase,
    Profile,
    ProfiledModel,
    Turn,
)
from muxcluster.placement.cost.protocol import Cost
from muxcluster.placement.cost.roofline import Roofline, decode_work, prefill_work, stacked
from muxcluster.placement.cost.smooth import smoothed
from muxcluster.placement.cost.surface import Surface, monotone
from muxcluster.placement.hardware import Gpu, gpu_named
from muxcluster.placement.shapes.shape import ModelShape

_SHARES = tuple(step / 10 for step in range(1, 11))
_BATCHES = tuple(2**step for step in range(14))
# Knots in addition to measured ones: 10 to 100 % of the SMs, batches to 8,192, 131,072 tokens.
_TOKENS = (1, *(2**step for step in range(4, 18)))

FloatArray = NDArray[np.float64]


class MeasuredCost:
    """Predictions from profiles of one kind of GPU and dtype; immutable and thread-safe.

    Models are recognised by their shape. Of each (model, tp, phase) the ratio of measured to
    roofline seconds is smoothed over (share, batch, tokens), with outliers left out and gaps
    filled, and extended beyond the measured range. Then seconds are made monotone: never less for a
    greater batch or length, never more for a greater share. Other models, and other tp, are
    predicted by `roofline`, which is fitted to all cells. The slowdown by neighbours is fitted to
    the pairs, mixed jobs to the mixed cells of their model, and the unit's own work between jobs to
    the turns of all models.
    """

    def __init__(
        self,
        gpu: Gpu,
        itemsize: int,
        models: Sequence[ProfiledModel],
        pairs: Sequence[tuple[Pair, Mapping[str, ModelShape]]] = (),
    ) -> None:
        """pairs: each with the shapes of the models by the names it uses."""
        self.roofline = calibrated(gpu, itemsize, models)
        self._itemsize = itemsize
        cells = _grouped(models)
        self._prefill = self._surfaces("prefill", cells)
        self._decode = self._surfaces("decode", cells)
        self._loss = fitted_loss([self._slowed(pair, shapes) for pair, shapes in pairs])
        self._mixed = self._mixed_factors(models)
        self._step_turn, self._prompt_turn = _turn_lines(
            [turn for model in models for turn in model.turns]
        )

    def prefill_s(
        self, model: ModelShape, tp: int, share: float, batch: float, prompt_tokens: float
    ) -> float:
        """One forward over `batch` prompts of `prompt_tokens` each."""
        surface = self._prefill.get((model, tp))
        if surface is None:
            return self.roofline.prefill_s(model, tp, share, batch, prompt_tokens)
        return surface.seconds(share, batch, prompt_tokens)

    def decode_s(
        self, model: ModelShape, tp: int, share: float, batch: float, context: float
    ) -> float:
        """One token for each of `batch` sequences of `context` tokens."""
        surface = self._decode.get((model, tp))
        if surface is None:
            return self.roofline.decode_s(model, tp, share, batch, context)
        return surface.seconds(share, batch, context)

    def mixed_s(
        self, model: ModelShape, tp: int, share: float, prefill_s: float, decode_s: float
    ) -> float:
        """One forward over what takes `prefill_s` and `decode_s` apart."""
        factors = self._mixed.get((model, tp))
        if factors is None:
            return usual_mixed_s(prefill_s, decode_s)
        return factors.seconds(prefill_s, decode_s, self.decode_s(model, tp, share, 1, 1))

    def turn_s(self, rows: float, new: float) -> float:
        """What the unit itself does between a job and the next one (`profile.Turn`)."""
        fixed_s, per_row_s = self._step_turn
        first_s, per_new_s = self._prompt_turn
        some = min(1.0, new)  # jobs with new sequences
        return (1 - some) * (fixed_s + per_row_s * rows) + (
            some * (first_s + per_row_s * max(0.0, rows - new)) + per_new_s * new
        )

    def prefill_draw(
        self, model: ModelShape, tp: int, share: float, batch: float, prompt_tokens: float
    ) -> float:
        """Share of the mesh's memory bandwidth that such a prefill draws, 0 to 1."""
        work = prefill_work(model, self._itemsize, tp, share, batch, prompt_tokens)
        seconds = self.prefill_s(model, tp, share, batch, prompt_tokens)
        return self.roofline.draw(work, seconds)

    def decode_draw(
        self, model: ModelShape, tp: int, share: float, batch: float, context: float
    ) -> float:
        """Share of the mesh's memory bandwidth that such a step draws, 0 to 1."""
        work = decode_work(model, self._itemsize, tp, share, batch, context)
        return self.roofline.draw(work, self.decode_s(model, tp, share, batch, context))

    def slowdown(self, draws: Sequence[float]) -> float:
        """Factor ≥ 1 for jobs side by side, from measured pairs, or the usual one without any."""
        return slowdown(draws, self._loss)

    def _slowed(self, pair: Pair, shapes: Mapping[str, ModelShape]) -> Slowed:
        draws = []
        for make, job in ((prefill_work, pair.prefill), (decode_work, pair.decode)):
            where = (pair.tp, job.share, job.batch, job.tokens)
            work = make(shapes[job.model], self._itemsize, *where)
            draws.append(self.roofline.draw(work, median(job.alone)))
        factor = (_factor(pair.prefill) * _factor(pair.decode)) ** 0.5
        return Slowed((draws[0], draws[1]), factor)

    def _mixed_factors(
        self, models: Iterable[ProfiledModel]
    ) -> dict[tuple[ModelShape, int], MixedFactors]:
        groups: dict[tuple[ModelShape, int], list[MeasuredMix]] = {}
        for model in models:
            for cell in model.mixed:
                where = (model.shape, cell.tp, cell.share)
                mix = MeasuredMix(
                    self.prefill_s(*where, cell.prompts, cell.tokens),
                    self.decode_s(*where, cell.rows, cell.context),
                    self.decode_s(*where, 1, 1),
                    median(cell.seconds),
                )
                groups.setdefault((model.shape, cell.tp), []).append(mix)
        return {key: fitted_factors(found) for key, found in groups.items()}

    def _surfaces(
        self, phase: Phase, cells: Mapping[tuple[ModelShape, int, Phase], Sequence[Cell]]
    ) -> dict[tuple[ModelShape, int], Surface]:
        return {
            (shape, tp): _surface(self.roofline, shape, found)
            for (shape, tp, each), found in cells.items()
            if each == phase
        }


def _turn_lines(turns: Sequence[Turn]) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return the seconds of any turn and more for each row: of jobs without new sequences, and of
    jobs of new ones."""
    steps = [turn for turn in turns if not turn.new]
    return _turn_line(steps), _turn_line([turn for turn in turns if turn.new])


def _turn_line(turns: Sequence[Turn]) -> tuple[float, float]:
    """Zeros for no turns."""
    if not turns:
        return 0.0, 0.0
    seconds = np.array([median(turn.seconds) for turn in turns])
    terms = np.array([(1.0, turn.rows) for turn in turns]) / seconds[:, None]
    first_s, per_row_s = scipy.optimize.nnls(terms, np.ones(len(turns)))[0].tolist()
    return first_s, per_row_s


def _factor(job: PairedJob) -> float:
    return median(job.beside) / median(job.alone)


def _grouped(
    models: Iterable[ProfiledModel],
) -> dict[tuple[ModelShape, int, Phase], list[Cell]]:
    groups: dict[tuple[ModelShape, int, Phase], list[Cell]] = {}
    for model in models:
        for cell in model.cells:
            groups.setdefault((model.shape, cell.tp, cell.phase), []).append(cell)
    return groups


def _surface(roofline: Roofline, shape: ModelShape, cells: Sequence[Cell]) -> Surface:
    """Build the surface from cells of one tp and phase."""
    is_prefill = cells[0].phase == "prefill"
    points = np.array([(cell.share, cell.batch, cell.tokens) for cell in cells], dtype=np.float64)
    shares, batches, tokens = (
        np.unique(np.concatenate((points[:, axis], usual)))
        for axis, usual in enumerate((_SHARES, _BATCHES, _TOKENS))
    )
    expected = _by_roofline(roofline, shape, cells[0], (shares, batches, tokens))
    place = (
        np.searchsorted(shares, points[:, 0]),
        np.searchsorted(batches, points[:, 1]),
        np.searchsorted(tokens, points[:, 2]),
    )
    measured = np.array([median(cell.seconds) for cell in cells])
    ratios = np.log(measured / expected[place])
    # beyond the measured range, use the ratio of the nearest point within
    grid = np.stack(np.meshgrid(shares, batches, tokens, indexing="ij"), axis=-1).reshape(-1, 3)
    nearest = np.clip(grid, points.min(axis=0), points.max(axis=0))
    nearest, copies = np.unique(nearest, axis=0, return_inverse=True)
    ratios = smoothed(_coordinates(points, is_prefill), ratios, _coordinates(nearest, is_prefill))
    seconds = expected * np.exp(ratios)[copies.ravel()].reshape(expected.shape)
    return Surface(shares.tolist(), batches.tolist(), tokens.tolist(), monotone(seconds))


def _by_roofline(
    roofline: Roofline, shape: ModelShape, cell: Cell, knots: tuple[FloatArray, ...]
) -> FloatArray:
    """Roofline seconds [shares, batches, tokens] at the `knots` of these three."""
    shares, batches, tokens = knots
    make = prefill_work if cell.phase == "prefill" else decode_work
    jobs = product(batches.tolist(), tokens.tolist())
    work = stacked(make(shape, roofline.itemsize, cell.tp, 1.0, *each) for each in jobs)
    seconds = roofline.seconds(work._replace(share=shares[:, None]))
    return seconds.reshape(len(shares), len(batches), len(tokens))


def _coordinates(points: FloatArray, is_prefill: bool) -> FloatArray:
    """points: [n, 3] of share, batch, tokens. Returns them [n, 3] in units of the distance over
    which the ratio to the roofline is alike.

    Prefill of as many tokens in all is much the same job, however they are cut into prompts;
    decode of as many sequences, however long.
    """
    share, batch, tokens = np.log2(points).T
    if is_prefill:
        return np.stack((share, batch + tokens, (batch - tokens) / 6), axis=1)
    return np.stack((share, batch / 1.5, tokens / 6), axis=1)


def cost_for(gpu: Gpu, itemsize: int, profiles: Sequence[Profile] = ()) -> Cost:
    """Return a cost model of `gpu` in a dtype of `itemsize` bytes.

    It uses all profiles of this GPU and dtype together, or a roofline if there is none. The last
    few are cached: fitting the published A100 profile takes a second.
    """
    return _cost_for(gpu, itemsize, tuple(profiles))


@lru_cache(maxsize=8)
def _cost_for(gpu: Gpu, itemsize: int, profiles: tuple[Profile, ...]) -> Cost:
    ours = [
        profile
        for profile in profiles
        if profile.itemsize == itemsize and _our_name(profile.gpu) == gpu.name
    ]
    models = [model for profile in ours for model in profile.models if model.cells]
    pairs = [
        (pair, {model.name: model.shape for model in profile.models})
        for profile in ours
        for pair in profile.pairs
    ]
    return MeasuredCost(gpu, itemsize, models, pairs) if models else Roofline(gpu, itemsize)


def _our_name(gpu: str) -> str:
    """Return "A100-80GB" for "NVIDIA A100-SXM4-80GB"; unknown names and "cpu" unchanged."""
    try:
        return gpu_named(gpu).name
    except ValueError:
        return gpu
