"""What Python does around an operator, in operators that it would launch meanwhile: the work of a
loop's host that no kernel tells of.

Read off steps on an H200 that waited for their hosts (`data/measurements/h200-sxm-4` and `-5`:
adapters of 1 B and 0.5 B parameters, weights in few bits), and off the time that a processor takes
for the same modules with next to no arithmetic (`two-cores-6`).
"""

from __future__ import annotations

from predictor.plans import FEW_BITS, HUGGINGFACE, TrainingPlan
from predictor.work import EACH, Operator

MIXTURE = "moe"
"""Module of a mixture's blocks, for whose launches the host waits for what a router counted."""

HOOKED = 2.8
"""Operators' worth of one that a non-reentrant checkpoint runs again: every tensor that autograd
saves goes through hooks in Python, in the pass that throws it away, in the one that makes it again,
and where both are compared (PyTorch 2.11, torch/utils/checkpoint.py: `_checkpoint_hook`,
`_recomputation_hook`). Steps with it take 2.0 to 2.6 times as long on the host as without
(`data/measurements/two-cores-6`), of which what runs again would be 1.45."""

ADAPTED = 4.3
"""Operators' worth of the module around an adapter beside one matrix (peft 0.21, tuners/lora/
layer.py: `Linear.forward`), forward and backward."""

SWITCHED = 9.0
"""The same of adapters that are switched off and on again for a reference: every module is walked
through twice, and every tensor of it told to learn (peft, tuners/tuners_utils.py:
`BaseTunerLayer.enable_adapters`); 0.43 to 0.57 of a step's own work on the host (the same)."""

UNPACKED = 14.0
"""The same of a product with weights in few bits (bitsandbytes 0.50, autograd/_functions.py), each
way."""

LOOPED, HOOKED_EACH = 2.0, 6.2
"""Operators' worth of attention to one image or window by itself, each way: the call and the copy
that follows it (transformers 5.17, integrations/sdpa_attention.py; what splits and joins them are
views): 120 us of a step on an H200 for both, as predicted (`data/measurements/h200-sxm-5`). And by
what that is multiplied where a non-reentrant checkpoint runs it again: 80 us on a processor beside
36 for both ways (`two-cores-6/windows.csv`), where attention keeps five tensors, seven on a GPU."""

LAST = ("lora_add", ".widen", ".widen.bwd", ".narrow")
"""Operators beside a product that stand for its module; how their names end."""


def calls(operator: Operator, plan: TrainingPlan) -> float:
    """Operators' worth of the host's time for one execution of an operator. What mixtures wait for
    was fitted to runs that checkpoint them, hooks and all, but for HuggingFace's."""
    loop = plan.framework == HUGGINGFACE
    again = operator.phase == "recompute"
    eager = loop or not (plan.fused or operator.module == MIXTURE)
    hooked = HOOKED if again and plan.stops_early and eager else 1.0
    name = operator.name.removesuffix(".again")
    if operator.name.startswith(EACH):
        return LOOPED * (HOOKED_EACH if hooked > 1.0 else 1.0)
    if not loop or not name.endswith(LAST):
        return hooked
    if name.endswith("lora_add"):
        switched = SWITCHED if plan.compared_with == "adapters" and not again else 0.0
        return hooked * (1.0 + ADAPTED) + switched
    return hooked * (1.0 + UNPACKED * (plan.frozen_precision in FEW_BITS))
