"""Efficiency constants of real hardware against its data sheet."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tuning:
    """The constants of the roofline. Times in seconds, shares 0 to 1.

    The values here were fitted to the published A100 profile (MuxServe: four LLaMA models, tp 1 to
    8, 30 to 100 % of the SMs), with two exceptions. A layer of decode is launched as a part of a
    captured graph, not kernel by kernel from Python (0.4 ms there). All-reduces are those that
    Vidur measured over NVLink (A100 pairs, H100 DGX): the profile's were slower.
    """

    compute: float = 0.62  # share of the FLOP/s that large matrix products reach
    bandwidth: float = 0.88  # share of the bandwidth that streaming reads reach
    # SM share above which something else (the clock) limits compute; for memory it is the GPU's
    # bandwidth_knee
    compute_knee: float = 1.2
    kernels_s: float = 1.1e-4  # GPU time of the small kernels of one layer
    row_s: float = 1.9e-6  # attention and bookkeeping of one sequence in one layer of a decode step
    # prefill_layer_s, decode_layer_s: host time to launch one layer, while the GPU runs the last
    prefill_layer_s: float = 6e-4
    decode_layer_s: float = 5e-5
    all_reduce_s: float = 2e-5  # latency of one all-reduce
    link: float = 0.6  # share of the links' speed
