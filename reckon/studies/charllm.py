"""The 386 configurations of CharLLM (MICRO 2025), each predicted: time, power, heat, efficiency.

The matrix is that of the paper's artifact (sitar-lab/CharLLM-PPT@dad5f27819, Apache-2.0,
`scripts/experiments`): what was run, not what was measured. Where a file names no accelerator, 32
are H200 and 64 are H100, as the artifact's README has them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from predictor import catalog
from predictor.errors import InputError
from predictor.timing import Calibration
from reckon.verbs.powering import PowerResult
from reckon.verbs.results import Prediction
from reckon.verbs.served import ServingResult
from reckon.verbs.serving import predict_each_serving
from reckon.verbs.training import predict_each

GENERATED = 32
"""Tokens that the artifact's inference generates (`tokens_to_generate`)."""

Row = dict[str, Any]


def matrix() -> pd.DataFrame:
    """What was run, a row each."""
    return pd.read_csv(catalog.data_dir() / "studies" / "charllm.csv")


def request(row: Mapping[str, Any], systems: Mapping[str, str], node_gbps: float) -> Row:
    """Keys of a training plan.

    node_gbps   of a node's network, for all its accelerators together
    """
    lora = row["experiment"] == "lora"
    sharding = "fsdp" if row["fsdp"] else "zero1" if row["distributed_optimizer"] else "none"
    return {
        "model": row["model"],
        "system": systems[row["gpu"]],
        "inter_link_gbps": node_gbps / 8.0,
        "gpus": int(row["gpus"]),
        "tp": int(row["tp"]),
        "pp": int(row["pp"]),
        "ep": int(row["ep"]),
        "vpp": 1,
        "micro_batch": int(row["micro_batch"]),
        "global_batch": int(row["global_batch"]),
        "seq_len": int(row["seq_len"]),
        "recompute": row["recompute"],
        "sharding": sharding,
        "sequence_parallel": bool(row["sequence_parallel"]),
        "tp_overlap": bool(row["tp_overlap"]),
        "grad_overlap": bool(row["grad_overlap"]),
        "framework": "nemo",
        **({"trained": "lora"} if lora else {}),
    }


def served(row: Mapping[str, Any], systems: Mapping[str, str], node_gbps: float) -> Row:
    """Keys of a serving plan: a static batch."""
    return {
        "model": row["model"],
        "system": systems[row["gpu"]],
        "inter_link_gbps": node_gbps / 8.0,
        "gpus": int(row["gpus"]),
        "tp": int(row["tp"]),
        "pp": int(row["pp"]),
        "ep": int(row["ep"]),
        "batch": int(row["micro_batch"]) * int(row["gpus"]) // int(row["tp"] * row["pp"]),
        "input_len": int(row["seq_len"]) - GENERATED,
        "output_len": GENERATED,
    }


def _told(power: PowerResult | None, each: str) -> Row:
    """Figures of power; nothing where it is not known."""
    if power is None:
        return {}
    told = power.to_dict()
    return {
        "power_w": told["power_w"]["value"],
        "peak_100ms_w": told["peak_100ms_w"]["value"],
        "peak_1s_w": told["peak_1s_w"]["value"],
        "burst": told["burst"],
        "hottest_c": max(told["temperature_c"]),
        "rear_over_front": told["temperature_c"][-1] / told["temperature_c"][0],
        "clock": min(told["clock"]),
        "held_share": held_share(power),
        "energy_per_sample_j": told[f"energy_per_{each}_j"]["value"],
        "samples_per_s_per_mj": told[f"{each}s_per_s_per_mj"],
    }


ACTIVE = ("forward", "backward", "recompute", "prefill", "decode")


def held_share(power: PowerResult) -> float:
    """Share of the time in which a limit of power or heat holds the clock: that of the kernels that
    run longer under it."""
    return sum(
        share * power.at(power.under.held[name])
        for name, (_, share) in power.phases.items()
        if name in ACTIVE
    )


def predicted(
    table: pd.DataFrame, systems: Mapping[str, str], node_gbps: float, calibration: Calibration
) -> pd.DataFrame:
    """The matrix with predictions beside it; `refused` says why a row has none."""
    rows: list[Row] = [dict(row) for row in table.to_dict("records")]  # type: ignore[arg-type]
    inference = [row["experiment"] == "inference" for row in rows]
    trained = [at for at, one in enumerate(inference) if not one]
    read = [at for at, one in enumerate(inference) if one]
    steps = [request(rows[at], systems, node_gbps) for at in trained]
    batches = [served(rows[at], systems, node_gbps) for at in read]
    found: list[Row] = [{} for _ in rows]
    for at, step in zip(trained, predict_each(steps, calibration, "charllm"), strict=True):
        found[at] = _trained(rows[at], step)
    for at, one in zip(read, predict_each_serving(batches, calibration, "charllm"), strict=True):
        found[at] = _served(one)
    return table.join(pd.DataFrame(found, index=table.index))


def _trained(row: Mapping[str, Any], one: Prediction | InputError) -> Row:
    """Figures of a row of training."""
    if isinstance(one, InputError):
        return {"refused": str(one)}
    seconds = one.step_time.value
    return {
        "time_s": seconds,
        "samples_per_s": row["global_batch"] / seconds,
        "fits": one.fits,
        "bubble_share": one.breakdown["bubble"] / seconds,
        **_told(one.power, "sample"),
    }


def _served(one: ServingResult | InputError) -> Row:
    """Figures of a row of inference."""
    if isinstance(one, InputError):
        return {"refused": str(one)}
    return {
        "time_s": one.e2e.value,
        "samples_per_s": one.requests_per_s,
        "fits": one.fits,
        **_told(one.power, "request"),
    }
