"""What a request may state of parts that some kinds of models alone have."""

from __future__ import annotations

from predictor.plans.fields import SWITCH, PlanField

PASSES = ("forward", "backward")
FRAMEWORK = "as the framework does"

KIND_FIELDS = (
    PlanField(
        "clamps_apart", SWITCH, "Experts' activations are clamped by kernels of their own.", PASSES,
        default=FRAMEWORK, reason="Megatron Core's are, unless Transformer Engine fuses experts",
        more="Of models that clamp (gpt-oss).",
    ),
    PlanField(
        "experts_looped", SWITCH, "Experts run one after the other, in operators of their own.",
        PASSES, default=FRAMEWORK, reason="HuggingFace's did until Transformers 5",
        more="The host waits for each to learn how many tokens it has.",
    ),
    PlanField(
        "activation_apart", SWITCH, "Gated activations and squared ReLUs are several kernels.",
        PASSES,
        default=FRAMEWORK, reason="fused, but where a framework's code or recipes write them out",
        more="Norms, rotary encoding and the loss stay as `fused` has them.",
    ),
    PlanField(
        "norms_persist", SWITCH, "Layer norms' gradients are as quick as layer norms.",
        ("backward",), default=FRAMEWORK,
        reason="as they were timed, on A100 PyTorch's own kernels of those years, which are slow",
        more="Persistent kernels (Apex's FastLayerNorm, Transformer Engine's) read what the norm "
        "read and its gradient once; their bytes are taken to go at the norm's own rate.",
    ),
    PlanField(
        "routers_kept", SWITCH, "Losses of routers keep what a layer ran before them.",
        ("memory",), default=FRAMEWORK, reason="they are handed on, or no loss balances experts",
        more="A loss that a module holds holds its graph. Of a layer that is checkpointed whole "
        "that is the one of the pass that came again, which no backward pass empties: until the "
        "next step.",
    ),
    PlanField(
        "windows_masked", SWITCH, "Windows of attention are masks, which no kernel skips.",
        (*PASSES, "memory"), default=FRAMEWORK,
        reason="HuggingFace's are, which PyTorch's attention reads whole",
        more="Every query then meets every key, and keys are copied for each head. Images and "
        "windows of towers like Qwen-VL's attend one after the other; a kernel for sequences of "
        "any length (flash_attention_2) has all of them in one call.",
    ),
    PlanField(
        "merges_apart", SWITCH, "Attention over each rank's keys is merged in 32 bits.",
        (*PASSES, "communication", "memory"), default=FRAMEWORK,
        reason="PyTorch's context parallelism does so, where ranks split a sequence",
        more="By operators beside the kernels of each block, which a compiled graph joins; "
        "gradients of keys and values are passed on in 32 bits.",
    ),
    PlanField(
        "keys_repeated", SWITCH, "Keys and values travel once for each query head.",
        (*PASSES, "communication", "memory"), default=FRAMEWORK,
        reason="torchtitan's models repeated them before attention until 2026-01",
        more="Where ranks split a sequence.",
    ),
    PlanField(
        "index_loss", SWITCH, "What chooses keys learns from the attention to those it chose.",
        (*PASSES, "memory"), default=FRAMEWORK,
        reason="it learns where a recipe has it learn",
        more="Of models that choose keys (DeepSeek-V3.2, GLM-5, DeepSeek-V4): scores of attention "
        "and indexer over the chosen keys once more, their divergence, and its gradients.",
    ),
)  # fmt: skip
"""Clamps and loops of experts, losses of routers, masks of windows, parts of attention, and how an
indexer learns."""
