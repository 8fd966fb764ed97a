"""How much of a load an engine carries within its promised latencies, and how many engines it
takes: every layout of every system as arrays through the functions that predict a single one.

Requests arrive at random. As many run at a time as Little's law says; their number is close to
Poisson's, so that a share q of requests meets no more than its q-quantile running, and latencies
are those of so many. A prompt that finds others being read waits: not at all with probability
1 - u, else exponentially with a mean of 1 / (2 (1 - u)) prompts, u = rate x prompt (Pollaczek 1930
for the mean; Kingman 1961 for the tail).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any

import numpy as np

from predictor.complete import scale_up
from predictor.complete_serving import complete_serving
from predictor.efficiency import Calibration
from predictor.errors import InputError
from predictor.hardware import Array, Cluster, Numeric
from predictor.inference import predict_inference
from predictor.model import Model
from predictor.serving_memory import serving_memory
from predictor.serving_parameters import ServingParameters
from predictor.serving_plan import SERVING_NUMBERS, ServingPlan, serving_rules
from predictor.space import Range
from predictor.specs import ServingPlanSpec, parse
from predictor.units import GIB

NODES = 40
"""Loads at which every plan is evaluated, from one running request to as many as it admits."""


@dataclass(frozen=True, slots=True)
class Promise:
    """Latencies that a share of the requests is to meet [s]; inf: none."""

    ttft: float = math.inf
    tpot: float = math.inf
    ttft_share: float = 0.9
    tpot_share: float = 0.9

    def __post_init__(self) -> None:
        for name in ("ttft", "tpot"):
            if not getattr(self, name) > 0:
                raise InputError(f"{name} {getattr(self, name):g} s must be above 0")
        for name in ("ttft_share", "tpot_share"):
            if not 0 < getattr(self, name) < 1:
                raise InputError(f"{name} {getattr(self, name):g} is not between 0 and 1")


@dataclass(frozen=True, slots=True, eq=False)
class Capacity:
    """What every plan of a batch carries at every load; arrays of (plans, loads).

    rate      requests per second of the engine
    ttft, tpot  at the promised shares of the requests [s]
    running   requests at a time, of the engine
    """

    rate: Array
    ttft: Array
    tpot: Array
    running: Array


def poisson_quantile(mean: Numeric, share: float) -> Array:
    """Quantile of a Poisson number, by the Cornish-Fisher expansion of its normal limit."""
    z = NormalDist().inv_cdf(share)
    values = np.asarray(mean, float)
    return np.asarray(np.maximum(values + z * np.sqrt(values) + (z * z - 1.0) / 6.0, values))


def waiting_quantile(used: Numeric, prompt: Numeric, share: float) -> Array:
    """Wait for the prompts of others that a share of the requests does not exceed [s].

    used     share of the time in which prompts are read, below 1
    prompt   one of them [s]
    """
    u = np.clip(used, 1e-9, 0.999)
    mean = prompt / (2.0 * (1.0 - u))
    return np.asarray(np.maximum(mean * np.log(u / (1.0 - share)), 0.0))


def capacity(
    model: Model,
    cluster: Cluster,
    plan: ServingPlan,
    calibration: Calibration,
    parameters: ServingParameters,
    promise: Promise,
) -> Capacity:
    """Rate and latencies of every plan at `NODES` loads.

    plan   a batch of one dimension, each of which fits; its `batch` is replaced
    """
    count = plan.shape[0]
    columns: dict[str, Any] = {
        name: np.broadcast_to(getattr(plan, name), (count,))[:, None] for name in SERVING_NUMBERS
    }
    column = replace(plan, **columns)
    column = replace(column, serving=1.0, synchrony=0.0)
    full = replace(column, batch=np.inf)
    top = predict_inference(model, cluster, full, calibration, parameters).work.running
    nodes = np.exp(np.linspace(0.0, 1.0, NODES) * np.log(np.maximum(top, 1.0)))

    def at(running: Array) -> Any:
        batch = replace(column, batch=running * column.dp)
        return predict_inference(model, cluster, batch, calibration, parameters)

    mean = at(nodes).latencies
    slow_first = at(poisson_quantile(nodes, promise.ttft_share)).latencies
    slow_token = at(poisson_quantile(nodes, promise.tpot_share)).latencies
    used = mean.requests_per_s * mean.prompt
    wait = waiting_quantile(used, mean.prompt, promise.ttft_share)
    return Capacity(
        rate=mean.requests_per_s * column.dp,
        ttft=slow_first.ttft + wait,
        tpot=slow_token.tpot,
        running=nodes * column.dp,
    )


@dataclass(frozen=True, slots=True, eq=False)
class Engine:
    """One way to serve on one system, and what it carries within the promise.

    rate      most requests per second of one engine
    ttft, tpot  at that load, at the promised shares [s]
    running   requests at a time at that load
    memory    of the fullest device [bytes]
    curve     loads beyond and below: (rate, ttft, tpot) arrays
    """

    cluster: Cluster
    plan: ServingPlan
    gpus: float
    rate: float
    ttft: float
    tpot: float
    running: float
    memory: float
    curve: tuple[Array, Array, Array]


@dataclass(frozen=True, slots=True, eq=False)
class Engines:
    """Engines that keep the promise at some load.

    enumerated, possible, fitting   plans in all; that obey every law; that hold a request
    """

    engines: list[Engine]
    enumerated: int
    possible: int
    fitting: int


FIELDS = ("tp", "pp", "dp", "ep")


def _layouts(
    model: Model, cluster: Cluster, given: Mapping[str, Any]
) -> tuple[Array, Array, Array, Array]:
    """Columns tp, pp, dp, ep: stated values, or powers of two inside the scale-up network; stages
    beyond it. Replicas of the attention only share anything where experts are divided."""
    node = scale_up(cluster)
    powers = [float(2**i) for i in range(12) if 2**i <= node]
    table = {
        "tp": [p for p in powers if model.heads % p == 0],
        "pp": [1.0, 2.0, 4.0, 8.0],
        "dp": powers if model.is_moe else [1.0],
    }
    for name in table:
        wanted = given.get(name)
        if isinstance(wanted, Range):
            table[name] = [v for v in table[name] if wanted.low <= v <= wanted.high]
        elif wanted is not None:
            table[name] = [float(v) for v in wanted]
    rows = [
        (tp, pp, dp, ep)
        for tp in table["tp"]
        for pp in table["pp"]
        for dp in table["dp"]
        for ep in _expert_ranks(model, tp, dp, given.get("ep"))
    ]
    columns = np.array(rows, dtype=float).reshape(-1, 4).T
    return columns[0], columns[1], columns[2], columns[3]


def _expert_ranks(model: Model, tp: float, dp: float, wanted: Any) -> list[float]:
    if wanted is not None and not isinstance(wanted, Range):
        return [float(v) for v in wanted]
    whole = [1.0] if dp == 1 else []
    ranks = [r for r in (tp, tp * dp) if r > 1 and model.num_experts % r == 0]
    found = sorted(set(whole + ranks)) if model.is_moe else [1.0]
    if isinstance(wanted, Range):
        found = [v for v in found if wanted.low <= v <= wanted.high]
    return found


def batches(
    model: Model, cluster: Cluster, fields: Mapping[str, Any], calibration: Calibration
) -> Iterator[ServingPlan]:
    """Plans on one system, a batch for each set of categories.

    fields   keys of a serving plan: values, tuples of values or ranges (`space.read_given`'s form)
    """
    listed = {
        name: values
        for name, values in fields.items()
        if name not in FIELDS and not isinstance(values, Range)
    }
    tp, pp, dp, ep = _layouts(model, cluster, fields)
    if not tp.size:
        return
    names = list(listed)
    for values in itertools.product(*listed.values()):
        stated = dict(zip(names, values, strict=True))
        alone = dict.fromkeys(("tp", "pp", "dp", "ep"), 1) | {"gpus": 1, "saturated": True}
        spec = parse(ServingPlanSpec, {**stated, **alone}, "request")
        found = complete_serving(spec, calibration.run, False, model=model, cluster=cluster)
        yield replace(found.plan, tp=tp, pp=pp, dp=dp, ep=ep, batch=dp)


def search_engines(
    model: Model,
    clusters: Sequence[Cluster],
    fields: Mapping[str, Any],
    promise: Promise,
    calibration: Calibration,
    parameters: ServingParameters,
) -> Engines:
    """Every way to serve on every system, with the most that it carries within the promise.

    Raises InputError: no plan is possible, none fits (with the least memory that would), or none
    keeps the promise (with the closest).
    """
    engines: list[Engine] = []
    counts = np.zeros(3, dtype=int)
    least: tuple[float, str] = (math.inf, "")
    reason = ""
    closest: tuple[float, str] = (math.inf, "")
    for cluster in clusters:
        for batch in batches(model, cluster, fields, calibration):
            counts[0] += batch.shape[0]
            allowed = np.ones(batch.shape, dtype=bool)
            for rule in serving_rules(batch, model):
                broken = np.broadcast_to(np.asarray(rule.broken, dtype=bool), batch.shape)
                if broken.all():
                    reason = rule.message.format(
                        **{n: f"{np.ravel(getattr(batch, n))[0]:g}" for n in rule.fields}
                    )
                allowed &= ~broken
            reach = np.asarray(batch.gpus) <= cluster.tiers[-1].size
            batch = batch.take(np.flatnonzero(allowed & reach))
            counts[1] += batch.shape[0]
            if not batch.shape[0]:
                continue
            one = replace(batch, serving=1.0)
            room = serving_memory(model, cluster, one, calibration.run)
            where = f"{cluster.accelerator.name}"
            short = int(np.argmin(room.total))
            if room.total[short] < least[0]:
                plan = batch.take(np.array([short]))
                least = (float(room.total[short]), f"{engine_brief(plan)} on {where}")
            fits = np.flatnonzero((room.admitted >= batch.dp) & (room.fits > 0))
            counts[2] += fits.size
            if not fits.size:
                continue
            batch = batch.take(fits)
            found = capacity(model, cluster, batch, calibration, parameters, promise)
            kept = (found.ttft <= promise.ttft) & (found.tpot <= promise.tpot)
            miss = np.maximum(found.ttft / promise.ttft, found.tpot / promise.tpot)
            near = int(np.argmin(miss))
            if miss.ravel()[near] < closest[0]:
                row, load = np.unravel_index(near, miss.shape)
                told = (
                    f"{1e3 * found.ttft[row, load]:.3g} ms to the first token and "
                    f"{1e3 * found.tpot[row, load]:.3g} ms per token, with "
                    f"{engine_brief(batch.take(np.array([row])))} on {where}"
                )
                closest = (float(miss.ravel()[near]), told)
            engines += _engines(cluster, batch, found, kept, room.total[fits])
    if not counts[1]:
        raise InputError(f"no way to serve {model.name} is possible: {reason or 'no layout'}")
    if not counts[2]:
        raise InputError(
            f"{model.name} with one request fits no layout tried: the least memory that would is "
            f"{least[0] / GIB:.1f} GiB per GPU, with {least[1]}; more GPUs (--pp, --tp) would help"
        )
    if not engines:
        raise InputError(f"no plan keeps the promise: the closest takes {closest[1]}")
    return Engines(engines, int(counts[0]), int(counts[1]), int(counts[2]))


def _engines(
    cluster: Cluster, batch: ServingPlan, found: Capacity, kept: Any, memory: Array
) -> list[Engine]:
    """The best load of each plan that keeps the promise at any."""
    rate = np.where(kept, found.rate, -np.inf)
    best = np.argmax(rate, axis=1)
    engines = []
    for row in np.flatnonzero(kept.any(axis=1)):
        load = best[row]
        plan = batch.take(np.array([row]))
        numbers = {name: float(np.ravel(getattr(plan, name))[0]) for name in SERVING_NUMBERS}
        numbers |= {"batch": math.inf, "serving": 1.0}
        single = replace(plan, **numbers)  # type: ignore[arg-type]
        engines.append(
            Engine(
                cluster,
                single,
                float(np.asarray(single.gpus)),
                float(found.rate[row, load]),
                float(found.ttft[row, load]),
                float(found.tpot[row, load]),
                float(found.running[row, load]),
                float(memory[row]),
                (found.rate[row], found.ttft[row], found.tpot[row]),
            )
        )
    return engines


def engine_brief(plan: ServingPlan) -> str:
    """An engine's layout in a few words."""
    sizes = " ".join(
        f"{name} {float(np.ravel(getattr(plan, name))[0]):g}"
        for name in FIELDS
        if name == "tp" or float(np.ravel(getattr(plan, name))[0]) > 1
    )
    return f"{sizes}, {plan.weights}, {plan.kv} cache"


def replicas(engine: Engine, load: Array, headroom: float, spare: int) -> Array:
    """Engines for a load [requests/s], with a share of headroom and some to spare."""
    return np.asarray(np.ceil(load * (1.0 + headroom) / engine.rate - 1e-9) + spare)


def curve(engines: Sequence[Engine], output_len: float) -> list[tuple[float, float, int, int]]:
    """The Pareto front of output tokens per second and accelerator against time per token, over
    all engines and loads: (tokens/s per accelerator, tpot [s], engine, load), fastest first."""
    gain, slow, which, load = [], [], [], []
    for number, engine in enumerate(engines):
        rate, _, tpot = engine.curve
        gain.append(rate * output_len / engine.gpus)
        slow.append(tpot)
        which.append(np.full(len(rate), number))
        load.append(np.arange(len(rate)))
    columns = [np.concatenate(part) for part in (gain, slow, which, load)]
    order = np.lexsort((-columns[0], columns[1]))
    best = np.maximum.accumulate(columns[0][order])
    keep = order[np.concatenate([[True], best[1:] > best[:-1]])]
    return [(float(columns[0][i]), float(columns[1][i]), int(columns[2][i]), int(columns[3][i]))
            for i in keep]  # fmt: skip
