"""What trainers of single files say of learning from preferences: HuggingFace's TRL (`trl dpo`,
`dpo.py`), axolotl (`rl`), LLaMA-Factory (`stage`, `pref_loss`), ms-swift (`rlhf_type`) and
torchtune (the component of its loss).

Their batches count what they compare: pairs, which are two sequences each (TRL @ f2cd57710,
trainer/dpo_trainer.py: chosen and rejected in one batch; NeMo-RL @ 7ea279abf, algorithms/dpo.py:
"we double the batch size here").
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from predictor.plans import OBJECTIVES
from reckon.launch.table import Derived, Facts, Flags, truth

OBJECTIVE, ANSWERS = "@objective", "@answers"

SAID = {"dpo": "dpo", "ipo": "dpo", "kto": "kto", "orpo": "orpo", "simpo": "orpo", "cpo": "orpo"}
"""What `rl`, `stage` and `rlhf_type` say, by what is learned from."""

ALONE = ("orpo", "simpo")
"""Losses of LLaMA-Factory's stage dpo without a reference (hparams/finetuning_args.py @ ff6d4d12e:
`use_ref_model`)."""

PROGRAM = r"\btrl\s+(dpo|kto|orpo|cpo)\b|\b(dpo|kto|orpo|cpo|simpo)\w*\.py"
LOSS = {"DPOLoss": "dpo", "IPOLoss": "dpo", "RSOLoss": "dpo", "SimPOLoss": "orpo"}
"""Losses of torchtune's recipes of preferences."""

BEFORE, HELD = "precompute_ref_log_probs", "ref_model"


TRL = r"\btrl\s+(sft|dpo|kto|orpo|cpo|reward)\b|\btrl/scripts/\w+\.py"
"""How commands name TRL's own programs, which check layers and compute in 16 bits unless told
otherwise (TRL @ f2cd57710, trainer/base_config.py: `gradient_checkpointing`, `bf16`)."""


def of_trl(flags: Flags, text: str) -> Flags:
    """Flags with what TRL's own programs do where nothing is said."""
    if not re.search(TRL, text):
        return flags
    narrow = {} if "fp16" in flags else {"bf16": True}
    return {"gradient_checkpointing": True, **narrow, **flags}


def objective_of(flags: Flags, text: str) -> str | None:
    """What a file or a command learns from, of `OBJECTIVES`; None where it is the next token, or
    what is not read."""
    kind = str(flags.get("rl") or flags.get("rlhf_type") or flags.get("stage") or "").lower()
    if kind in SAID:
        return "orpo" if str(flags.get("pref_loss", "")).lower() in ALONE else SAID[kind]
    if kind:
        return None
    if found := re.search(PROGRAM, text):
        return SAID[found[1] or found[2]]
    parts = " ".join(str(value) for key, value in flags.items() if key.endswith("_component_"))
    return next((own for name, own in LOSS.items() if f".{name}" in parts), None)


def compared(flags: Flags, text: str, batches: Sequence[str]) -> tuple[Flags, list[str]]:
    """Flags with what is learned from, and batches in sequences; and what was made of them.

    batches   names of flags that count what is compared
    """
    flags, name = of_trl(flags, text), objective_of(flags, text)
    if name is None:
        return flags, []
    found, each = {**flags, OBJECTIVE: name}, OBJECTIVES[name].together
    told = [key for key in batches if str(flags.get(key, "")).isdigit()] if each > 1 else []
    for key in told:
        found[key] = each * int(flags[key])
    pairs = [f"{key} {flags[key]} counts pairs, of {each} sequences each" for key in told]
    return found, pairs


def _means(flags: Flags, facts: Facts) -> Facts:
    """The objective, and where its reference is, if that is said."""
    if OBJECTIVE not in flags:
        return {}
    found: Facts = {"learns_from": flags[OBJECTIVE]}
    if not OBJECTIVES[found["learns_from"]].compared:
        return found
    if truth(BEFORE, flags.get(BEFORE, False)):
        return {**found, "compared_with": "none"}
    if str(flags.get(HELD) or "none").lower() not in ("none", "null"):
        return {**found, "compared_with": "held"}
    return found


PREFERENCES = Derived(
    (OBJECTIVE, "rl", "rlhf_type", "pref_loss", BEFORE, HELD),
    lambda facts: {},
    _means,
    fields=("learns_from", "compared_with"),
)
