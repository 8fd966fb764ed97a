"""Nodes that train: rows of fine-tuning and training tables, predicted from their configuration."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from calibration.tables.cells import cell
from predictor import catalog
from predictor.catalog import TrainingPlanSpec, parse
from predictor.power import NodePower, demand, node_power, settle
from predictor.timing import Calibration
from predictor.training import complete_training, predict, step_activity

LORA = {
    "model": "llama2-70b",
    "trained": "lora",
    "lora_rank": 16,
    "seq_len": 8192,
    "micro_batch": 1,
    "precision": "fp8",
    "framework": "nemo",
    "era": "2024-06",
}
"""MLPerf's fine-tuning of Llama 2 70B (reference of Training v4.0: rank 16, 8,192 tokens), which
submissions run in NeMo with fp8."""


@dataclass(frozen=True, slots=True)
class NodeRow:
    """What a row states of a node or an accelerator that trains.

    metric   'node_power_w' or 'power_w'
    value    [W]
    gpus     in all; per_node of them
    cooling  None: as the machine has it
    direct   whether before (direct current) or behind the supplies of the node
    """

    metric: str
    value: float
    accelerator: str
    gpus: int
    per_node: int
    cooling: str | None
    direct: bool


def node_row(row: Mapping[Any, Any]) -> NodeRow | str:
    """A row of a table of training or system power, or why it is not predicted."""
    if cell(row, "component") is not None:
        return _system_row(row)
    if cell(row, "measured") is not None and not str(row["measured"]).startswith("yes"):
        return "not measured: rated power times hours"
    stated = re.sub(r"[^a-z0-9]", "", str(cell(row, "model") or LORA["model"]).lower())
    if "lora" not in str(cell(row, "workload")).lower() or "llama270b" not in stated:
        return "the configuration is not stated"
    gpus, per_node = cell(row, "num_gpus"), cell(row, "gpus_per_node")
    if not gpus or not per_node:
        return "the number of accelerators is not stated"
    common = (str(row["accelerator"]), int(gpus), int(per_node))
    node = cell(row, "node_power_w")
    scope = str(cell(row, "scope") or "")
    cooling = "immersion" if "immersion" in scope else None
    if node is not None:
        return NodeRow("node_power_w", float(node), *common, cooling, "DC" in scope)
    mean = cell(row, "median_power_per_gpu_w")
    if mean is None:
        return "no power is stated"
    return NodeRow("power_w", float(mean), *common, cooling, False)


def _system_row(row: Mapping[Any, Any]) -> NodeRow | str:
    """A measured node of a table of parts of systems."""
    text = str(row["component"])
    found = re.match(r"8xH100 (\w+), LoRA (\d+) nodes?, (DC|AC)", text)
    if found is None or row.get("status") != "measured":
        return "a part, not a machine at work"
    nodes, value = int(found[2]), cell(row, "value")
    try:
        told = float(str(value).replace(",", ""))
    except ValueError:
        return "no power is stated"
    return NodeRow(
        "node_power_w", told, "H100-SXM5-80GB", 8 * nodes, 8, found[1],
        found[3] == "DC",
    )  # fmt: skip


def lora_plan(gpus: int) -> dict[str, Any]:
    """Layout of MLPerf's fine-tuning at a scale: four-way tensor parallel, two-way context parallel
    beyond some nodes (mlcommons/training_results_v4.0 at 62f111b: configurations 1x8x4xtp4pp1cp1
    and 128x8x1xtp4pp1cp2 of NVIDIA, 8x8x1xtp4pp1cp2 of Supermicro; looked up 2026-11-23)."""
    cp = 1 if gpus <= 32 else 2
    dp = gpus // (4 * cp)
    return {"gpus": gpus, "tp": 4, "pp": 1, "cp": cp, "global_batch": max(8, dp)}


SAMPLES = 3200
"""Sequences until MLPerf's fine-tuning reaches its target: 400 steps of eight (a run of 1,746 s on
eight H100 is as many predicted steps)."""

AROUND = 35.0
"""Seconds of a run to a target in which devices wait: first batches and communicators, evaluations,
its end. Read off two runs of one submitter, whose nodes at 64 and 512 H100 draw 0.87 and 0.70 of
what one of 8 does: 41 and 31 s."""


def predicted_power(row: NodeRow, calibration: Calibration) -> tuple[float, NodePower]:
    """Mean power of an accelerator in the row's run [W], from its start to its target, and of its
    node.

    Raises InputError where the run cannot be.
    """
    fields = {
        **LORA, **lora_plan(row.gpus), "accelerator": row.accelerator,
        "accelerators_per_node": row.per_node,
    }  # fmt: skip
    spec = parse(TrainingPlanSpec, fields, "row")
    request = complete_training(spec, calibration.run, strict=False)
    found = predict(request.model, request.cluster, request.plan, calibration)
    cluster = request.cluster
    constants = catalog.power_constants(cluster.accelerator)
    chassis = catalog.chassis(cluster, row.cooling)
    work = step_activity(found)
    phases = [demand(one, constants) for one in work.activity.values()]
    share = [np.asarray(one.time) for one in work.activity.values()]
    state = settle(phases, share, constants, constants.limit, chassis)
    steps = SAMPLES / float(np.asarray(request.plan.global_batch)) * float(found.step_time)
    waiting = float(np.asarray(constants.awake + constants.waiting))
    busy = steps / (steps + AROUND)
    mean = busy * float(np.mean(state.mean)) + (1.0 - busy) * waiting
    node = node_power(
        mean, row.per_node, constants.limit, catalog.node_constants(cluster), chassis.cooling
    )
    return mean, node
