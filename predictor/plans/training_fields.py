"""The table of what a request may state of a training plan."""

from __future__ import annotations

from dataclasses import replace

from predictor.plans.byte_fields import BYTE_FIELDS
from predictor.plans.fields import (
    ALL,
    CLUSTER_FIELDS,
    COUNT,
    DIVISIONS,
    EVERYWHERE,
    EXPLAIN,
    LENGTH,
    LOAD,
    ORDER,
    PACKINGS,
    PART,
    PLAN,
    POSITIVE,
    PREDICT,
    SHARE,
    SWITCH,
    TEXT,
    WORD,
    WORDS,
    PlanField,
    Table,
    era_fields,
    expert_fields,
    image_fields,
    table,
)
from predictor.plans.kind_fields import FRAMEWORK, KIND_FIELDS, PASSES
from predictor.plans.learning_fields import LEARNING_FIELDS
from predictor.plans.power_fields import POWER_FIELDS
from predictor.plans.run_fields import RUN_FIELDS
from predictor.plans.schedules import SCHEDULES
from predictor.plans.training import (
    ATTENTIONS,
    CP_KINDS,
    CUDA_GRAPHS,
    DISPATCHES,
    FIT,
    OFFLOADS,
    RECOMPUTE_METHODS,
    RECOMPUTE_MODULES,
    RECOMPUTES,
    ROUTINGS,
    SHARDINGS,
    SPLITS,
)
from predictor.plans.words import RECIPE_WORDS, RECOMPUTE_WORDS, SHARDING_WORDS
from predictor.precision import PRECISIONS

CHAINS = (*PASSES, "host", "memory")
TOWERS = ("trained", "frozen")
EASINGS = ("alike", "fits")
STAGES = (*PASSES, "optimizer", "pipeline", "memory")
FITS = "what fits and costs least, tp inside the node and no narrower than 2,048"

_LINKS = ("communication", "optimizer")  # the norm of the gradients is summed over all ranks

_WHERE = tuple(
    replace(one, touches=_LINKS) if one.name == "inter_link_gbps" else one for one in CLUSTER_FIELDS
)

_PARALLEL = (
    PlanField(
        "gpus", COUNT, "Accelerators in all.", ALL, default="tp x pp x cp x dp", flags=EVERYWHERE,
        planned="N, a list, or LOW..HIGH; none: any.", held="",
    ),
    PlanField(
        "tp", COUNT, "Tensor parallel.", ALL, default="the smallest that fits", reason=FITS,
        flags=EVERYWHERE,
    ),
    PlanField(
        "pp", COUNT, "Pipeline parallel.", ALL, default="the smallest that fits", reason=FITS,
        flags=EVERYWHERE,
    ),
    PlanField(
        "vpp", COUNT, "Virtual stages per device.", ("pipeline", "communication", "memory"),
        default="1; 2 in schedules that fold; of the framework",
        reason="no interleaving unless asked for; NVIDIA's recipes interleave",
        flags=EVERYWHERE,
    ),
    PlanField(
        "cp", COUNT, "Context parallel.", ALL, flags=EVERYWHERE,
        default="1, unless there are fewer sequences than replicas",
        reason="no context parallelism unless asked for",
    ),
    PlanField(
        "ep", COUNT, "Expert parallel.", ALL,
        default="all that the scale-up domain allows; 1 of a dense model",
        reason="experts are divided among near ranks first", flags=EVERYWHERE,
        more="Ranks among which experts are divided, of those of a pipeline stage (tp x cp x dp).",
    ),
    PlanField(
        "dp", COUNT, "Data parallel (default: what remains).", ALL,
        default="gpus / (tp x pp x cp)", flags=EVERYWHERE, planned="Data parallel.",
    ),
    PlanField(
        "dp_shard", COUNT, "Ranks that share one copy of the state (hsdp).",
        ("optimizer", "communication", "memory"), default="a node's accelerators",
        reason="shard inside the node; dp where the sharding is another",
    ),
    PlanField(
        "first_layers", COUNT, "Layers on the first stage of the pipeline.", STAGES,
        default="as `split` says",
        more="Megatron's decoder-first-pipeline-num-layers.",
    ),
    PlanField(
        "last_layers", COUNT, "Layers on the last stage of the pipeline.", STAGES,
        default="as `split` says", more="Megatron's decoder-last-pipeline-num-layers.",
    ),
    PlanField(
        "stage_systems", TEXT, "Systems of the stages, as dgx-h100:2+dgx-a100:2.", ALL,
        default="one system", held="", reason="accelerators are alike unless stated",
        more="So many stages on each, in this order; layers are dealt to them so that the slowest "
        "is as fast as may be.",
    ),
    PlanField(
        "replica_systems", TEXT, "The same of data-parallel replicas.", ALL,
        default="one system", held="", reason="accelerators are alike unless stated",
        more="Micro-batches are dealt to them so that all end together.",
    ),
    PlanField(
        "regions", TEXT, "File of regions: rates and round trips between them.", ALL,
        default="one region", held="", reason="accelerators are near each other unless stated",
        more="YAML with `names`, `bandwidth_gbs` and `rtt_ms` (matrices; regions in themselves on "
        "the diagonal). Accelerators are divided evenly among the regions.",
    ),
    PlanField(
        "crossing", WORD, "What crosses regions.", ALL, choices=("best", "pipelines", "replicas"),
        default="best", held="", reason="whichever is faster",
        more="Pipelines, whose stages are in one region after the other; or gradients, where each "
        "pipeline lies inside a region.",
    ),
    PlanField(
        "etp", COUNT, "Ranks that split each expert.", ALL,
        default="tp where ep is stated and ep x tp divides a stage's ranks, else 1",
        reason="Megatron Core's default",
    ),
    PlanField(
        "expert_load", LOAD, "Tokens of the busiest rank's experts over the mean.",
        (*PASSES, "communication", "memory"), default="1.1",
        reason="routers trained to balance (Fedus et al. 2021)",
        more="Imbalance of the router, or the capacity factor where experts are padded to it.",
    ),
    *expert_fields((*PASSES, "communication", "memory")),
    PlanField(
        "dispatch_processors", COUNT, "Processors of the kernels that send a token once.",
        ("communication",), reason="DeepEP's default",
        more="Streaming multiprocessors; with `dispatch=once`. DeepEP takes 20 (deep_ep/buffer.py, "
        "`Buffer.num_sms`), HybridEP 16 in Megatron Core and 32 in NVIDIA's recipes.",
    ),
    PlanField(
        "routed_nodes", COUNT, "Nodes among which a token's experts lie at most.",
        ("communication",), default="any number",
        more="Node-limited routing, 4 in DeepSeek-V3 (DeepSeek-AI 2024, section 2.1.2); with "
        "`dispatch=once`.",
    ),
)  # fmt: skip

_BATCH = (
    PlanField(
        "micro_batch", COUNT, "Sequences per micro-batch.", ALL, unit="sequences",
        default="1 in a pipeline, else what fits", flags=EVERYWHERE,
        reason="the most of a rank's sequences that fit in memory together",
    ),
    PlanField(
        "global_batch", COUNT, "Sequences per step.", ALL, unit="sequences",
        default="none: must be stated", flags=EVERYWHERE,
    ),
    *image_fields("sequence"),
    PlanField(
        "image_samples", TEXT, "How images differ: ai2d, chartqa, or a file.", ALL,
        default="all alike", held="", reason="alike unless stated",
        more="Tiles of samples (columns tiles and samples); the replica that has most decides.",
    ),
    PlanField(
        "tower", WORD, "Whether the second tower is trained.", ALL, choices=TOWERS,
        default="trained", held="", reason="all parameters are, unless stated",
    ),
    PlanField(
        "documents", TEXT, "Lengths of what sequences are packed of.", ALL,
        default="one per sequence", held="",
        reason="sequences are as long as documents unless stated",
        more="`wlb`, `prolong`, `wikipedia` or `dclm`; `lognormal:MEAN:SIGMA`; "
        "`quantiles:SHARE:TOKENS:...`; or a file with a length for each document.",
    ),
    PlanField(
        "packing", WORD, "How documents make sequences.",
        (*PASSES, "pipeline", "communication"), choices=PACKINGS, default="fixed", held="",
        reason="most loaders concatenate and cut",
        more="Cut into windows, or dealt by cost, where each attends to itself alone; in windows "
        "that attend over all; padded, one to a sequence.",
    ),
    PlanField(
        "cp_sharding", WORD, "What context-parallel ranks divide.",
        (*PASSES, "communication"), choices=DIVISIONS, default="sequence", held="",
        reason="as frameworks do (Megatron's zigzag)",
        more="The sequence, whose documents then fall on them unequally, each document, or what is "
        "quicker of every sequence.",
    ),
    PlanField(
        "seq_len", LENGTH, "Tokens per sequence.", ALL, unit="tokens",
        default="none: must be stated", flags=EVERYWHERE,
    ),
)  # fmt: skip

_RECIPE = (
    PlanField(
        "precision", WORD, "Of the layers' products, in all three directions.", ALL,
        choices=tuple(PRECISIONS), words=RECIPE_WORDS, default="bf16, fp16 or fp32",
        flags=EVERYWHERE, metavar="P",
        reason="bf16 where the accelerator has it, else fp16, else fp32",
    ),
    PlanField(
        "wide_share", SHARE, "Of the layers, whose products stay in 16 bits.", (*PASSES, "memory"),
        default=f"{FRAMEWORK}, else 0", reason="most recipes narrow all layers alike",
        more="Rounded up to whole layers. Recipes in 4 bits keep the last ones wide.",
    ),
    PlanField(
        "recompute", WORD, "What the backward pass runs again.", ("backward", "memory"),
        choices=(*RECOMPUTES, FIT), words=RECOMPUTE_WORDS,
        default=f"{FRAMEWORK}, else the least that fits", flags=EVERYWHERE, metavar="R",
        reason="`fit` is the first of none, selective, and eighths of full with which it fits",
        more="What runs twice: nothing; the attention core; everything but attention, of the "
        "products every other one; whole layers.",
    ),
    PlanField(
        "sharding", WORD, "What the data-parallel group divides among its ranks.",
        ("optimizer", "communication", "memory"), choices=tuple(SHARDINGS),
        words=SHARDING_WORDS, default=FRAMEWORK, flags=EVERYWHERE, metavar="S",
    ),
    PlanField(
        "sequence_parallel", SWITCH, "Tensor-parallel ranks split norms too.",
        (*PASSES, "communication", "memory"),
        default=f"{FRAMEWORK}; most: where tp > 1", flags=(PREDICT, EXPLAIN), lists=False,
    ),
    PlanField(
        "attention", WORD, "Kernels of the attention core.", (*PASSES, "memory"),
        choices=ATTENTIONS, default=FRAMEWORK, flags=(PREDICT, EXPLAIN), metavar="A",
        more="The accelerator's best fused kernel; FlashAttention-2; the first FlashAttention, "
        "in CUDA or Triton, or AMD's in PyTorch; separate kernels, whose softmax scales on its way "
        "(Megatron-LM), or scales with another (modules written in PyTorch).",
    ),
    PlanField(
        "schedule", WORD, "Order of a pipeline's passes.",
        ("pipeline", "communication", "memory"),
        choices=tuple(SCHEDULES), flags=(PLAN,), metavar="S",
        reason="what most frameworks run; interleaved with --vpp",
    ),
    *era_fields("Whose defaults to assume.", "framework"),
    PlanField(
        "split", WORD, "How layers fall on stages.", STAGES, choices=SPLITS,
        reason="frameworks divide by number",
        more="Equal numbers, embedding and head as slots where that divides; equal arithmetic; or "
        "fewer on stages that sit where the node is hot, if that makes the step shorter.",
    ),
    PlanField(
        "cp_kind", WORD, "How ranks that split a sequence attend over it.",
        (*PASSES, "communication", "memory"), choices=CP_KINDS, reason="Megatron's default",
        more="Keys and values go round a ring, are gathered, or heads are exchanged for tokens by "
        "all-to-all.",
    ),
    PlanField(
        "rank_order", ORDER, "Which ranks are neighbours, e.g. tp-cp-pp-dp.",
        ("optimizer", "communication"),
        reason="Megatron's default",
        more="tp-cp-pp-dp is its tp-pp-dp mapping, which keeps pipelines together instead of "
        "replicas. An `ep` among them says nothing: experts fill the ranks of a stage.",
    ),
    PlanField(
        "dispatch", WORD, "How tokens travel to their experts.", (*PASSES, "communication"),
        choices=DISPATCHES, reason="plain all-to-all",
        more="Every copy by itself, or once to each node and once to each rank in it (DeepEP, "
        "HybridEP).",
    ),
    PlanField(
        "routing", WORD, "Which experts a token is given.", (*PASSES, "communication"),
        choices=ROUTINGS, reason="routers choose any",
        more="Any; or, as benchmarks deal them that balance by force, the next of all in turn, "
        "which lie on few ranks; with `dispatch=once`.",
    ),
    PlanField(
        "cuda_graphs", WORDS, "What CUDA graphs capture of a step.", ("host",),
        choices=CUDA_GRAPHS, reason="frameworks launch kernel by kernel unless told otherwise",
        more="Parts of the layers, whole layers, or the step: the host launches that as one.",
    ),
    *LEARNING_FIELDS,
    PlanField(
        "mtp", SWITCH, "The model's extra prediction layers are trained too.", ALL,
        reason="they are there to be trained",
    ),
)  # fmt: skip

_RECOMPUTE = (
    PlanField(
        "recompute_modules", WORDS, "What selective recomputation repeats.",
        ("backward", "memory"), choices=RECOMPUTE_MODULES,
        reason="the attention core (Korthikanti et al. 2022, section 5)", metavar="NAMES",
    ),
    PlanField(
        "recompute_share", PART, "Share of the layers that full recomputation covers.",
        ("backward", "memory"), reason="all, or the fewest eighths of the layers that fit",
    ),
    PlanField(
        "stage_recompute", WORD, "Of full: whether stages compute again alike.", ALL,
        choices=EASINGS, default="alike", held="", reason="frameworks set it for all stages",
        more="Or as few quarters of their layers as each has room for; layers are then dealt so "
        "that the slowest stage is as fast as may be.",
    ),
    PlanField(
        "recompute_method", WORD, "Of full: `block` or `uniform`.", ("backward", "memory"),
        choices=RECOMPUTE_METHODS, default="block", held="",
        reason="what a number of layers means unless stated",
        more="So many layers of each (virtual) stage run again; or all do, and the input of one in "
        "so many is kept.",
    ),
    PlanField(
        "recompute_layers", COUNT, "Of full: layers of a stage, or of one kept input.",
        ("backward", "memory"), default="1", held="", reason="Megatron's default",
    ),
)  # fmt: skip

_OFFLOAD = (
    PlanField(
        "offload_activations", SHARE, "Of the layers' activations, kept by the host.",
        ("communication", "memory"), reason="nothing is offloaded unless stated",
    ),
    PlanField(
        "offload_optimizer", SHARE, "Of the optimizer's states and update, kept by the host.",
        ("optimizer", "memory"), reason="nothing is offloaded unless stated",
    ),
    PlanField(
        "offload_weights", SHARE, "Of the sharded weights, kept by the host.",
        ("communication", "memory"), reason="nothing is offloaded unless stated",
        more="ZeRO-3's offload_param, FSDP's CPUOffload: a rank's part comes up before every "
        "gathering.",
    ),
    PlanField(
        "offload_to", WORD, "Where that stays: memory or drives.",
        ("optimizer", "communication", "memory"), choices=OFFLOADS,
        reason="drives are slower by far",
    ),
    PlanField(
        "host_memory_gb", POSITIVE, "Memory of a node's host.", ("memory",), unit="GB",
        default="the system's", held="",
    ),
    PlanField(
        "loader_rate", POSITIVE, "Tokens that the data loader of a data-parallel rank delivers.",
        ("pipeline",), unit="tokens/s", default="it keeps up",
        reason="loaders prefetch behind the step",
    ),
)  # fmt: skip

_OVERLAP = (
    PlanField(
        "tp_overlap", SWITCH, "All tensor-parallel collectives hide behind their products.",
        ("communication",), default=FRAMEWORK,
    ),
    PlanField(
        "tp_async_backward", SWITCH, "Those of the backward pass, behind the weight gradients.",
        ("communication",), default=FRAMEWORK,
    ),
    PlanField(
        "tp_regather", SWITCH, "A column-parallel product's input is gathered twice.",
        ("communication", "memory"),
        reason="Korthikanti et al. 2022, section 4.2.2: once more for the weight gradient, rather "
        "than kept whole",
    ),
    PlanField(
        "adapters", POSITIVE, "Network adapters of a node that carry its traffic.",
        ("communication", "optimizer"), default="all",
        reason="one for each accelerator, and all are used",
        more="Fewer where NCCL_IB_HCA names fewer, or where the rings of a group leave a node "
        "through one of them.",
    ),
    PlanField(
        "grad_overlap", SWITCH, "Gradient reduction hides behind computation.",
        ("communication",), default=FRAMEWORK,
    ),
    PlanField(
        "param_overlap", SWITCH, "Weight gathering hides behind computation.",
        ("communication",), default=FRAMEWORK,
    ),
    PlanField(
        "p2p_overlap", SWITCH, "Pipeline transfers hide behind computation.", ("communication",),
        default=FRAMEWORK,
    ),
    PlanField(
        "pipeline_fill", POSITIVE,
        "Micro-batches per stage between which a pipeline runs empty.",
        ("pipeline", "communication", "memory"), default="all of a step", reason="once a step",
        more="AutoModel and torchtitan call the schedule once for every local batch.",
    ),
    PlanField(
        "ep_overlap", SWITCH, "Dispatch and combine hide behind another micro-batch's passes.",
        ("communication",), default="no; yes with DualPipe schedules of a mixture",
        reason="forward and backward chunks run together there",
    ),
    PlanField(
        "reshard", SWITCH, "Fully sharded weights are dropped after the forward pass.",
        ("communication", "memory"), reason="FSDP's default: gathered again for the backward pass",
    ),
    PlanField(
        "reduce_last", SWITCH,
        "Sharded gradients are reduced after the last micro-batch.",
        ("communication", "memory"), default=FRAMEWORK,
        reason="FSDP's default: reduced after every micro-batch",
        more="PyTorch's set_requires_gradient_sync(False), no_sync: until then every rank adds up "
        "those of all its weights.",
    ),
    PlanField(
        "flat_copies", SWITCH, "Sharded weights and gradients are copied from and to flat buffers.",
        ("communication", "memory"), default=FRAMEWORK, reason="PyTorch's FSDP2 (fully_shard) does",
        more="What travels lies in one buffer, what is multiplied in tensors of its own.",
    ),
    PlanField(
        "sums_apart", SWITCH, "Gradients of a micro-batch are added by kernels of their own.",
        ("communication",), reason="the products of large-scale trainers add to what is there",
        more="PyTorch's autograd (AccumulateGrad), unless a product adds them.",
    ),
    PlanField(
        "built_whole", SWITCH, "Every device holds the whole model before it is divided.",
        ("memory",), default=FRAMEWORK, reason="most build it without memory, or stage by stage",
        more="Its 16-bit weights alone, before the first step.",
    ),
    *KIND_FIELDS,
    PlanField(
        "vocab_parallel", SWITCH,
        "Tensor-parallel ranks divide embedding and logits.",
        ("optimizer", "communication", "memory"), default=FRAMEWORK,
        reason="Megatron's vocabulary parallelism",
        more="Else each holds the embedding, and gathers the logits whole for its loss (untimed).",
    ),
    PlanField(
        "grad_clip", SWITCH, "Gradients are clipped by their global norm.",
        ("optimizer",), reason="all published recipes clip",
    ),
    PlanField(
        "dropout", SWITCH, "Dropout after attention and feed-forward.", (*PASSES, "memory"),
        default=FRAMEWORK,
    ),
    PlanField(
        "fused", SWITCH, "Elementwise chains are single kernels.", CHAINS,
        reason="gated activation, rotary and norms are fused in today's frameworks",
    ),
    PlanField(
        "fused_norm", SWITCH, "RMS norms and GPT-2's GELU are single kernels, others not.", CHAINS,
        default=FRAMEWORK,
    ),
    PlanField(
        "saves_narrow", SWITCH, "Inputs of narrow products are kept as narrow.",
        ("forward", "backward", "memory"),
        reason="Transformer Engine keeps what it has cast (from memory)",
        more="Else in 16 bits, and cast for each product (torchao's Float8Linear).",
    ),
    PlanField(
        "stops_early", SWITCH, "Full recomputation of a layer ends with the last tensor needed.",
        ("backward", "communication"), default=FRAMEWORK,
        reason="Megatron Core's runs the whole layer again",
        more="PyTorch's non-reentrant checkpoint from 2.1 on, and what XLA leaves of dead code: "
        "the last product of a layer is not run again.",
    ),
)  # fmt: skip

_VOCABULARY = (
    PlanField(
        "vocab_multiple", COUNT, "A rank's share of the vocabulary is padded to a multiple of it.",
        ALL, reason="Megatron's make-vocab-size-divisible-by",
    ),
)  # fmt: skip

TRAINING_FIELDS: Table = table(
    (
        *_WHERE, *_PARALLEL, *_BATCH, *_RECIPE, *RUN_FIELDS, *POWER_FIELDS, *_RECOMPUTE,
        *_OFFLOAD, *_OVERLAP, *BYTE_FIELDS, *_VOCABULARY,
    )
)  # fmt: skip
"""What a request may state of a training plan."""

TRAINING_DERIVED = {
    "recompute_chunk": "recompute_method and recompute_layers",
    "inner_layers": "stage_systems",
    **dict.fromkeys(
        ("document", "attention_load", "attention_cv", "attention_skew", "useful"),
        "documents, packing and cp_sharding",
    ),
}
"""Fields of the plan that follow from others of the request: field -> from which."""
