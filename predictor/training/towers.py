"""A second tower in training: what a layer of it takes, of images as uneven as they come."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from predictor.arrays import Numeric
from predictor.catalog import Assumption, Filler
from predictor.errors import InputError
from predictor.hardware import Cluster
from predictor.memory import memory
from predictor.models import Model, Tower, around_layers, encoder
from predictor.plans import HUGGINGFACE, SHARDINGS, TrainingPlan
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


def _attending(tower: Tower, plan: TrainingPlan) -> str:
    """How images attend (`Tower.several`): where PyTorch's own attention runs, which knows windows
    as masks alone; elsewhere a kernel takes sequences of any length."""
    return tower.several if plan.windows_masked else "batch"


def _plans(model: Model, plan: TrainingPlan, seen: Seen) -> list[tuple[float, TrainingPlan]]:
    """Shares of the tower's layers and their plan: tiles, or windows, are its sequences; all tiles
    of a micro-batch are one behind a mask. Ranks that divide a sequence share them out;
    tensor-parallel ranks have them whole where they do not divide the tower's heads."""
    tower = model.tower
    assert tower is not None
    tiles = seen.tiles * plan.micro_batch / plan.cp
    found = tower.sequences(tiles, _attending(tower, plan))
    return [(share, _plan(tower, plan, patches, many)) for share, patches, many in found]


def _plan(tower: Tower, plan: TrainingPlan, patches: Numeric, sequences: Numeric) -> TrainingPlan:
    """The plan of layers over so many sequences of a micro-batch, of so many patches each."""
    divides = tower.heads % int(plan.tp) == 0
    replicas, many = plan.dp * plan.cp, float(tower.layers)
    return replace(
        plan,
        tp=plan.tp if divides else 1.0,
        cp=1.0,
        dp=replicas,
        pp=np.maximum(plan.pp, 3.0),  # that there be inner stages, which have layers alone
        seq_len=patches,
        micro_batch=sequences,
        global_batch=plan.micro_batches * replicas * sequences,
        first_layers=many,
        inner_layers=many,
        last_layers=many,
        document=np.nan,
        attention_load=1.0,
    )


def tower_layer(
    model: Model, cluster: Cluster, plan: TrainingPlan, calibration: Calibration, seen: Seen
) -> TowerLayer:
    """A layer of the model's second tower on a system: the mean one, where some see windows."""
    tower = model.tower
    assert tower is not None
    own = encoder(tower, _attending(tower, plan) == "loop")
    found = [
        (share, _layer(model, own, cluster, one, calibration, seen.frozen, seen.load(plan)))
        for share, one in _plans(model, plan, seen)
    ]
    return mean_layer(found)


def mean_layer(kinds: Sequence[tuple[float, TowerLayer]]) -> TowerLayer:
    """The mean of kinds of layers, by their shares."""
    if len(kinds) == 1:
        return kinds[0][1]

    shares = [share for share, _ in kinds]

    def mean(values: Iterable[float]) -> float:
        return sum(share * value for share, value in zip(shares, values, strict=True))

    def table(name: str) -> dict[str, float]:
        tables = [getattr(one, name) for _, one in kinds]
        keys = dict.fromkeys(key for own in tables for key in own)
        return {key: mean(own.get(key, 0.0) for own in tables) for key in keys}

    forward, backward, weights = zip(*(one.passes for _, one in kinds), strict=True)
    return TowerLayer(
        kinds[0][1].many,
        (mean(forward), mean(backward), mean(weights)),
        table("terms"),
        table("ends"),
        table("attention"),
        mean(one.state for _, one in kinds),
        mean(one.activations for _, one in kinds),
    )


def _layer(
    model: Model,
    own: Model,
    cluster: Cluster,
    one: TrainingPlan,
    calibration: Calibration,
    frozen: bool,
    load: float,
) -> TowerLayer:
    """A layer of the tower `own` under its own plan."""
    tower = model.tower
    assert tower is not None
    n, passed = tower.layers, frozen and passed_back(one)
    if frozen and not passed:  # nothing runs again
        one = replace(one, recompute="none")
    found, _ = parts(own, cluster, one, calibration)
    step = assemble(found, calibration.run, environment_of(cluster, one, calibration.run))
    need = memory(own, one, calibration.run).classes
    around = 1.0 + around_layers(tower, model.hidden) / n
    each = around / n * load

    def inner(value: Any) -> float:
        return float(np.broadcast_to(value, (3,))[1])

    passes = [each * inner(getattr(step.passes, name)) for name in PASSES]
    terms = {name: each * inner(value) for name, value in step.terms.items()}
    ends = {name: around / n * inner(value) for name, value in step.ends.items()}
    core = {name: each * inner(value) for name, value in step.attention.items()}
    state = around / n * inner(need["layer weights and optimizer"])
    flying = one.pipeline.held(np.asarray(one.pp - 1.0), one.pp, one.filled, 1.0)
    kept = inner(need["activations"]) / n / float(flying)
    if frozen:
        ends = dict.fromkeys(ends, 0.0)
        if passed:
            terms["backward"] -= passes[2]
            passes[2] = 0.0
        else:
            passes, kept = [passes[0], 0.0, 0.0], 0.0
            terms = dict.fromkeys(terms, 0.0) | {"forward": passes[0]}
            core = {"forward": core["forward"]}
        state = around / n * tower.layers * _layer_weights(model) * float(one.weight_bytes)
        divides = SHARDINGS[one.sharding].weights
        state = state / float(one.tp * (one.shard_group if divides else 1.0))
    return TowerLayer(n, (passes[0], passes[1], passes[2]), terms, ends, core, state, kept)


def passed_back(plan: TrainingPlan) -> bool:
    """Whether gradients pass through a frozen tower all the same: what its patches become is told
    to learn where checkpoints are on, so that every layer runs again and back (Transformers 5.0 to
    5.17, modeling_utils.py: `gradient_checkpointing_enable` calls `enable_input_require_grads`, now
    of every model inside; 4.57 asked for it beside adapters alone, of the language model)."""
    five = plan.framework == HUGGINGFACE and plan.stops_early
    return five and plan.recompute != "none"


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
