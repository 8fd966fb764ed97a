"""Speed, as ratios to a yardstick measured in the same run. `make bench` prints it.

Absolute seconds differ from machine to machine; the ratios are what is kept an eye on. Seconds are
those of processors, so that other work on the machine counts little.
"""

from __future__ import annotations

import contextlib
import io
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, product
from pathlib import Path

import numpy as np

import reckon
from predictor import catalog
from predictor.arrays import take
from predictor.catalog import load
from predictor.hardware import Cluster
from predictor.models import Model
from predictor.plans import ServingPlan, TrainingPlan
from predictor.power import Conditions
from predictor.serving import (
    pass_table,
    predict_inference,
    serve,
    serving_power,
    spread_lengths,
)
from predictor.timing import Calibration, Shapes, shape_times
from predictor.training import limited, predict, step_power
from reckon.explore import explore
from reckon.verbs.plans import TrainingSearch
from reckon.views.plans import show_training
from reckon.views.terminal import grid

RUN = (
    "-m reckon predict train --model llama3-70b --system dgx-h100 --gpus 1024 --tp 8 --pp 4 "
    "--global-batch 1024 --seq-len 8192"
).split()


PLAN = {"gpus": 1024, "tp": 8, "pp": 4, "global_batch": 1024, "seq_len": 8192}
"""The same as a call."""

FLEET = (
    "-m reckon plan infer --model llama3-70b --system dgx-h100,dgx-h200 --rate 20 "
    "--input-len 1024 --output-len 256 --ttft-ms 1000 --tpot-ms 40 --precision bf16,fp8 "
    "--simulate 2000"
).split()

POINTS = Path("data/reference/training.csv")
"""Some thousand rows."""

SYSTEMS, WEIGHTS = ("dgx-a100-80gb", "dgx-h100", "dgx-h200", "dgx-b200"), ("bf16", "fp8")


def spent() -> float:
    """Seconds of processors that this process and those that it waited for have taken."""
    inside = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + inside.ru_utime + inside.ru_stime


def least(call: Callable[[], object], repeats: int) -> float:
    """Seconds of processors that a call takes, the least of several times."""
    samples = []
    for _ in range(repeats):
        start = spent()
        call()
        samples.append(spent() - start)
    return min(samples)


WIDE = {"tp_overlap": [False, True], "attention": ["flash", "unfused"]}
"""What a wide search tries beside what is searched by default."""


def counting() -> int:
    """Two hundred thousand turns of a loop."""
    total = 0
    for one in range(200_000):
        total += one
    return total


def process(*arguments: str) -> None:
    """Run Python anew, with its modules compiled beforehand as an installed package has them."""
    own = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL, env=own)


def space(count: int) -> TrainingPlan:
    rng = np.random.default_rng(0)

    def pick(*values: float) -> np.ndarray:
        return rng.choice(np.array(values), count)

    dp, micro, pp = pick(1, 2, 4, 8, 16), pick(1, 2, 4), pick(1, 2, 4, 8)
    return TrainingPlan(
        tp=pick(1, 2, 4, 8),
        pp=pp,
        dp=dp,
        micro_batch=micro,
        global_batch=dp * micro * pp * pick(1, 2, 8),
        seq_len=pick(2048, 4096, 8192),
    )


Line = tuple[str, float, str, float]
"""What is timed, its seconds, the yardstick, its seconds."""


@dataclass(frozen=True, slots=True)
class Subject:
    """What is predicted, over and over."""

    model: Model
    cluster: Cluster
    known: Calibration

    def served(self, plan: ServingPlan) -> object:
        """A plan of serving, or a batch."""
        return predict_inference(self.model, self.cluster, plan, self.known)

    def trained(self, plan: TrainingPlan) -> object:
        """A plan of training, or a batch."""
        return predict(self.model, self.cluster, plan, self.known)


def calls() -> Iterator[Line]:
    """Calls by name, as loops of others make them; a search, its printing and its JSON; a table."""
    turn = least(counting, 25)
    told = "200,000 turns of a loop"
    infer = {"tp": 8, "batch": 64, "input_len": 1024, "output_len": 256}
    for what, call in (
        ("predict_train in a loop", lambda: reckon.predict_train("llama3-70b", "dgx-h100", PLAN)),
        ("predict_infer in a loop", lambda: reckon.predict_infer("llama3-70b", "dgx-h200", infer)),
    ):
        call()
        yield what, least(call, 25), told, turn
    wide = {"gpus": 512, "global_batch": 1536, "seq_len": 2048, **WIDE}

    def search() -> TrainingSearch:
        return reckon.search("gpt3-175b", "dgx-a100", wide)

    seconds, found = least(search, 2), search()
    yield "search: GPT-3 on 512 A100, wide", seconds, told, turn
    yield "its JSON", least(found.to_dict, 1), "the search", seconds
    with contextlib.redirect_stdout(io.StringIO()):
        printing = least(lambda: show_training(TrainingSearch(found.result), 20), 1)
    yield "printing it", printing, "the search", seconds
    rows = least(lambda: reckon.validate(POINTS), 1)
    yield "reckon validate, 1,070 training rows", rows, told, turn


def processes() -> Iterator[Line]:
    yield (
        "reckon predict train, whole process",
        least(lambda: process(*RUN), 9),
        "python -c 'import numpy, pydantic'",
        least(lambda: process("-c", "import numpy, pydantic"), 9),
    )
    yield (
        "reckon plan infer, whole process",
        least(lambda: process(*FLEET), 1),
        "python -c 'import numpy, pydantic'",
        least(lambda: process("-c", "import numpy, pydantic"), 9),
    )
    yield (
        "loading the default calibration",
        least(lambda: load("default"), 9),
        "python -c pass",
        least(lambda: process("-c", "pass"), 9),
    )


def sorting() -> float:
    """Seconds in which a million numbers are sorted."""
    rng = np.random.default_rng(0)
    return least(lambda: np.sort(rng.random(1_000_000)), 9)


def serving(of: Subject) -> Iterator[Line]:
    numbers = np.random.default_rng(0)
    sweep = ServingPlan(
        batch=2.0 ** numbers.integers(0, 9, 100_000),
        input_len=numbers.choice([128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0], 100_000),
        output_len=numbers.choice([64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0], 100_000),
        tp=2.0 ** numbers.integers(0, 4, 100_000),
    )
    one = ServingPlan(batch=64.0, input_len=1024.0, output_len=256.0, tp=8.0, serving=1.0)
    static = replace(one, serving=0.0)
    of.served(one)
    single, what = least(lambda: of.served(one), 9), "one serving plan"
    alone = least(lambda: of.served(static), 9)
    yield "one static serving plan", alone, "sorting a million numbers", sorting()
    together = least(lambda: of.served(sweep), 3)
    yield "100,000 serving plans as arrays", together, what, single

    def powered() -> None:
        serving_power(predict_inference(of.model, of.cluster, sweep, of.known), Conditions())

    yield "100,000 of them with their power", least(powered, 3), "without (asked: 1.3)", together
    pieces = np.split(np.arange(100_000), len(SYSTEMS) * len(WEIGHTS))

    def fleet() -> None:
        """Batch x TP x precision x lengths x accelerator."""
        for part, (system, weights) in zip(pieces, product(SYSTEMS, WEIGHTS), strict=True):
            own = replace(take(sweep, part), weights=weights)
            predict_inference(of.model, catalog.system(system), own, of.known)

    yield "100,000 over accelerators and precisions", least(fleet, 3), what, single
    times = pass_table(of.model, of.cluster, one, of.known, (1200.0, 300.0))
    given, made = (spread_lengths(mean, 5000, 0.1) for mean in (1024.0, 256.0))
    events = least(lambda: serve(times, given, made, clients=64), 3)
    yield "5,000 requests one by one, Llama-3 70B TP8", events, what, single


def training(of: Subject) -> Iterator[Line]:
    batch, few = space(100_000), space(200)
    singles = [take(few, np.array([i])) for i in range(200)]
    of.trained(singles[0])
    loop = least(lambda: [of.trained(plan) for plan in singles], 3) * 500
    together = least(lambda: of.trained(batch), 3)
    yield "100,000 plans in one call", together, "a loop over them (from 200)", loop

    def powered() -> None:
        step_power(predict(of.model, of.cluster, batch, of.known), Conditions())

    yield "100,000 plans with their power", least(powered, 3), "without (asked: 1.3)", together
    limits = Conditions(limit=500.0)

    def held() -> None:
        found = predict(of.model, of.cluster, batch, of.known)
        limited(found, step_power(found, limits), limits)

    yield "100,000 plans under a limit of 500 W", least(held, 3), "without", together


def exploring() -> Iterator[Line]:
    budget = {"node": "N5", "area_mm2": 814, "power_w": 700, "memory": "HBM3", "stacks": 5}
    fixed = {"gpus": 1024, "tp": 8, "pp": 8, "global_batch": 1024, "seq_len": 2048}
    swept = {
        "technology.power_w": {"from": 400, "to": 900, "steps": 100},
        "technology.l2_share": {"from": 0.01, "to": 0.2, "steps": 50},
        "plan.micro_batch": [1, 2, 4, 8],
        "plan.pp": [1, 2, 4, 8, 16],
    }
    points = {"model": "gpt3-175b", "technology": budget, "plan": fixed, "sweep": swept}
    spent = least(lambda: explore(points, bottlenecks=False), 1)
    yield "100,000 machines x plans (5,000 x 20)", spent, "a minute", 60.0


def products(of: Subject) -> Iterator[Line]:
    rng, zeros = np.random.default_rng(0), np.zeros(100_000)
    m, n, k = (rng.integers(1, 16384, 100_000).astype(float) for _ in range(3))
    flop, moved = 2 * m * n * k, 2 * (m * k + k * n + m * n)
    shapes = Shapes(
        op="gemm",
        dtype="bf16",
        variants=("fwd",),
        variant=zeros,
        m=m,
        n=n,
        k=k,
        batch=np.ones(100_000),
        flop=flop,
        bytes=moved,
    )
    spent = least(lambda: shape_times(shapes, of.cluster.accelerator, of.known), 3)
    yield "100,000 distinct products", spent, "sorting a million numbers", sorting()


def main() -> None:
    known = load("default")
    of = Subject(catalog.model("llama3-70b"), catalog.system("dgx-h100"), known)
    found = chain(processes(), calls(), serving(of), training(of), exploring(), products(of))
    rows = [
        [what, f"{seconds:.4f}", yardstick, f"{own:.4f}", f"{seconds / own:.3g}"]
        for what, seconds, yardstick, own in found
    ]
    print(grid(["what", "seconds", "yardstick", "its seconds", "ratio"], rows, left=1))


if __name__ == "__main__":
    main()
