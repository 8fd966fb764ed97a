"""What computes and what joins it: accelerators, links, tiers, systems."""

from predictor.hardware.budget import Budget, Derived, derive, devices, stack
from predictor.hardware.links import Curve, LinkModel, default_link, link_class, link_family
from predictor.hardware.machines import (
    DEFAULT_CLOCK,
    ENERGY,
    L2_BYTES_PER_CLOCK_PER_SM,
    NARROWING,
    Accelerator,
    Cluster,
    Tier,
    accelerators_at,
    batch_shape,
    clusters_at,
    matrix_energy,
    repeated,
)
from predictor.hardware.technologies import LinkTechnology, MemoryTechnology, Node, Processor

__all__ = [
    "DEFAULT_CLOCK",
    "ENERGY",
    "L2_BYTES_PER_CLOCK_PER_SM",
    "NARROWING",
    "Accelerator",
    "Budget",
    "Cluster",
    "Curve",
    "Derived",
    "LinkModel",
    "LinkTechnology",
    "MemoryTechnology",
    "Node",
    "Processor",
    "Tier",
    "accelerators_at",
    "batch_shape",
    "clusters_at",
    "default_link",
    "derive",
    "devices",
    "link_class",
    "link_family",
    "matrix_energy",
    "repeated",
    "stack",
]
