"""Accelerators as their drivers name them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from calibration.sources.aiconfigurator import ACCELERATORS
from calibration.sources.found import Stated
from predictor import catalog
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


HOST = "the host"
"""Stands for the device of calls that ran on the host itself."""

NUMBERED = "number "
"""Begins what stands for a device of which only the number is known."""

SAME_MEMORY = 0.03
"""Drivers reserve up to this share of the memory that a catalog states."""


def _by_properties(properties: Mapping[str, Any]) -> str | None:
    """The one accelerator of the catalog with a device's processors and memory, where its driver
    gives it no name of its own; None if there are several or none.

    One die of an MI250 is an MI210 by all that counts.
    """
    sms, memory = properties.get("numSms"), properties.get("totalGlobalMem")
    if not isinstance(sms, int) or not isinstance(memory, int):
        return None
    vendor = "AMD" if properties.get("warpSize") == 64 else "NVIDIA"
    found = [
        name
        for name, row in catalog.rows("accelerators").items()
        if row.get("vendor") == vendor
        and row.get("sm_count") == str(sms)
        and abs(memory / 2**30 - float(row.get("memory_gib", 0))) < SAME_MEMORY * memory / 2**30
    ]
    return found[0] if len(found) == 1 else None


def named(device: str) -> bool:
    """Whether a driver gives a device a name at all, not only its maker's."""
    plain = ("", HOST, "AMD Radeon Graphics", "AMD Instinct")
    return device.strip() not in plain and not device.startswith(NUMBERED)


def accelerator_of(
    device: str, stated: Stated, where: str, properties: Mapping[str, Any] | None = None
) -> str:
    """Catalog name of a device: what the user states, else what its driver's name stands for, else
    what has its processors and memory (`numSms`, `totalGlobalMem`), else, of a device without a
    name, what the stated system holds.

    Raises InputError for an unknown name, and for one that the stated system does not hold.
    """
    if stated.accelerator:
        return stated.accelerator
    found = NAMES.get(device) or _by_properties(properties or {})
    if found is None and stated.system and not named(device):
        return stated.system[1]
    if found is None:
        raise InputError(
            f"{where}: device {device!r} is not known by that name; give --accelerator"
        )
    if stated.system and stated.system[1] != found:
        name, held = stated.system
        raise InputError(f"{where} is of {found}, and {name} holds {held}; give its own system")
    return found
