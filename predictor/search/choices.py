"""Categories of a training plan that a search tries: one table, and for which plans each makes
sense.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from predictor.catalog import scale_up
from predictor.plans import CP_KINDS, SCHEDULES, SEPARATE, V
from predictor.records import dataclass
from predictor.search.axes import Columns, SearchBasis

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Choice:
    """Categories that are chosen together.

    values    setting -> what they may be; the first one holds for every plan
    sensible  (setting, columns, one of the others) -> mask of the plans for which it is possible
              and not the same plan, or a worse one, under another name
    """

    values: Callable[[SearchBasis], list[dict[str, Any]]]
    sensible: Callable[[SearchBasis, Columns, dict[str, Any]], Mask]


def _recomputes(at: SearchBasis) -> list[dict[str, Any]]:
    """Nothing; the parts whose activations weigh most for what they cost to repeat; whole layers.
    The attention core is kept by fused kernels only as its input and output."""
    model = at.model
    kinds = (at.defaults.attention, *at.given.get("attention", ()))  # type: ignore[misc]
    unfused = any(kind in SEPARATE for kind in kinds)
    parts = [("core_attn", unfused), ("mla_up_proj", model.is_latent), ("layernorm", True)]
    parts += [("mlp", not model.is_moe), ("moe", model.is_moe)]
    some = [{"recompute": "selective", "recompute_modules": p} for p, there in parts if there]
    whole = [{"recompute": name} for name in ("per_op", "full")]
    own = at.runs.get("recompute", ("selective",))
    return [{"recompute": "none"}, *(some if "selective" in own else ()), *whole]


def _each(field: str, names: Sequence[str]) -> Callable[[SearchBasis], list[dict[str, Any]]]:
    return lambda at: [{field: name} for name in names]


def everywhere(at: SearchBasis, rows: Columns, entry: dict[str, Any]) -> Mask:
    """Every plan."""
    return np.ones(rows["tp"].shape, dtype=bool)


def _split_sequences(at: SearchBasis, rows: Columns, entry: dict[str, Any]) -> Mask:
    """Ulysses exchanges whole heads."""
    whole = at.model.heads % (rows["cp"] * rows["tp"]) == 0
    return np.asarray((rows["cp"] > 1) & ((entry["cp_kind"] != "ulysses") | whole))


def _both_dimensions(at: SearchBasis, rows: Columns, entry: dict[str, Any]) -> Mask:
    """Which of two dimensions lies closer matters where ranks of either share a domain, and not all
    of them the innermost."""
    sizes = [t.size for t in at.cluster.tiers if np.isfinite(t.size)]
    near = rows["tp"] * rows["cp"] < max(sizes, default=1.0)
    ranks = rows["tp"] * rows["cp"] * rows["dp"] * rows["pp"]
    far = ranks > min(sizes, default=1.0)
    return np.asarray((rows["dp"] > 1) & (rows["pp"] > 1) & near & far)


def _sharded(at: SearchBasis, rows: Columns, entry: dict[str, Any]) -> Mask:
    """ZeRO-2 reduces gradients after every micro-batch, for which pipelines have many; groups of
    shards smaller than the whole need more replicas than one node has."""
    kind = entry["sharding"]
    piped = kind != "zero2" and kind in at.runs.get("piped_sharding", (kind,))
    ranks = rows["dp"] * rows["cp"]
    whole = ranks * rows["tp"] > scale_up(at.cluster) if kind == "hsdp" else ranks > 1
    return np.asarray(whole & (piped | (rows["pp"] == 1)))


def _overlaps(at: SearchBasis) -> list[dict[str, Any]]:
    """Where the framework hides tensor-parallel collectives: with and without that."""
    names = (False, True) if at.defaults.tp_overlap else (False,)
    return [{"tp_overlap": name} for name in names]


def _inside(at: SearchBasis, rows: Columns, entry: dict[str, Any]) -> Mask:
    """Products and collectives are cut into pieces that overlap only inside a node (Transformer
    Engine's user buffers)."""
    return np.asarray((rows["tp"] > 1) & (rows["tp"] <= scale_up(at.cluster)))


WORSE = ("gpipe",)
"""Schedules that hold more than 1F1B and are no faster; searched only where asked for."""

PAIRED = ("dualpipe", "dualpipev")
"""Schedules in which forward and backward chunks run together."""


def _schedules(at: SearchBasis) -> list[dict[str, Any]]:
    """All but those that are worse than 1F1B. DualPipe runs a forward and a backward chunk
    together, so that one hides the exchanges of the other."""
    names = [name for name in SCHEDULES if name not in WORSE]
    if not at.model.is_moe or "ep_overlap" in at.given:
        return [{"schedule": name} for name in names]
    usual = at.defaults.ep_overlap
    return [{"schedule": name, "ep_overlap": usual or name in PAIRED} for name in names]


def _piped(at: SearchBasis, rows: Columns, entry: dict[str, Any]) -> Mask:
    """Pipelines that fold have two stages on a device; others have one, or take turns."""
    schedule = SCHEDULES[entry["schedule"]]
    own = rows["vpp"] == 2 if schedule.fold == V else schedule.chunks | (rows["vpp"] == 1)
    m = rows["global_batch"] / (rows["dp"] * rows["micro_batch"])
    return np.asarray((rows["pp"] > 1) & own & (m >= schedule.least * rows["pp"]))


PLACEMENTS = ("tp-cp-dp-pp", "tp-cp-pp-dp")
"""Orders of ranks that Megatron-LM offers; the others only where asked for: dimensions that talk
more lie further in."""

CHOICES: tuple[Choice, ...] = (
    Choice(_recomputes, everywhere),
    Choice(_each("cp_kind", CP_KINDS), _split_sequences),
    Choice(_each("rank_order", PLACEMENTS), _both_dimensions),
    Choice(_overlaps, _inside),
    Choice(_each("sharding", ("none", "zero1", "zero2", "fsdp", "hsdp")), _sharded),
    Choice(_schedules, _piped),
)
"""Categories that a search tries. The others (precision, attention, overlaps, ...) follow from the
framework's defaults, unless a request lists several values."""


def offered_by(choice: Choice, at: SearchBasis) -> list[dict[str, Any]]:
    """What a choice offers, as far as it agrees with what is stated; and what is stated beyond
    it. Of what is open, what the framework cannot run is left out."""
    free = at.offers
    table = [
        entry
        for entry in choice.values(at)
        if all(value in free.get(name, (value,)) for name, value in entry.items())
    ]
    names = list(dict.fromkeys(name for entry in table for name in entry))
    stated = {name: at.given[name] for name in names if name in at.given}
    if not stated:
        return table
    if "recompute_modules" in stated and "recompute" not in stated:
        stated = {"recompute": ("selective",), **stated}
    agreeing = [
        entry
        for entry in table
        if all(entry.get(name) in values for name, values in stated.items())  # type: ignore[operator]
    ]
    listed = [
        dict(zip(stated, values, strict=True))
        for values in itertools.product(*stated.values())  # type: ignore[arg-type]
    ]
    missing = [one for one in listed if not any(one.items() <= entry.items() for entry in agreeing)]
    return agreeing + missing
