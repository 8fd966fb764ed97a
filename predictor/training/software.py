"""What the software of a run adds to its parts, from the fitted factors: on the whole step, on
classes of kernels, on launches and networks."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from predictor.arrays import Numeric
from predictor.hardware import Cluster
from predictor.plans import HUGGINGFACE, MAKERS, ON_ONE, PLAIN, TrainingPlan
from predictor.records import dataclass
from predictor.timing import RunParameters
from predictor.training.calls import MIXTURE
from predictor.variation.order import normal_maximum

ATTENTION = "attention"
"""How classes of fused attention begin (`layer.kernel_class`)."""

ANY, LAUNCH, ROUTED, ONCE, HOP, NODES = "*", "launch", "launch.moe", "once", "hop", "nodes"
YOUNG, MIXED = "young", "mixture"
"""Keys of `RunParameters.factors` beside those of kernels ('gemm') and frameworks ('nemo',
'nemo/2024'): frameworks in general; 'launch', 'launch.moe', 'launch/FRAMEWORK', 'once',
'once/FRAMEWORK' and 'hop/FRAMEWORK'; 'nodes' and 'nodes/FRAMEWORK' (see `Environment`); those of
`memory.Allocation`; 'young' (`youth`); 'mixture', kernels of a mixture's block in a step over those
by themselves, which were timed with even experts and one after the other."""

AS_OF, GROWN = "2026-11", 3.0
"""The month of software of which no date is said; years after which an architecture's libraries are
as quick as those that its kernels were timed with."""


HOST_DOUBT = 0.5
"""Log-standard-deviation of what hosts take for an operator, of frameworks but `MAKERS`: with it
eight in ten steps that wait for launches lie inside, machines alike (12 steps on four:
`data/measurements`). Without any one of these it is 0.37 to 0.46."""

MAKERS_DOUBT = 0.2
"""The same of mixtures by `MAKERS`, whose hosts are fitted to many runs: about the least interval
score, sources alike, of 76 published runs of seven sources, each left out of the fit, that wait for
launches for a twentieth of their steps and more; without any one source it is 0.14 to 0.26. Of
dense models eight such runs say little, and their spread holds without."""


@dataclass(frozen=True, slots=True, eq=False)
class Environment:
    """What the software of a run and where it runs add; floats, or arrays of the batch's shape.

    factor   on the whole step, but for what takes as long as by itself (`alone`)
    young    the part of it that is the date's (`youth`)
    launch   host time per operator (its module, its autograd node, its launch) over
             `RunParameters.host_per_kernel`, which further kernels of the operator take each
    routed   the same of a mixture's layers: the host waits for what the router counted, and
             launches experts one by one
    once     the same of what the host does once a step while its device has nothing to do: it waits
             for loss and norm of the gradients, walks through the optimizer's tensors, takes the
             next batch, logs, and launches the first kernels
    hop      the same for one step of a tensor-parallel ring that the framework launches step by
             step; 0 where a collective is one launch
    nodes    time of communication between nodes per doubling of the nodes beyond two, up to as many
             as that was read off (`ledger.WIDEST`)
    alike    what ranks that meet wait for the slowest of them, over their work between two
             meetings, however long that lasts
    drawn    the same of what is drawn anew between meetings, of a second's work [s^0.5]
    doubt    log-standard-deviation of what the host takes (`HOST_DOUBT`), and of mixtures
             (`MAKERS_DOUBT`)
    """

    factor: Numeric = 1.0
    young: Numeric = 1.0
    launch: Numeric = 1.0
    routed: Numeric = 1.0
    once: Numeric = 0.0
    hop: Numeric = 0.0
    nodes: Numeric = 1.0
    alike: Numeric = 0.0
    drawn: Numeric = 0.0
    doubt: Numeric = 0.0
    routed_doubt: Numeric = 0.0


def environment(factors: Mapping[str, float], framework: str, era: str) -> Environment:
    """The environment of a framework in a year ('YYYY' or 'YYYY-MM'): its own of that year, else
    of all years, else that of frameworks in general."""
    year = f"{framework}/{era[:4]}"

    def first(keys: tuple[str, ...], default: float) -> float:
        return float(next((factors[key] for key in keys if key in factors), default))

    own = (f"{LAUNCH}/{year}", f"{LAUNCH}/{framework}")
    return Environment(
        factor=first((year, framework, ANY), 1.0),
        launch=first((*own, LAUNCH), 1.0),
        routed=first((*own, ROUTED, LAUNCH), 1.0),
        once=first((f"{ONCE}/{framework}", ONCE), 0.0),
        hop=first((f"{HOP}/{year}", f"{HOP}/{framework}"), 0.0),
        nodes=first((f"{NODES}/{framework}", NODES), 1.0),
    )


def youth(run: RunParameters, architecture: str, era: str) -> float:
    """How much longer steps take than with libraries of today, by the age of an architecture.

    era   'YYYY' or 'YYYY-MM' of the software; anything else is `AS_OF`

    Matrix units that are fed asynchronously (Hopper's wgmma, Blackwell's tcgen05) want kernels of
    their own. Kernels here were timed with libraries of 2025 and 2026; steps of dense models on
    H100 take 1.36 times as long as their kernels in 2023, 1.25 in 2024 and 1.14 in 2026, on B200
    and GB200 1.24 in 2025 and 1.12 in 2026. What is left of the fitted ratio (`YOUNG`) falls
    linearly, in its log, from the first sale (`RunParameters.sold`) on for `GROWN` years.
    """
    if architecture not in run.sold:
        return 1.0
    at = era if era[:4].isdigit() else AS_OF
    age = _years(at) - _years(run.sold[architecture])
    return math.pow(run.factors.get(YOUNG, 1.0), min(max(1.0 - age / GROWN, 0.0), 1.0))


def _years(month: str) -> float:
    """'YYYY-MM' in years; of 'YYYY' its middle."""
    return float(month[:4]) + (float(month[5:7] or 6.5) - 0.5) / 12.0


def environment_of(cluster: Cluster, plan: TrainingPlan, run: RunParameters) -> Environment:
    """What the software of a plan adds on a cluster. Levels of frameworks are those of published
    runs on many accelerators, which say nothing of a host, of a loop on one rank (steps of five
    models of 0.8 to 3 B parameters on an H100 and an H200 take 0.95 to 1.06 of what their kernels
    do: `data/measurements`), nor of a plain one where what its host takes to launch an operator was
    measured on the machine itself. Nor does HuggingFace's host wait for what a router
    counted where experts are not looped over (torch._grouped_mm; `data/measurements`)."""
    accelerator = cluster.accelerator
    factors = {} if accelerator.is_host else run.factors
    found = environment(factors, plan.framework, plan.era)
    young = 1.0 if accelerator.is_host else youth(run, accelerator.architecture, plan.era)
    found = replace(found, factor=found.factor * young, young=young)
    if plan.framework in MAKERS:
        found = replace(found, routed_doubt=MAKERS_DOUBT)
    else:
        found = replace(found, doubt=HOST_DOUBT, routed_doubt=HOST_DOUBT)
    if plan.framework in ON_ONE and plan.lone.any():
        found = replace(
            found,
            factor=np.where(plan.lone, 1.0, found.factor),
            young=np.where(plan.lone, 1.0, young),
        )
    if plan.framework == HUGGINGFACE and not plan.experts_looped:
        found = replace(found, routed=np.where(plan.lone, found.launch, found.routed))
    if plan.framework == PLAIN and accelerator.is_queued:
        own = np.asarray(accelerator.dispatch) / (run.host_per_kernel or 1.0)  # 0: none waits
        found = replace(
            found,
            launch=np.where(own > 0, own, found.launch),
            doubt=np.where(own > 0, 0.0, found.doubt),
            routed_doubt=np.where(own > 0, 0.0, found.routed_doubt),
            factor=np.where(own > 0, 1.0, found.factor),
            young=np.where(own > 0, 1.0, found.young),
        )
    jitter = run.jitter.get(cluster.accelerator.name)
    if jitter is None:
        return found
    late, _ = normal_maximum(plan.tp * plan.cp * plan.ep)
    return replace(found, alike=late * jitter[0], drawn=late * jitter[1])


def stretched(factors: Mapping[str, float], name: str, module: str = "") -> float:
    """Time in a step over the time by itself of a class of kernels ('gemm.ampere'): the product of
    the factors of the class and of every class that it belongs to ('gemm'); in a mixture's block
    (`module`) times that of mixtures."""
    pieces = name.split(".")
    names = (".".join(pieces[: depth + 1]) for depth in range(len(pieces)))
    alike = math.prod(float(factors.get(key, 1.0)) for key in names)
    return mixed(factors, module) * alike


def mixed(factors: Mapping[str, float], module: str) -> float:
    """Time in a step over the time by itself of kernels for being in a module's kind."""
    return float(factors.get(MIXED, 1.0)) if module == MIXTURE else 1.0


def alone(using: Environment, name: str) -> Numeric:
    """By what the time of a class of kernels is divided before the framework's factor stretches
    the step: that factor for those that take as long in a step as by themselves, else 1.

    Fused attention and the optimizer do: steps of 16k to 262k tokens, which are mostly attention,
    take what their parts take by themselves (llm-foundry's and MaxText's tables, one of DeepSpeed),
    where those made of products take a fifth more.
    """
    return using.factor if name.startswith(ATTENTION) else 1.0
