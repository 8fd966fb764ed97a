"""Speed of the plan search, whole spaces on one core, against a loop over single plans of the same
space through the same model. `make bench` prints it.
"""

from __future__ import annotations

import resource
import time

import numpy as np

from predictor import catalog
from predictor.catalog import load
from predictor.hardware import Cluster
from predictor.memory import MEMORY_FRACTION, memory
from predictor.models import Model
from predictor.plans import TrainingPlan, feasible
from predictor.search import search_train, single, space_of
from predictor.timing import Calibration
from predictor.training import predict
from reckon.views.terminal import grid

WIDE = {"tp_overlap": [False, True], "attention": ["flash", "unfused"]}
"""What software may do beside what is searched by default."""

CASES = (
    ("gpt3-175b", 512, {"global_batch": 1536}),
    ("gpt3-175b", 512, {"global_batch": 1536, **WIDE}),
    ("megatron-1008b", 4096, {"global_batch": 2048}),
    ("megatron-1008b", 4096, {"global_batch": 2048, **WIDE}),
)

SAMPLE = 300
"""Plans of a space, at random, over which the loop goes."""


def loop(model: Model, cluster: Cluster, plans: list[TrainingPlan], known: Calibration) -> None:
    """One plan after the other: laws, memory, time of those that fit."""
    for plan in plans:
        if not feasible(plan, model).all():
            continue
        peak = float(memory(model, plan, known.run).peak)
        if peak <= MEMORY_FRACTION * float(cluster.accelerator.memory):
            predict(model, cluster, plan, known)


def sample(model: Model, cluster: Cluster, fields: dict, known: Calibration) -> list[TrainingPlan]:
    blocks = list(space_of(model, cluster, fields, known.run).blocks())
    sizes = np.array([len(block) for block in blocks])
    rng = np.random.default_rng(0)
    chosen = rng.choice(len(blocks), SAMPLE, p=sizes / sizes.sum())
    return [
        single(blocks[at].plan(np.array([rng.integers(len(blocks[at]))]))) for at in chosen.tolist()
    ]


def main() -> None:
    known = load("default")
    cluster = catalog.system("dgx-a100")
    rows = []
    for name, gpus, own in CASES:
        model = catalog.model(name)
        fields = {"gpus": gpus, "seq_len": 2048, **own}
        search_train(model, cluster, {**fields, "tp": 8, "pp": 8}, known)  # warm
        start = time.process_time()
        found = search_train(model, cluster, fields, known)
        seconds = time.process_time() - start
        plans = sample(model, cluster, fields, known)
        start = time.process_time()
        loop(model, cluster, plans, known)
        each = (time.process_time() - start) / SAMPLE
        count = found.counts.enumerated
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
        rows.append(
            [
                f"{name} on {gpus} A100{', wide' if 'tp_overlap' in own else ''}",
                f"{count:,}",
                f"{found.counts.fitting:,}",
                f"{found.counts.timed:,}",
                f"{seconds:.2f}",
                f"{count / seconds:,.0f}",
                f"{1 / each:,.0f}",
                f"{count / seconds * each:,.0f}",
                f"{peak:.2f}",
            ]
        )
    columns = ["space", "plans", "fit", "timed", "s", "plans/s", "loop's plans/s", "ratio", "GB"]
    print(grid(columns, rows, left=1))


if __name__ == "__main__":
    main()
