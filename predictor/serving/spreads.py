"""How far predictions of serving lie off: the spread of what operators take, and that of runs."""

from __future__ import annotations

import numpy as np

from predictor.arrays import Array, Numeric
from predictor.serving.latency import Latencies
from predictor.serving.parts import Pass
from predictor.serving.pass_times import Work, prompt_time
from predictor.timing import ANY, Calibration, EngineParameters, ServingParameters

METRICS = ("ttft", "tpot", "e2e", "throughput")
"""What has an interval."""

LATE = "ttft.late"
"""Name of the spread of first tokens that come later than predicted, beside that of `METRICS`: what
nobody states (clients that send together or wait for one another, calls that are made for the first
time, fewer requests let in than were sent) only ever adds to them."""


def spread_of(work: Pass) -> Array:
    """Spread of a pass's kernels and collectives [s]: the root of the sum over families of
    (time x sigma)², of those measured on the accelerator itself (and collectives), and of those
    carried over from others, (2, plans)."""
    zero = np.zeros(np.shape(work.kernels))
    both = [zero, zero]
    for name, (time, sigma) in work.families.items():
        both[ANY in name] = both[ANY in name] + (time * sigma) ** 2
    return np.sqrt(np.stack(both))


def spreads(
    prompts: Numeric,
    decoding: Numeric,
    work: Work,
    found: Latencies,
    own: EngineParameters,
    metric: str,
    parameters: ServingParameters,
) -> Array:
    """Log-standard-deviation of a metric: the operators', as far as it stands beside the run's own
    (`ServingParameters.kernels`), and that.

    prompts, decoding   `spread_of` the passes [s], (2, plans)
    metric              'ttft', 'tpot', 'e2e', 'throughput', or `LATE`
    """
    late, metric = metric == LATE, metric.partition(".")[0]
    operators = operator_spreads(prompts, decoding, work, found, own, metric)
    static = np.asarray(work.static) > 0
    ending = np.asarray(work.output_len) > 1
    kinds = ("static", "serving", "saturated", "prefill")
    run = np.array([parameters.spread(metric, kind) for kind in kinds])
    kind = np.where(static, np.where(ending | (metric != "ttft"), 0, 3), 1)
    kind = np.where(~static & ~np.isfinite(work.clients), 2, kind)
    spread = run[kind]
    if metric == "ttft":
        spread = np.where(static, spread, parameters.first_token(load_shares(work, found), late))
    return np.asarray(np.hypot(parameters.kernels(metric, operators), spread))


def operator_spreads(
    prompts: Numeric,
    decoding: Numeric,
    work: Work,
    found: Latencies,
    own: EngineParameters,
    metric: str,
) -> Array:
    """The operators' part of the spread of a metric by their share of its time, (2, plans), as
    `spread_of`; arguments as of `spreads`."""
    first = np.minimum(own.prefill * prompts / np.maximum(prompt_time(work, own), 1e-12), 1.0)
    each = np.minimum(own.decode * decoding / found.step, 1.0)
    share = np.clip(1.0 - (found.ttft + found.queue) / found.e2e, 0.0, 1.0)
    whole = np.hypot((1 - share) * first, share * each)
    return np.asarray({"ttft": first, "tpot": each}.get(metric, whole))


def reading_share(work: Work, found: Latencies) -> Array:
    """Share of the time in which an engine reads prompts of other clients than the one that waits,
    0..1: one client alone waits for nobody's."""
    clients = np.maximum(np.asarray(work.clients, float), 1.0)
    others = 1.0 - 1.0 / clients
    return np.asarray(others * np.minimum(found.requests_per_s * found.prompt, 1.0))


def load_shares(work: Work, found: Latencies) -> Array:
    """What the spread of a first token grows with, (2, plans), 0..1: the share of the time in which
    prompts of others are read, and that of the first token which is a wait for room."""
    waited = np.minimum(found.queue / np.maximum(found.ttft, 1e-12), 1.0)
    return np.stack(np.broadcast_arrays(reading_share(work, found), waited))


def sigmas(
    prompts: Pass,
    decoding: Pass,
    work: Work,
    found: Latencies,
    own: EngineParameters,
    calibration: Calibration,
    named: bool,
) -> dict[str, Array]:
    """Log-standard-deviations by metric, of an engine that is named or not."""
    told, parameters = (spread_of(prompts), spread_of(decoding)), calibration.serving.told(named)
    names = (*METRICS, LATE)
    each = {name: spreads(*told, work, found, own, name, parameters) for name in names}
    return before_the_last(each, found, work.output_len, calibration.interval_q)


def before_the_last(
    sigma: dict[str, Array], found: Latencies, output_len: Numeric, q: float
) -> dict[str, Array]:
    """The same where a first token that comes late leaves the others of its request their time: no
    bound of the first lies beyond that of the last, less the least that those between take.

    q   standard deviations from the middle to a bound
    """
    others = np.maximum(np.asarray(output_len, float) - 1.0, 0.0)
    last = found.e2e * np.exp(q * sigma["e2e"])
    most = last - others * found.tpot * np.exp(-q * sigma["tpot"])
    widest = np.log(np.maximum(most / np.maximum(found.ttft, 1e-12), 1e-12)) / q
    late = np.minimum(sigma[LATE], np.maximum(widest, sigma["ttft"]))
    return {**sigma, LATE: np.asarray(late)}
