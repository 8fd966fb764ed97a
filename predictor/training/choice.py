"""What is open together and is chosen together, once there is a layout: how far state is divided
that frameworks leave whole, and recomputation with the sequences of a micro-batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from predictor.arrays import stack
from predictor.catalog import Assumption, Default, scale_up
from predictor.memory import memory
from predictor.models import Model
from predictor.plans import SHARDINGS, TrainingPlan
from predictor.precision import PEAK
from predictor.timing import RunParameters, span
from predictor.training.exchange import through
from predictor.training.fitting import (
    BELIEVED,
    NARROWEST,
    SHARES,
    Draft,
    Layout,
    Recomputation,
    again_share,
    divisors,
    first_fit,
    inside,
    is_cheap,
    lacking_least,
    layouts,
    shares_experts,
)
from predictor.training.habits import Habits, whole_micro_batch
from predictor.training.learned import compared_together
from predictor.work import groups

NOTHING = Recomputation("none", 1.0, "")
"""Recomputation of a plan whose numbers alone are asked for."""

WHOLE_LAYERS = Recomputation("full", 1.0, "")
"""Recomputation with which least is kept."""

DEARER = 1.5
"""Times as long as a step with its experts divided otherwise takes one, about (`price`), before
they are not divided as usual: half as long again is more than such a weighing is wrong by."""

CHUNKS = 8
"""Most chunks of a device that are assumed where pipelines are interleaved: NVIDIA's recipes take 5
(Llama 3 70B), 6 to 12 (GPT-3 175B), 8 (405B), 10 (22B), and what more would save of a bubble is a
hundredth."""

REACHED = 0.6
"""Share of its peak that an accelerator's arithmetic reaches over that of its rate that a network
does, to weigh one against the other: about half, and four fifths (`hardware.default_link`)."""


Found = tuple[Layout, Recomputation, dict[str, int]]
"""A layout, what runs again, and what is divided further."""


def undivided(assumed: Sequence[Assumption], habits: Habits) -> tuple[str, ...]:
    """Fields that nobody stated and that divide state further where nothing fits: those of a
    framework's habits, and shards inside a node, which are filled in later. XLA divides layers,
    too, for which that is an annotation (MaxText's ici_tensor_parallelism, 1 by default)."""
    usual = {one.field for one in assumed if one.rule == f"default of {habits.label}"}
    return ("dp_shard", *sorted(usual & ({"ep", "tp"} if habits.whole else {"ep"})))


def laid_out(
    draft: Draft,
    options: list[Recomputation],
    run: RunParameters,
    open_: tuple[str, ...],
    chooses: bool = False,
) -> Found:
    """As `first_fit`, and what was divided further for it: where nothing fits, what of `open_` can
    be, among the ranks with which it does and costs least (`price`; of equals the fewest); if with
    none, while whole layers run again that a framework's habit keeps, if need be with nothing
    divided (not of what ran). Where nothing fits even so, nothing is, of what is planned with the
    layout that lacks least.

    options   of recomputation
    open_     fields that may be divided further (`undivided`), and recomputation where it is open
    chooses   whether experts are divided, too, where gathering them costs far more (`_dealt_out`)
    """
    candidates = layouts(draft)
    first = first_fit(draft, candidates, options, run)
    further, planned = _further(draft, first[0], open_), not draft.published
    if not further and not planned:
        return (*first, {})
    if _fits(draft, first, run):
        dealt = chooses and planned and draft.model.is_moe
        return _dealt_out(draft, first, options, open_, run) if dealt else (*first, {})
    tries = [(options, further)]
    if "recompute" in open_:
        alone: list[dict[str, int]] = [{}] if planned and _is_beyond(draft, first, run) else []
        tries.append((_again(draft), [*alone, *further]))
    for near in (True, False) if planned else (True,):
        if _fits(draft, first, run, near):
            break
        for again, divided in tries:
            if costs := _costs(draft, again, divided, run, near):
                return min(costs, key=lambda entry: entry[0])[1]
    if planned and len(candidates) > 1 and not _fits(draft, first, run, near=False):
        first = lacking_least(draft, candidates, options[-1], run), options[-1]
    return (*first, {})


def _costs(
    draft: Draft,
    again: list[Recomputation],
    divided: list[dict[str, int]],
    run: RunParameters,
    near: bool,
) -> list[tuple[float, Found]]:
    """What fits (`_fits`) with each of the further divisions, and its `price`."""
    costs: list[tuple[float, Found]] = []
    for fields in divided:
        own = replace(draft, values={**draft.values, **fields})
        candidates = [one for one in layouts(own) if shares_experts(own.values, *one)]
        found = first_fit(own, candidates, again, run) if candidates else None
        if found is not None and _fits(own, found, run, near):
            costs.append((price(own, own.plan(*found)), (*found, fields)))
    return costs


def _dealt_out(
    draft: Draft,
    first: tuple[Layout, Recomputation],
    options: list[Recomputation],
    open_: tuple[str, ...],
    run: RunParameters,
) -> Found:
    """What fits, or the same with experts of sharded weights among so many ranks that it costs
    least, where that is less than the `DEARER`-th of it: who plans a run neither gathers hundreds
    of experts for each micro-batch nor sends tokens over all nodes where gathering is cheaper. Each
    with as many sequences at once as fit; pipelines, whose stages wait for each other, stay."""
    stated, sharded = "ep" in draft.values, SHARDINGS[draft.values["sharding"]].weights
    if not sharded or (stated and "ep" not in open_) or first[0][1] > 1:
        return (*first, {})
    costs: list[tuple[float, Found]] = []
    for fields in ({}, *({"ep": several} for several in divisors(draft.model.num_experts))):
        own = replace(draft, values={**draft.values, **fields})
        if not shares_experts(own.values, *first[0]):
            continue
        layout, again = first_fit(own, [first[0]], options, run) if fields else first
        if not _fits(own, (layout, again), run):
            continue
        most = int(own.values.get("micro_batch", 0))
        if not most:
            whole = whole_micro_batch(own.values)[0]
            again, most = _together(own, layout, again, options, run, whole)
        costs.append((price(own, own.plan(layout, again, max(most, 1))), (layout, again, fields)))
    least = min(costs, key=lambda entry: entry[0])
    return least[1] if least[0] * DEARER < costs[0][0] else costs[0][1]


def _again(draft: Draft) -> list[Recomputation]:
    """Whole layers that run again where a framework keeps more: all, or as few as fit of one that
    does not shard weights (Megatron's recompute_num_layers)."""
    if SHARDINGS[draft.values["sharding"]].weights or draft.published:
        return [WHOLE_LAYERS]
    return [Recomputation("full", share, "") for share in SHARES]


def _fits(
    draft: Draft, found: tuple[Layout, Recomputation], run: RunParameters, near: bool = True
) -> bool:
    """Whether it does. near: of what is planned, without keys that travel far though they are many,
    which whole layers that run again are cheaper than."""
    far = not draft.published and "cp" not in draft.values and not is_cheap(draft, found[0])
    return not (near and far) and _peak(draft, found, run) <= float(draft.capacity)


def _is_beyond(draft: Draft, found: tuple[Layout, Recomputation], run: RunParameters) -> bool:
    """Whether more is lacking than peaks are off by (`BELIEVED`), or keys travel far."""
    over = _peak(draft, found, run) > BELIEVED * float(draft.cluster.accelerator.memory)
    return over or not is_cheap(draft, found[0])


def _peak(draft: Draft, found: tuple[Layout, Recomputation], run: RunParameters) -> float:
    return float(memory(draft.model, draft.plan(*found), run).peak)


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
    routed = [{**widest, "ep": several} for several in divisors(experts)[1:]]
    divided = _divided(draft) if "tp" in open_ else []
    return [*wider, *routed, *({**widest, "tp": several} for several in divided)]


def _divided(draft: Draft) -> list[int]:
    """Ranks that may divide layers beside sharded weights, the fewest first: none of them narrow,
    and not of what ran, which fitted as its habits have it."""
    model, gpus = draft.model, int(draft.values.get("gpus") or 1)
    several = (2**doublings for doublings in range(1, 10))
    return [
        tp
        for tp in several
        if not draft.published and tp * NARROWEST <= model.hidden
        if gpus % tp == 0 and model.heads % tp == 0 and tp <= scale_up(draft.cluster)
    ]


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
    at_once = habits.at_once(layout[1])
    if layout[1] > 1 and not at_once:
        return again, Default("micro_batch", least, "one sequence in a pipeline unless stated")
    whole, rule = whole_micro_batch(draft.values)
    again, most = _together(draft, layout, again, options, run, whole)
    if not most and not (at_once and draft.published):
        return again, Default("micro_batch", least, "the fewest: not even that fits")
    most = most or whole
    fits = "the most of a rank's sequences that fit in memory together"
    return again, Default("micro_batch", most, rule if at_once and most == whole else fits)


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


def most_at_once(
    draft: Draft, layout: Layout, again: Recomputation, run: RunParameters, whole: int
) -> int:
    """The most sequences, up to `whole`, that divide a rank's share of the step, or what of it is
    whole, and fit in memory; 0 where none fits."""
    one = draft.plan(layout, again)
    share = int(one.global_batch) // int(one.dp)
    if share < 2:
        return 1
    least = compared_together(draft.values)
    tried = [several for several in divisors(share) if several <= whole and several % least == 0]
    if not tried:
        return 0
    batch = stack([draft.plan(layout, again, several) for several in tried])
    peaks = memory(draft.model, batch, run).peak
    fits = np.flatnonzero(np.asarray(peaks <= draft.capacity))
    return tried[int(fits[-1])] if fits.size else 0


def chunks(model: Model, values: Mapping[str, Any]) -> int:
    """Chunks of layers on each device where a framework's pipelines are interleaved: the most, up
    to `CHUNKS`, that divide its layers (or with embedding and output, each counted as one);
    interleaving takes micro-batches in groups of as many as stages (Narayanan et al. 2021)."""
    pp = values["pp"]
    own = next((n // pp for n in (model.layers, model.layers + 2) if n % pp == 0), 1)
    several = values["global_batch"] // (values["dp"] * values["micro_batch"])
    if pp == 1 or several % pp:
        return 1
    return max(d for d in divisors(own) if d <= CHUNKS)


def chunks_that_fit(draft: Draft, layout: Layout, again: Recomputation, run: RunParameters) -> int:
    """The most `chunks` with which a plan fits that does with one: a device that folds its pipeline
    keeps more micro-batches (Narayanan et al. 2021). What ran had those of its framework's habit.
    """
    most = chunks(draft.model, draft.values)
    if most == 1 or draft.published:
        return most
    one = draft.plan(layout, again)
    tried = divisors(most)
    folded = stack([replace(one, vpp=float(several)) for several in tried])
    fits = np.flatnonzero(np.asarray(memory(draft.model, folded, run).peak <= draft.capacity))
    return tried[int(fits[-1])] if fits.size else most


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
