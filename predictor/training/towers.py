"""A second tower in training: what a layer of it takes, of images as uneven as they come."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from predictor.catalog import Assumption, Filler
from predictor.errors import InputError
from predictor.hardware import Cluster
from predictor.memory import memory
from predictor.models import Model, around_layers, encoder
from predictor.plans import SHARDINGS, TrainingPlan
from predictor.records import dataclass
from predictor.timing import Calibration
from predictor.training.decomposition import parts
from predictor.training.software import environment_of
from predictor.training.step import assemble
from predictor.training.unlike import APART
from predictor.variation import Tiles, busiest_replica, tiles_of


@dataclass(frozen=True, slots=True)
class Seen:
    """Images of a sequence, as the second tower has them.

    images   of a sequence
    tiles    mean of a sequence
    spread   how they differ, where that is stated
    frozen   the tower is not trained: it has forward passes alone, and no gradients
    """

    images: float
    tiles: float
    spread: Tiles | None = None
    frozen: bool = False

    def load(self, plan: TrainingPlan) -> float:
        """Tiles of the replica that has most in a step, over the mean."""
        if self.spread is None:
            return 1.0
        own = round(self.images * float(plan.global_batch / plan.dp))
        return busiest_replica(self.spread, own, int(plan.dp))


@dataclass(frozen=True, slots=True, eq=False)
class TowerLayer:
    """One of `many` layers of a second tower on a stage, and its part of what is around them.

    passes       forward and backward pass, weights' gradients, of a micro-batch [s]
    terms, ends, attention  as of `step.Step`, of the layer
    state        weights, gradients and optimizer [bytes]
    activations  that it keeps of a micro-batch [bytes]
    """

    many: int
    passes: tuple[float, float, float]
    terms: dict[str, float]
    ends: dict[str, float]
    attention: dict[str, float]
    state: float
    activations: float


def _plan(model: Model, plan: TrainingPlan, seen: Seen) -> TrainingPlan:
    """The plan of the tower: tiles are its sequences. Ranks that divide a sequence share them out;
    tensor-parallel ranks have them whole where they do not divide the tower's heads."""
    tower = model.tower
    assert tower is not None
    divides = tower.heads % int(plan.tp) == 0
    tiles = seen.tiles * plan.micro_batch / plan.cp
    replicas, many = plan.dp * plan.cp, float(tower.layers)
    return replace(
        plan,
        tp=plan.tp if divides else 1.0,
        cp=1.0,
        dp=replicas,
        pp=np.maximum(plan.pp, 3.0),  # that there be inner stages, which have layers alone
        seq_len=float(tower.patches),
        micro_batch=tiles,
        global_batch=plan.micro_batches * replicas * tiles,
        first_layers=many,
        inner_layers=many,
        last_layers=many,
        document=np.nan,
        attention_load=1.0,
    )


def tower_layer(
    model: Model, cluster: Cluster, plan: TrainingPlan, calibration: Calibration, seen: Seen
) -> TowerLayer:
    """A layer of the model's second tower on a system."""
    tower = model.tower
    assert tower is not None
    own, one, n = encoder(tower), _plan(model, plan, seen), tower.layers
    found, _ = parts(own, cluster, one, calibration)
    step = assemble(found, calibration.run, environment_of(cluster, plan, calibration.run))
    need = memory(own, one, calibration.run).classes
    around = 1.0 + around_layers(tower, model.hidden) / n
    each = around / n * seen.load(plan)

    def inner(value: Any) -> float:
        return float(np.broadcast_to(value, (3,))[1])

    passes = [each * inner(getattr(step.passes, name)) for name in PASSES]
    terms = {name: each * inner(value) for name, value in step.terms.items()}
    ends = {name: around / n * inner(value) for name, value in step.ends.items()}
    core = {name: each * inner(value) for name, value in step.attention.items()}
    state = around / n * inner(need["layer weights and optimizer"])
    flying = plan.pipeline.held(np.asarray(one.pp - 1.0), one.pp, one.micro_batches, 1.0)
    kept = inner(need["activations"]) / n / float(flying)
    if seen.frozen:
        passes = [passes[0], 0.0, 0.0]
        terms = dict.fromkeys(terms, 0.0) | {"forward": passes[0]}
        ends = dict.fromkeys(ends, 0.0)
        core = {"forward": core["forward"]}
        state = around / n * tower.layers * _layer_weights(model) * float(plan.weight_bytes)
        divides = SHARDINGS[plan.sharding].weights
        state, kept = state / float(one.tp * (one.shard_group if divides else 1.0)), 0.0
    return TowerLayer(n, (passes[0], passes[1], passes[2]), terms, ends, core, state, kept)


PASSES = ("forward", "backward", "weights")


def _layer_weights(model: Model) -> float:
    """Parameters of one layer of the tower."""
    assert model.tower is not None
    return encoder(model.tower).matrix_parameters() / model.tower.layers


KEYS = ("images", "image_tiles", "image_samples", "tower")
"""Of a request."""


def take_seen(filler: Filler, model: Model) -> dict[str, Seen]:
    """What a request states of images (`seen` of a `TrainingRequest`), taken out of its values;
    nothing of text alone.

    Raises InputError for images of a model that has no tower, and for what is said of none.
    """
    values = filler.values
    stated = {name: values.pop(name) for name in KEYS if name in values}
    images = float(stated.get("images", 1.0 if "image_samples" in stated else 0.0))
    if not images:
        return {}
    if beside := [name for name in APART if values.get(name) not in (None, "none")]:
        raise InputError(f"{beside[0]} is of text alone; leave it or images out")
    if model.tower is None:
        raise InputError(
            f"images: {model.name} has no second tower; take a config.json with a vision_config or "
            "an audio_config, or state `tower` in its file"
        )
    spread = tiles_of(str(stated["image_samples"])) if "image_samples" in stated else None
    usual = spread.mean if spread else 1.0
    tiles = images * float(stated.get("image_tiles", usual))
    tokens = tiles * model.tower.tokens
    if tokens > values["seq_len"]:
        raise InputError(
            f"{tiles:g} tiles of {model.tower.tokens} tokens are more than seq_len "
            f"{values['seq_len']}, which counts them"
        )
    rule = f"{model.tower.tokens} tokens each, {tokens:.0f} of the sequence's"
    filler.assumed.append(Assumption("tiles", round(tiles, 3), rule))
    return {"seen": Seen(images, tiles, spread, stated.get("tower") == "frozen")}
