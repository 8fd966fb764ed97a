"""The mesh of MaxText's accelerators: axes inside a slice and between slices, of which one each may
take what remains (src/maxtext/configs: base.yml, types.py, @ e591f30c).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from predictor.errors import InputError
from reckon.launch.table import Derived, Facts, Flags, truth, whole_number

SLICES, DEVICES, EACH = "compile_topology_num_slices", "@devices", "@each"

CORES: dict[str, int] = {"tpu7x": 2}
"""Kinds of TPUs of which each chip is several devices of JAX, by which axes and batches count
(docs.cloud.google.com/tpu/docs/tpu7x: a chip is two devices; tpu-recipes @ c8cfe2f, gemma4-26b:
axes of 512 on 4x8x8 chips; read 2026-11)."""

AXES: dict[str, str] = {
    "data": "copies", "diloco": "copies", "fsdp": "shards", "fsdp_transpose": "shards",
    "sequence": "cp", "context": "cp", "context_usp_ulysses": "cp", "tensor": "tp",
    "tensor_transpose": "tp", "tensor_sequence": "tp", "autoregressive": "tp", "expert": "ep",
    "pipeline": "pp",
}  # fmt: skip
"""Axes of the mesh, and what they divide here."""

WITHIN = ("shards", "copies", "ep", "tp", "cp")
"""What devices of one chip divide among them, the first that can."""

FILLED = {("dcn", "data"): -1, ("ici", "fsdp"): -1}
"""Axes that take what remains, unless told otherwise (base.yml)."""

KEYS = tuple(f"{where}_{axis}_parallelism" for where in ("ici", "dcn") for axis in AXES)

NODE = 8
"""Accelerators of a slice of GPUs, which is a node; of TPUs all are one slice unless told."""


def _degrees(flags: Flags, gpus: int | None) -> tuple[dict[str, int], dict[str, int]]:
    """What each axis is, inside a slice and between slices, of those that are known; -1 for one
    that takes what remains.

    Raises InputError where they do not divide the accelerators.
    """
    sizes: dict[str, dict[str, int]] = {}
    for where in ("ici", "dcn"):
        said = {
            axis: whole_number(key, flags.get(key, FILLED.get((where, axis), 1)))
            for axis in AXES
            for key in (f"{where}_{axis}_parallelism",)
        }
        sizes[where] = said
    if gpus is None:
        return sizes["ici"], sizes["dcn"]
    slices = _slices(flags, gpus, sizes)
    for where, whole in (("ici", gpus // slices), ("dcn", slices)):
        _fill(sizes[where], where, whole)
    return sizes["ici"], sizes["dcn"]


def _slices(flags: Flags, gpus: int, sizes: Mapping[str, Mapping[str, int]]) -> int:
    """Slices: as stated, as their axes say, or one; of GPUs the nodes."""
    stated = whole_number(SLICES, flags.get(SLICES, flags.get("num_slices", -1)))
    known = math.prod(size for size in sizes["dcn"].values() if size > 0)
    inside = math.prod(size for size in sizes["ici"].values() if size > 0)
    if stated > 0:
        slices = stated
    elif -1 not in sizes["dcn"].values():
        slices = known
    elif -1 not in sizes["ici"].values():
        slices = max(gpus // inside, 1)
    elif str(flags.get("hardware", "tpu")).startswith("gpu"):
        slices = max(-(-gpus // NODE), known)
    else:
        slices = known
    if gpus % slices:
        raise InputError(f"{gpus} accelerators do not divide into {slices} slices")
    return slices


def _fill(said: dict[str, int], where: str, whole: int) -> None:
    """Put in what remains of a slice, or of the slices, for the axis that takes it."""
    left = [axis for axis, size in said.items() if size == -1]
    known = math.prod(size for size in said.values() if size != -1)
    if len(left) > 1 or known < 1 or whole % known or (not left and known != whole):
        of = "accelerators of a slice" if where == "ici" else "slices"
        told = " x ".join(f"{axis} {size}" for axis, size in said.items() if size != 1)
        raise InputError(f"{where} axes {told} do not give {whole} {of}")
    for axis in left:
        said[axis] = whole // known


def _mesh_means(flags: Flags, facts: Facts) -> Facts:
    """Degrees of the axes: batches are split over data, fsdp and expert, weights over fsdp, expert
    and context (`logical_axis_rules`)."""
    gpus, each = facts.get("gpus", flags.get(DEVICES)), int(flags.get(EACH, 1))
    inside, between = _degrees(flags, None if gpus is None else each * whole_number("gpus", gpus))
    if gpus is None and -1 not in (*inside.values(), *between.values()):
        gpus = math.prod([*inside.values(), *between.values()]) // each
    found: dict[str, int] = dict.fromkeys(AXES.values(), 1)
    for axis, kind in AXES.items():
        found[kind] *= max(inside[axis], 1) * max(between[axis], 1)
    joined = next((kind for kind in WITHIN if found[kind] % each == 0), "copies")
    found[joined] = max(found[joined] // each, 1)  # devices of one chip are one accelerator
    said: Facts = {name: found[name] for name in ("tp", "pp", "cp", "ep")}
    said["sequence_parallel"] = found["tp"] > 1  # what stands between products is split, too
    if gpus is None:
        return {**said, "sharding": "fsdp"}
    dp = found["copies"] * found["shards"] * found["ep"]
    said |= {"gpus": int(gpus), "dp": dp}
    if found["shards"] * found["ep"] == 1:
        key = "shard_optimizer_over_data"
        return {**said, "sharding": "zero1" if truth(key, flags.get(key, False)) else "none"}
    if found["copies"] == 1:
        return {**said, "sharding": "fsdp"}
    return {**said, "sharding": "hsdp", "dp_shard": dp // found["copies"]}


MESH = Derived(
    (*KEYS, SLICES, DEVICES, EACH, "num_slices", "shard_optimizer_over_data", "hardware"),
    lambda facts: {},
    _mesh_means,
    fields=("sharding", "dp_shard"),
)
"""Degrees, and what replicas divide."""
