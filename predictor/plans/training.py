"""How a training run is laid out: parallel sizes, batch, precision, recomputation, sharding."""

from __future__ import annotations

from functools import cached_property
from itertools import permutations

import numpy as np
import numpy.typing as npt

from predictor.arrays import Numeric, category_fields, numeric_fields, shape_of
from predictor.plans.schedules import SCHEDULES, Schedule
from predictor.precision import PRECISIONS, Precision
from predictor.records import dataclass


@dataclass(frozen=True, slots=True)
class Sharding:
    """What the data-parallel group divides among its ranks, and what it moves for that.

    optimizer, gradients, weights  whether each of the three is divided
    per_micro_batch                gradients are reduced after every micro-batch, not once a step
    """

    optimizer: bool
    gradients: bool
    weights: bool
    per_micro_batch: bool


SHARDINGS: dict[str, Sharding] = {
    "none": Sharding(False, False, False, False),
    "zero1": Sharding(True, False, False, False),
    "zero2": Sharding(True, True, False, True),
    "zero3": Sharding(True, True, True, True),
    "fsdp": Sharding(True, True, True, True),
    "hsdp": Sharding(True, True, True, True),
}

RECOMPUTES = ("none", "selective", "per_op", "full")
"""What runs twice: nothing; the attention core; everything but attention, of the products every
other one (torchtitan's per-operator checkpointing); whole layers."""

RECOMPUTE_MODULES = (
    "core_attn",
    "layernorm",
    "mhc",
    "mla_up_proj",
    "mlp",
    "mlp_act",
    "moe",
    "moe_act",
    "shared_experts",
)
"""Parts of a layer that selective recomputation may name."""

RECOMPUTE_METHODS = ("block", "uniform")
"""What full recomputation does with a number of layers: so many of each (virtual) stage run again;
or all do, and the input of one in so many is kept."""

OFFLOADS = ("cpu", "nvme")
"""Where what is offloaded stays: in the host's memory, or on its drives."""

FIT = "fit"
"""In a request: the least recomputation with which the model fits."""

ATTENTIONS = ("flash", "flash2", "triton", "unfused", "eager")
"""The accelerator's best fused kernel; FlashAttention-2; the first FlashAttention, in CUDA or
Triton, or AMD's in PyTorch; separate kernels, the softmax scaling on its way; separate kernels, the
scale its own."""

SEPARATE = ("unfused", "eager")
"""Those that write scores out."""

SPLITS = ("slots", "cost", "heat")
"""How layers fall on stages: equal numbers, embedding and head as slots where that divides; equal
arithmetic; or fewer on stages whose places in the node are hot."""

CP_KINDS = ("ring", "allgather", "ulysses")
"""How the ranks that split a sequence attend over it: keys and values go round a ring, are
gathered, or heads are exchanged for tokens by all-to-all."""

RANK_ORDERS = tuple("-".join(order) for order in permutations(("tp", "cp", "dp", "pp")))
"""Dimensions from the innermost, whose ranks are neighbours, to the outermost: tp-cp-dp-pp is
Megatron's default, tp-cp-pp-dp its tp-pp-dp mapping, which keeps pipelines together instead of
replicas."""

DISPATCHES = ("copies", "once")
"""How tokens travel to their experts: every copy by itself (all-to-all), or once to each node and
once to each rank in it (DeepEP, HybridEP)."""

ROUTINGS = ("random", "in_turn")
"""Which experts a token is given: any, as routers do; or, as benchmarks deal them that balance by
force, the next `top_k` of all, which lie side by side."""

CUDA_GRAPHS = ("none", "attention", "mlp", "mamba", "router", "layers", "step")
"""What graphs capture, so that the host launches it as one: nothing; the kernels of a part of each
layer (what Transformer Engine's graphs may hold; `router` is all of a mixture but its experts);
whole layers; the whole step."""

TRAINED = ("all", "lora", "lora_qkv")
"""What learns: every parameter; or, beside frozen weights, low-rank adapters of all linear layers,
or of the projections to queries, keys and values only."""

ADAPTER_STYLES = ("joined", "apart", "autocast", "fp32")
"""How adapters are run: beside what is projected together; beside every matrix of a model's own
code; so, kept in fp32 and multiplied in 16 bits under autocast, or multiplied in fp32."""

FEW_BITS = ("int8", "nf4")
"""Precisions of frozen weights that bitsandbytes multiplies, which casts what its products put out
to the data type of what they read (nn/modules.py: `Linear4bit.forward`)."""

FROZEN_BYTES = {"as multiplied": 0.0, "fp8": 1.0, "int8": 1.0, "nf4": 0.516}
"""How weights that adapters leave as they are are stored, and bytes of each: as all weights of the
plan are (0); in 8 bits; in 4, with a scale for 64 of them, these again in 8 bits (Dettmers et al.
2023, QLoRA, section 3: 0.127 bits a parameter)."""

VARIATIONS = ("none", "tuned", "typical", "cloud")
"""How the machines of a run vary: not said; drained and capped alike; as most; shared hosts and
fabric (`data/variation/profiles.yaml`)."""

USUAL_FAULTS = "compute:1.1,compute:1.5,hbm:0.8,nvlink:0.5,nic:0.5,nic:0.25,nic:0.1,rail:1"
"""Slow parts that are looked at where none is named."""

UNNAMED = "neutral"
"""A framework that nobody named."""

PLAIN, HUGGINGFACE = "pytorch", "huggingface"
LOOPS = (PLAIN, HUGGINGFACE, "torchtune")
"""Loops over modules of PyTorch without a framework: somebody's own, those of HuggingFace's Trainer
and what stands on it, and torchtune's recipes."""

MAKERS = ("megatron-bridge", "megatron-lm", "nemo")
"""Frameworks that the maker of most accelerators keeps and tunes for them (families 'paper' and
'vendor' of `data/defaults/run.yaml`): their runs differ less than those of what communities keep,
whose code of experts above all is anything from a loop to what the maker runs."""

ZERO = ("deepspeed", "megatron-deepspeed")
"""Frameworks on DeepSpeed's optimizers."""

ON_ONE = (*LOOPS, "torchtitan", "kempnerforge", "fms-fsdp")
"""Frameworks that are a loop over modules of PyTorch on one rank: their level is what happens
between ranks (layers compiled one by one on an H200, in 16 bits and fp8, 0.90 to 1.02 of what
their kernels do, `data/measurements/h200-sxm-4`; KempnerForge's own row on one GPU)."""


@dataclass(frozen=True, eq=False)
class TrainingPlan:
    """One training plan, or many of one category at once.

    What each field means is in the table of `training_fields`. Numeric fields are floats or arrays
    of one broadcast shape, in SI units, NaN where nothing is stated; `sequence_parallel` is 0 or 1.
    Categorical fields have one value for the whole batch. GPUs = tp * pp * cp * dp; the ranks of
    ep and etp are taken from those of a pipeline stage.

    inner_layers     of an inner stage, whatever those at the ends have: of stages that are looked
                     at one by one (`training.uneven`)
    recompute_chunk  layers of which full recomputation keeps one input
    document         length of equal documents in a sequence with as much attention [tokens]; NaN:
                     one as long as it
    attention_load   attention of the slowest rank that divides a sequence, over the mean
    attention_cv, attention_skew   of the attention of a micro-batch
    useful           share of the tokens that are no padding
    """

    tp: Numeric
    pp: Numeric
    dp: Numeric
    micro_batch: Numeric
    global_batch: Numeric
    seq_len: Numeric
    cp: Numeric = 1.0
    vpp: Numeric = 1.0
    dp_shard: Numeric = np.nan
    first_layers: Numeric = np.nan
    last_layers: Numeric = np.nan
    inner_layers: Numeric = np.nan
    sequence_parallel: Numeric = 0.0
    wide_share: Numeric = 0.0
    recompute_share: Numeric = 1.0
    recompute_chunk: Numeric = 1.0
    offload_activations: Numeric = 0.0
    offload_optimizer: Numeric = 0.0
    offload_weights: Numeric = 0.0
    loader_rate: Numeric = np.nan
    weight_bytes: Numeric = 2.0
    gradient_bytes: Numeric = 4.0
    reduce_bytes: Numeric = 4.0
    handed_bytes: Numeric = np.nan
    handed_rate: Numeric = np.nan
    pipeline_fill: Numeric = np.nan
    gather_bytes: Numeric = 2.0
    optimizer_bytes: Numeric = 12.0
    logit_bytes: Numeric = 8.0
    vocab_multiple: Numeric = 128.0
    ep: Numeric = 1.0
    etp: Numeric = 1.0
    expert_load: Numeric = 1.0
    expert_chunks: Numeric = 1.0
    routed_nodes: Numeric = np.nan
    dispatch_processors: Numeric = 20.0
    lora_rank: Numeric = 16.0
    scored: Numeric = 0.0
    referred: Numeric = 0.0
    document: Numeric = np.nan
    attention_load: Numeric = 1.0
    attention_cv: Numeric = 0.0
    attention_skew: Numeric = 0.0
    useful: Numeric = 1.0
    precision: str = "bf16"
    recompute: str = "none"
    cuda_graphs: str = "none"
    recompute_modules: str = "core_attn"
    sharding: str = "zero1"
    attention: str = "flash"
    cp_kind: str = "ring"
    trained: str = "all"
    frozen_precision: str = "as multiplied"
    adapter_style: str = "joined"
    learns_from: str = "tokens"
    optimizer: str = "adam"
    compared_with: str = "none"
    offload_to: str = "cpu"
    dispatch: str = "copies"
    routing: str = "random"
    rank_order: str = "tp-cp-dp-pp"
    schedule: str = "1f1b"
    split: str = "slots"
    dropout: bool = False
    fused: bool = True
    fused_norm: bool = False
    saves_narrow: bool = True
    stops_early: bool = False
    tp_overlap: bool = False
    tp_async_backward: bool = True
    tp_regather: bool = True
    adapters: Numeric = np.nan
    grad_overlap: bool = True
    param_overlap: bool = True
    p2p_overlap: bool = False
    ep_overlap: bool = False
    reshard: bool = True
    reduce_last: bool = False
    flat_copies: bool = False
    sums_apart: bool = False
    built_whole: bool = False
    clamps_apart: bool = False
    activation_apart: bool = False
    norms_persist: bool = False
    experts_looped: bool = False
    routers_kept: bool = False
    windows_masked: bool = False
    stream_widened: bool = False
    merges_apart: bool = False
    keys_repeated: bool = False
    index_loss: bool = False
    vocab_parallel: bool = True
    mtp: bool = True
    grad_clip: bool = True
    update_early: bool = False
    framework: str = UNNAMED
    era: str = "neutral"

    @property
    def named(self) -> bool:
        """Whether somebody named the framework."""
        return self.framework != UNNAMED

    @property
    def gpus(self) -> Numeric:
        """Accelerators in all."""
        return self.tp * self.pp * self.cp * self.dp

    @property
    def autocast(self) -> npt.NDArray[np.bool_]:
        """Whether whole weights stay in fp32 and what computes narrows them (`torch.autocast`), as
        a plain loop does that has them so and computes in 16 bits; those of sharded weights gather
        narrow ones."""
        loop = self.framework in LOOPS and not SHARDINGS[self.sharding].weights
        narrow = loop and self.recipe.activation < 4.0
        return np.asarray(narrow & (np.asarray(self.weight_bytes) >= 4.0))

    @property
    def stream_wide(self) -> npt.NDArray[np.bool_]:
        """Whether the residual stream is in fp32 between products of 16 bits: under autocast, or
        where norms and embeddings were widened beside frozen weights."""
        narrow = self.recipe.activation < 4.0
        return np.asarray(self.autocast | (narrow and self.stream_widened))

    @property
    def sent_narrow(self) -> npt.NDArray[np.bool_]:
        """Whether sharded weights are gathered narrower than 16 bits, as they are multiplied."""
        narrow = np.asarray(self.gather_bytes) < 2.0
        return np.asarray(SHARDINGS[self.sharding].weights & narrow)

    @property
    def lone(self) -> npt.NDArray[np.bool_]:
        """Whether there is one accelerator."""
        return np.asarray(np.asarray(self.gpus) <= 1)

    @property
    def exchanges(self) -> Numeric:
        """How often replicas exchange gradients in a step, and sharded weights, if there are any:
        once, or with every micro-batch. Pipelines that keep gathered weights add gradients up and
        reduce them after the last micro-batch before they run empty (PyTorch 2.10,
        torch/distributed/pipelining/stage.py, `backward_maybe_with_nosync`)."""
        sharding = SHARDINGS[self.sharding]
        if not sharding.per_micro_batch:
            return 1.0
        if sharding.weights and not self.reshard:
            emptied = 1.0 if self.reduce_last else self.fills
            return np.where(np.asarray(self.pp) > 1, emptied, self.micro_batches)
        return self.micro_batches

    @property
    def micro_batches(self) -> Numeric:
        """Micro-batches that each pipeline runs per step."""
        return self.global_batch / (self.dp * self.micro_batch)

    @property
    def fills(self) -> Numeric:
        """How often each pipeline fills and runs empty in a step, each time with as many
        micro-batches as its schedule needs, or more."""
        if np.isnan(self.pipeline_fill).all():
            return 1.0
        each = np.maximum(self.pipeline_fill, self.pipeline.least) * self.pp
        many = np.maximum(np.floor(np.asarray(self.micro_batches / each)), 1.0)
        return np.where(np.isnan(self.pipeline_fill) | (np.asarray(self.pp) == 1), 1.0, many)

    @property
    def filled(self) -> Numeric:
        """Micro-batches that a pipeline takes each time."""
        return self.micro_batches / self.fills

    @property
    def tokens(self) -> Numeric:
        """Tokens of one micro-batch on one context-parallel rank."""
        return self.micro_batch * self.seq_len / self.cp

    @property
    def pipeline(self) -> Schedule:
        """The schedule's entry."""
        return SCHEDULES[self.schedule]

    @property
    def gradient_group(self) -> Numeric:
        """Ranks that hold the same weights: data times context parallel, times the devices of a
        pipeline that hold the same stage."""
        return self.dp * self.cp * self.pipeline.copies

    @property
    def shard_group(self) -> Numeric:
        """Ranks that divide the sharded state among them, no more than there are."""
        whole = self.gradient_group
        if self.sharding == "hsdp":
            return np.fmin(self.dp_shard * self.cp, whole)
        return whole

    @property
    def captured(self) -> tuple[str, ...]:
        """What graphs capture, of `CUDA_GRAPHS`."""
        return tuple(self.cuda_graphs.split(","))

    @property
    def recompute_parts(self) -> tuple[str, ...]:
        """Names of the parts that selective recomputation repeats."""
        return tuple(self.recompute_modules.split(","))

    @property
    def frozen(self) -> bool:
        """Whether the model's own weights stay as they are and only adapters are trained."""
        return self.trained != "all"

    @property
    def frozen_bytes(self) -> Numeric:
        """Bytes of a weight of the layers that is not trained."""
        return FROZEN_BYTES[self.frozen_precision] or self.weight_bytes

    @property
    def ends_bytes(self) -> Numeric:
        """Bytes of a weight of embedding and output projection: in fp32 where the stream is."""
        wide = np.where(self.stream_wide, 4.0, 0.0)
        return np.maximum(self.weight_bytes, wide)

    @property
    def unlearned(self) -> Numeric:
        """Passes forward without gradients beside each that learns."""
        return self.scored + self.referred

    @property
    def gradients_away(self) -> Numeric:
        """Share of the gradients that leave the device as they come, for an optimizer with the
        host: of DeepSpeed's and PyTorch's, where ranks divide gradients (DeepSpeed @ edaa72212,
        runtime/zero/stage_1_and_2.py: `async_accumulate_grad_in_cpu_via_gpu`, stage3.py:
        `partition_grads`; FSDP's CPUOffload, from memory). Megatron Core's stay."""
        leave = SHARDINGS[self.sharding].gradients and self.framework in (*LOOPS, *ZERO)
        return self.offload_optimizer if leave else 0.0

    @property
    def gradients_gone(self) -> Numeric:
        """Share of the gradients that a device does not keep until its update: those that left for
        the host, or all where weights are updated as their gradients come, which one device does
        that has one micro-batch."""
        early = self.lone & (np.asarray(self.micro_batches) <= 1) & self.update_early
        return np.where(early, 1.0, self.gradients_away)

    @property
    def compares(self) -> bool:
        """Whether answers are compared with what another model says of them."""
        return self.learns_from != "tokens" or bool(np.any(np.asarray(self.referred) > 0))

    @property
    def loss_in_one(self) -> npt.NDArray[np.bool_]:
        """Whether one kernel reads 16-bit logits and writes their gradient over them, or a compiled
        graph beside them; that of answers' probabilities, too (TRL 1.16,
        kernels/logprob_entropy.py)."""
        picked = self.framework == HUGGINGFACE and self.learns_from != "tokens"
        size = self.recipe.activation
        most = size * (2.0 if self.fused and size < 4.0 else 1.0)
        return np.asarray((np.asarray(self.logit_bytes) <= most) | picked)

    @property
    def stage_ranks(self) -> Numeric:
        """Accelerators that hold one pipeline stage."""
        return self.tp * self.cp * self.dp

    @property
    def expert_gradient_group(self) -> Numeric:
        """Ranks that hold the same experts: those that hold the stage, over ep * etp."""
        return self.stage_ranks * self.pipeline.copies / (self.ep * self.etp)

    @property
    def expert_shard_group(self) -> Numeric:
        """Ranks that divide the sharded state of the experts among them."""
        return np.minimum(
            np.maximum(self.shard_group * self.tp / (self.ep * self.etp), 1.0),
            self.expert_gradient_group,
        )

    @property
    def accumulates(self) -> npt.NDArray[np.bool_]:
        """Whether gradients of sharded weights add up whole until the last micro-batch."""
        alone = np.asarray(self.pp) == 1
        several = np.asarray(self.micro_batches) > 1
        lasting = np.where(alone, self.reduce_last, not self.reshard)
        return np.asarray(SHARDINGS[self.sharding].weights & several & lasting, bool)

    def vocab_share(self, vocab: int) -> Numeric:
        """Rows of the output projection on one tensor-parallel rank, padding included."""
        return np.ceil(vocab / (self.vocab_multiple * self.tp)) * self.vocab_multiple

    @property
    def recipe(self) -> Precision:
        """The precision recipe."""
        return PRECISIONS[self.precision]

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Broadcast shape of the numeric fields: () for a single plan."""
        return shape_of(self)


NUMERIC_FIELDS = numeric_fields(TrainingPlan)
CATEGORY_FIELDS = category_fields(TrainingPlan)
LAYER_FIELDS = (
    "tp",
    "cp",
    "micro_batch",
    "seq_len",
    "sequence_parallel",
    "wide_share",
    "recompute_share",
    "ep",
    "etp",
    "expert_load",
    "expert_chunks",
    "routed_nodes",
    "dispatch_processors",
    "lora_rank",
    "scored",
    "referred",
    "vocab_multiple",
    "document",
    "attention_load",
    "logit_bytes",
)
"""The numeric fields on which the operators of a layer and of the ends depend; the others decide
only how layers are put together, and how far apart the ranks of a group lie."""
