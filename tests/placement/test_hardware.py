"""GPUs by name, and the table's figures against each other."""

import pytest
from ray.util.accelerators import accelerators

from muxcluster.placement.hardware import GIB, GPUS, cpu, gpu_named

OF_NO_ONE_SIZE = {"A100", "V100"}
REPORTED = {
    "NVIDIA A100-SXM4-40GB": ("A100-40GB", 40960),
    "NVIDIA A100-PCIE-40GB": ("A100-40GB-PCIe", 40960),
    "NVIDIA A100-SXM4-80GB": ("A100-80GB", 81920),
    "NVIDIA A100 80GB PCIe": ("A100-80GB-PCIe", 81920),
    "NVIDIA H100 80GB HBM3": ("H100", 81559),
    "NVIDIA H100 PCIe": ("H100-PCIe", 81559),
    "NVIDIA H100 NVL": ("H100-NVL", 95830),
    "NVIDIA H200": ("H200", 143771),
    "NVIDIA B200": ("B200", 183359),
    "NVIDIA GB200": ("GB200", 189471),
    "NVIDIA B300 SXM6 AC": ("B300", 275040),
    "NVIDIA L4": ("L4", 23034),
    "NVIDIA L40S": ("L40S", 46068),
    "NVIDIA A10": ("A10", 23028),
    "NVIDIA A10G": ("A10G", 23028),
    "NVIDIA RTX A6000": ("A6000", 49140),
    "NVIDIA GeForce RTX 3090": ("RTX3090", 24576),
    "NVIDIA GeForce RTX 4090": ("RTX4090", 24564),
    "NVIDIA GeForce RTX 5090": ("RTX5090", 32607),
    "Tesla T4": ("T4", 15360),
    "Tesla V100-SXM2-16GB": ("V100-16GB", 16384),
    "Tesla V100-SXM2-32GB": ("V100-32GB", 32768),
}
"""What CUDA calls them, and the MiB that nvidia-smi shows: a little more than CUDA can give."""


@pytest.mark.parametrize("reported", REPORTED)
def test_a_reported_name_is_found_with_less_than_the_reported_memory(reported: str) -> None:
    name, mib = REPORTED[reported]
    gpu = gpu_named(reported)
    assert gpu.name == name
    assert 0.94 * mib * 2**20 < gpu.memory_bytes <= mib * 2**20


@pytest.mark.parametrize("name", GPUS)
def test_our_names_are_found_in_any_case(name: str) -> None:
    assert gpu_named(name) is gpu_named(name.lower()) is gpu_named(f"nvidia {name}") is GPUS[name]


def test_ray_s_accelerator_types() -> None:
    values = {value for key, value in vars(accelerators).items() if key.startswith("NVIDIA_")}
    ours = {value: name for value in values for name in (value, f"{value}B") if name in GPUS}
    assert {"A10G", "L4", "L40S", "H100", "H200", "B200", "T4", "A100-40G", "A100-80G"} <= set(ours)
    for value, name in ours.items():
        assert gpu_named(value) is GPUS[name]
    assert gpu_named("GeForce-RTX-4090") is GPUS["RTX4090"]


@pytest.mark.parametrize("name", sorted(OF_NO_ONE_SIZE))
def test_a_name_of_several_gpus_is_refused_with_each(name: str) -> None:
    with pytest.raises(ValueError, match="did you mean") as error:
        gpu_named(f"NVIDIA {name}")
    assert all(each in str(error.value) for each in GPUS if each.startswith(f"{name}-"))


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("H10", "did you mean H100"),
        ("RTX 4090 D", "did you mean RTX4090"),
        ("cpus", "did you mean cpu"),
        ("", "valid: A10"),
        ("nvidia", "valid: A10"),
    ],
)
def test_an_unknown_gpu_gets_the_nearest(name: str, hint: str) -> None:
    with pytest.raises(ValueError, match=f"unknown GPU {name!r}.*{hint}"):
        gpu_named(name)


@pytest.mark.parametrize("gpu", GPUS.values(), ids=GPUS)
def test_figures_are_of_the_right_size(gpu) -> None:
    """A slip in a unit or a digit falls out of these."""
    assert 14 * GIB < gpu.memory_bytes < 288 * GIB
    assert 5e-3 < gpu.memory_bytes / gpu.bandwidth < 0.1
    assert 70 < gpu.flops / gpu.bandwidth < 500
    assert 0.8e12 < gpu.flops / gpu.num_sms < 17e12
    assert 16e9 <= gpu.link < gpu.bandwidth / 4
    assert gpu.shares == tuple(sorted(gpu.shares))
    assert gpu.shares[-1] == 1.0


def test_variants_of_one_chip_stand_in_their_order() -> None:
    assert GPUS["A100-80GB"].bandwidth > GPUS["A100-80GB-PCIe"].bandwidth
    assert GPUS["A100-80GB"].flops == GPUS["A100-40GB-PCIe"].flops
    assert GPUS["H100"].flops == GPUS["H200"].flops > GPUS["H100-NVL"].flops
    assert GPUS["L40S"].flops == 2 * GPUS["L40"].flops
    assert GPUS["GB200"].flops > GPUS["B200"].flops


def test_a_cpu_is_a_gpu_of_cores() -> None:
    whole = cpu(8, 32 * GIB)
    assert (whole.num_sms, whole.memory_bytes, whole.is_cpu) == (8, 32 * GIB, True)
    assert cpu(1, GIB).shares == (1.0,)
