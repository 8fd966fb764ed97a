"""What a request may state of a whole run of training."""

from __future__ import annotations

from predictor.plans.fields import (
    BUDGET,
    NATURAL,
    PLAN,
    POSITIVE,
    PREDICT,
    SHARE,
    SWITCH,
    TEXT,
    WORD,
    PlanField,
)
from predictor.plans.training import USUAL_FAULTS, VARIATIONS

RUN_FIELDS = (
    PlanField(
        "stage_clocks", WORD, "Pipeline stages run as slowly as they are waited for.", ("run",),
        choices=("stage", "pass"), default="all at the highest", flags=(PREDICT,), metavar="EACH",
        held="", quiet=True,
        more="A clock for each stage, or for each pass of a micro-batch: the least energy within "
        "the pipeline's own time (Chung et al. 2024, Perseus).",
    ),
    PlanField(
        "stage_slack", POSITIVE, "By which that may make the pipeline longer, 0.02: 2 %.",
        ("run",), default="nothing", flags=(PREDICT,), metavar="X", held="", quiet=True,
    ),
    PlanField(
        "tokens", BUDGET, "Budget: adds days, goodput, GPU-hours.", ("run",), unit="tokens",
        default="no budget", flags=(PREDICT,), lists=False, held="",
    ),
    PlanField(
        "price_per_gpu_hour", POSITIVE, "Adds money.", ("run",), unit="any currency",
        default="no price", flags=(PREDICT,), metavar="X", lists=False, held="",
    ),
    PlanField(
        "mtbf_hours", POSITIVE, "Between interruptions, of one accelerator.", ("run",), unit="h",
        default="36300", reason="geometric mean of five published fleets", held="",
    ),
    PlanField(
        "restart_s", POSITIVE, "From an interruption to training again.", ("run",), unit="s",
        default="600", reason="five minutes to notice, five to initialise", held="",
    ),
    PlanField(
        "storage_gbs", POSITIVE, "Rate of writing checkpoints, per accelerator.", ("run",),
        unit="GB/s", default="0.12", reason="as published runs write", held="",
    ),
    PlanField(
        "checkpoint_blocking", SHARE, "Of a checkpoint's time in which training waits.", ("run",),
        default="1", reason="training waits for checkpoints", held="",
    ),
    PlanField(
        "checkpoint_interval_s", POSITIVE, "Between checkpoints.", ("run",), unit="s",
        default="Daly's", reason="the interval that loses least (Daly 2006)", held="",
    ),
    PlanField(
        "spares", NATURAL, "Nodes that wait for another to fail.", ("run",), unit="nodes",
        default="none", reason="no fleet unless one of these is stated", held="",
    ),
    PlanField(
        "repair_hours", POSITIVE, "Until a node that has failed is back.", ("run",), unit="h",
        default="24", reason="a day to drain, repair and test a node", held="",
    ),
    PlanField(
        "preempted_hours", POSITIVE, "Between preemptions of an instance (a node).", ("run",),
        unit="h", default="never", reason="instances of one's own", held="",
        more="Spot instances: 2 to 60 h in traces of a day to four (Thorpe et al. 2023, Bamboo).",
    ),
    PlanField(
        "returned_hours", POSITIVE, "Until a preempted instance is replaced.", ("run",), unit="h",
        default="1", reason="a guess: minutes where a zone has plenty, never where it is starved",
        held="",
    ),
    PlanField(
        "preempted_group", POSITIVE, "Instances that are preempted together.", ("run",),
        default="1", reason="one at a time", held="",
    ),
    PlanField(
        "elastic", SWITCH, "The job goes on with fewer replicas where nodes are missing.",
        ("run",), default="no", reason="frameworks wait for the nodes that they were given",
        held="",
    ),
    PlanField(
        "variation", TEXT, f"Machines: {' '.join(VARIATIONS[1:])}, or a file.", ("run",),
        default="none", reason="one number for a step unless asked for",
        flags=(PREDICT, PLAN), metavar="V", held="", alone="typical", lists=False,
        planned="Rank by the P95 of a step: tuned typical cloud.",
        more="Adds P50, P95 and P99 of a step and of a run, and what waits for what, apart from "
        "`low` and `high`, which say how well the step is known. A file states terms of "
        "data/variation/profiles.yaml, and with `base` the profile that the others are of.",
    ),
    PlanField(
        "faults", TEXT, "What slow parts cost, as nic:0.5,compute:1.2.", ("run",), default="none",
        reason="a sound machine unless stated", flags=(PREDICT,), metavar="LIST", held="",
        alone=USUAL_FAULTS, lists=False,
        more="Of one accelerator: compute (times as slow), hbm, nvlink, nic (share of its rate "
        "that is left); rail: links that a node has lost; spine: 1/32 of a leaf's uplinks; "
        "neighbour: 1/2, one more job on a spine that is oversubscribed by two. x4: four of "
        "them; @0.01: for a hundredth of the time.",
    ),
)  # fmt: skip
"""Of a whole run: its budget, what interrupts it, how its steps vary."""
