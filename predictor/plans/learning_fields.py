"""What a request may state of what learns and from what: adapters beside frozen weights; passes
without gradients, and the model that answers are compared with."""

from __future__ import annotations

from predictor.plans.fields import ALL, AMOUNT, COUNT, SWITCH, WORD, PlanField
from predictor.plans.objectives import OBJECTIVE_WORDS, OBJECTIVES, REFERENCES
from predictor.plans.optimizers import OPTIMIZER_WORDS, OPTIMIZERS
from predictor.plans.training import ADAPTER_STYLES, FROZEN_BYTES, TRAINED

SCORED = ("forward", "communication")

LEARNING_FIELDS = (
    PlanField(
        "trained", WORD, "What learns.", ALL, choices=TRAINED, reason="pre-training",
        more="Every parameter; or, beside frozen weights, low-rank adapters of all linear layers, "
        "or of the projections to queries, keys and values only.",
    ),
    PlanField(
        "lora_rank", COUNT, "Inner size of the adapters, where only they are trained.", ALL,
        reason="a common choice",
    ),
    PlanField(
        "frozen_precision", WORD, "How weights beside adapters are stored.", ALL,
        choices=tuple(FROZEN_BYTES), reason="frozen weights are kept as the others are",
        more="Layers alone; what is narrower than it is multiplied is widened before each use "
        "(QLoRA: nf4).",
    ),
    PlanField(
        "adapter_style", WORD, "How adapters are run.", ALL, choices=ADAPTER_STYLES,
        reason="as Megatron Core and NeMo do",
        more="Beside what is projected together; beside each matrix; so, kept in fp32 and "
        "multiplied in 16 bits under autocast (peft), or multiplied in fp32.",
    ),
    PlanField(
        "stream_widened", SWITCH, "The residual stream is in fp32 beside weights in 16 bits.", ALL,
        reason="it is as narrow as what is multiplied",
        more="What peft's prepare_model_for_kbit_training makes of norms and embeddings; under "
        "autocast, products alone are narrow then.",
    ),
    PlanField(
        "optimizer", WORD, "What updates weights.", ("optimizer", "memory"),
        choices=tuple(OPTIMIZERS), words=OPTIMIZER_WORDS, reason="what most train with",
        more="It says what `optimizer_bytes` are where nobody does; Muon makes each matrix's "
        "momentum orthogonal by products (Liu et al. 2025, arXiv 2502.16982).",
    ),
    PlanField(
        "update_early", SWITCH, "Weights are updated as their gradients come.", ("memory",),
        reason="frameworks update them after the backward pass",
        more="torchtune's optimizer_in_bwd: of one device and one micro-batch, which then keeps no "
        "gradients.",
    ),
    PlanField(
        "learns_from", WORD, "What answers are learned from.", ALL, choices=tuple(OBJECTIVES),
        words=OBJECTIVE_WORDS, reason="the next token, in pre-training and supervised fine-tuning",
        more="Or pairs against a reference (DPO, IPO), answers that are good or bad (KTO), pairs "
        "by themselves (ORPO, SimPO), rewards (GRPO and its like, and PPO's actor). A pair is two "
        "sequences of micro_batch and global_batch.",
    ),
    PlanField(
        "compared_with", WORD, "Where the weights are that answers are compared with.", ALL,
        choices=REFERENCES, default="as `learns_from` has it",
        reason="held beside those that learn (dpo, kto, grpo), which are they where adapters "
        "alone are trained; none of TRL's GRPO, whose beta is 0",
        more="`adapters`: the model's own, adapters switched off; `none`: worked out before, or "
        "not at all.",
    ),
    PlanField(
        "scored", AMOUNT, "Passes without gradients of a sequence by the model that learns.",
        SCORED, default="as `learns_from` has it",
        reason="0; 1 of kto, over mismatched answers, and of grpo, for old probabilities",
        more="Of an optimizer step: probabilities that serve several epochs are a part of one.",
    ),
    PlanField(
        "referred", AMOUNT, "The same by the model that it is compared with.", SCORED,
        default="as `learns_from` has it",
        reason="1 of dpo and grpo, 2 of kto, over mismatched answers too; 0 without a reference",
    ),
)  # fmt: skip
"""What learns, how adapters run, and from what."""
