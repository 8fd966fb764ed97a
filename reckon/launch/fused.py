"""Kernels that trainers of single files put in the place of a model's own: Liger's (linkedin/
Liger-Kernel: norms, rotary embedding and gates as single kernels; the loss from the head's input
in chunks, whose gradient takes the place of the logits: `fused_linear_cross_entropy`, from memory)
and unsloth's, which are alike.
"""

from __future__ import annotations

import math

from reckon.launch.table import Derived, Facts, Flags, truth

LIGER = ("use_liger_kernel", "enable_liger_kernel", "use_liger", "use_unsloth")
"""Of HuggingFace's trainer and TRL, LLaMA-Factory, DPO of TRL, LLaMA-Factory."""

NORM, LOSS = "liger_rms_norm", "liger_fused_linear_cross_entropy"
"""axolotl's, kernel by kernel."""

PARTS = (NORM, LOSS, "liger_rope", "liger_glu_activation", "liger_layer_norm",
         "liger_cross_entropy", "liger_swiglu")  # fmt: skip

WIDE = 2.0
"""Bytes of a logit in 16 bits, over which its gradient is written."""

USUAL = 32
"""Chunks of a vocabulary of 128,000 and a width of 4,096, where neither is known."""


def _means(flags: Flags, facts: Facts) -> Facts:
    """Single kernels, and what is kept of the logits: of as many chunks as the vocabulary is wider
    than the model, one."""
    all_ = any(truth(key, flags.get(key, False)) for key in LIGER)
    found: Facts = {}
    if all_ or truth(NORM, flags.get(NORM, False)):
        found["fused"] = True
    if all_ or truth(LOSS, flags.get(LOSS, False)):
        vocab, hidden = facts.get("model.vocab"), facts.get("model.hidden")
        chunks = math.ceil(vocab / hidden) if vocab and hidden else USUAL
        found["logit_bytes"] = WIDE / chunks
    return found


FUSED = Derived((*LIGER, *PARTS), lambda facts: {}, _means)
