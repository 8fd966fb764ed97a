"""What a step learns from, and which passes it takes beside those forward and backward: preferences
compare answers with what another model says of them, reinforcement weighs answers by what the model
said when it gave them.

Read in code: TRL @ f2cd57710 (trainer/dpo_trainer.py, kto_trainer.py and grpo_trainer.py, and
experimental/orpo and cpo), LLaMA-Factory @ ff6d4d12e (train/dpo and kto; hparams/
finetuning_args.py: `use_ref_model`), verl @ b178a3cd5 (trainer/ppo/ray_trainer.py:
`_compute_old_log_prob`, `_compute_ref_log_prob`), NeMo-RL @ 7ea279abf (algorithms/grpo.py:
`get_logprobs`, `get_reference_policy_logprobs`; dpo.py), OpenRLHF @ 3c3be623 (trainer/ppo_utils/
experience_maker.py).
"""

from __future__ import annotations

from predictor.records import dataclass


@dataclass(frozen=True, slots=True)
class Objective:
    """Sequences and passes of a step that learns from more than the next token.

    together   sequences that one pass compares: a pair's two answers, one after the other in one
               batch (TRL's `concatenated`, NeMo-RL's doubled `gbs` and `mbs`)
    own        passes forward without gradients of the model that learns, over a sequence
    compared   the same of the model that it is compared with
    """

    together: int
    own: float
    compared: float


OBJECTIVES: dict[str, Objective] = {
    "tokens": Objective(1, 0.0, 0.0),
    "dpo": Objective(2, 0.0, 1.0),
    "kto": Objective(1, 1.0, 2.0),
    "orpo": Objective(2, 0.0, 0.0),
    "grpo": Objective(1, 1.0, 1.0),
}
"""The next token; pairs against a reference (DPO, and what differs in its loss alone: IPO, hinge);
answers that are good or bad, whose mismatched ones all models read too (KTO); pairs by themselves
(ORPO, SimPO, CPO); answers weighed by rewards, of which the model's and the reference's
probabilities are worked out before (GRPO, RLOO, Reinforce; PPO's actor)."""

OBJECTIVE_WORDS = {
    **dict.fromkeys(("sft", "pretrain", "pretraining", "causallm", "pt"), "tokens"),
    **dict.fromkeys(("ipo", "hinge", "sigmoid", "ktopair", "rpo", "robust", "exopair"), "dpo"),
    **dict.fromkeys(("simpo", "cpo"), "orpo"),
    **dict.fromkeys(("rloo", "reinforce", "reinforce++", "dapo", "gspo", "drgrpo"), "grpo"),
}  # fmt: skip
"""What else people call them."""

REFERENCES = ("none", "held", "adapters")
"""Where the weights are of the model that is compared with: nowhere, as nothing is or its
probabilities were worked out before; beside those that learn; or they are these, with their
adapters switched off (TRL: `use_adapter`, no `ref_model` of a model with adapters)."""


def reference_of(objective: str, adapted: bool) -> str:
    """Where an objective's reference is unless somebody says: one of `REFERENCES`.

    adapted   whether adapters alone are trained
    """
    if not OBJECTIVES[objective].compared:
        return "none"
    return "adapters" if adapted else "held"
