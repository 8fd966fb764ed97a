"""Launches of an operator: where modules of PyTorch compose it of small ones, and in the eager code
of engines."""

from __future__ import annotations

import numpy as np

from predictor.arrays import Array, Numeric
from predictor.plans import ServingPlan
from predictor.precision import ELEMENT_BYTES
from predictor.work import Operator

SMALL = 0.5
"""Host time of one small operator of PyTorch over that of a kernel with the module around it: 10 to
20 us (PyTorch CUDA graphs blog, 2021) beside the 29 that engines' eager passes take for one."""

COMPOSED = {
    "norm": 8.0,  # to 32 bits, square, mean, sum, root, product, back, scale
    "attention.rope": 14.0,  # cosines and sines read, two products, a half turned, a sum; the cache
    "attention.qkv": 3.0,
    "attention.out": 2.0,  # and the sum with what came in
    "mlp.up": 2.0,
    "mlp.activation": 2.0,
    "mlp.down": 2.0,
}
"""Small operators of which a module is composed (transformers v4.31, modeling_llama.py), by name or
by operation."""

SCORES, JOINED_SCORES = 8.0, 3.0
"""The same of attention that writes its scores: keys turned, product, scale, mask, maximum,
softmax, cast, product; and of attention by one kernel, whose keys and values are copied for each
head."""

PER_EXPERT = 12.0
"""The same of one expert with tokens, where they run one by one: which tokens, their rows, three
products, the activation, weights, sum (modeling_mixtral.py)."""


MATRICES = {"attention.qkv": 3.0, "attention.out": 1.0, "mlp.up": 2.0, "mlp.down": 1.0}
"""Matrices that a module multiplies, by name."""

IN_FEW_BITS = {"int8_wo": 28.0, "int8": 28.0, "int4_wo": 6.0}
"""Small operators beside each of them where weights have few bits: bitsandbytes narrows what comes
in, looks for outliers (and waits for what it finds), multiplies, scales and adds them; 0.43 ms a
matrix. In four bits it unpacks a matrix, 0.09 ms (passes over 16 sequences of `generate` on an
H200, `data/measurements/h200-sxm-5`: bitsandbytes 0.50 takes 124 ms a token in 8 bits and 46 in 4
where 16 take 27). One row is multiplied as it is, by one kernel more (31 ms)."""

FOUR_BITS, ALONE = "int4_wo", 1.2


def launches(operator: Operator, plan: ServingPlan, eager: bool = False) -> Numeric:
    """Launches of an operator, in those of a kernel with the module around it: 1 where an engine
    has a kernel of its own, or as many as its code makes for it if it is `eager`; else each
    further one counts `SMALL`.

    A number, or an array of the plan's shape.
    """
    if plan.modules == "joined":
        return _of_engine(operator, plan) if eager else 1.0
    if operator.op.startswith("attention"):
        count: Numeric = JOINED_SCORES if plan.fusion == "fused" else SCORES
    elif operator.op == "moe_gemm":
        count = PER_EXPERT * np.maximum(np.asarray(operator.batch, float), 1.0)
    else:
        count = COMPOSED.get(operator.name, COMPOSED.get(operator.op, 1.0))
        few: Numeric = IN_FEW_BITS.get(plan.weights, 0.0)
        if plan.weights == FOUR_BITS:
            few = np.where(np.asarray(operator.m) > 1.0, few, ALONE)
        count = count + few * MATRICES.get(operator.name.removesuffix(".wide"), 0.0)
    return 1.0 + SMALL * (count - 1.0)


NARROWING = 1.0
"""Launches before a product whose activations are narrowed: the kernel that makes them and their
scales (per_token_group_quant_8bit, scaled_fp4_quant)."""

ROUTED, OF_HALVES, OF_ONE_CALL = 7.0, 5.0, 3.0
"""Launches of routed experts in an engine's eager code: inputs narrowed, rows sorted by expert,
product, activation, narrowed, product, sum of a token's experts; the same in 16 bits; and where one
operator has all but the narrowing and the sum (FlashInfer's and TensorRT-LLM's)."""

IN_ONE_CALL = {"trtllm": ("own", "tuned", "generated"), "vllm": ("own", "tuned", "generated"),
               "sglang": ("generated",)}  # fmt: skip
"""Kernels of narrow experts that one operator launches, by the library that they are of; Python
launches the others one after the other (Triton's, DeepGEMM's over buffers, OpenAI's)."""

ATTENDING, EXPANDING, LATENTS = 2.0, 4.0, 2.0
"""Launches of attention with the write of the cache before it; of keys and values made of latents
(the product, both parts of the keys put together, the values copied); of the norms of queries' and
keys' latents."""


def _of_engine(operator: Operator, plan: ServingPlan) -> float:
    """Launches of an operator in the eager code of an engine, whose work list has one for it: 1, or
    as many as the layers of SGLang 0.5.9 (srt/models/deepseek_v2.py, srt/layers/quantization/,
    srt/layers/moe/fused_moe_triton/) make for it one after the other."""
    if plan.library == "neutral" or plan.execution == "native":
        return 1.0
    narrow = ELEMENT_BYTES[operator.dtype] < ELEMENT_BYTES["bf16"]
    if operator.op == "moe_gemm":
        if plan.narrow and plan.narrow_experts in IN_ONE_CALL[plan.library]:
            return OF_ONE_CALL
        return ROUTED if narrow else OF_HALVES
    if operator.name == "attention.latent_norm":
        return LATENTS
    if operator.op.startswith("attention"):
        return ATTENDING
    expanding = EXPANDING if operator.name == "attention.kv_up" else 1.0
    return expanding + NARROWING if operator.op == "gemm" and narrow else expanding


def started(each: Array, alone: Array) -> Array:
    """Share of a kernel that starts after the one before it, 0..1: none of one that is part of
    another, and of one that runs beside others what it adds to them."""
    return np.asarray(np.where(alone > 0, np.minimum(each / np.maximum(alone, 1e-12), 1.0), 0.0))
