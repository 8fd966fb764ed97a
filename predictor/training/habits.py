"""What a framework does where a plan does not say: its defaults, and its published recipes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from predictor.catalog import (
    Default,
    Filler,
    TrainingPlanSpec,
    dated,
    framework_settings,
    recipe_facts,
    settings_of,
    spelled,
    stands_on,
)
from predictor.errors import InputError
from predictor.hardware import Accelerator
from predictor.memory import MEMORY_FRACTION, WHOLE_WEIGHT
from predictor.models import Model
from predictor.plans import FIT, PLAIN, SCHEDULES, UNNAMED, TrainingPlan
from predictor.records import dataclass
from predictor.timing import RunParameters


@dataclass(frozen=True, slots=True)
class Habits:
    """What a framework does where nothing is stated.

    label      the framework, and until when it did so
    settings   of plan fields
    split      sequence parallelism: yes or no, or 'tp': where tp divides
    recompute  a kind of recomputation, or `FIT`
    means      what its own words for recomputation mean
    """

    label: str
    settings: Mapping[str, Any]
    split: bool | str
    recompute: str
    means: Mapping[str, str]

    @property
    def whole(self) -> bool:
        """Whether it accumulates no gradients: a rank's sequences run at once."""
        return self.settings.get("micro_batch") == WHOLE

    def at_once(self, stages: int | None) -> bool:
        """Whether a rank's sequences of a step run at once, in a pipeline of several ranks as one
        micro-batch for each."""
        habit = self.settings.get("micro_batch")
        return self.whole or (habit == STAGED and (stages or 1) > 1)

    def defaults(self) -> list[Default]:
        """Fields of a plan that it sets."""
        rule = f"default of {self.label}"
        found = self.settings.items()
        return [Default(field, value, rule) for field, value in found if value not in KINDS]


NATIVE = {"Google": "maxtext", "AWS": "neuronx-distributed"}
"""What trains on accelerators that others hardly run on, by their maker: JAX on TPUs, NeuronX on
Trainium."""


TRAINERS = {"optimum-habana": "huggingface", "transformers-neuronx": "neuronx-distributed"}
"""What trains under the name of an engine: GaudiTrainer is HuggingFace's Trainer (optimum-habana,
optimum/habana/transformers/trainer.py), Optimum Neuron shards by NeuronX Distributed
(optimum-neuron, optimum/neuron/trainers; both from memory)."""


def trainer(name: str) -> str:
    """The one spelling of a framework, of the one that trains where an engine has its name."""
    found = spelled(name)
    return TRAINERS.get(found, found)


def _named(filler: Filler, vendor: str) -> str:
    """The framework that is named, else what the accelerator's maker trains with, if it has its
    own; PyTorch by itself runs there through the same compiler (PyTorch/XLA, torch-neuronx)."""
    values = filler.values
    if vendor in NATIVE and trainer(values.get("framework") or UNNAMED) == PLAIN:
        return NATIVE[vendor]
    if vendor in NATIVE and values.get("framework") in (None, UNNAMED):
        values.pop("framework", None)
        return str(
            filler.fill("framework", NATIVE[vendor], f"what trains on {vendor}'s accelerators")
        )
    return trainer(filler.fill("framework", UNNAMED, "no framework was named"))


def habits_of(filler: Filler, model: Model, accelerator: Accelerator) -> Habits:
    """What the framework of a request does, as far as model and plan are known.

    accelerator   whose maker and architecture count
    """
    framework = _named(filler, accelerator.vendor)
    filler.values["framework"] = framework
    known = {**filler.values, "architecture": accelerator.architecture}
    settings, label = framework_settings(framework, filler.values.get("era"), model, known)
    filler.values["framework"] = stands_on(framework)
    filler.values.setdefault("era", "neutral")
    split, means = settings.pop("sequence_parallel", False), settings.pop("means")
    usual = settings.pop("recompute", FIT)
    asked = filler.values.get("recompute") == FIT
    for field in [name for name, value in settings.items() if value in UNDIVIDED]:
        settings[field] = int(filler.values.get(UNDIVIDED[settings[field]]) or 1) == 1
    if settings.get("built_whole") == ROOM:
        room = MEMORY_FRACTION * float(np.min(accelerator.memory))
        settings["built_whole"] = WHOLE_WEIGHT * model.parameters <= room
    return Habits(
        label=label,
        settings=settings,
        split=split,
        recompute=FIT if asked else usual,
        means=means,
    )


def recipe(
    values: Mapping[str, Any], model: Model, accelerator: Accelerator, habits: Habits
) -> Iterator[Default]:
    """What the framework's published recipe for this model, accelerator and precision sets, where
    the plan can be of that recipe. Recomputation that has to fit (`FIT`) is left open."""
    if values["framework"] == UNNAMED:
        return
    task = "lora" if str(values.get("trained", "")).startswith("lora") else "pretrain"
    facts = recipe_facts(
        framework=values["framework"],
        era=None if values["era"] == "neutral" else dated(values["era"]),
        model=model.name,
        task="sft" if model.name.endswith("-sft") else task,
        accelerator=accelerator.name,
        precision=values["precision"],
    )
    pipelined = "pp" in values
    # What graphs may hold depends on what is sharded.
    for fact in sorted(facts, key=lambda fact: fact.field != "sharding"):
        if fact.field in values or (fact.field == "recompute" and habits.recompute == FIT):
            continue
        found = settings_of(fact, model.layers, pipelined)
        if _of_recipe(fact.field, found, values, model):
            for field, value in found.items():
                yield Default(field, value, f"recipe in {fact.source}")


def _of_recipe(
    field: str, found: Mapping[str, Any], values: Mapping[str, Any], model: Model
) -> bool:
    """Whether a plan with what is stated of it can have a recipe's setting."""
    pp = int(values.get("pp") or 1)
    if field in ("ep_overlap", "dispatch", "dispatch_processors", "etp"):
        return model.is_moe
    if field == "vpp":
        even = model.layers % (pp * int(found["vpp"])) == 0
        return pp > 1 and even and "schedule" not in values
    if field == "micro_batch":
        return whole_share(values) % int(found["micro_batch"]) == 0
    if field == "sharding":
        return found["sharding"] != "fsdp" or pp == 1
    if field == "cuda_graphs":  # off under Megatron FSDP (NeMo 2.3 to 2.5, scripts/performance)
        return values.get("sharding") != "fsdp"
    return True


UNDIVIDED = {"without_pp": "pp", "without_tp": "tp"}
"""Habits of plans without a pipeline, and of those whose layers are whole: of dropping gathered
weights, of building the model whole."""

ROOM = "room"
"""Habit of building a model whole wherever a device has room for its 16-bit weights."""

TRAINED_LOAD = 1.1
"""Tokens of the busiest rank over the mean where nothing balances experts by force: Fedus et al.
2021 drop under 1 % of tokens at a capacity of 1.25 per expert; a rank averages over several."""

WHOLE, STAGED, INTERLEAVED, BUSIEST = "whole", "staged", "interleaved", "busiest"
AS_LAYERS = "tp"
"""Habits of taking all of a rank's sequences of a step at once, of cutting them into as many parts
as a pipeline has ranks, of interleaving its stages, of padding all experts to the one with most
tokens, and of splitting every expert as the rest of its layer."""

KINDS = (WHOLE, STAGED, INTERLEAVED, BUSIEST, AS_LAYERS, FIT, ROOM)
"""Habits that say how a field is found, not what it is."""


def whole_share(values: Mapping[str, Any]) -> int:
    """Sequences of a step on one data-parallel rank, at least one."""
    ranks = math.prod(int(values.get(name) or 1) for name in ("tp", "pp", "cp"))
    replicas = int(values.get("dp") or max(int(values.get("gpus") or ranks) // ranks, 1))
    return max(int(values["global_batch"]) // replicas, 1)


def whole_micro_batch(values: Mapping[str, Any]) -> tuple[int, str]:
    """Sequences at once of who accumulates no gradients, with the rule: all of a rank's, and in
    a pipeline as many for each stage as fill it (MaxText's num_pipeline_microbatches is the number
    of stages where nothing else is said, and the schedule may need more)."""
    share, stages = whole_share(values), int(values.get("pp") or 1)
    if stages == 1:
        return share, "a rank's sequences at once"
    least = SCHEDULES[values.get("schedule", "1f1b")].least
    most = max(int(share / (stages * max(least, 1.0))), 1)
    whole = next(many for many in range(most, 0, -1) if share % many == 0)
    return whole, "a rank's sequences in a micro-batch for each stage"


def stated_recompute(values: dict[str, Any], habits: Habits) -> None:
    """Recomputation in the framework's own words; `FIT` leaves it open."""
    if values.get("recompute") == FIT:
        del values["recompute"]
    if values.get("recompute") in habits.means:
        values["recompute"] = habits.means[values["recompute"]]


def full_layers(filler: Filler, model: Model) -> None:
    """What Megatron's method and number of layers mean for full recomputation: a share of the
    layers (block), or layers per kept input (uniform)."""
    values = filler.values
    given = [name for name in ("recompute_method", "recompute_layers") if name in values]
    if not given:
        return
    if values.get("recompute") != "full":
        raise InputError(f"{given[0]} is of full recomputation; say --recompute full")
    number = values.get("recompute_layers", 1)
    if values.get("recompute_method", "block") == "uniform":
        filler.fill("recompute_chunk", number, "layers per kept input")
        return
    if "pp" not in values:
        raise InputError("recompute_layers counts layers of a stage; state --pp")
    share = min(number * values["pp"] * values.get("vpp", 1) / model.layers, 1.0)
    filler.fill("recompute_share", share, f"{number} layers of each (virtual) stage")


def open_habits(spec: TrainingPlanSpec, run: RunParameters) -> list[str]:
    """Fields that a plan leaves open, of which one's own runs show something in the place of what
    the rules of completion say."""
    return [name for name in run.habits if name in run.usual and getattr(spec, name) is None]


def like_habits(spec: TrainingPlanSpec, run: RunParameters, plan: TrainingPlan) -> dict[str, Any]:
    """What one's own runs show of plans like this one.

    plan   as the rules complete it: where they say something else than of those runs, because that
           does not fit or another framework has it so, it has no habit of theirs
    """
    unlike = {n for n in open_habits(spec, run) if getattr(plan, n) not in run.usual[n]}
    return {name: value for name, value in run.habits.items() if name not in unlike}


def own_shown(filler: Filler, run: RunParameters, model: Model) -> Filler:
    """Fill in what one's own runs show, as far as the plan can have it."""
    for name, value in run.habits.items():
        stages = int(filler.values.get("pp") or 1)
        chunks = model.layers / stages / value if name == "vpp" else 1.0
        if name != "vpp" or (stages > 1 and chunks == int(chunks)):
            filler.fill(name, value, "as one's own runs are likeliest to be")
    return filler


def usual_load(model: Model, habits: Habits) -> Default:
    """Tokens of the busiest rank's experts over the mean. Where all experts are padded to the
    busiest, those of benchmarks have a router that has learned nothing yet: it gives the busiest
    expert between an even share and every token; half-way is assumed."""
    if habits.settings.get("expert_load") == BUSIEST:
        half = (1.0 + model.num_experts / max(model.top_k, 1)) / 2.0
        rule = f"default of {habits.label}: as many tokens as the busiest of an untrained router"
        return Default("expert_load", half, rule, when=model.is_moe)
    trained = "routers trained to balance (Fedus et al. 2021)"
    return Default("expert_load", TRAINED_LOAD, trained, when=model.is_moe)
