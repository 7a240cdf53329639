"""Constants of the reference planner about its models and its GPU (GB: 2^30 bytes)."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

GPU_NAME = "A100-80GB"
GPU_GB = 80
WEIGHTS_GB_PER_GPU = 43.2  # most weights on a GPU, plus NEIGHBOUR_GB for each further model
NEIGHBOUR_GB = 7.6
ACTIVATION_GB = 6  # of each model of a mesh
USABLE_SHARE = 0.98  # share of a mesh's memory for weights, activations and cache
MOST_DECODE_SM = 120  # largest sum of the decode SM % of a mesh
LARGEST_SOLO_SM = 90  # Largest decode SM % that a model is given
ITEMSIZE = 2


@dataclass(frozen=True, slots=True)
class Facts:
    """One model."""

    weights_gb: int
    num_layers: int
    hidden_size: int
    least_tp: int
    upload_s: float  # seconds per sequence that its block tables add to a decode step

    @property
    def kv_gb_per_token(self) -> float:
        return 2 * ITEMSIZE * self.num_layers * self.hidden_size / 2**30


# By the names of known_shapes.SHAPES.
FACTS: Mapping[str, Facts] = MappingProxyType(
    {
        "llama-7b": Facts(14, 32, 4096, 1, 0.10e-3),
        "llama-13b": Facts(26, 40, 5120, 1, 0.08e-3),
        "llama-30b": Facts(60, 60, 6656, 2, 0.07e-3),
        "llama-65b": Facts(130, 80, 8192, 4, 0.07e-3),
    }
)
