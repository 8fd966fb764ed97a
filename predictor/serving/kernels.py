"""Kernels that an engine runs where a good library has better ones: attention head by head, one
thread block that walks through its part in turn, matrices streamed for few rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from predictor.arrays import Array, Numeric
from predictor.hardware import Accelerator
from predictor.plans import KV_BYTES, ServingPlan
from predictor.precision import ELEMENT_BYTES, WEIGHT_BYTES
from predictor.timing import empty_kernel, peak_of, power_limit
from predictor.work import LOOKUP, Operator, row_bytes

STREAMED = 0.9
"""Share of the memory's bandwidth that a kernel reaches which streams one matrix
(te42kyfo/gpu-benches: 0.83 to 0.93 of GDDR6X, HBM2e and HBM3)."""

IN_FLIGHT = 6.8
"""Bytes per clock and processor that a plain matrix-vector kernel can have arrive: some 4 KB of its
loads are under way in a processor at a time, over a latency of some 650 clocks (Little 1961). It
binds where a processor's share of the bandwidth is large: HBM, not GDDR. Read off llama.cpp on A100
and H100 PCIe (6.8 and 6.7); MLC-LLM's rows on A100 agree."""

STEEPNESS = 4.0
"""How sharply the slower of two limits decides. Between 4 and 8 llama.cpp's decoding changes by
0.3 %; with 1, where both add up, it errs by 41 % instead of 6."""

TILED = 4.0
"""Bytes per clock and processor that kernels for many rows have arrive where they multiply few, of
a library that was not tuned for that. Read off vLLM 0.6.1, whose 16-bit products were rocBLAS's:
4.9 and 4.0 with 70B on one and two MI300X, 4.1 to 3.6 on four dies of MI250 (one to sixteen rows),
3.1 on eight."""

UNTUNED = {"tiled": ("gemm",), "untuned": ("gemm", "moe_gemm")}
"""Products that kernels for many rows multiply, by `MATVECS`."""

STREAMING = ("matvec", "plain", "generated")
"""Of `MATVECS`, kernels of their own for few rows."""

BLOCK_RATE = 32 * 1024 / 600e-9
"""Rate at which one thread block reads and writes [bytes/s]: 256 threads with 128 bytes each
in flight (16-byte loads, unrolled by 8) over a memory latency of 600 ns (Little 1961)."""

SPLIT_HEADS = 512
"""Heads of all sequences up to which vLLM's paged attention splits keys among thread blocks
(vllm/attention/ops/paged_attn.py: V1 where num_seqs * num_heads > 512 and no sequence has more than
8,192 tokens, else V2)."""

SCORES = {"few": 4096, "few_8k": 8192}
"""Scores that a thread block keeps on its processor where it walks over all keys, by how attention
is cut: of the longest sequence that a captured pass may have, the model's or 8,192
(csrc/attention/attention_kernels.cu, paged_attention_v1_launcher: padded_max_seq_len floats;
vllm/config.py, max_seq_len_to_capture)."""

SCRATCH, OTHER_SCRATCH = 64 * 1024, 512
"""Memory that the thread blocks on a processor share, of CDNA 1 to 3 (AMD's ISA documents), and
what such a block keeps in it beside the scores (its query, sums of its warps) [bytes]."""

WALKED = 2.7
"""Bytes of keys and values that such a block of 128 threads reads in a clock: 2 KB under way over
some 760 clocks (Little 1961). Read off vLLM 0.6.1 on MI250 and MI300X with models of 8,192 tokens
and more, one block to a processor: 2.5 to 2.9 with 7B, 8B and 70B on one to eight ranks."""

HEADWISE_SHARE, HEADWISE_CACHED = 0.8, 0.5
"""Of the bandwidth of the memory, and of the last-level cache, what decoding attention reaches
whose thread blocks each take one query head. Of TensorRT-LLM 0.5 on H100: 0.79 of the memory's with
Llama-2-7B, 0.4 to 0.6 of the cache's with Falcon-180B and Mistral-7B."""

OWN_CACHES = ("cdna3", "cdna4")
"""Architectures of several dies with a last-level cache each, to which thread blocks are dealt out
in turn: heads that share keys run on different ones, and each brings them from memory (AMD, CDNA 3
white paper, 2023: 4 MB of L2 a die of 38 processors, work-groups round robin)."""

HEADWISE_GROUPS: dict[str, Callable[[Array], npt.NDArray[np.bool_]]] = {
    "all": lambda group: group > 0,
    "but8": lambda group: group != 8,
    "to8": lambda group: (group == 1) | (group > 8),
    "single": lambda group: group == 1,
    "copied": lambda group: group > 0,
}
"""Numbers of query heads per key head that each of `HEADWISE` works through one by one."""

VECTOR_SHARE = 0.45
"""Of the rate of units that are not made for products, what products of 16 bits reach on them. Of
vLLM 0.6.1 on one MI300X, whose prompts and decoding it slows alike: 0.4 to 0.6 with 7B and 8B, 0.3
to 0.45 with 70B."""

SINGLE_ROWS = 128.0
"""Rows that products of 8 bits are filled up to whose outcome is scaled row by row afterwards, at
the rate of 32 bits. Read off Llama 3.1 405B in vLLM 0.6.3 on eight MI300X, whose tokens take as
long at 4 sequences as at 64, half as long again at 256."""

JOINED = ("attention.norm", "mlp.norm", "moe.norm", "final.norm")
"""Norms of the residual stream, which follow an all-reduce where tensor-parallel ranks add up."""

JOINED_LIMITS: dict[str, dict[int, float]] = {
    "hopper": {2: 64e6, 4: 2e6, 8: 1e6},
    "blackwell": {2: 64e6, 4: 32e6, 8: 1e6},
}
"""Largest message that one kernel both adds up and normalises [bytes], by architecture and ranks
(vLLM 0.11.2 to 0.33.0, config/compilation.py); of others, that of Hopper."""

ROUTED = ("moe.route", "moe.latent_down", "moe.permute", "moe.experts", "moe.unpermute",
          "moe.latent_up")  # fmt: skip
SHARED = ("shared.up", "shared.activation", "shared.down")
"""Kernels of experts that tokens are routed to, and of those that every token goes to."""

STREAM_LIMIT = 256.0
"""Tokens of a pass up to which engines run both at a time (vLLM pull request 28406, 2025-11)."""

WIDENED = 18.0
"""Weights of fewer than 16 bits that a processor widens, scales and adds up in a clock, where a
kernel that a compiler made multiplies a few rows by a matrix (written ones widen several at once,
or multiply integers): three to four instructions for each, of 64 lanes. Of
gpt-fast on A100, where a weight takes 0.73 ps with 8 bits and 0.55 with 4 and what the memory takes
is 0.65 and 0.40: the squares of both add up with the same rate for both."""

MIXED_ROWS, MIXED_SHARE = 16.0, 0.6
"""Rows of a matrix instruction (PTX ISA, mma.m16n8k16), and share of the peak that kernels reach
which widen weights on the way: products of 16 bits reach .6 to .8 at sizes of prompts; these are
taken for as good as the worst of them, nobody timed them here."""

FEW_ROWS = 8.0
"""Rows up to which a product may be a kernel that streams the matrix (llama.cpp's and exllama's
matrix-vector kernels)."""


HANDED, COPIED = 40e-6, 10e-6
"""Of a product whose rows are divided among devices, what handing it out takes, and each of two
copies for every device: its input there, its part of the outcome back [s]. Copies through the host
take some 10 us; what handing out takes was read off llama.cpp of 2023 on two to eight A100, A10G
and RTX 4090, whose products take 65 to 98 us longer on two and 154 to 210 us on eight."""

MATRICES = {"attention.qkv": 3.0, "mlp.up": 2.0}
"""Matrices that ggml multiplies one by one where others have a single product."""


def as_run(each: Array, operator: Operator, plan: ServingPlan, accelerator: Accelerator) -> Array:
    """Time of an operator [s] as the plan's engine runs it, from that of a good kernel; arrays of
    the operator's shape."""
    if plan.reductions == "joined" and operator.name in JOINED:
        each = np.where(_joins(operator, plan, accelerator), 0.0, each)
    if operator.op == "attention_decode" and plan.headwise != "none":
        apart = HEADWISE_GROUPS[plan.headwise](np.asarray(operator.m))
        each = np.where(apart, headwise_time(operator, plan, accelerator), each)
    if plan.splitting == "none" and operator.op == "attention_decode":
        one = 2.0 * operator.k * KV_BYTES[plan.kv] * operator.n
        each = np.maximum(each, one / BLOCK_RATE)
    if plan.splitting in SCORES and operator.op == "attention_decode":
        walked = paged_time(operator, plan, accelerator)
        heads = np.asarray(operator.batch * operator.m)
        many = (heads > SPLIT_HEADS) & (np.asarray(operator.n) <= max(SCORES.values()))
        each = np.where(many, np.hypot(each, walked), each)
    if operator.variant == "recurrence":
        # `batch` thread blocks side by side, each of which walks through its part in turn.
        each = np.maximum(each, operator.bytes / operator.batch / BLOCK_RATE)
    if plan.product_units == "vector" and operator.op == "gemm" and operator.dtype == plan.half:
        rate = VECTOR_SHARE * np.asarray(accelerator.peak["fp32"], float)
        each = np.maximum(each, np.asarray(operator.flop) / rate)
    if plan.product_units == "single" and operator.op == "gemm" and operator.dtype == "fp8":
        rows = np.ceil(np.asarray(operator.m) / SINGLE_ROWS) * SINGLE_ROWS
        padded = np.asarray(operator.flop) * rows / np.maximum(operator.m, 1.0)
        each = np.maximum(each, padded / np.asarray(accelerator.peak["fp32"], float))
    if operator.op in UNTUNED.get(plan.matvec, ()) and operator.dtype == plan.half:
        arriving = TILED * accelerator.sms * accelerator.clock
        each = np.maximum(each, np.asarray(operator.bytes / arriving))
    elif plan.matvec == "mixed" and operator.op == "gemm" and widened(operator.dtype):
        each = np.minimum(each, mixed_time(operator, accelerator))
    elif plan.matvec in STREAMING and operator.op in ("gemm", "moe_gemm"):
        each = np.where(
            np.asarray(operator.m) <= FEW_ROWS, _few_rows(each, operator, plan, accelerator), each
        )
    if plan.offload == "ngrams" and operator.name == LOOKUP:
        moved = operator.m * operator.n * row_bytes(plan.weights)
        each = np.maximum(each, moved / plan.host_link)
    if plan.pipelining == "rows" and operator.op == "gemm":
        each = in_rows(each, operator, plan, accelerator)
    return each


def _few_rows(
    each: Array, operator: Operator, plan: ServingPlan, accelerator: Accelerator
) -> Array:
    """Time of a product of a few rows [s], from that of a good kernel for many."""
    stream = matvec_time(operator.bytes, accelerator, plan.matvec)
    alone = plan.matvec == "plain" and operator.op == "gemm"
    if plan.matvec == "generated" and WEIGHT_BYTES.get(operator.dtype, 2.0) < 2.0:
        stream, alone = np.hypot(stream, widening_time(operator, accelerator)), True
    return np.asarray(stream if alone else np.minimum(each, stream))


def in_rows(each: Array, product: Operator, plan: ServingPlan, accelerator: Accelerator) -> Array:
    """Time of a product of whose rows each device has a part [s], from that on one device: parts
    run side by side, inputs and outcomes of 32 bits travel through the host."""
    parts = np.asarray(plan.pp, float)
    link = accelerator.host_bandwidth
    moved = 4.0 * product.m * (product.k * (parts - 1.0) + product.n * (1.0 - 1.0 / parts))
    travel = np.where(np.isfinite(link), moved / link, 0.0)
    calls = MATRICES.get(product.name, 1.0) * (HANDED + 2.0 * COPIED * parts)
    return np.where(parts > 1, each / parts + calls + travel, each)


def beside_routed(
    operators: Sequence[Operator], times: Sequence[Array], plan: ServingPlan, machine: Accelerator
) -> list[Array]:
    """Times of operators [s], those of shared experts as what they add where they run beside the
    others: both together take as long as the longer, and as reading what both read.

    times   of one execution of each operator, as they run by themselves
    """
    named = [one.name for one in operators]
    if plan.shared_experts == "after" or SHARED[0] not in named:
        return list(times)

    def spent(names: Sequence[str]) -> Array:
        return np.asarray(
            sum(t for one, t in zip(operators, times, strict=True) if one.name in names)
        )

    moved = sum(one.bytes for one in operators if one.name in (*ROUTED, *SHARED))
    routed, shared = spent(ROUTED), spent(SHARED)
    both = np.maximum(np.maximum(routed, shared), moved / np.asarray(machine.bandwidth))
    added = np.clip((both - routed) / shared, 0.0, 1.0)
    tokens = np.asarray(operators[named.index(SHARED[0])].m)
    share = np.where(tokens <= STREAM_LIMIT, added, 1.0)
    return [
        each * share if one.name in SHARED else each
        for one, each in zip(operators, times, strict=True)
    ]


def _joins(operator: Operator, plan: ServingPlan, accelerator: Accelerator) -> Array:
    """Whether a norm is part of the all-reduce before it, whose message is one of the four arrays
    that the norm and the sum before it read and write."""
    family = accelerator.architecture.partition("-")[0]
    limits = JOINED_LIMITS.get(family, JOINED_LIMITS["hopper"])
    tp = np.asarray(plan.tp)
    most = np.select([tp <= 2, tp <= 4, tp <= 8], [limits[2], limits[4], limits[8]], 0.0)
    return np.asarray((tp > 1) & (np.asarray(operator.bytes) / 4.0 <= most))


def headwise_time(operator: Operator, plan: ServingPlan, accelerator: Accelerator) -> Array:
    """Time of decoding attention with a thread block for every query head [s]: the cache comes from
    memory once, and through the last-level cache once for each head that shares it."""
    cache = KV_BYTES[plan.kv] * operator.batch * operator.n * 2.0 * operator.k
    if plan.headwise == "copied":
        # Read and written as it grows; read, and written for each head; read by the products.
        moved = (3.0 + 2.0 * operator.m) * cache
        return np.asarray(
            empty_kernel(accelerator.year) + moved / (STREAMED * accelerator.bandwidth)
        )
    once = cache / (HEADWISE_SHARE * accelerator.bandwidth)
    apart = accelerator.architecture in OWN_CACHES
    cached = HEADWISE_CACHED * np.asarray(accelerator.l2_bandwidth, float)
    shared = HEADWISE_SHARE * accelerator.bandwidth if apart else cached
    every = operator.m * cache / shared
    return np.asarray(empty_kernel(accelerator.year) + np.maximum(once, every))


def paged_time(operator: Operator, plan: ServingPlan, accelerator: Accelerator) -> Array:
    """Time in which thread blocks walk over all keys of one head of one sequence each [s], as many
    at once as their scores leave room for."""
    scores = 4.0 * SCORES[plan.splitting] + OTHER_SCRATCH
    at_once = accelerator.sms * np.floor(SCRATCH / scores)
    rounds = np.maximum(operator.batch * operator.m / at_once, 1.0)
    one = 2.0 * operator.k * KV_BYTES[plan.kv] * operator.n
    return np.asarray(rounds * one / (WALKED * accelerator.clock))


def widened(dtype: str) -> bool:
    """Whether products of a data type widen their weights to what multiplies them."""
    return WEIGHT_BYTES.get(dtype, 2.0) < ELEMENT_BYTES.get(dtype, 2.0)


def mixed_time(operator: Operator, accelerator: Accelerator) -> Array:
    """Time of a product that widens its weights as they stream in [s]: theirs from memory, or that
    of the matrix units, which multiply `MIXED_ROWS` rows at once, whichever is longer (Frantar et
    al. 2024, section 3: both overlap)."""
    rows = MIXED_ROWS * np.ceil(np.asarray(operator.m) / MIXED_ROWS)
    arithmetic = np.asarray(operator.flop) * rows / np.maximum(operator.m, 1.0)
    rate = np.asarray(peak_of(operator.dtype, accelerator) * power_limit(accelerator), float)
    busy = arithmetic / (MIXED_SHARE * rate)
    stream = matvec_time(operator.bytes, accelerator, "mixed")
    return np.maximum(stream, busy)


def widening_time(operator: Operator, accelerator: Accelerator) -> Array:
    """Time in which a compiler's kernel widens the weights of a product of a few rows [s]."""
    rate = WIDENED * accelerator.sms * accelerator.clock
    return np.asarray(operator.bytes / WEIGHT_BYTES[operator.dtype] / rate)


def matvec_time(moved: Numeric, accelerator: Accelerator, kernel: str) -> Array:
    """Time of a kernel that multiplies a few rows by a matrix as it streams it [s].

    moved    bytes
    kernel   of `MATVECS`: 'plain' ones are limited by their loads in flight too
    """
    rate = STREAMED * np.asarray(accelerator.bandwidth, float)
    if kernel == "plain":
        loads = IN_FLIGHT * accelerator.sms * accelerator.clock
        rate = (rate**-STEEPNESS + loads**-STEEPNESS) ** (-1.0 / STEEPNESS)
    return np.asarray(empty_kernel(accelerator.year) + moved / rate)
