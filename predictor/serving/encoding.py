"""The second tower of a model that sees or hears, as it runs while serving."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from predictor.arrays import Numeric
from predictor.hardware import Cluster
from predictor.models import Model, Tower, around_layers, encoder
from predictor.plans import ServingPlan
from predictor.serving.calls import communication
from predictor.serving.parts import Pass
from predictor.serving.passes import layers_of, prefill_cores
from predictor.timing import Calibration
from predictor.work import pass_collectives

INSIDE = ("attention", "mlp")
"""First parts of the names of collectives inside layers."""


def encoding(
    model: Model, cluster: Cluster, plan: ServingPlan, tiles: Numeric, calibration: Calibration
) -> Pass:
    """The second tower over so many tiles of one replica, with what is before and behind its
    layers at their pace. It is in 16 bits, and as divided as the language model where that divides
    its heads, else on every rank whole (vLLM's and SGLang's towers)."""
    tower = model.tower
    assert tower is not None
    several = "batch" if plan.modules == "joined" else tower.several  # a kernel for any lengths
    own, one = encoder(tower, several == "loop"), tower_plan(plan, tower)
    some = np.asarray(tiles) > 0
    tiles = np.where(some, tiles, 1.0)
    tokens = tiles * float(tower.patches)
    moved = [c for c in pass_collectives(own, one, tokens, 0.0) if c.name.split(".")[0] in INSIDE]
    talk = communication(moved, one, cluster, calibration, 0.0)
    found = layers_of(own, cluster, one, tokens, calibration, True)
    for share, patches, many in tower.sequences(tiles, several):
        cores = prefill_cores(own, cluster, one, many, patches, 0.0, calibration, sustained=True)
        found = found.plus(cores.times(share))
    more = 1.0 + around_layers(tower, model.hidden) / tower.layers
    return found.plus(talk).times(np.where(some, more, 0.0))


def tower_plan(plan: ServingPlan, tower: Tower) -> ServingPlan:
    """The plan of a second tower."""
    whole = tower.heads % np.maximum(np.asarray(plan.tp), 1.0) == 0
    return replace(
        plan,
        tp=np.where(whole, plan.tp, 1.0),
        dp=1.0,
        ep=1.0,
        adapters=0.0,
        weights=plan.half,
        narrowed="linear",
    )
