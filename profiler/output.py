"""Writes a profile: `kernels.parquet`, `steps.csv`, `passes.csv`, and the device as an accelerator
and a system.

The files of `device.yaml` are those that a user could write by hand for any other machine. Peak
rates are the best that was measured, so that no efficiency exceeds one.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from predictor.files import prepare_folder, write_text, write_whole
from predictor.schema import COLLECTIVE_OPS, KERNEL_COLUMNS
from profiler.device import Device

CACHE_SHARE = 0.5
"""Copies whose two buffers take at most this share of the cache show its bandwidth."""


def rate_key(dtype: str) -> str:
    """Key of a data type's peak rate in an accelerator file."""
    return f"{dtype}_tops" if dtype == "int8" else f"{dtype}_tflops"


def _best_rates(table: pd.DataFrame) -> dict[str, float]:
    """Fastest product in each data type, as `<dtype>_tflops`."""
    gemms = table[table["op"] == "gemm"]
    rate = 2 * gemms["m"] * gemms["n"] * gemms["k"] * gemms["batch"] / gemms["latency_p10_us"] / 1e6
    best = rate.groupby(gemms["dtype"]).max()
    return {rate_key(str(dtype)): round(float(value), 6) for dtype, value in best.items()}


def _bandwidths(table: pd.DataFrame, cache_bytes: float, on_gpu: bool) -> tuple[float, float]:
    """GB/s of memory and of the last-level cache: the best of the streaming kernels."""
    streams = table[table["message_bytes"].notna() & ~table["op"].isin(COLLECTIVE_OPS)]
    plain = streams[(streams["op"] == "memcpy") | (streams["kernel"] == "add")]
    if on_gpu and len(plain):
        streams = plain  # others may be fused: then less moves than is counted
    rate = streams["message_bytes"] / streams["latency_p10_us"] / 1e3
    size = streams["message_bytes"]
    large, small = rate[size > 4 * cache_bytes], rate[size <= CACHE_SHARE * cache_bytes]
    memory = float(large.max()) if len(large) else float(rate.max())
    cache = float(small.max()) if len(small) else memory
    return round(memory, 3), round(max(cache, memory), 3)


SPLIT = "split"
"""What host times on distributed tensors are called."""


def _host_time(table: pd.DataFrame) -> dict[str, float]:
    """Host time of an operator beside its kernel, where it was measured (`profiler.dispatch`)."""
    rows = table[table["op"] == "dispatch"]
    calm = rows[~(rows["waited"] > 0)]
    rows = rows if calm.empty else calm
    split = rows["kernel"].astype(str).str.startswith(SPLIT)
    parts = {"dispatch_us": rows[~split], "split_dispatch_us": rows[split]}
    return {
        key: round(float(part["latency_us"].mean()), 3) for key, part in parts.items() if len(part)
    }


def accelerator_mapping(table: pd.DataFrame, device: Device) -> dict[str, Any]:
    """The device as an entry of the accelerator catalog."""
    memory, cache = _bandwidths(table, device.cache_bytes, device.on_gpu)
    facts = device.facts
    return {
        "name": device.name,
        "architecture": device.architecture,
        "sm_count": facts["sm_count"],
        **_best_rates(table),
        "memory_gb": round(float(facts["memory_gb"]), 3),
        "memory_bandwidth_gbs": memory,
        "l2_mb": round(float(facts["l2_mb"]), 3),
        "l2_bandwidth_gbs": cache,
        **_host_time(table),
        **({"tdp_w": facts["power_limit_w"]} if "power_limit_w" in facts else {}),
        "source": "reckon profile: best measured rates",
    }


def link_rate(table: pd.DataFrame) -> float:
    """GB/s of the link between ranks: the best bus bandwidth of any collective."""
    rows = table[table["op"].isin(COLLECTIVE_OPS)]
    if rows.empty:
        return 1.0
    ranks = rows["num_gpus"]
    factor = (ranks - 1) / ranks
    factor = factor.where(rows["op"] != "allreduce", 2 * factor)
    factor = factor.where(~rows["op"].isin(["p2p", "broadcast"]), 1.0)
    return round(float((rows["message_bytes"] * factor / rows["latency_p10_us"]).max() / 1e3), 4)


def link_name(table: pd.DataFrame) -> str:
    """What the ranks communicated through."""
    rows = table[table["op"].isin(COLLECTIVE_OPS)]
    return "gloo" if rows.empty else str(rows["link"].iloc[0])


def system_mapping(table: pd.DataFrame, device: Device) -> dict[str, Any]:
    """The device as a system: itself, and the link between its ranks."""
    return {
        "name": f"local-{device.ranks}" if device.ranks > 1 else "local",
        "accelerator": accelerator_mapping(table, device),
        "accelerators_per_node": device.ranks,
        "tiers": [
            {"link": link_name(table), "size": device.ranks, "bandwidth_gbs": link_rate(table)}
        ],
        "facts": device.facts,
        "source": "reckon profile",
    }


def write(
    out: Path,
    kernels: list[dict[str, Any]],
    steps: list[dict[str, Any]],
    devices: list[Device],
    served: list[dict[str, Any]],
    power: Sequence[dict[str, Any]] = (),
) -> pd.DataFrame:
    """Write everything that was measured to a folder; returns the kernel table.

    devices   the device alone, and as shared between ranks if it was
    served    passes of serving
    power     of kernels that ran for seconds
    """
    prepare_folder(out)
    table = pd.DataFrame(kernels).reindex(columns=list(KERNEL_COLUMNS))
    names = {
        device.name: "device.yaml" if device.ranks == 1 else f"device-{device.ranks}ranks.yaml"
        for device in devices
    }
    table["device_file"] = table["accelerator"].map(names)
    table["link_gbs"] = table["link_gbs"].astype(float)
    for device in devices:
        own = table[table["accelerator"] == device.name]
        name = names[device.name]
        collective = own["op"].isin(COLLECTIVE_OPS)
        table.loc[own.index[collective], "link_gbs"] = link_rate(own)
        mapping = system_mapping(own, device)
        text = yaml.safe_dump(mapping, sort_keys=False, allow_unicode=True)
        write_text(out / name, text)
    write_whole(out / "kernels.parquet", lambda path: table.to_parquet(path, index=False))
    for name, rows in (("steps.csv", steps), ("passes.csv", served), ("power.csv", list(power))):
        if rows or name == "steps.csv":
            frame = pd.DataFrame(rows)
            write_whole(out / name, partial(frame.to_csv, index=False))
    return table
