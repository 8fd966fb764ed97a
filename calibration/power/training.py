"""Nodes that train: rows of fine-tuning and training tables, predicted from their configuration, be
it stated or MLPerf's."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from calibration.tables.cells import UNREAD, cell
from calibration.tables.runs import Skipped, point_of
from predictor import catalog
from predictor.catalog import TrainingPlanSpec, parse
from predictor.power import NodePower, demand, node_power, settle
from predictor.timing import Calibration, RunParameters
from predictor.training import TrainingRequest, complete_training, predict, step_activity

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
    request  the run, where the row states it; None: MLPerf's fine-tuning
    """

    metric: str
    value: float
    accelerator: str
    gpus: int
    per_node: int
    cooling: str | None
    direct: bool
    request: TrainingRequest | None = None

    @property
    def model(self) -> str:
        """That is trained."""
        return str(LORA["model"]) if self.request is None else self.request.model.name


CONFIGURATION = ("model", "seq_len", "global_batch")
"""What a row states at least whose run is predicted from it alone."""


def node_row(row: Mapping[Any, Any], run: RunParameters | None = None) -> NodeRow | str:
    """A row of a table of training or system power, or why it is not predicted.

    run   memory parameters, to fill in what a stated configuration leaves open
    """
    if (unread := cell(row, UNREAD)) is not None:
        return str(unread)
    if cell(row, "component") is not None:
        return _system_row(row)
    if cell(row, "measured") is not None and not str(row["measured"]).startswith("yes"):
        return "not measured: rated power times hours"
    if all(cell(row, name) is not None for name in CONFIGURATION):
        return _configured(row, run or RunParameters())
    stated = re.sub(r"[^a-z0-9]", "", str(cell(row, "model") or LORA["model"]).lower())
    if "lora" not in str(cell(row, "workload")).lower() or "llama270b" not in stated:
        return "the configuration is not stated"
    gpus, per_node = cell(row, "num_gpus"), cell(row, "gpus_per_node")
    if not gpus or not per_node:
        return "the number of accelerators is not stated"
    drawn = _drawn(row, ("median_power_per_gpu_w",))
    if isinstance(drawn, str):
        return drawn
    metric, value, cooling, direct = drawn
    name = str(row["accelerator"])
    return NodeRow(metric, value, name, int(gpus), int(per_node), cooling, direct)


def _drawn(
    row: Mapping[Any, Any], each: tuple[str, ...]
) -> tuple[str, float, str | None, bool] | str:
    """Metric, power [W], cooling, and whether it is of direct current, of a row.

    each   columns of the power of an accelerator, the first that says something
    """
    scope = str(cell(row, "scope") or "")
    cooling = "immersion" if "immersion" in scope else None
    if (node := cell(row, "node_power_w")) is not None:
        return "node_power_w", float(node), cooling, "DC" in scope
    mean = next((float(row[name]) for name in each if cell(row, name) is not None), None)
    return "no power is stated" if mean is None else ("power_w", mean, cooling, False)


def _configured(row: Mapping[Any, Any], run: RunParameters) -> NodeRow | str:
    """A row that states its run, as tables of training do."""
    point = point_of(row, run)
    if isinstance(point, Skipped):
        return point.reason
    drawn = _drawn(row, ("avg_power_per_gpu_w", "median_power_per_gpu_w"))
    if isinstance(drawn, str):
        return drawn
    metric, value, cooling, direct = drawn
    gpus, cluster = int(point.request.plan.gpus), point.request.cluster
    per_node = min(gpus, int(cluster.accelerators_per_node))
    name = cluster.accelerator.name
    return NodeRow(
        metric, value, name, gpus, per_node, cooling=cooling, direct=direct, request=point.request
    )


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


def _fine_tuned(row: NodeRow, calibration: Calibration) -> TrainingRequest:
    """MLPerf's fine-tuning on a row's accelerators."""
    fields = {
        **LORA, **lora_plan(row.gpus), "accelerator": row.accelerator,
        "accelerators_per_node": row.per_node,
    }  # fmt: skip
    spec = parse(TrainingPlanSpec, fields, "row")
    return complete_training(spec, calibration.run, strict=False)


def predicted_power(row: NodeRow, calibration: Calibration) -> tuple[float, NodePower]:
    """Mean power of an accelerator in the row's run [W], and of its node: of MLPerf's from its
    start to its target, of a stated one in its steps.

    Raises InputError where the run cannot be.
    """
    request = row.request or _fine_tuned(row, calibration)
    found = predict(request.model, request.cluster, request.plan, calibration)
    cluster = request.cluster
    constants = catalog.power_constants(cluster.accelerator)
    chassis = catalog.chassis(cluster, row.cooling)
    work = step_activity(found)
    phases = [demand(one, constants) for one in work.activity.values()]
    share = [np.asarray(one.time) for one in work.activity.values()]
    state = settle(phases, share, constants, constants.limit, chassis)
    mean = float(np.mean(state.mean))
    if row.request is None:
        steps = SAMPLES / float(np.asarray(request.plan.global_batch)) * float(found.step_time)
        waiting = float(np.asarray(constants.awake + constants.waiting))
        busy = steps / (steps + AROUND)
        mean = busy * mean + (1.0 - busy) * waiting
    node = node_power(
        mean, row.per_node, constants.limit, catalog.node_constants(cluster), chassis.cooling
    )
    return mean, node
