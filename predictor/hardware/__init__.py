"""What computes and what joins it: accelerators, links, tiers, systems."""

from predictor.hardware.links import Curve, LinkModel, default_link, link_class, link_family
from predictor.hardware.machines import (
    DEFAULT_CLOCK,
    L2_BYTES_PER_CLOCK_PER_SM,
    Accelerator,
    Cluster,
    Tier,
    accelerators_at,
    batch_shape,
    clusters_at,
    repeated,
)

__all__ = [
    "DEFAULT_CLOCK",
    "L2_BYTES_PER_CLOCK_PER_SM",
    "Accelerator",
    "Cluster",
    "Curve",
    "LinkModel",
    "Tier",
    "accelerators_at",
    "batch_shape",
    "clusters_at",
    "default_link",
    "link_class",
    "link_family",
    "repeated",
]
