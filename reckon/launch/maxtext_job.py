"""Jobs of Kubernetes that train with MaxText: the command that a container runs, and the slices of
TPUs that its pods ask for (AI-Hypercomputer/tpu-recipes @ c8cfe2f, training/ironwood)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from reckon.launch.maxtext_mesh import SLICES
from reckon.launch.table import Flags

LABELS = ("cloud.google.com/gke-tpu-accelerator", "cloud.google.com/gke-tpu-topology")
"""Of the nodes: the kind of TPU, and the chips along each axis of a slice."""

DEEPEST = 24
"""Levels of a file that are looked through: those of Kubernetes have a dozen."""


def kubernetes_job(text: str, trains: str) -> tuple[str, Flags] | None:
    """The command of a job that trains, and the slices that it asks for; None for any other text.

    trains  pattern of a command that trains
    """
    if not re.search(r"^apiVersion:", text, re.M) or not re.search(r"[Mm]ax[Tt]ext", text):
        return None
    try:
        documents = list(yaml.safe_load_all(text))
    except (yaml.YAMLError, ValueError, RecursionError):
        return None
    leaves = list(_leaves(documents, 0))
    command = next((own for _, own in leaves if re.search(trains, own) and "=" in own), None)
    if command is None:
        return None
    said = {key: own for key, own in leaves if key in LABELS}
    kind, axes = (said.get(label, "") for label in LABELS)
    slices = [int(own) for key, own in leaves if key == "replicas" and own.isdecimal()]
    found: Flags = {"@type": f"{kind}-{axes}"} if kind and axes else {}
    return command, found | ({SLICES: max(slices)} if found and slices else {})


def _leaves(node: Any, depth: int) -> Iterator[tuple[str, str]]:
    """Texts of a document with their keys."""
    inner = node.items() if isinstance(node, Mapping) else enumerate(node)
    for key, one in inner if depth < DEEPEST else ():
        if isinstance(one, Mapping | list):
            yield from _leaves(one, depth + 1)
        elif one is not None:
            yield str(key), str(one)
