"""What is open together and is chosen together, once there is a layout: how far state is divided
that frameworks leave whole, and recomputation with the sequences of a micro-batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from predictor.catalog import Assumption, Default
from predictor.memory import memory
from predictor.plans import SHARDINGS, TrainingPlan
from predictor.precision import PEAK
from predictor.timing import RunParameters, span
from predictor.training.exchange import through
from predictor.training.fitting import (
    Draft,
    Layout,
    Recomputation,
    again_share,
    divisors,
    first_fit,
    inside,
    layouts,
    most_at_once,
    shares_experts,
)
from predictor.training.habits import Habits, whole_micro_batch
from predictor.training.learned import compared_together
from predictor.work import groups

NOTHING = Recomputation("none", 1.0, "")
"""Recomputation of a plan whose numbers alone are asked for."""

WHOLE_LAYERS = Recomputation("full", 1.0, "")
"""Recomputation with which least is kept."""

REACHED = 0.6
"""Share of its peak that an accelerator's arithmetic reaches over that of its rate that a network
does, to weigh one against the other: about half, and four fifths (`hardware.default_link`)."""


def undivided(assumed: Sequence[Assumption], habits: Habits) -> tuple[str, ...]:
    """Fields that nobody stated and that divide state further where nothing fits: those of a
    framework's habits, and shards inside a node, which are filled in later."""
    usual = {one.field for one in assumed if one.rule == f"default of {habits.label}"}
    return ("dp_shard", *sorted(usual & {"ep"}))


def laid_out(
    draft: Draft, options: list[Recomputation], run: RunParameters, open_: tuple[str, ...]
) -> tuple[Layout, Recomputation, dict[str, int]]:
    """As `first_fit`, and what was divided further for it: where nothing fits, what of `open_` can
    be, among the ranks with which it does and costs least (`price`; of equals the fewest); if with
    none, while whole layers run again that a framework's habit keeps. Where nothing fits even so,
    nothing is.

    options   of recomputation
    open_     fields that may be divided further (`undivided`)
    """
    first = first_fit(draft, layouts(draft), options, run)
    further = _further(draft, first[0], open_)
    if not further or _fits(draft, first, run):
        return (*first, {})
    usual = "recompute" not in draft.values
    for again in (options, [WHOLE_LAYERS]) if usual else (options,):
        costs: list[tuple[float, tuple[Layout, Recomputation, dict[str, int]]]] = []
        for fields in further:
            own = replace(draft, values={**draft.values, **fields})
            candidates = [one for one in layouts(own) if shares_experts(own.values, *one)]
            found = first_fit(own, candidates, again, run) if candidates else None
            if found is not None and _fits(own, found, run):
                costs.append((price(own, own.plan(*found)), (*found, fields)))
        if costs:
            return min(costs, key=lambda entry: entry[0])[1]
    return (*first, {})


def _fits(draft: Draft, found: tuple[Layout, Recomputation], run: RunParameters) -> bool:
    return bool(memory(draft.model, draft.plan(*found), run).peak <= draft.capacity)


def _further(draft: Draft, layout: Layout, open_: tuple[str, ...]) -> list[dict[str, int]]:
    """Fields of plans that divide sharded state further, the least first: more replicas than those
    of a node share one copy, then ranks experts. Who replicates weights shards them first."""
    values, wider = draft.values, []
    if not SHARDINGS[values["sharding"]].weights:
        return []
    if "dp_shard" in open_ and "dp_shard" not in values and values["sharding"] == "hsdp":
        dp, node = int(draft.plan(layout, NOTHING).dp), draft.cluster.accelerators_per_node
        own = inside(node, layout[0], layout[2], dp)
        wider = [{"dp_shard": shards} for shards in divisors(dp) if shards > own]
    widest = wider[-1] if wider else {}
    experts = draft.model.num_experts if "ep" in open_ and draft.model.is_moe else 1
    return [*wider, *({**widest, "ep": several} for several in divisors(experts)[1:])]


def micro_batch(
    draft: Draft,
    habits: Habits,
    layout: Layout,
    again: Recomputation,
    options: list[Recomputation],
    run: RunParameters,
    dealt: bool,
) -> tuple[Recomputation, Default]:
    """Sequences of a micro-batch, and the recomputation that goes with them; one and what fits
    where stages or replicas are dealt unequal shares, and in pipelines."""
    least = compared_together(draft.values)
    if dealt:
        return again, Default("micro_batch", least, "one sequence where shares are unequal")
    if layout[1] > 1 and not habits.whole:
        return again, Default("micro_batch", least, "one sequence in a pipeline unless stated")
    whole, rule = whole_micro_batch(draft.values)
    again, most = _together(draft, layout, again, options, run, whole)
    most = most or (whole if habits.whole else least)
    fits = "the most of a rank's sequences that fit in memory together"
    return again, Default("micro_batch", most, rule if habits.whole and most == whole else fits)


def _together(
    draft: Draft,
    layout: Layout,
    first: Recomputation,
    options: list[Recomputation],
    run: RunParameters,
    whole: int,
) -> tuple[Recomputation, int]:
    """Recomputation and sequences of a micro-batch: of what fits the pair that costs least
    (`price`), of equals that which computes least again. The first recomputation that fits where
    nothing travels with micro-batches, or where not one sequence fits (with 0).

    whole   sequences of a rank in a step, or the most that are taken
    """
    most = most_at_once(draft, layout, first, run, whole)
    if not SHARDINGS[draft.values["sharding"]].per_micro_batch or most in (0, whole):
        return first, most
    found = [(price(draft, draft.plan(layout, first, most)), first, most)]
    for again in options[options.index(first) + 1 :] if first in options else ():
        several = most_at_once(draft, layout, again, run, whole)
        if several > found[-1][2]:
            found.append((price(draft, draft.plan(layout, again, several)), again, several))
    if draft.whole and found[-1][2] == whole:  # it accumulates no gradients
        return found[-1][1:]
    return min(found, key=lambda entry: entry[0])[1:]


def price(draft: Draft, plan: TrainingPlan) -> float:
    """Time of a step's passes, of the way of tokens to their experts, and of what of the exchange
    of weights and gradients does not hide behind them, over that of its passes without
    recomputation, about. Sharded weights and gradients travel with every micro-batch (Rajbhandari
    et al. 2020): larger ones make fewer."""
    model, sharding, cluster = draft.model, SHARDINGS[plan.sharding], draft.cluster
    passes = 1.0 + again_share(plan)
    if not sharding.per_micro_batch:
        return passes
    dtype = plan.recipe.linear
    rate = REACHED * cluster.accelerator.peak_for(PEAK.get(dtype, dtype))
    tokens = float(plan.micro_batch * plan.seq_len / (plan.cp * plan.tp * plan.pp))
    computed = float(6.0 * model.active_parameters * tokens / rate)
    places = groups(plan)
    routed, gathered, experts = (
        through(span(places[name], cluster), cluster, plan.adapters)
        for name in ("ep", "shard", "eshard")
    )
    # There and back, forward and backward, of what goes to other domains of its outermost tier.
    leaving = float(1.0 - routed.below / routed.size) / float(routed.own)
    sent = 4.0 * float(plan.recipe.activation) * model.moe_layers * model.top_k * model.expert_width
    shown, hidden = sent * tokens * leaving, 0.0
    own = float(model.moe_layers * model.num_experts * model.expert_matrix) if model.is_moe else 0.0
    rest = float((model.parameters - own) / (plan.tp * plan.pp) / gathered.ring)
    own = own / float(plan.ep * plan.etp * plan.pp * experts.ring)
    gathers = (2.0 if plan.reshard else 1.0) * sharding.weights * float(plan.gather_bytes)
    reduces = 0.0 if plan.reduce_last or plan.frozen else float(plan.reduce_bytes)
    for size, hides in ((gathers, plan.param_overlap), (reduces, plan.grad_overlap)):
        shown += 0.0 if hides else size * (rest + own)
        hidden += size * (rest + own) if hides else 0.0
    return passes + shown / computed + max(hidden / computed - passes, 0.0)
