"""What a request may state of a serving plan beside its model and engine: tokens that are guessed
ahead, memory of the hosts, low-rank adapters."""

from __future__ import annotations

from predictor.plans.fields import (
    ALL,
    BOTH,
    COUNT,
    NATURAL,
    POSITIVE,
    SHARE,
    WORD,
    PlanField,
)
from predictor.plans.serving import SERVING_OFFLOADS

GUESS_FIELDS = (
    PlanField(
        "drafted", NATURAL, "Tokens guessed for each sequence before a pass that checks them.",
        ("decode", "load"), reason="no speculative decoding unless stated",
    ),
    PlanField(
        "acceptance", SHARE, "Probability that a guess is right, those before it being right.",
        ("decode", "load"), reason="within what is published of draft models",
    ),
    PlanField(
        "draft_cost", SHARE, "Time of guessing one token over that of a pass.",
        ("decode", "load"), reason="guesses are free unless stated",
    ),
)  # fmt: skip

HOST_FIELDS = (
    PlanField(
        "offload", WORD, "What lies in the host's memory.", ALL, choices=SERVING_OFFLOADS,
        reason="nothing; `weights`: weights and cache; `ngrams`: tables of n-grams alone",
    ),
    PlanField(
        "host_memory_gb", POSITIVE, "Memory of the hosts of all accelerators.", ("load", "memory"),
        unit="GB", default="of the nodes that the plan takes", held="host_memory",
    ),
    PlanField(
        "host_bandwidth_gbs", POSITIVE, "Bandwidth of that memory.", BOTH, unit="GB/s",
        default="200", reason="eight channels of DDR4-3200", held="host_bandwidth",
    ),
    PlanField(
        "host_link_gbs", POSITIVE, "Rate of copies from there to each accelerator.", BOTH,
        unit="GB/s", default="the accelerator's", reason="copies over PCIe of its year",
        held="host_link",
    ),
)  # fmt: skip

ADAPTER_FIELDS = (
    PlanField(
        "adapters", NATURAL, "Low-rank adapters (LoRA) that requests ask for, all alike often.",
        (*BOTH, "load", "memory"), reason="the model as it is, unless stated",
        more="Each product of a layer gains two small ones, for as many of them as a pass has "
        "requests (Chen et al. 2023, Punica; Sheng et al. 2023, S-LoRA).",
    ),
    PlanField("adapter_rank", COUNT, "Rank of the adapters.", (*BOTH, "memory")),
    PlanField(
        "adapter_slots", NATURAL, "Most adapters in one batch.", ("load", "memory"),
        default="no limit", more="max_loras; the device's memory holds no more of them.",
    ),
)  # fmt: skip
