"""Accelerators in several regions: a matrix of rates and round trips, and what crosses them.

Either pipelines cross, stages in one region after the other in the order whose links are fastest,
and replicas meet inside; or every pipeline lies inside a region, and gradients cross, all as fast
as over the slowest pair of regions (a ring passes every pair that is next to each other; Yuan et
al. 2022, arXiv 2206.01288, section 3, places groups of both kinds over such a matrix).
"""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np

from predictor.arrays import Array
from predictor.catalog import read_mapping
from predictor.errors import InputError
from predictor.hardware import Cluster
from predictor.records import dataclass
from predictor.training.unlike import APART
from predictor.units import GB

KEYS = ("names", "bandwidth_gbs", "rtt_ms")
MOST = 8
"""Regions whose orders are all looked at."""


@dataclass(frozen=True, slots=True, eq=False)
class Regions:
    """Regions and the links between them.

    names      of the regions
    bandwidth  of an accelerator's flow to one of another region, inside one on the diagonal,
               (R, R) [bytes/s]
    latency    one way, (R, R) [s]
    crossing   'pipelines', 'replicas', or 'best' of both
    ordered    pipelines go through the regions as these are named, not the fastest way
    """

    names: tuple[str, ...]
    bandwidth: Array
    latency: Array
    crossing: str
    ordered: bool = False

    def linked(self, cluster: Cluster, one: int, other: int) -> Cluster:
        """A system whose nodes are joined as these two regions are (or one in itself)."""
        outer = replace(
            cluster.tiers[-1],
            link="ethernet",
            bandwidth=float(self.bandwidth[one, other]),
            latency=float(self.latency[one, other]),
            oversubscription=1.0,
            in_switch=False,
        )
        name = self.names[one] if one == other else f"{self.names[one]}-{self.names[other]}"
        return replace(cluster, name=name, tiers=(*cluster.tiers[:-1], outer))

    def order(self, message: float) -> tuple[int, ...]:
        """The order of regions along a pipeline in which its messages [bytes] hop the fastest: the
        slowest hop, then all together."""
        if self.ordered:
            return tuple(range(len(self.names)))

        ways = np.array(list(permutations(range(len(self.names)))))
        each = (message / self.bandwidth + self.latency)[ways[:, :-1], ways[:, 1:]]
        first = np.lexsort((each.sum(axis=1), each.max(axis=1)))[0]
        return tuple(int(at) for at in ways[first])

    def slowest(self, message: float) -> tuple[int, int]:
        """The two regions between which a message [bytes] takes the longest."""
        time = message / self.bandwidth + self.latency
        np.fill_diagonal(time, -1.0)
        one, other = np.unravel_index(int(np.argmax(time)), time.shape)
        return int(one), int(other)


def read_regions(path: str, crossing: str) -> Regions:
    """Regions from a YAML file: `names`, and matrices `bandwidth_gbs` and `rtt_ms`.

    Raises InputError for a file without them, and matrices of another size or below 0.
    """
    content = read_mapping(Path(path))
    missing = [name for name in KEYS if name not in content]
    if missing:
        raise InputError(f"{path} lacks {', '.join(missing)}")
    told = content["names"]
    names = tuple(str(name) for name in told) if isinstance(told, list) else ()
    if not 2 <= len(names) <= MOST:
        raise InputError(f"{path}: names must be a list of 2 to {MOST} regions")
    found = [_matrix(content[name], len(names), f"{path}: {name}") for name in KEYS[1:]]
    if np.any(found[0] <= 0):
        raise InputError(f"{path}: bandwidth_gbs must be above 0")
    return Regions(names, GB * found[0], 0.5e-3 * found[1], crossing)


def _matrix(value: Any, size: int, where: str) -> Array:
    try:
        found = np.asarray(value, float)
    except (TypeError, ValueError):
        found = np.zeros(())
    if found.shape != (size, size) or not np.all(np.isfinite(found)) or np.any(found < 0):
        raise InputError(f"{where} must be {size} rows of {size} numbers from 0 up")
    return found


def take_regions(values: dict[str, Any]) -> dict[str, Regions]:
    """What a request states of regions (`regions` of a `TrainingRequest`), taken out of it.

    Raises InputError where only what crosses them is stated, or what is of one region.
    """
    path, crossing = values.pop("regions", None), values.pop("crossing", None)
    beside = [name for name in APART if values.get(name) not in (None, "none")]
    if path is not None and beside:
        raise InputError(f"{beside[0]} is of one region; leave it or regions out")
    if path is None and crossing is not None:
        raise InputError("crossing needs --set regions=FILE.yaml")
    return {} if path is None else {"regions": read_regions(str(path), str(crossing or "best"))}
