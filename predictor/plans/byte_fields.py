"""What a request may state of the width of what a training plan keeps and sends."""

from __future__ import annotations

from predictor.plans.fields import POSITIVE, PlanField

BYTE_FIELDS = (
    PlanField(
        "weight_bytes", POSITIVE, "A stored weight.", ("optimizer", "memory"), unit="bytes",
        default="of the precision: 2 or 4", reason="weights are stored as they are multiplied",
    ),
    PlanField(
        "gradient_bytes", POSITIVE, "An accumulated gradient element.",
        ("optimizer", "memory"), unit="bytes", default="4",
        reason="gradients accumulate in fp32",
    ),
    PlanField(
        "reduce_bytes", POSITIVE, "A gradient element as it is reduced.",
        ("communication", "memory"),
        unit="bytes", default="4", reason="gradients are reduced in fp32",
    ),
    PlanField(
        "handed_bytes", POSITIVE, "An activation element as stages hand it on.",
        ("communication",), unit="bytes", default="of the precision: 2 or 4",
        reason="activations are handed on as they are",
        more="0.516 where they are packed into four bits with a scale for each 32 elements; the "
        "packing takes no time here. `reduce_bytes` is that of gradients.",
    ),
    PlanField(
        "handed_rate", POSITIVE,
        "Rate at which a stage itself copies what it hands on.",
        ("communication",), unit="bytes/s", default="transfers run beside passes",
        reason="a transfer has a stream of its own",
        more="Where sends and receives are of one communicator (NCCL), each waits for the one "
        "before, and that for the pass between them: a stage receives, computes and sends in turn, "
        "and what it has copied travels without it.",
    ),
    PlanField(
        "gather_bytes", POSITIVE, "A weight element as it is gathered.",
        ("communication", "memory"),
        unit="bytes", default="of the precision: 2 or 4",
        reason="weights are gathered as they are multiplied",
    ),
    PlanField(
        "optimizer_bytes", POSITIVE, "Optimizer states of a parameter.", ("optimizer", "memory"),
        unit="bytes", default="of the precision: 8 or 12",
        reason="an fp32 copy, where weights are not, and two Adam moments",
    ),
    PlanField(
        "logit_bytes", POSITIVE, "Kept per logit when its gradient is there.",
        ("forward", "backward", "memory"), unit="bytes",
        reason="16-bit logits, fp32 ones that become softmax and gradient in place, and the 16-bit "
        "gradient; more where each is apart",
        more="No more than the 16-bit logits' 2: one kernel writes the gradient over them.",
    ),
)  # fmt: skip
"""Bytes of weights, gradients, states, logits and activations, each by itself."""
