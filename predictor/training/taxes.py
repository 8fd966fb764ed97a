"""The three taxes of a training step, each by putting the step together without it."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np

from predictor.errors import InputError
from predictor.hardware import Cluster
from predictor.models import Model
from predictor.plans import TrainingPlan
from predictor.timing import (
    BULK,
    LAUNCH,
    LOCALITY,
    TILES,
    Calibration,
    Taxes,
    on_chip,
    taxes_of,
    tiled,
    without_launches,
)
from predictor.training.decomposition import Parts, parts
from predictor.training.exchange import Exchange, Slot
from predictor.training.layer import LayerParts, Worklist, layer_parts
from predictor.training.software import environment_of, stretched
from predictor.training.step import assemble
from predictor.work import PASSES


def _overlapped(
    own: LayerParts, beside: LayerParts, calibration: Calibration, tiles: float
) -> LayerParts:
    """Layers whose tensor-parallel collectives run in tiles beside their products, where that is
    faster than as they run now.

    beside   the same layers with a product to hide every collective behind
    """
    run = calibration.run
    found: dict[tuple[Slot, int], Exchange] = {}
    for number, ((slot, at), exchange) in enumerate(own.times.inside.items()):
        (other, _), hides = list(beside.times.inside.items())[number]
        if slot.kind != "tp" or slot.behind == PASSES:
            found[(slot, at)] = exchange
            continue
        share = run.overlap.get("tp", 0.0)
        window = stretched(run.factors, slot.behind) * exchange.window if slot.behind else 0.0
        hidden = np.minimum(exchange.time, share * window)
        now = exchange.time + (run.contention - 2.0) * hidden
        product = stretched(run.factors, other.behind) * hides.window if other.behind else 0.0
        then = tiled(product, exchange.time, tiles) - product
        shown = Slot(slot.kind, slot.op, slot.place, "")
        count = sum(key[0] == shown for key in found)
        found[(shown, count)] = replace(
            exchange, time=np.minimum(now, then), window=np.zeros_like(now)
        )
    return replace(own, times=replace(own.times, inside=found))


def taxes(
    model: Model,
    cluster: Cluster,
    plan: TrainingPlan,
    calibration: Calibration,
    tiles: float = TILES,
) -> Taxes:
    """Launching, bulk-synchronous waiting and data locality of a single plan's step [s].

    tiles   into which products and their tensor-parallel collectives are cut without the second

    Raises InputError for a batch of plans.
    """
    if plan.shape:
        raise InputError("taxes are of one plan, not of a batch")

    @cache
    def whole(launches: bool) -> tuple[Calibration, Parts, Worklist]:
        used = calibration if launches else without_launches(calibration)
        return used, *parts(model, cluster, plan, used)

    def time(without: frozenset[str]) -> float:
        used, found, listed = whole(LAUNCH not in without)
        timing = listed.timing
        if LOCALITY in without:
            kept = on_chip(listed.operators, cluster.accelerator)
            timing = replace(timing, time=timing.time * kept)
        own = layer_parts(model, cluster, plan, used, timing)
        if BULK in without:
            beside = layer_parts(model, cluster, replace(plan, tp_overlap=True), used, timing)
            own = _overlapped(own, beside, used, tiles)
        paid, _ = parts(model, cluster, plan, used, (own, found.index), around=found)
        return float(assemble(paid, used.run, environment_of(cluster, plan, used.run)).step_time)

    return taxes_of(time)
