"""What computes and what joins it: accelerators, links, tiers, systems."""

from predictor.hardware.accelerators import (
    DEFAULT_CLOCK,
    ENERGY,
    L2_BYTES_PER_CLOCK_PER_SM,
    NARROWING,
    OLDER,
    Accelerator,
    matrix_energy,
)
from predictor.hardware.budget import Budget, DerivedMachine, derive, devices
from predictor.hardware.links import (
    PCIE,
    USUAL_HOP,
    LinkCurve,
    LinkModel,
    adapters_of,
    bridged,
    default_link,
    hop_beyond,
    link_class,
    link_family,
    torus_axes,
)
from predictor.hardware.systems import Cluster, Tier
from predictor.hardware.technologies import LinkTechnology, MemoryTechnology, Node, Processor

__all__ = [
    "DEFAULT_CLOCK",
    "ENERGY",
    "L2_BYTES_PER_CLOCK_PER_SM",
    "NARROWING",
    "OLDER",
    "PCIE",
    "USUAL_HOP",
    "Accelerator",
    "Budget",
    "Cluster",
    "DerivedMachine",
    "LinkCurve",
    "LinkModel",
    "LinkTechnology",
    "MemoryTechnology",
    "Node",
    "Processor",
    "Tier",
    "adapters_of",
    "bridged",
    "default_link",
    "derive",
    "devices",
    "hop_beyond",
    "link_class",
    "link_family",
    "matrix_energy",
    "torus_axes",
]
