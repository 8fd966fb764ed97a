"""How a model is served: parallel sizes, batch, lengths, precisions, how kernels are launched."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from predictor.arrays import Numeric, category_fields, numeric_fields, shape_of
from predictor.hardware import Accelerator
from predictor.plans.training import UNNAMED
from predictor.precision import ELEMENT_BYTES, PACKED_HEADS, PEAK, WEIGHT_BYTES, WIDE
from predictor.records import dataclass

HALVES = ("bf16", "fp16")

NO_WEIGHTS = (*HALVES, "tf32", "int8", "fp16_acc")
WEIGHTS = (*HALVES, *(name for name in WEIGHT_BYTES if name not in NO_WEIGHTS))
"""Data types of the layers' linear projections: 16 bits; weight-only ('..._wo', 'w4a16_...');
weights and activations ('fp8', 'fp8_block', 'sq', 'nvfp4', ...)."""

KV_BYTES: dict[str, float] = {
    "bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "int8": 1.0, "int4": 0.53125, "nvfp4": 0.5625,
    "fp32": 4.0,
}  # fmt: skip
"""Bytes of a cached key or value element; of int4 with a scale and a zero of 16 bits for each head
of 128 (InternLM/lmdeploy@0bf868e862 docs/en/quantization/kv_quant.md: asymmetric, by head and
token), of nvfp4 with a scale of a byte for 16 (TensorRT-LLM 1.3 features/quantization)."""

EXECUTIONS = ("graph", "native", "eager")
"""How the kernels of a decode pass are launched: replayed from a captured graph, one by one from
C++, or one by one from Python. Prefill passes are launched one by one in any case, since their
shapes differ; from Python where decoding is captured."""

NATIVE = 0.25
"""Host time of C++ over that of Python: 3 to 4 us of the driver's own for a launch, against 10 to
20 with what PyTorch and its small kernels add (PyTorch CUDA graphs blog, 2021)."""

ALLREDUCES = ("custom", "nccl")
"""Small all-reduces inside a node: one-kernel implementations of serving engines, or NCCL's."""

SUMMED = ("card", "switch")
"""Where an engine's own all-reduce adds up: on the cards, small ones alone; or in the switch
(symmetric memory, multimem), larger ones too."""

STATES = ("whole", "half")
"""Elements of what a state-space or delta-rule block keeps of a sequence: in 32 bits, or in 16."""

REACHES = ("node", "fabric")
"""Ranks that an engine's own all-reduce spans: those of one node, or all that its innermost links
reach, through switches beyond the node (NVLink of several trays, ICI of several hosts)."""

EXCHANGES = ("gather", "alltoall", "nvlink", "deepep")
"""How a mixture's tokens get from several attention replicas to their experts and back: all tokens
to all ranks and sums back (all-gather and reduce-scatter), each copy to its rank by NCCL, or by
kernels made for it within an NVLink domain (TensorRT-LLM) or anywhere (DeepEP)."""

ADMISSIONS = ("whole", "mean")

NARROWED = ("linear", "feed_forward", "experts", "experts_below_fp8")
"""Which matrices have the data type of the weights: all linear projections of the layers, those of
the feed-forward blocks (Meta's fp8 checkpoint of Llama 3.1 405B: Grattafiori et al. 2024, section
6.2), or the experts alone (checkpoints of gpt-oss and Kimi), the rest being in 16 bits, or in 8-bit
floats by blocks (DeepSeek-V4)."""

OTHERS = {"experts_below_fp8": "fp8_block"}
"""Data type of projections that are not the experts', where it is not 16 bits."""

SERVING_OFFLOADS = ("none", "weights", "ngrams")
"""What lies in the host's memory: nothing, weights and cache, or tables of n-grams alone."""

LIBRARIES = ("neutral", "trtllm", "vllm", "sglang")
"""Whose kernels an engine runs, where they were timed apart; else the mean of all."""

MATVECS = ("gemm", "tiled", "untuned", "matvec", "plain", "generated", "mixed")
"""What multiplies a few rows by a matrix: the kernels that also do many rows, or such kernels of a
library that has none tuned for it (rocBLAS), or those, and experts that nobody tuned for the
accelerator either, or kernels of their own that stream the matrix, with loads enough under way to
fill the memory, or plain ones; or those that a compiler makes, which fill it too but widen narrow
weights one by one."""

ACCUMULATIONS = ("fp32", "fp16")
"""In what many rows of 16-bit products are added up."""

PRODUCT_UNITS = ("matrix", "vector", "single")
"""Which units multiply matrices: those made for their data type, or, where a library has no kernels
for these, the others (of 16 bits), or those that multiply 32 bits (of 8 bits)."""

FUSIONS = ("fused", "unfused", "converted", "integers")
CASTS = ("apart", "joined")
"""Whether attention keeps its scores on the chip and small kernels are joined, or scores go through
memory and activations between kernels are 32 bits wide (eager PyTorch); or that, and what 16-bit
products of many rows read and write is converted by kernels of its own (ggml); or that of weights
in 16 bits alone, narrower ones being multiplied as they are (ggml's mul_mat_q)."""

MODULES = ("joined", "apart")
"""Whether norms, rotations, activations are kernels of an engine's own, or what modules compose."""

SPLITTINGS = ("keys", "none", "few", "few_8k")
"""Whether the keys of one head are split among thread blocks while decoding (Flash-Decoding,
TensorRT-LLM's multi-block mode), or one block walks over all of them; or they are split for few
heads of few sequences alone, and where there are more each block keeps the scores of 4,096 tokens
on its processor, or of 8,192 (vLLM's paged attention)."""

HEADWISE = ("none", "all", "but8", "to8", "single", "copied")
"""Which heads have a thread block each of attention while decoding (FasterTransformer's masked
attention, vLLM's first paged attention), rather than one for all that share a key head: none, all,
those that share it with other than seven more, or with none or more than seven, or with no other
(TensorRT-LLM's XQA kernel took groups of eight, of up to eight, then all groups); 'copied': no such
kernel, the cache is copied to be longer and repeated for each head in memory (transformers)."""

NARROW_EXPERTS = ("own", "triton", "buffers", "tuned", "openai", "generated", "all")
"""Which kernels experts in fewer than 16 bits run in: those that the engine's library was timed
with; Triton's, which in fp8 with one scale a matrix are as efficient as in 16 bits; in fp8 with a
scale for each block, DeepGEMM's over buffers that hold the most copies that any choice of experts
could bring; CUTLASS's, which the engine tunes as it starts; OpenAI's for its models' 4-bit experts
(triton_kernels); TensorRT-LLM's generated ones for Blackwell, which FlashInfer has, too; 'all':
every expert multiplies every token, so that shapes stay (optimum-habana)."""

PIPELININGS = ("sequences", "turns", "rows")
"""What pipeline stages do at a time: each a part of the running sequences, or one after the other
all of them (layers dealt out to devices: llama.cpp, device_map of transformers); or one of them
does all but the products, of whose rows each has a part (llama.cpp before 2024)."""

SCHEDULINGS = ("serial", "overlapped")
"""Whether the host prepares the next pass after the one before it, or while that runs."""

WINDOWS = ("model", "unset")
"""Whether attention stops at the model's sliding window, or sees all that is cached."""

POOLS = ("total", "free", "static")
"""Of what an engine takes its share (`memory_fraction`) for itself: of the device's memory (vLLM);
for the cache, of what weights, activations and runtime leave (TensorRT-LLM); of the device's memory
for weights and cache alone (SGLang)."""

BATCHINGS = ("mixed", "apart", "waiting")
"""How prompts and decoding share passes: parts of prompts ride along with the tokens of running
requests (Sarathi-Serve, vLLM V1, TensorRT-LLM); prompts have passes of their own, before decoding
goes on (SGLang, vLLM V0); the same, but not before enough of them wait (TGI)."""

SHARED_EXPERTS = ("after", "beside")
"""When the experts that every token goes to run: after those that it is routed to, or on a stream
of their own beside them."""

REDUCTIONS = ("apart", "joined")
"""Whether the norm after an all-reduce is a kernel of its own, or part of the all-reduce's."""

PREFIX_CACHES = ("off", "on")
"""Whether prompts find the cache of earlier ones that began alike."""

SAMPLINGS = ("plain", "filtered", "penalised")
"""How the next token is drawn: the likeliest, or at random from all; from the likeliest alone
(top-k, top-p); the same, with penalties on tokens that were there before."""

SAMPLERS = ("sorted", "fused")
"""What finds the likeliest tokens: a sort of all logits and PyTorch's operators after it, or a
kernel that reads them a few times (FlashInfer)."""

BLOCK_TABLES = ("kept", "listed")
SHORT_PROMPTS = ("dense", "masked", "chosen")
"""Whether the blocks of running sequences' caches are kept in arrays, to which passes add, or every
pass lists them all anew on the host."""

REPLICA_PASSES = ("apart", "padded", "waiting")
"""Passes of replicas that share experts: each as long as its own prompts make it, all of them as
long as the longest and padded to its tokens, or waiting for it."""

FRONT_ENDS = ("beside", "single", "whole", "inside")
"""Whether what answers clients runs beside the loop of passes, or so and as a single process of
Python, which sends so many tokens and no more (`whole`: and makes their texts, too), or inside it:
then the text of each sequence is made and handed over before the next pass."""

CONTROLS = ("broadcast", "pickled")
"""How workers learn what a pass does: from one message to all, or each from one of its own that has
all tokens of all sequences."""

LAST_TOKENS = ("read", "decoded")
"""Whether a prompt's last token is read with the rest of it, so that the pass has the first new
token; or decoded after it, so that the first new token takes another pass."""

SESSIONS = ("kept", "made")
"""Whether a static batch finds an engine whose buffers are there, or has them made and bound to it
first, within its time."""

STAND_INS: dict[str, tuple[str, ...]] = {
    "fp8": ("int8_wo",),
    "fp8_block": ("fp8", "int8_wo"),
    "mxfp8": ("fp8_block", "fp8", "int8_wo"),
    "nvfp4": ("int4_wo",),
    "mxfp4": ("int4_wo",),
    "sq": ("int8_wo",),
}
"""What engines run where an accelerator has no matrix unit for a data type: kernels that widen
weights as they read them (Frantar et al. 2024, Marlin)."""


@dataclass(frozen=True, eq=False)
class ServingPlan:
    """One way to serve, or many of one category at once.

    What each field means is in the table of `serving_fields`; here are those that a request states
    otherwise. Numeric fields are floats or arrays of one broadcast shape, in SI units. Accelerators
    = tp * pp * dp, and those that read prompts apart.

    batch        sequences of all replicas together: of a static batch; or clients that send one
                 request after the other (inf: requests never run out)
    serving      1 where requests follow each other, 0 for a static batch
    weights, kv  data types of the linear projections (of `WEIGHTS`) and of the cache (`KV_BYTES`)
    kv_rate      rate at which an accelerator that reads prompts apart sends its part of a cache
                 [bytes/s]; inf: that of the network
    tiles        of the images of a request, whose tokens `input_len` has beside the text's
    wide         data type of attention and of what moves between kernels beside narrow weights
    host_memory, host_bandwidth, host_link   what `host_memory_gb` and the like state [bytes],
                 [bytes/s]
    """

    batch: Numeric
    input_len: Numeric
    output_len: Numeric
    tp: Numeric = 1.0
    pp: Numeric = 1.0
    dp: Numeric = 1.0
    ep: Numeric = 1.0
    cached: Numeric = 0.0
    tiles: Numeric = 0.0
    chunk: Numeric = 8192.0
    window: Numeric = np.inf
    serving: Numeric = 0.0
    max_batch: Numeric = 512.0
    graph_limit: Numeric = np.inf
    prompt_graphs: Numeric = 0.0
    padded: Numeric = np.inf
    polling: Numeric = 1.0
    memory_fraction: Numeric = 0.9
    adapters: Numeric = 0.0
    adapter_rank: Numeric = 16.0
    adapter_slots: Numeric = 0.0
    synchrony: Numeric = 0.1
    rounds: Numeric = 10.0
    spacing: Numeric = 0.0
    variation: Numeric = 0.1
    drafted: Numeric = 0.0
    acceptance: Numeric = 0.7
    draft_cost: Numeric = 0.0
    expert_load: Numeric = 1.0
    expert_chunks: Numeric = 1.0
    prefill_workers: Numeric = 0.0
    prefill_tp: Numeric = 1.0
    prefill_dp: Numeric = 1.0
    kv_rate: Numeric = np.inf
    host_memory: Numeric = 0.0
    host_bandwidth: Numeric = np.inf
    host_link: Numeric = np.inf
    weights: str = "bf16"
    kv: str = "bf16"
    execution: str = "graph"
    allreduce: str = "custom"
    summed: str = "card"
    reach: str = "node"
    states: str = "whole"
    narrow_experts: str = "own"
    exchange: str = "alltoall"
    admission: str = "mean"
    pool: str = "total"
    offload: str = "none"
    narrowed: str = "linear"
    library: str = "neutral"
    matvec: str = "gemm"
    wide: str = WIDE[0]
    accumulation: str = "fp32"
    product_units: str = "matrix"
    fusion: str = "fused"
    modules: str = "joined"
    casts: str = "apart"
    splitting: str = "keys"
    headwise: str = "none"
    pipelining: str = "sequences"
    scheduling: str = "serial"
    batching: str = "mixed"
    reductions: str = "apart"
    shared_experts: str = "after"
    prefix_cache: str = "off"
    sampling: str = "plain"
    sampler: str = "sorted"
    block_tables: str = "kept"
    short_prompts: str = "dense"
    replica_passes: str = "apart"
    front_end: str = "beside"
    control: str = "broadcast"
    last_token: str = "read"
    session: str = "kept"
    framework: str = UNNAMED
    era: str = "neutral"

    @property
    def gpus(self) -> Numeric:
        """Accelerators in all."""
        return self.tp * self.pp * self.dp + self.reading

    @property
    def reading(self) -> Numeric:
        """Accelerators that read prompts and nothing else."""
        return self.prefill_workers * self.prefill_tp * self.prefill_dp

    @property
    def prefill_ep(self) -> Numeric:
        """Ranks among which a worker that reads prompts divides the experts: all of its own where
        the engine that decodes does, or where replicas of the attention share them."""
        divided = (np.asarray(self.ep) > 1) | (np.asarray(self.prefill_dp) > 1)
        return np.where(divided, self.prefill_tp * self.prefill_dp, 1.0)

    @property
    def etp(self) -> Numeric:
        """Ranks that split each expert: those of a stage among which experts are not divided."""
        return self.tp * self.dp / self.ep

    @property
    def half(self) -> str:
        """Data type of attention and of what moves between kernels."""
        return self.weights if self.weights in WIDE else self.wide

    @property
    def head(self) -> str:
        """Data type of the output projection and of the embedding: packed formats pack them too."""
        return PACKED_HEADS.get(self.weights, self.half)

    @property
    def named(self) -> bool:
        """Whether somebody named the engine."""
        return self.framework != UNNAMED

    @property
    def projections(self) -> str:
        """Data type of the linear projections outside the feed-forward blocks."""
        if self.narrowed == "linear":
            return self.weights
        return OTHERS.get(self.narrowed, self.half)

    @property
    def feed_forward(self) -> str:
        """Data type of the linear projections of feed-forward blocks outside routed experts."""
        if self.narrowed == "experts":
            return self.half
        return OTHERS.get(self.narrowed, self.weights)

    @property
    def in_buffers(self) -> bool:
        """Whether experts are products over buffers for the most token copies that could come."""
        return self.narrow_experts == "buffers" and self.weights == "fp8_block"

    @property
    def routes_to_all(self) -> bool:
        """Whether every expert multiplies every token, those that were not chosen with nothing."""
        return self.narrow_experts == "all" and self.narrow

    @property
    def narrow(self) -> bool:
        """Whether experts have fewer than 16 bits."""
        return self.weights not in HALVES

    @property
    def sequences(self) -> Numeric:
        """Sequences of one attention replica."""
        return self.batch / self.dp

    @property
    def working(self) -> Numeric:
        """Pipeline stages that work at a time while sequences decode."""
        return self.pp if self.pipelining == "sequences" else 1.0

    @property
    def micro_batches(self) -> Numeric:
        """Parts into which a replica's sequences are cut, one for each stage that works."""
        return np.maximum(np.minimum(self.working, self.sequences), 1.0)

    @property
    def launching(self) -> float:
        """Host time of a launch, a pass, a sequence or a request over that of Python."""
        return NATIVE if self.execution == "native" else 1.0

    @property
    def tokens_per_pass(self) -> Numeric:
        """Tokens that a pass adds to a sequence on average: the first one, and every guess up to
        the first wrong one (Leviathan et al. 2023, eq. 1)."""
        right = np.minimum(np.asarray(self.acceptance, float), 1.0 - 1e-9)
        return np.asarray((1.0 - right ** (self.drafted + 1.0)) / (1.0 - right))

    def rows(self, sequences: Numeric) -> Numeric:
        """Sequences for which a pass that decodes runs: captured graphs beyond `padded` ones are of
        powers of two, and smaller batches are filled up."""
        if not np.any(np.isfinite(self.padded)):
            return sequences
        wider = 2.0 ** np.ceil(np.log2(np.maximum(sequences, 1.0)))
        over = np.asarray(sequences > np.asarray(self.padded))
        return np.where(over & (np.asarray(self.captured(sequences)) > 0), wider, sequences)

    def captured(self, sequences: Numeric) -> Numeric:
        """1 where a pass that decodes so many sequences is a captured graph, else 0."""
        if self.execution != "graph":
            return 0.0
        if not np.any(np.isfinite(self.graph_limit)):
            return 1.0
        return np.asarray(np.asarray(sequences) <= self.graph_limit, float)

    def in_pieces(self, tokens: Numeric) -> Numeric:
        """1 where a pass with prompts over so many tokens runs in captured pieces, else 0."""
        if self.execution != "graph" or not np.any(np.asarray(self.prompt_graphs) > 0):
            return 0.0
        return np.asarray(np.asarray(tokens) <= self.prompt_graphs, float)

    @property
    def new_tokens(self) -> Numeric:
        """Tokens of a prompt that are not in the cache yet; at least the last one."""
        return np.maximum(self.input_len * (1.0 - self.cached), 1.0)

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Broadcast shape of the numeric fields: () for a single plan."""
        return shape_of(self)


SERVING_NUMBERS = numeric_fields(ServingPlan)
SERVING_CATEGORIES = category_fields(ServingPlan)


def runnable(dtype: str, accelerator: Accelerator) -> str:
    """The data type itself where the accelerator multiplies it, else what stands in for it.

    Raises InputError where nothing does.
    """
    for name in (dtype, *STAND_INS.get(dtype, ())):
        known = name in ELEMENT_BYTES
        peak = PEAK.get(name, name)
        if known and (peak in accelerator.peak or peak in HALVES):
            return name
    accelerator.peak_for(PEAK.get(dtype, dtype))
    return dtype
