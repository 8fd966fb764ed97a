"""Laws that plans of serving obey."""

from __future__ import annotations

import numpy as np

from predictor.models import Model
from predictor.plans.rules import Rule, near_divisors, not_multiple, shared_rules, whole_rules
from predictor.plans.serving import ServingPlan

PADS_HEADS = ("AWS",)
"""Makers whose software fills heads up to a multiple of the ranks that divide them
(neuronx-distributed API guide, `pad_model`: "Padding Tensor-Parallel Layers")."""


def serving_rules(plan: ServingPlan, model: Model, vendor: str = "") -> list[Rule]:
    """Every law with the plans that break it; arrays in, arrays out.

    vendor   of the accelerators
    """
    whole = ("tp", "pp", "dp", "ep", "input_len", "output_len", "chunk", "max_batch")
    found = whole_rules(plan, whole)
    found += [
        Rule(
            np.asarray(plan.batch < 1)
            | (np.isfinite(plan.batch) & not_multiple(np.nan_to_num(plan.batch, posinf=1.0), 1)),
            "{batch} must be a whole number of at least 1",
            ("batch",),
        ),
        Rule(
            not_multiple(model.heads, plan.tp) & (vendor not in PADS_HEADS),
            f"tp {{tp}} does not divide the {model.heads} attention heads of {model.name}",
            ("tp",),
            near_divisors(model.heads),
        ),
        Rule(
            np.asarray(plan.pp > model.layers),
            f"pp {{pp}} is more stages than {model.name} has layers ({model.layers})",
            ("pp",),
        ),
        Rule(
            np.asarray(plan.cached < 0) | np.asarray(plan.cached > 1),
            "{cached} must be a share between 0 and 1",
            ("cached",),
        ),
        Rule(
            np.asarray(plan.memory_fraction <= 0) | np.asarray(plan.memory_fraction > 1),
            "{memory_fraction} must be a share above 0, at most 1",
            ("memory_fraction",),
        ),
        Rule(
            np.asarray(plan.acceptance < 0) | np.asarray(plan.acceptance > 1),
            "{acceptance} must be a probability between 0 and 1",
            ("acceptance",),
        ),
        Rule(
            np.asarray((plan.batch < plan.dp) & (plan.serving < 1)),
            "batch {batch} is fewer sequences than the {dp} attention replicas",
            ("batch", "dp"),
        ),
    ]
    return found + _apart_rules(plan, model) + _block_rules(plan, model)


def _apart_rules(plan: ServingPlan, model: Model) -> list[Rule]:
    """Of prompts that are read apart."""
    return [
        Rule(
            not_multiple(model.heads, plan.prefill_tp),
            f"prefill_tp {{prefill_tp}} does not divide the {model.heads} attention heads of "
            f"{model.name}",
            ("prefill_tp",),
        ),
        Rule(
            np.asarray((plan.prefill_workers > 0) & (plan.prefill_dp > 1) & (not model.is_moe)),
            f"prefill_dp {{prefill_dp}} shares the experts of a mixture; {model.name} is dense: "
            "state more prefill_workers",
            ("prefill_dp",),
        ),
        Rule(
            np.asarray((plan.prefill_workers > 0) & (plan.prefill_ep > max(model.num_experts, 1))),
            "a worker that reads prompts with prefill_tp {prefill_tp} x prefill_dp {prefill_dp} "
            f"ranks divides the {model.num_experts} experts of {model.name} among more than there "
            "are",
            ("prefill_tp", "prefill_dp"),
        ),
        Rule(
            np.asarray((plan.prefill_workers > 0) & (plan.serving < 1)),
            "prefill_workers {prefill_workers} read prompts of requests that follow each other: "
            "state a concurrency or a rate",
            ("prefill_workers",),
        ),
    ]


def _block_rules(plan: ServingPlan, model: Model) -> list[Rule]:
    """Of what the model's blocks are made of."""
    found = shared_rules(plan, model)
    if model.delta_layers:
        found.append(
            Rule(
                not_multiple(model.delta_key_heads, plan.tp),
                f"tp {{tp}} does not divide the {model.delta_key_heads} key heads of the delta "
                f"rule of {model.name}",
                ("tp",),
            )
        )
    if model.conv_layers:
        found.append(
            Rule(
                not_multiple(model.hidden, plan.tp),
                f"tp {{tp}} does not divide the {model.hidden} channels of the convolutions of "
                f"{model.name}",
                ("tp",),
            )
        )
    if model.is_moe:
        found += [
            Rule(
                np.asarray(plan.ep > model.num_experts),  # those of some ranks may be one more
                f"ep {{ep}} is more ranks than the {model.num_experts} experts of {model.name}",
                ("ep",),
            ),
            Rule(
                not_multiple(plan.tp * plan.dp, plan.ep),
                "ep {ep} does not divide the ranks of a stage, tp {tp} x dp {dp}",
                ("ep", "tp", "dp"),
            ),
        ]
    else:
        found.append(
            Rule(
                np.asarray(plan.ep > 1),
                f"ep {{ep}} needs a mixture of experts; {model.name} is dense",
                ("ep",),
            )
        )
    if model.max_context and model.positions == "learned":
        found.append(
            Rule(
                np.asarray(plan.input_len + plan.output_len > model.max_context),
                f"input {{input_len}} + output {{output_len}} tokens are more than the "
                f"{model.max_context} positions that {model.name} has learned",
                ("input_len", "output_len"),
            )
        )
    return found
