"""The layout, the recomputation and the micro-batch of a training plan, where a request leaves them
open: the first layout and recomputation that fit in memory, then the most sequences that do.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import groupby
from typing import Any

import numpy as np

from predictor.arrays import Numeric, stack
from predictor.catalog import scale_up
from predictor.errors import InputError
from predictor.hardware import Cluster
from predictor.memory import MEMORY_FRACTION, memory
from predictor.models import Model
from predictor.plans import (
    CATEGORY_FIELDS,
    FIT,
    NUMERIC_FIELDS,
    SHARDINGS,
    TrainingPlan,
    divided_widths,
    near_divisors,
    near_multiples,
)
from predictor.records import dataclass
from predictor.timing import RunParameters
from predictor.training.learned import compared_together

SHARES = tuple(eighth / 8 for eighth in range(1, 9))
"""Shares of the layers among which the least recomputation that fits is sought."""

LEAST_SHARDED = ("none", "zero1", "zero2", "fsdp")
"""Shardings in the order in which those who train with what replicates its model unless told
otherwise take them: axolotl's documentation asks for the first stage of ZeRO that fits ("Start from
Stage 1 -> Stage 2 -> Stage 3", docs/multi-gpu.qmd), and has FSDP beside the third."""

LATENTS = "latents"
"""Habit of recomputing nothing but the up-projections of latent attention."""

SWITCHED = "switched"
"""Habit of recomputing nothing, or every layer whole where that does not fit."""

Layout = tuple[int, int, int]
"""Tensor, pipeline and context parallelism."""

NARROWEST = 2048
"""Hidden width of a tensor-parallel rank below which a pipeline is sought first: what tensor
parallelism moves over what it computes falls with the width. NVIDIA's recipes for H100 and later
(NeMo 24.01 to 25.09, Megatron-Bridge 0.2 to 0.6) keep 2,048 and more: Llama 3 70B tp 4, 405B tp 8,
GPT-3 175B tp 4, Nemotron 340B tp 8 and 22B tp 2."""

ROUNDS = 4
"""Micro-batches for each stage of a pipeline below which its bubble, a fifth, is worth avoiding."""

SHORTEST = 1024
"""Tokens of a context-parallel rank below which sequences are not divided: 8 ranks for 8,192 tokens
in NVIDIA's MLPerf 5.0 runs of Llama 2 70B LoRA, which have fewer sequences than accelerators."""

LONG, LEAST_SHARE = 32768, 4096
"""Tokens of a sequence from which on it is divided where nothing fits otherwise, and of a rank's
share of it at the least: 4,096 of Llama 3 70B in NVIDIA's recipes (8,192 on cp 2, Megatron-Bridge,
from memory), twice and four times as many in those of long sequences."""

CONTEXT_SINCE = "2023-07"
"""Month before which no framework divided sequences among ranks (Ring Attention and Megatron Core's
context parallelism came in late 2023)."""

WIDER, AVOIDED, AGAIN, PARTLY = 0.08, 10.0, 0.33, 0.03
"""Share of a step that is lost where a replica takes twice as many ranks (collectives, bubbles: a
tenth or less inside a node and with `ROUNDS`), that no layout is worth which is narrow or whose
pipeline starves, that a forward pass costs again, a third of the two passes, and that parts of it
do. NVIDIA's dense recipes buy memory with ranks, not with recomputation (NeMo launcher 23.03 to
24.12, NeMo 2, Megatron-Bridge 0.2 to 0.6)."""

BELIEVED = 1.1
"""Peak over capacity up to which a published plan of stated layout and micro-batch is believed to
have fitted without recomputation: peaks are off by a tenth to a seventh, and of the sources since
2023 that say what they recompute two in three say nothing, or little."""

LAID_OUT = ("tp", "pp", "cp", "dp", "ep", "etp", "sequence_parallel", "recompute_share")
"""Numbers of a plan that its layout gives."""

NUMBERS = tuple(name for name in NUMERIC_FIELDS if name not in LAID_OUT)
"""Those that come from the request as they are."""


@dataclass(frozen=True, slots=True)
class Recomputation:
    """What is computed again: a kind of `plan.RECOMPUTE`, the share of the layers (full) and the
    modules (selective)."""

    kind: str
    share: float
    modules: str


@dataclass(frozen=True, slots=True, eq=False)
class Draft:
    """A training request of which layout and recomputation may be open.

    values   of all that is stated or filled in
    split    sequence parallelism that the framework has: yes or no, or 'tp': where tp divides
    published  a row of a published table, not a plan that is asked about
    experts_split  whether the framework splits every expert as the rest of a layer
    whole    whether a rank's sequences run at once, however many
    """

    model: Model
    cluster: Cluster
    values: Mapping[str, Any]
    split: bool | str
    published: bool = False
    experts_split: bool = False
    whole: bool = False

    @property
    def is_run(self) -> bool:
        """Whether somebody ran it: a published plan with layout and micro-batch."""
        return self.published and all(n in self.values for n in ("tp", "pp", "micro_batch"))

    @property
    def capacity(self) -> Numeric:
        """Bytes that a plan may take to be taken as one that fits: of what ran more than that of
        what is planned."""
        share = (BELIEVED if self.is_run else 1.0) if self.published else MEMORY_FRACTION
        return self.cluster.accelerator.memory * share

    def sequence_parallel(self, tp: int) -> bool:
        """Whether the framework's habit divides sequences at this tensor parallelism."""
        return tp > 1 if self.split == "tp" else bool(self.split)

    def plan(self, layout: Layout, again: Recomputation, micro_batch: int = 1) -> TrainingPlan:
        """The plan with a layout and a recomputation, and a micro-batch if none is stated."""
        values, (tp, pp, cp) = self.values, layout
        micro_batch = max(micro_batch, compared_together(values))
        ranks = tp * pp * cp
        dp = values.get("dp", max(values.get("gpus", ranks) // ranks, 1))
        taken = {"micro_batch": micro_batch, "vpp": 1} | {
            name: values[name]
            for name in (*CATEGORY_FIELDS, *NUMBERS)
            if name in values and name not in ("recompute", "recompute_modules")
        }
        if values["sharding"] == "hsdp" and "dp_shard" not in values:
            taken["dp_shard"] = float(inside(self.cluster.accelerators_per_node, tp, cp, dp))
        ep, etp = _experts(self, tp, ranks // pp * dp)
        return TrainingPlan(
            tp=float(tp),
            pp=float(pp),
            cp=float(cp),
            dp=float(dp),
            ep=float(ep),
            etp=float(etp),
            recompute=again.kind,
            recompute_modules=again.modules,
            recompute_share=again.share,
            sequence_parallel=float(values.get("sequence_parallel", self.sequence_parallel(tp))),
            **taken,
        )


def layouts(draft: Draft) -> list[Layout]:
    """Layouts that divide what they must: those stated, else the possible ones in the order of
    `_layouts`, each with the context parallelism that the batch leaves it (`_context`). Of a
    published row none need divide the batch, which papers round.

    Raises InputError where there is none.
    """
    values = draft.values
    if "tp" in values and "pp" in values:
        tp, pp = values["tp"], values["pp"]
        return [(tp, pp, _context(values, tp, pp))]
    pairs = _layouts(draft.model, draft.cluster.accelerators_per_node, values)
    found = [(tp, pp, _context(values, tp, pp)) for tp, pp in pairs]
    whole = [layout for layout in found if _batch_divides(values, *layout)]
    found = whole or [one for one in found if draft.published and _batch_suffices(values, *one)]
    if not found:
        raise _undivided(draft.model, values)
    return [layout for layout in found if shares_experts(values, *layout)] or found


def shares_experts(values: Mapping[str, Any], tp: int, pp: int, cp: int) -> bool:
    """Whether the ranks of a stage can share experts as stated."""
    gpus = values.get("gpus")
    ranks = tp * cp * values.get("dp", 1) if gpus is None else gpus // pp
    return int(ranks) % int(values.get("ep", 1) * values.get("etp", 1)) == 0


def _context(values: Mapping[str, Any], tp: int, pp: int) -> int:
    """Context parallelism: as stated; one, unless there are fewer sequences than replicas, of which
    then several share one."""
    one, gpus, batch = values.get("cp"), values.get("gpus"), values["global_batch"]
    if one is not None or gpus is None or "dp" in values or values["era"] < CONTEXT_SINCE:
        return int(one or 1)
    sequences = batch // values.get("micro_batch", 1)
    several, rest = divmod(gpus // (tp * pp), max(sequences, 1))
    long = several and values["seq_len"] % several == 0
    if rest or several < 2 or not long or values["seq_len"] // several < SHORTEST:
        return 1
    return int(several)


def _undivided(model: Model, values: Mapping[str, Any]) -> InputError:
    """What of a request does not divide: the heads, the accelerators, the batch."""
    tp, gpus, cp = values.get("tp"), values.get("gpus"), values.get("cp", 1)
    if tp is not None and model.heads % tp:
        near = near_divisors(model.heads)(tp)
        return InputError(
            f"tp {tp} does not divide the {model.heads} attention heads of {model.name}; nearest "
            f"{near}"
        )
    ranks = (tp or 1) * values.get("pp", 1) * cp
    if gpus is not None and gpus % ranks:
        near = near_multiples(gpus, ranks)
        return InputError(f"gpus {gpus} is not a multiple of tp x pp x cp {ranks}; nearest {near}")
    if gpus is not None and gpus % (ranks * values.get("dp", 1)):
        dp = values["dp"]
        near = near_multiples(gpus, ranks, dp)
        return InputError(
            f"gpus {gpus} is not a multiple of tp x pp x cp {ranks} x dp {dp}; nearest {near}"
        )
    micro, batch = values.get("micro_batch"), values.get("global_batch")
    each = (gpus or 1) // ranks * (micro or 1)
    if gpus is not None and batch is not None and (micro is not None or batch % each):
        near = near_multiples(batch, each)
        by = "" if micro is None else f" x micro-batch {micro}"
        or_else = "--tp or --pp" if micro is None else "--tp, --pp or --micro-batch"
        return InputError(
            f"global batch {batch} is not a multiple of dp {gpus // ranks}{by}; nearest {near}, or "
            f"state another {or_else}"
        )
    return InputError(
        "no tp and pp inside a node divide the heads, the layers, the GPUs and the global batch; "
        "state --tp and --pp"
    )


def recomputations(draft: Draft, habit: str) -> list[Recomputation]:
    """What may be computed again: what is stated or the framework's habit, else (`FIT`) nothing,
    latents, the attention core, then more and more whole layers (`SWITCHED`: all at once)."""
    values = draft.values
    stated = values.get("recompute", habit)
    if stated == LATENTS:
        kind = "selective" if draft.model.is_latent else "none"
        return [Recomputation(kind, 1.0, values.get("recompute_modules", "mla_up_proj"))]
    modules = values.get("recompute_modules", "core_attn")
    if stated == SWITCHED:
        return [Recomputation(kind, 1.0, modules) for kind in ("none", "full")]
    if stated != FIT:
        return [Recomputation(str(stated), float(values.get("recompute_share", 1.0)), modules)]
    latent = [Recomputation("selective", 1.0, "mla_up_proj")] if draft.model.is_latent else []
    return [
        Recomputation("none", 1.0, modules),
        *latent,
        Recomputation("selective", 1.0, modules),
        *(Recomputation("full", share, modules) for share in SHARES),
    ]


def first_fit(
    draft: Draft,
    candidates: list[Layout],
    options: list[Recomputation],
    run: RunParameters,
) -> tuple[Layout, Recomputation]:
    """Of the layouts and recomputations whose peak memory fits, those that cost least (`_price`);
    of equals the first. Where nothing fits, or only what is narrow or whose pipeline starves, long
    sequences are divided among twice as many ranks, and again (`_shared`).

    Where each pipeline starves even so, the first with a micro-batch for each stage, else that with
    the smallest bubble (of what ran, the undivided one).
    Where nothing fits: the last layout with the last option (the user sees by how much).
    """
    if len(candidates) == 1 and len(options) == 1 and not _shared(draft, candidates):
        return candidates[0], options[0]
    tried: list[Layout] = candidates
    poor: list[tuple[Layout, Recomputation]] = []
    while tried:
        found = _cheapest(draft, tried, options, run)
        if found is not None and not _is_poor(draft, found[0]):
            return found
        poor += [found] if found is not None else []
        tried = [one for one in _shared(draft, tried) if not poor or is_cheap(draft, one)]
    if not poor:
        return candidates[-1], options[-1]
    waits = [_bubble(draft, layout) for layout, _ in poor]
    full = [one for one, wait in zip(poor, waits, strict=True) if wait < 1.0 or draft.published]
    return full[0] if full else poor[int(np.argmin(waits))]


def lacking_least(
    draft: Draft, candidates: list[Layout], again: Recomputation, run: RunParameters
) -> Layout:
    """Of layouts none of which fits, and of those with sequences divided further, the one with the
    smallest peak; of equals the last."""
    met, tried = list(candidates), _shared(draft, candidates)
    while tried:
        met, tried = [*tried, *met], _shared(draft, tried)
    batch = stack([draft.plan(one, again) for one in reversed(met)])
    peaks = np.asarray(memory(draft.model, batch, run).peak)
    return met[-1 - int(np.argmin(peaks))]


def _bubble(draft: Draft, layout: Layout) -> float:
    """Of a pipeline over the time of its micro-batches, (p - 1) / m (Narayanan et al. 2021, section
    2.2); below one where each stage has a micro-batch."""
    tp, pp, cp = layout
    return (pp - 1) / max(_micro_batches(draft.values, tp * pp * cp), 1)


def is_cheap(draft: Draft, layout: Layout) -> bool:
    """Whether keys and values travel among few, or are few: latent attention sends those of every
    head, which links between nodes make dearer than a pipeline that starves."""
    tp, _, cp = layout
    return cp == 1 or not draft.model.is_latent or tp * cp <= scale_up(draft.cluster)


def _is_poor(draft: Draft, layout: Layout) -> bool:
    """Whether a layout that nobody stated is one that no memory is worth."""
    tp, pp, cp = layout
    return "tp" not in draft.values and _avoided(draft.model, {**draft.values, "cp": cp}, tp, pp)


def _shared(draft: Draft, candidates: list[Layout]) -> list[Layout]:
    """Layouts with twice the context parallelism, of those that divide what they must; none where
    it is stated, sequences are short (`LONG`), nobody divided them yet (`CONTEXT_SINCE`), or, of
    what ran, all that ranks share did so at once."""
    values = draft.values
    length, gpus = values["seq_len"], values.get("gpus")
    given = "cp" in values or "dp" in values or values["era"] < CONTEXT_SINCE
    if given or not gpus or (draft.whole and draft.published) or length < LONG:
        return []
    twice = [(tp, pp, 2 * cp) for tp, pp, cp in candidates]
    return [
        (tp, pp, cp)
        for tp, pp, cp in twice
        if gpus % (tp * pp * cp) == 0
        if length % cp == 0 and length // cp >= LEAST_SHARE
        if _batch_divides(values, tp, pp, cp)
    ]


def _cheapest(
    draft: Draft,
    candidates: list[Layout],
    options: list[Recomputation],
    run: RunParameters,
) -> tuple[Layout, Recomputation] | None:
    """As `first_fit`, of these layouts; None where nothing fits."""
    capacity = draft.capacity
    fits = []
    # Options that differ in numbers only are judged together.
    for _, alike in groupby(options, key=lambda option: (option.kind, option.modules)):
        several = list(alike)
        plans = [draft.plan(layout, again) for layout in candidates for again in several]
        batch = stack(plans) if len(plans) > 1 else plans[0]
        peaks = memory(draft.model, batch, run).peak.reshape(len(candidates), len(several))
        fits.append(np.asarray(peaks <= capacity))
        if fits[-1][0].any() and several[0] == options[0]:  # nothing comes before it
            break
    table = np.concatenate(fits, axis=1)  # (layouts, options)
    if not table.any():
        return None
    own = np.array([_price(draft, layout) for layout in candidates])
    again = np.array([_repeated(option) for option in options[: table.shape[1]]])
    price = np.where(table, own[:, None] + again, np.inf)
    layout, option = np.unravel_index(int(np.argmin(price)), price.shape)
    return candidates[layout], options[option]


def _price(draft: Draft, layout: Layout) -> float:
    """Share of a step that a layout costs, about; splitting its layers costs a mixture twice, whose
    experts are given as much less each."""
    tp, pp, _ = layout
    doublings = math.log2(tp * pp) + (math.log2(tp) if draft.model.is_moe else 0.0)
    return WIDER * doublings + AVOIDED * _is_poor(draft, layout)


def _repeated(again: Recomputation) -> float:
    """The same of a recomputation."""
    return AGAIN * again.share if again.kind == "full" else PARTLY * (again.kind != "none")


def again_share(plan: TrainingPlan) -> float:
    """The same of a plan's recomputation."""
    again = Recomputation(plan.recompute, float(plan.recompute_share), plan.recompute_modules)
    return _repeated(again)


def divisors(number: int) -> list[int]:
    """All of a number, rising."""
    return [d for d in range(1, number + 1) if number % d == 0]


def inside(node: int, tp: int, cp: int, dp: int) -> int:
    """Data-parallel ranks that share one copy of the state inside a node: as many as lie in one
    beside tensor and context parallelism, of those that share out the replicas.

    HYBRID_SHARD is "FULL_SHARD within a node, and replicate parameters across nodes" (PyTorch,
    torch/distributed/fsdp/api.py, ShardingStrategy).
    """
    return max(d for d in divisors(int(dp)) if d == 1 or d * tp * cp <= node)


def _layouts(model: Model, per_node: int, values: Mapping[str, Any]) -> list[tuple[int, int]]:
    """Possible (tp, pp): first those whose ranks are wide enough (`NARROWEST`) and whose pipelines
    are filled, of those fewest GPUs per replica, then TP before PP, inside the node; with experts
    PP before TP, which would divide what every expert is given."""
    gpus, cp, dp = values.get("gpus"), values.get("cp", 1), values.get("dp")
    if SHARDINGS[values["sharding"]].weights and (None in (gpus, dp) or gpus == dp * cp):
        values = {"tp": 1, "pp": 1, **values}  # sharded weights stand in for model parallelism
    powers = [2**i for i in range(20) if 2**i <= per_node and model.heads % 2**i == 0]
    widths = [model.ffn_hidden, *(width for _, width in divided_widths(model))]
    fit = [t for t in powers if not any(width % t for width in widths)]
    tps = [values["tp"]] if "tp" in values else fit
    pps = [values["pp"]] if "pp" in values else _stages(model)
    if gpus is not None and dp is not None:
        each = gpus // (dp * cp)  # one of both is what the other leaves, if it is stated
        tps = [each // values["pp"]] if "pp" in values and "tp" not in values else tps
        pps = [each // values["tp"]] if "tp" in values and "pp" not in values else pps
    pairs = [(tp, pp) for tp in tps for pp in pps]
    if gpus is not None:
        pairs = [(tp, pp) for tp, pp in pairs if tp and pp and gpus % (tp * pp * cp) == 0]
    if gpus is not None and dp is not None:
        pairs = [(tp, pp) for tp, pp in pairs if tp * pp * cp * dp == gpus]
    before = 1 if model.is_moe else -1

    def key(pair: tuple[int, int]) -> tuple[bool, int, int]:
        return _avoided(model, values, *pair), pair[0] * pair[1], before * pair[0]

    return sorted(pairs, key=key)


def _avoided(model: Model, values: Mapping[str, Any], tp: int, pp: int) -> bool:
    """Whether ranks are narrow, or a pipeline starves."""
    return tp * NARROWEST > model.hidden or _starved(values, tp, pp)


def _starved(values: Mapping[str, Any], tp: int, pp: int) -> bool:
    """Whether a pipeline has less than `ROUNDS` micro-batches for each of its stages."""
    return pp > 1 and _micro_batches(values, tp * pp * values.get("cp", 1)) < ROUNDS * pp


def _micro_batches(values: Mapping[str, Any], ranks: int) -> int:
    """Micro-batches of a replica of so many ranks in a step, as far as sizes are stated."""
    replicas = values.get("dp") or max(values.get("gpus", ranks) // ranks, 1)
    return int(values["global_batch"] // (replicas * values.get("micro_batch", 1)))


def _stages(model: Model) -> list[int]:
    """Numbers of stages: those that divide the layers, and powers of two with two layers a stage
    and more; one where layers share blocks."""
    if model.shared_blocks:
        return [1]
    powers = {2**i for i in range(20) if 2 ** (i + 1) <= model.layers}
    return sorted(powers | set(divisors(model.layers)))


def _batch_divides(values: Mapping[str, Any], tp: int, pp: int, cp: int) -> bool:
    gpus = values.get("gpus")
    if gpus is None:
        return True
    ranks = gpus // (tp * pp * cp) * values.get("micro_batch", 1)
    return bool(values["global_batch"] % ranks == 0)


def _batch_suffices(values: Mapping[str, Any], tp: int, pp: int, cp: int) -> bool:
    """Whether every replica has a micro-batch."""
    ranks = int(values["gpus"]) // (tp * pp * cp) * int(values.get("micro_batch", 1))
    return ranks <= int(values["global_batch"])


def _experts(draft: Draft, tp: int, ranks: int) -> tuple[int, int]:
    """Expert parallelism and expert tensor parallelism of a stage of `ranks` accelerators: as
    stated. Else the split of each is the rest of the layer's where the framework has it so
    (`Draft.experts_split`), and of one that says nothing of it where ep is stated (Megatron Core's
    default); whole otherwise. Experts are divided among the ranks of a scale-up domain as far as
    that split and both numbers allow (among those of the stage where weights are sharded, since
    what is divided need not be gathered)."""
    model, values = draft.model, draft.values
    if not model.is_moe:
        return int(values.get("ep", 1)), int(values.get("etp", 1))
    several = int(values.get("ep", 1))
    as_layers = draft.experts_split or "ep" in values
    etp = int(values.get("etp", tp if as_layers and ranks % (several * tp) == 0 else 1))
    reach = ranks if SHARDINGS[values["sharding"]].weights else scale_up(draft.cluster)
    shared = divisors(math.gcd(model.num_experts, max(ranks // etp, 1)))
    near = max(d for d in shared if d == 1 or d * etp <= reach)
    return int(values.get("ep", near)), etp
