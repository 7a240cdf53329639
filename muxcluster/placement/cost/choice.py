"""Choice of the cost model for a GPU."""

from collections.abc import Sequence
from functools import lru_cache

from muxcluster.placement.cost.measured import MeasuredCost
from muxcluster.placement.cost.profile import Profile
from muxcluster.placement.cost.protocol import Cost
from muxcluster.placement.cost.roofline import Roofline
from muxcluster.placement.hardware import Gpu, gpu_named


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
