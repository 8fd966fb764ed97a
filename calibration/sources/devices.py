"""Accelerators as their drivers name them."""

from __future__ import annotations

from calibration.sources.aiconfigurator import ACCELERATORS
from calibration.sources.found import Stated
from predictor.errors import InputError

NAMES = {
    **ACCELERATORS,
    "Tesla V100-SXM2-16GB": "V100-SXM2-16GB",
    "Tesla V100-SXM2-32GB": "V100-SXM2-32GB",
    "Tesla V100-SXM3-32GB": "V100-SXM3-32GB",
    "Tesla T4": "T4-16GB",
    "A100-SXM4-40GB": "A100-SXM4-40GB",
    "NVIDIA A100-SXM4-40GB": "A100-SXM4-40GB",
    "NVIDIA A100-PG509-200": "A100-SXM4-40GB",  # 108 processors, 40 GiB
    "A100-SXM-80GB": "A100-SXM4-80GB",
    "A100-SXM4-80GB": "A100-SXM4-80GB",
    "NVIDIA A100-PCIE-40GB": "A100-PCIe-40GB",
    "NVIDIA A100 80GB PCIe": "A100-PCIe-80GB",
    "NVIDIA A30": "A30-24GB",
    "NVIDIA A10": "A10-24GB",
    "NVIDIA A10G": "A10G-24GB",
    "NVIDIA A40": "A40-48GB",
    "NVIDIA RTX A6000": "RTX-A6000-48GB",
    "NVIDIA GeForce RTX 3090": "RTX-3090-24GB",
    "NVIDIA GeForce RTX 4090": "RTX-4090-24GB",
    "NVIDIA GeForce RTX 5090": "RTX-5090-32GB",
    "NVIDIA L4": "L4-24GB",
    "NVIDIA L40": "L40-48GB",
    "NVIDIA H100 PCIe": "H100-PCIe-80GB",
    "NVIDIA H100 NVL": "H100-NVL-94GB",
    "NVIDIA H800": "H800-SXM5-80GB",
    "NVIDIA H20": "H20-96GB",
    "NVIDIA H200 NVL": "H200-NVL-141GB",
    "NVIDIA GH200 480GB": "GH200-96GB",
    "NVIDIA GH200 144G HBM3e": "GH200-144GB",
    "AMD Instinct MI210": "MI210-64GB",
    "AMD Instinct MI250X": "MI250X-GCD-64GB",
    "AMD Instinct MI300A": "MI300A-128GB",
    "AMD Instinct MI300X": "MI300X-192GB",
    "AMD Instinct MI325X": "MI325X-256GB",
    "AMD Instinct MI350X": "MI350X-288GB",
    "AMD Instinct MI355X": "MI355X-288GB",
}
"""Catalog name by the name that NVML, CUDA or ROCm reports."""


def accelerator_of(device: str, stated: Stated, where: str) -> str:
    """Catalog name of a device: what the user states, else what its driver's name stands for.

    Raises InputError for an unknown name, and for one that the stated system does not hold.
    """
    if stated.accelerator:
        return stated.accelerator
    found = NAMES.get(device)
    if found is None:
        raise InputError(
            f"{where}: device {device!r} is not known by that name; give --accelerator"
        )
    if stated.system and stated.system[1] != found:
        name, held = stated.system
        raise InputError(f"{where} is of {found}, and {name} holds {held}; give its own system")
    return found
