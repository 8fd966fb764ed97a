"""Numbers of a training plan that a search varies: one table, each entry a function of those
before it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from predictor.arrays import Array, Index, distinct_rows
from predictor.catalog import Given, Range, framework_offers, scale_up
from predictor.hardware import Cluster
from predictor.models import Model
from predictor.plans import TrainingPlan
from predictor.records import dataclass

Columns = dict[str, Array]

LEAST_TOKENS = 2048
"""A rank keeps at least so many tokens of a sequence that context parallelism splits: with fewer,
attention has no block to hide the exchange behind."""

UNEVEN = 1.25
"""The fullest stage may hold so many times the layers of the mean one."""

SHARES = (0.25, 0.5, 0.75, 1.0)
"""Of the layers that full recomputation covers."""

MOST_GPUS = 65536
"""Where neither a number nor a range is stated."""


@dataclass(frozen=True, slots=True, eq=False)
class SearchBasis:
    """What the tables read: model, cluster, what the request states; and the defaults of its
    framework and precision, a plan of one accelerator."""

    model: Model
    cluster: Cluster
    given: Given
    defaults: TrainingPlan

    @property
    def runs(self) -> Mapping[str, Any]:
        """What the framework can run; where several are asked about, anything."""
        several = len(self.given.get("framework", ())) > 1  # type: ignore[arg-type]
        return {} if several else framework_offers(self.defaults.framework)

    @property
    def offers(self) -> Mapping[str, Any]:
        """The same, of fields that are not stated."""
        return {field: values for field, values in self.runs.items() if field not in self.given}


def _divisors(number: float) -> list[float]:
    whole = int(number)
    if whole != number or whole < 1:
        return [1.0]
    small = [d for d in range(1, int(whole**0.5) + 1) if whole % d == 0]
    return sorted({float(d) for d in small} | {float(whole // d) for d in small})


def gpu_counts(low: float, high: float, node: int, step: float | None = None) -> list[float]:
    """Numbers of accelerators from `low` to `high`: every `step`-th; else `low`, `high`, and
    between them whole nodes that double or grow by half."""
    if step:
        return [float(n) for n in np.arange(low, high + 1, step)]
    powers = (2.0**i * half for i in range(30) for half in (1.0, 1.5))
    found = {node * nodes for nodes in powers if nodes >= 1 and nodes == int(nodes)}
    return sorted({low, high} | {n for n in found if low <= n <= high})


def _gpus(at: SearchBasis) -> list[float]:
    node = at.cluster.accelerators_per_node
    limit = min(float(at.cluster.tiers[-1].size), float(MOST_GPUS))
    span = at.given.get("gpus")
    if isinstance(span, Range):
        return gpu_counts(span.low, span.high, node, span.step)
    return gpu_counts(min(node, limit), limit, node)


def _cp(at: SearchBasis, gpus: float, seq_len: float) -> list[float]:
    found = [d for d in _divisors(gpus) if seq_len % (2 * d) == 0 and seq_len / d >= LEAST_TOKENS]
    return found or [1.0]


def _tp(at: SearchBasis, gpus: float, cp: float) -> list[float]:
    return [d for d in _divisors(gpus / cp) if at.model.heads % d == 0]


def _pp(at: SearchBasis, gpus: float, cp: float, tp: float) -> list[float]:
    layers = at.model.layers
    return [d for d in _divisors(gpus / (cp * tp)) if -(-layers // d) * d <= UNEVEN * layers]


def _micro_batch(at: SearchBasis, global_batch: float, dp: float) -> list[float]:
    return _divisors(global_batch / dp) if dp >= 1 else [1.0]


def _vpp(
    at: SearchBasis, pp: float, global_batch: float, dp: float, micro_batch: float
) -> list[float]:
    """Virtual stages that divide the layers (or the layers and the ends that count as such), in
    pipelines whose micro-batches fill whole groups of stages (Megatron-LM's condition)."""
    layers, m = at.model.layers, global_batch / (dp * micro_batch)
    if pp == 1 or m % pp:
        return [1.0]
    most = int(layers // pp)
    return [1.0] + [
        float(v)
        for v in range(2, most + 1)
        if any((layers + slots) % (pp * v) == 0 for slots in (0, 2, 3))
    ]


def _ep(at: SearchBasis, tp: float, cp: float, dp: float) -> list[float]:
    if not at.model.is_moe:
        return [1.0]
    ranks = tp * cp * dp
    return [d for d in _divisors(at.model.num_experts) if ranks % d == 0]


def _etp(at: SearchBasis, tp: float, cp: float, dp: float, ep: float) -> list[float]:
    whole = at.model.is_moe and tp > 1 and (tp * cp * dp) % (ep * tp) == 0
    return [1.0, tp] if whole else [1.0]


def _sequence_parallel(at: SearchBasis, tp: float) -> list[float]:
    return [0.0, 1.0] if tp > 1 else [0.0]


def _recompute_share(at: SearchBasis) -> list[float]:
    return list(SHARES)


def _dp_shard(at: SearchBasis, tp: float, cp: float, dp: float) -> list[float]:
    """Shards of a node at least: inside it, gathering from more ranks costs no more."""
    node = scale_up(at.cluster)
    return [d for d in _divisors(dp) if 1 < d < dp and d * tp * cp >= node] or [dp]


@dataclass(frozen=True, slots=True)
class Axis:
    """A numeric field of a plan and the values that it takes.

    needs   fields whose values `values` reads, after the setting
    when    a category and the values with which it varies; else it stays as it is
    """

    field: str
    needs: tuple[str, ...]
    values: Callable[..., list[float]]
    when: tuple[str, tuple[str, ...]] | None = None


AXES: tuple[Axis, ...] = (
    Axis("gpus", (), _gpus),
    Axis("cp", ("gpus", "seq_len"), _cp),
    Axis("tp", ("gpus", "cp"), _tp),
    Axis("pp", ("gpus", "cp", "tp"), _pp),
    Axis("dp", ("gpus", "cp", "tp", "pp"), lambda at, gpus, cp, tp, pp: [gpus / (cp * tp * pp)]),
    Axis("micro_batch", ("global_batch", "dp"), _micro_batch),
    Axis("vpp", ("pp", "global_batch", "dp", "micro_batch"), _vpp),
    Axis("ep", ("tp", "cp", "dp"), _ep),
    Axis("etp", ("tp", "cp", "dp", "ep"), _etp),
    Axis("sequence_parallel", ("tp",), _sequence_parallel),
    Axis("recompute_share", (), _recompute_share, ("recompute", ("full",))),
    Axis("dp_shard", ("tp", "cp", "dp"), _dp_shard, ("sharding", ("hsdp",))),
)
"""Numeric fields in the order in which they are chosen."""

DERIVED = ("dp",)
"""Axes that others decide: what a request states of them is a condition."""


def extend(rows: Columns, axis: Axis, at: SearchBasis) -> tuple[Columns, Index]:
    """Every row once for each value of an axis; and for each new row the one that it came from."""
    count = len(next(iter(rows.values())))
    if axis.needs:
        keys = [rows[name] for name in axis.needs]
        first, inverse = distinct_rows(keys)
        unique = np.stack([column[first] for column in keys], axis=1)
    else:
        unique, inverse = np.zeros((1, 0)), np.zeros(count, dtype=np.intp)
    lists = [np.asarray(_values(axis, at, tuple(map(float, key)))) for key in unique]
    sizes = np.array([len(values) for values in lists])
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    each = sizes[inverse]
    source = np.repeat(np.arange(count), each)
    within = np.arange(len(source)) - np.repeat(np.cumsum(each) - each, each)
    chosen = np.concatenate(lists)[starts[inverse][source] + within]
    return {**{name: column[source] for name, column in rows.items()}, axis.field: chosen}, source


def _values(axis: Axis, at: SearchBasis, key: tuple[float, ...]) -> list[float]:
    """Values of an axis: those stated, or those of the table, within the range stated."""
    given = None if axis.field in DERIVED else at.given.get(axis.field)
    if given is not None and not isinstance(given, Range):
        return [float(value) for value in given]
    values = axis.values(at, *key)
    if given is None or axis.field == "gpus":
        offered = at.offers.get(axis.field, values)
        return [value for value in values if value in offered]
    if given.step:
        return [float(v) for v in np.arange(given.low, given.high + 1, given.step)]
    inside = [value for value in values if given.low <= value <= given.high]
    return inside or [given.low]
