"""Megatron-LM: the arguments that say how a model is trained (megatron/training/arguments.py, core
0.13)."""

from __future__ import annotations

import math

from predictor.errors import InputError
from predictor.training import TRAINED_LOAD
from reckon.launch.launcher import WORLD
from reckon.launch.megatron_graphs import GRAPHS
from reckon.launch.megatron_memory import OFFLOAD, RECOMPUTE, STATE
from reckon.launch.megatron_model import MODEL
from reckon.launch.table import (
    Cases,
    Derived,
    Entry,
    Facts,
    Flags,
    Number,
    Switch,
    Where,
    clipping,
    number,
    tokens_of_steps,
    truth,
    whole_number,
)


def _stages(facts: Facts, loss: bool) -> int | None:
    """Slots that fall on stages: layers, and embedding and head where the line counts them."""
    if "model.layers" not in facts:
        return None
    return int(facts["model.layers"]) + (2 if loss else 0)


def _undivided(slots: int, pp: int, layers: int) -> str:
    """Why layers do not divide into so many stages of so many each, and what would."""
    told = f"{slots} layers are not a multiple of pp {pp} x {layers} = {pp * layers}"
    if able := [n for n in range(1, slots // pp + 1) if slots % (pp * n) == 0]:
        return f"{told}; {', '.join(map(str, able))} layers a stage divide them"
    stages = sorted((n for n in range(2, slots) if slots % n == 0), key=lambda n: abs(n - pp))[:3]
    return f"{told}; no number does with pp {pp}: pp {', '.join(map(str, sorted(stages)))} would"


def _interleaved_means(flags: Flags, facts: Facts) -> Facts:
    direct, per = (
        "--num-virtual-stages-per-pipeline-rank",
        "--num-layers-per-virtual-pipeline-stage",
    )
    found: list[tuple[str, int]] = []
    if str(flags.get(direct, "none")).lower() not in ("none", "null"):
        found.append((direct, whole_number(direct, flags[direct])))
    if str(flags.get(per, "none")).lower() not in ("none", "null"):
        layers = whole_number(per, flags[per])
        slots = _stages(facts, truth("", flags.get("--account-for-loss-in-pipeline-split", False)))
        if slots is None:
            raise InputError(f"{per} {layers}: needs --num-layers, or --model")
        pp = int(facts.get("pp", 1))
        if layers < 1 or slots % (pp * layers):
            raise InputError(f"{per} {layers}: {_undivided(slots, pp, layers)}")
        found.append((per, slots // pp // layers))
    if len({vpp for _, vpp in found}) > 1:
        told = " contradicts ".join(f"{flag} {flags[flag]}" for flag, _ in found)
        raise InputError(f"{told} ({found[0][1]} against {found[1][1]} virtual stages)")
    return {"vpp": found[0][1] if found else 1}


SPLIT_FLAGS = ("--account-for-embedding-in-pipeline-split", "--account-for-loss-in-pipeline-split")


def _split_says(facts: Facts) -> Flags:
    """Layers with embedding and head as slots, where only so they divide into stages."""
    stages = facts["pp"] * facts["vpp"]
    layers = facts["model.layers"]
    if facts["split"] == "slots" and layers % stages and (layers + 2) % stages == 0:
        return dict.fromkeys(SPLIT_FLAGS, True)
    return {}


LOAD_FLAGS = ("--moe-router-force-load-balancing", "--moe-expert-capacity-factor",
              "--moe-pad-expert-input-to-capacity")  # fmt: skip


def _load_says(facts: Facts) -> Flags:
    load = facts.get("expert_load", TRAINED_LOAD)
    if not facts.get("model.num_experts") or load == TRAINED_LOAD:
        return {}
    if load == 1:
        return {LOAD_FLAGS[0]: True}
    return {LOAD_FLAGS[1]: load, LOAD_FLAGS[2]: True}


def _load_means(flags: Flags, facts: Facts) -> Facts:
    if LOAD_FLAGS[0] in flags:
        return {"expert_load": 1 if truth(LOAD_FLAGS[0], flags[LOAD_FLAGS[0]]) else TRAINED_LOAD}
    if truth("", flags.get(LOAD_FLAGS[2], False)) and LOAD_FLAGS[1] in flags:
        return {"expert_load": max(number(LOAD_FLAGS[1], flags[LOAD_FLAGS[1]]), 1)}
    return {}


ACCUMULATED = "--gradient-accumulation-steps"
"""Micro-batches of a replica in a step, as GPT-NeoX states them."""


def _batch_means(flags: Flags, facts: Facts) -> Facts:
    """The global batch; where it is not stated, one micro-batch of every replica."""
    if "--global-batch-size" in flags:
        stated = whole_number("--global-batch-size", flags["--global-batch-size"])
        return {"global_batch": stated}
    if "gpus" not in facts or "micro_batch" not in facts:
        return {}
    ranks = math.prod(int(facts.get(key, 1)) for key in ("tp", "pp", "cp"))
    steps = whole_number(ACCUMULATED, flags.get(ACCUMULATED, 1))
    return {"global_batch": max(facts["gpus"] // ranks, 1) * facts["micro_batch"] * steps}


def _budget_says(facts: Facts) -> Flags:
    if "tokens" not in facts:
        return {}
    return {"--train-samples": math.ceil(facts["tokens"] / facts["seq_len"])}


def _budget_means(flags: Flags, facts: Facts) -> Facts:
    if "--train-tokens" in flags:
        return {"tokens": number("--train-tokens", flags["--train-tokens"])}
    if "--train-samples" in flags and "seq_len" in facts:
        samples = number("--train-samples", flags["--train-samples"])
        return {"tokens": samples * facts["seq_len"]}
    return tokens_of_steps("--train-iters", flags, facts)


GROUP_FLAGS = ("--moe-router-group-topk", "--moe-router-num-groups")


def _groups_says(facts: Facts) -> Flags:
    """Groups of experts, one on each node that they lie on (node-limited routing)."""
    most = facts.get("routed_nodes")
    if not most or not facts.get("model.num_experts"):
        return {}
    nodes = facts["ep"] * facts["etp"] // facts["@per_node"]
    return {GROUP_FLAGS[0]: most, GROUP_FLAGS[1]: max(nodes, most)}


def _groups_means(flags: Flags, facts: Facts) -> Facts:
    if GROUP_FLAGS[0] not in flags:
        return {}
    return {"routed_nodes": whole_number(GROUP_FLAGS[0], flags[GROUP_FLAGS[0]])}


def _mtp_says(facts: Facts) -> Flags:
    layers = facts.get("model.mtp_layers")
    return {"--mtp-num-layers": layers} if layers and facts.get("mtp", True) else {}


def _mtp_means(flags: Flags, facts: Facts) -> Facts:
    layers = whole_number("--mtp-num-layers", flags.get("--mtp-num-layers", 0))
    if not facts.get("model.mtp_layers"):
        return {}
    return {"mtp": layers > 0}


FP8 = {"--bf16": True, "--fp8-format": ("hybrid", "e4m3")}

DISPATCHER, BACKEND = "--moe-token-dispatcher-type", "--moe-flex-dispatcher-backend"

UNFUSED = ("--no-bias-swiglu-fusion", "--no-bias-gelu-fusion")


SUMMED = "--no-gradient-accumulation-fusion"


def _summed_means(flags: Flags, facts: Facts) -> Facts:
    """Whether gradients are added up by kernels of their own, where a line says so."""
    return {"sums_apart": truth(SUMMED, flags[SUMMED])} if SUMMED in flags else {}


def _fusion_says(facts: Facts) -> Flags:
    if facts["fused"]:
        return {}
    return {UNFUSED[0 if facts.get("model.gated", True) else 1]: True, "--no-rope-fusion": True}


PLAN: tuple[Entry, ...] = (
    WORLD,
    Number("--tensor-model-parallel-size", "tp", absent=1, also=("--model-parallel-size",)),
    Number("--pipeline-model-parallel-size", "pp", absent=1),
    Derived(
        ("--num-virtual-stages-per-pipeline-rank", "--num-layers-per-virtual-pipeline-stage"),
        lambda facts: (
            {"--num-virtual-stages-per-pipeline-rank": facts["vpp"]} if facts["vpp"] > 1 else {}
        ),
        _interleaved_means,
        off=(("--num-virtual-stages-per-pipeline-rank", "null"),),
        fields=("vpp",),
        needs=("pp",),
    ),
    Derived(
        SPLIT_FLAGS,
        _split_says,
        lambda flags, facts: (
            {"split": "slots"} if all(truth("", flags.get(f, False)) for f in SPLIT_FLAGS) else {}
        ),
        fields=("split",),
        needs=("pp", "vpp"),
    ),
    Number("--decoder-first-pipeline-num-layers", "first_layers"),
    Number("--decoder-last-pipeline-num-layers", "last_layers"),
    Number("--context-parallel-size", "cp", absent=1),
    Where(
        Cases(
            ("cp_kind",),
            (
                (("ring",), {"--cp-comm-type": "p2p"}),
                (("allgather",), {"--cp-comm-type": ("allgather", "all_gather")}),
                (("ulysses",), {"--cp-comm-type": "a2a"}),
                ((None,), {}),
            ),
        ),
        lambda facts: facts["cp"] > 1,
        needs=("cp",),
    ),
    Number("--expert-model-parallel-size", "ep", absent=1),
    Derived(
        ("--expert-tensor-parallel-size",),
        lambda facts: (
            {"--expert-tensor-parallel-size": facts["etp"]}
            if facts.get("model.num_experts")
            else {}
        ),
        lambda flags, facts: (
            {
                "etp": whole_number(
                    "--expert-tensor-parallel-size", flags["--expert-tensor-parallel-size"]
                )
            }
            if "--expert-tensor-parallel-size" in flags
            else ({"etp": facts["tp"]} if facts.get("model.num_experts") else {})
        ),
        fields=("etp",),
        needs=("tp",),
    ),
    Switch("--sequence-parallel", "sequence_parallel"),
    Number("--seq-length", "seq_len", also=("--encoder-seq-length",)),
    Number("--micro-batch-size", "micro_batch"),
    Derived(
        ("--global-batch-size", ACCUMULATED),
        lambda facts: {"--global-batch-size": facts["global_batch"]},
        _batch_means,
    ),
    Derived(("--train-samples", "--train-iters", "--train-tokens"), _budget_says, _budget_means),
    Cases(
        ("precision",),
        (
            (("bf16",), {"--bf16": True}),
            (("fp16",), {"--fp16": True}),
            (("fp8",), {**FP8, "--fp8-recipe": ("tensorwise", "delayed")}),
            (("fp8_block",), {**FP8, "--fp8-recipe": "blockwise"}),
            (("mxfp8",), {**FP8, "--fp8-recipe": "mxfp8"}),
            (("nvfp4",), {"--bf16": True, "--fp4-format": "e2m1", "--fp4-recipe": "nvfp4"}),
            (("nvfp4",), {"--bf16": True, "--fp4-format": "e2m1"}),
            (("fp8",), FP8),
            (("fp8",), {"--fp8-format": ("hybrid", "e4m3")}),
            (("fp32",), {"--bf16": False, "--fp16": False}),
        ),
    ),
    *STATE,
    Switch("--overlap-grad-reduce", "grad_overlap"),
    Switch("--overlap-param-gather", "param_overlap"),
    Switch("--tp-comm-overlap", "tp_overlap"),
    Switch("--no-async-tensor-model-parallel-allreduce", "tp_async_backward", when=False),
    Switch("--no-overlap-p2p-communication", "p2p_overlap", when=False),
    Switch("--overlap-moe-expert-parallel-comm", "ep_overlap"),
    RECOMPUTE,
    Cases(
        ("attention",),
        (
            (("flash",), {"--attention-backend": ("flash", "fused")}),
            (("flash2",), {"--attention-backend": "flash"}),
            (("unfused",), {"--attention-backend": ("unfused", "local")}),
            ((None,), {"--attention-backend": "auto"}),
            (("flash",), {"--use-flash-attn": True}),
            (
                ("flash",),
                {"--use-flash-attn": True, "--attention-backend": ("flash", "fused", "auto")},
            ),
            ((None,), {}),
        ),
    ),
    Derived(
        ("--attention-dropout", "--hidden-dropout"),
        lambda facts: dict.fromkeys(
            ("--attention-dropout", "--hidden-dropout"), 0.1 if facts["dropout"] else 0.0
        ),
        lambda flags, facts: {
            "dropout": any(
                number(f, flags.get(f, 0.1)) > 0
                for f in ("--attention-dropout", "--hidden-dropout")
            )
        },
        fields=("dropout",),
    ),
    Where(
        Cases(
            ("dispatch",),
            (
                (("copies",), {DISPATCHER: ("alltoall", "allgather", "alltoall_seq")}),
                (("once",), {DISPATCHER: "flex", "--moe-enable-deepep": True}),
                (("once",), {DISPATCHER: "flex", BACKEND: ("deepep", "hybridep")}),
                (("once",), {DISPATCHER: "flex"}),
                ((None,), {}),
            ),
        ),
        lambda facts: bool(facts.get("model.num_experts")),
    ),
    Derived(LOAD_FLAGS, _load_says, _load_means, off=((LOAD_FLAGS[0], False),)),
    GRAPHS,
    OFFLOAD,
    Derived(GROUP_FLAGS, _groups_says, _groups_means),
    Derived(
        ("--mtp-num-layers",),
        _mtp_says,
        _mtp_means,
        off=(("--mtp-num-layers", 0),),
        fields=("mtp",),
    ),
    clipping("--clip-grad", absent=1.0),
    Derived(
        (*UNFUSED, "--no-rope-fusion"),
        _fusion_says,
        lambda flags, facts: {"fused": not any(truth(f, flags.get(f, False)) for f in UNFUSED)},
        off=((UNFUSED[0], False),),
        fields=("fused",),
    ),
    Derived(
        (SUMMED,),
        lambda facts: {SUMMED: True} if facts["sums_apart"] else {},
        _summed_means,
        off=((SUMMED, False),),
        fields=("sums_apart",),
    ),
    Number("--make-vocab-size-divisible-by", "vocab_multiple", absent=128),
    Cases(
        ("rank_order",),
        (
            (("tp-cp-pp-dp",), {"--use-tp-pp-dp-mapping": True}),
            (("tp-cp-dp-pp",), {"--use-tp-pp-dp-mapping": False}),
        ),
    ),
)
"""Fields of the plan."""

TABLE = (*MODEL, *PLAN)
FLAGS = tuple(flag for entry in TABLE for flag in entry.flags)
