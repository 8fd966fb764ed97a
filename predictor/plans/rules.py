"""Laws that every training plan obeys: masks of the plans of a batch that break them, and what to
say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import fields
from typing import Any

import numpy as np
import numpy.typing as npt

from predictor.arrays import Array, Numeric
from predictor.errors import InputError
from predictor.models import Model
from predictor.plans.objectives import OBJECTIVES
from predictor.plans.schedules import BOTH, LINE, V
from predictor.plans.training import SHARDINGS, TrainingPlan
from predictor.records import dataclass


@dataclass(frozen=True, slots=True)
class Rule:
    """A law that every plan obeys: a mask of the plans that break it, and what to say.

    nearest  of the fields' values, the nearest that obey it, as words; none where nothing is said
    """

    broken: Array | npt.NDArray[np.bool_] | np.bool_
    message: str
    fields: tuple[str, ...]
    nearest: Callable[..., str] = lambda *values: ""


def near_divisors(whole: float) -> Callable[..., str]:
    """The divisors of a number that are nearest to the first value, as words."""

    def told(value: float, *rest: float) -> str:
        size = int(whole)
        found = [d for d in range(1, min(size, 4096) + 1) if size % d == 0]
        below = max((d for d in found if d < value), default=None)
        above = min((d for d in found if d > value), default=None)
        return " and ".join(f"{d}" for d in (below, above) if d is not None)

    return told


def near_multiples(value: float, *factors: float) -> str:
    """The multiples of a product that are nearest to the first value, as words."""
    step = int(np.prod(np.asarray(factors)))
    if step < 1 or not np.isfinite(value):
        return ""
    below = int(value) // step * step
    return " and ".join(f"{n}" for n in (below, below + step) if n > 0)


def not_multiple(value: Numeric, divisor: Numeric) -> Any:
    """Mask of values that the divisor does not divide; exact for whole numbers below 2^53."""
    own = np.maximum(divisor, 1)
    return np.asarray(value - np.rint(value / own) * own != 0)


def whole_rules(plan: object, names: Iterable[str]) -> list[Rule]:
    """That fields are whole numbers of at least 1."""
    return [
        Rule(
            np.asarray(getattr(plan, name) < 1) | not_multiple(getattr(plan, name), 1),
            "{" + name + "} must be a whole number of at least 1",
            (name,),
        )
        for name in names
    ]


POSITIVE = "tp pp dp cp vpp ep etp micro_batch global_batch seq_len".split()
"""Fields that are whole numbers of at least 1."""


def training_rules(plan: TrainingPlan, model: Model) -> list[Rule]:
    """Every law with the plans that break it; arrays in, arrays out."""
    found = whole_rules(plan, POSITIVE)
    found += pipeline_rules(plan, model)
    found += [
        *_head_rules(plan, model),
        *_width_rules(plan, model),
        *_state_rules(plan, model),
        *shared_rules(plan, model),
        Rule(
            np.asarray(plan.pp * plan.vpp > model.layers + 2),
            f"pp {{pp}} x vpp {{vpp}} is more stages than {model.name} has layers ({model.layers})",
            ("pp", "vpp"),
        ),
        Rule(
            np.asarray(plan.vpp > 1) & np.asarray(plan.pp == 1),
            "vpp {vpp} needs pp of at least 2",
            ("vpp",),
        ),
        Rule(
            not_multiple(plan.global_batch, plan.dp * plan.micro_batch),
            "global batch {global_batch} is not a multiple of dp {dp} x micro-batch {micro_batch}",
            ("global_batch", "dp", "micro_batch"),
            near_multiples,
        ),
        Rule(
            np.asarray(plan.offload_weights > 0) & (not SHARDINGS[plan.sharding].weights),
            f"offload_weights {{offload_weights}} needs weights that are sharded (zero3, fsdp, "
            f"hsdp), not sharding {plan.sharding}",
            ("offload_weights",),
        ),
        Rule(
            not_multiple(plan.micro_batch, OBJECTIVES[plan.learns_from].together),
            f"micro_batch {{micro_batch}} splits what {plan.learns_from} compares: a pair "
            "is two sequences of micro_batch and of global_batch",
            ("micro_batch",),
        ),
        Rule(
            not_multiple(plan.seq_len, plan.cp),
            "cp {cp} does not divide the sequence length {seq_len}",
            ("cp", "seq_len"),
        ),
    ]
    return found + (_expert_rules(plan, model) if model.is_moe else _dense_rules(plan, model))


def _head_rules(plan: TrainingPlan, model: Model) -> list[Rule]:
    """Heads that tensor parallelism divides, of each kind of attention that the model has."""
    kinds = dict.fromkeys((one.heads, one.kv_heads) for _, one in model.attention_kinds)
    return [
        rule
        for heads, keys in kinds
        for rule in (
            Rule(
                not_multiple(heads, plan.tp),
                f"tp {{tp}} does not divide the {heads} attention heads of {model.name}",
                ("tp",),
                near_divisors(heads),
            ),
            Rule(
                not_multiple(keys, plan.tp) & not_multiple(plan.tp, keys),
                f"tp {{tp}} neither divides the {keys} key/value heads of {model.name} nor "
                "is a multiple of them",
                ("tp",),
            ),
        )
    ]


def divided_widths(model: Model) -> list[tuple[str, int]]:
    """Widths that tensor parallelism divides, and what they are of."""
    found = [
        *(("feed-forward width", width) for width in model.dense_widths),
        ("shared experts' width", model.shared_width if model.is_moe else 0),
        ("state-space heads", model.mamba_heads),
        ("state-space groups", model.mamba_groups),
        ("delta rule's key heads", model.delta_key_heads),
    ]
    return [(what, width) for what, width in found if width]


def _width_rules(plan: TrainingPlan, model: Model) -> list[Rule]:
    """Laws of them."""
    return [
        Rule(
            not_multiple(width, plan.tp),
            f"tp {{tp}} does not divide the {what} {width} of {model.name}",
            ("tp",),
            near_divisors(width),
        )
        for what, width in divided_widths(model)
    ]


def shared_rules(plan: Any, model: Model) -> list[Rule]:
    """Of blocks that layers of several stages would share."""
    if not model.shared_blocks:
        return []
    return [
        Rule(
            np.asarray(plan.pp > 1),
            f"pp {{pp}} would divide layers of {model.name} that share blocks: not predicted",
            ("pp",),
        )
    ]


def _state_rules(plan: TrainingPlan, model: Model) -> list[Rule]:
    """Of states that pass along a sequence: Mamba-1's, which no framework divides among ranks, and
    those of models that nothing else divides it for."""
    if model.attends and not model.mamba_rank:
        return []
    return [
        Rule(
            np.asarray(plan.cp > 1),
            f"cp {{cp}} would pass states of {model.name} from rank to rank: not predicted",
            ("cp",),
        )
    ]


def pipeline_rules(plan: TrainingPlan, model: Model) -> list[Rule]:
    """What the schedule asks of stages and micro-batches, and the stated layers of stages."""
    return _schedule_rules(plan) + _uneven_rules(plan, model)


def _schedule_rules(plan: TrainingPlan) -> list[Rule]:
    entry, name, m, pp = plan.pipeline, plan.schedule, plan.filled, plan.pp
    return [
        Rule(
            np.asarray(plan.vpp > (np.inf if entry.chunks else 1)),
            f"vpp {{vpp}} cannot be with schedule {name}: its devices hold one stage",
            ("vpp",),
        ),
        Rule(
            np.asarray(plan.vpp != 2) & (entry.fold == V),
            f"vpp {{vpp}} cannot be with schedule {name}: its devices hold two stages each",
            ("vpp",),
        ),
        Rule(
            np.asarray(m < entry.least * pp),
            f"schedule {name} needs {entry.least:g} micro-batches per stage: global batch "
            "{global_batch} over dp {dp} x micro-batch {micro_batch} is too small for pp {pp}",
            ("global_batch", "dp", "micro_batch", "pp"),
        ),
        Rule(
            (not_multiple(pp, 2) | not_multiple(m, 2)) & (entry.fold == BOTH),
            f"schedule {name} runs from both ends: pp {{pp}} and the micro-batches, global batch "
            "{global_batch} over dp {dp} x micro-batch {micro_batch}, must be even",
            ("pp", "global_batch", "dp", "micro_batch"),
        ),
        Rule(
            np.asarray(pp > 1) & (plan.split == "cost") & (entry.fold != LINE),
            f"split cost cannot be with schedule {name}, whose devices hold both ends; pp {{pp}}",
            ("pp",),
        ),
    ]


def _uneven_rules(plan: TrainingPlan, model: Model) -> list[Rule]:
    pp, first, last = plan.pp, plan.first_layers, plan.last_layers
    uneven = ~(np.isnan(first) & np.isnan(last))
    rest = model.layers - np.nan_to_num(first) - np.nan_to_num(last)
    # Stages that the rest falls on: all whose layers are not stated.
    others = pp - (~np.isnan(first)).astype(float) - (~np.isnan(last)).astype(float)
    found = [
        Rule(
            np.asarray(uneven & (plan.split == "cost")),
            "first_layers {first_layers} and last_layers {last_layers} cannot be with split cost",
            ("first_layers", "last_layers"),
        )
    ]
    for field in ("first_layers", "last_layers"):
        value = getattr(plan, field)
        found.append(
            Rule(
                np.asarray(~np.isnan(value) & ((value < 1) | not_multiple(value, 1) | (pp == 1))),
                f"{field} {{{field}}} must be a whole number of at least 1, with pp of at least 2",
                (field,),
            )
        )
    found.append(
        Rule(
            np.asarray(uneven & ((rest < others) | ((others == 0) & (rest != 0)))),
            f"first_layers {{first_layers}} and last_layers {{last_layers}} do not leave a layer "
            f"for each other of the {{pp}} stages of {model.name}'s {model.layers} layers",
            ("first_layers", "last_layers", "pp"),
        )
    )
    return found


def _dense_rules(plan: TrainingPlan, model: Model) -> list[Rule]:
    return [
        Rule(
            np.asarray(getattr(plan, name) > 1),
            f"{name} {{{name}}} needs a mixture of experts; {model.name} is dense",
            (name,),
        )
        for name in ("ep", "etp")
    ]


def _expert_rules(plan: TrainingPlan, model: Model) -> list[Rule]:
    return [
        Rule(
            not_multiple(model.num_experts, plan.ep),
            f"ep {{ep}} does not divide the {model.num_experts} experts of {model.name}",
            ("ep",),
            near_divisors(model.num_experts),
        ),
        Rule(
            not_multiple(model.expert_ffn_hidden, plan.etp),
            f"etp {{etp}} does not divide the width {model.expert_ffn_hidden} of the experts of "
            f"{model.name}",
            ("etp",),
        ),
        Rule(
            not_multiple(plan.stage_ranks, plan.ep * plan.etp),
            "ep {ep} x etp {etp} does not divide the ranks of a stage, tp {tp} x cp {cp} x dp {dp}",
            ("ep", "etp", "tp", "cp", "dp"),
        ),
    ]


def any_broken(laws: list[Rule], shape: tuple[int, ...]) -> npt.NDArray[np.bool_]:
    """Which plans of a batch of a shape break one of the laws."""
    mask = np.zeros(shape, dtype=bool)
    for law in laws:
        mask |= np.asarray(law.broken, dtype=bool)
    return mask


def feasible(plan: TrainingPlan, model: Model) -> npt.NDArray[np.bool_]:
    """Which plans of a batch obey every law; shape of the batch."""
    return ~any_broken(training_rules(plan, model), plan.shape)


def check_shapes(plan: Any) -> None:
    """Raise InputError for a batch whose arrays cannot be of the same plans, naming them."""
    shapes = {one.name: np.shape(getattr(plan, one.name)) for one in fields(plan)}
    try:
        np.broadcast_shapes(*shapes.values())
    except ValueError:
        told = ", ".join(f"{name} {shape}" for name, shape in shapes.items() if shape)
        raise InputError(f"plan: shapes of its arrays do not go together: {told}") from None


def check(plan: TrainingPlan, model: Model) -> None:
    """Raise InputError for the first plan that breaks a law, naming the fields."""
    enforce(training_rules(plan, model), plan)


def enforce(laws: list[Rule], plan: Any) -> None:
    """Raise InputError for the first plan of a batch that breaks one of the laws.

    plan   has `shape`, and the fields that the laws name
    """
    for rule in laws:
        broken = np.asarray(rule.broken, dtype=bool)
        if broken.any():
            broken = np.broadcast_to(broken, plan.shape)
            at = np.unravel_index(int(np.argmax(broken)), plan.shape) if plan.shape else ()
            numbers = [
                float(np.broadcast_to(getattr(plan, name), plan.shape)[at]) for name in rule.fields
            ]
            values = {
                name: f"{value:g}".replace("nan", "unstated")
                for name, value in zip(rule.fields, numbers, strict=True)
            }
            message = rule.message.format(**values)
            if message.startswith(next(iter(values.values()))):
                message = f"{rule.fields[0]} {message}"
            near = rule.nearest(*numbers)
            raise InputError(f"{message}; nearest {near}" if near else message)
