"""What computes and what joins it: accelerators, links, tiers, systems."""

from predictor.hardware.accelerators import (
    DEFAULT_CLOCK,
    L2_BYTES_PER_CLOCK_PER_SM,
    Accelerator,
)
from predictor.hardware.links import Curve, LinkModel, default_link, link_class, link_family
from predictor.hardware.systems import Cluster, Tier

__all__ = [
    "DEFAULT_CLOCK",
    "L2_BYTES_PER_CLOCK_PER_SM",
    "Accelerator",
    "Cluster",
    "Curve",
    "LinkModel",
    "Tier",
    "default_link",
    "link_class",
    "link_family",
]
