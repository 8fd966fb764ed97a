"""Where latencies at a rate of arrivals are closed forms, and where requests are served one by one.

The closed forms (`rates`) take arrivals at random, lengths close to their mean, and passes that mix
prompts with decoding or give them their own; `calibration.checks.closed_forms` holds them against
the event engine (`events`) over the grid that is named here. Outside it the event engine, which is
the reference, answers.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from predictor.hardware import Cluster
from predictor.models import Model
from predictor.plans import ServingPlan
from predictor.serving.clients import VARIATION, Client
from predictor.serving.events import Served
from predictor.serving.meeting import replicas_met
from predictor.serving.prediction import InferencePrediction
from predictor.serving.rates import AtRate
from predictor.serving.simulation import one_by_one
from predictor.timing import Calibration

MOST_LOAD = 0.8
"""Share of the largest rate up to which the closed forms are checked."""

MOST_MET = 0.5
"""The same of replicas that wait for each other: of DeepSeek-V3 on two to sixteen of them on H200
closed forms err by 16 % of a time per token and 17 % of a first token at 0.4, by 39 and 43 at 0.6.
"""

LENGTHS = {"input_len": (128.0, 4000.0), "output_len": (50.0, 1000.0)}
"""Tokens of prompts and answers for which they are."""

MOST_PROMPTS = 0.5
"""Prompts that come to a replica within the time of a token up to which they are: of 480 loads of
the grid those beyond are a seventh, whose times per token err by 5 % and up to 31, of the others by
1.5 and up to 17."""

LIVES = 3.0
"""Lives of a request over the share of the largest rate that is free for which the engine fills
before any is counted: how many run, each the slower for the others, comes within exp(-3) of where
it stays (time per token grows with those that run, which end at rate / life); and lives that count.
"""

FEWEST, MOST = 1200, 20_000
"""Requests that count at least, and that are served in all at most: percentiles of 1,200 are known
to a few parts in a hundred; 20,000 take a tenth of a second."""

STEADY = 300.0
"""Requests that count, times the square of the free share: how many run wanders the further and
the longer the less is free, so that its mean over N requests errs by sqrt(2 / N) over that share
(an engine whose time per token grows with those that run; of Llama-3 8B at three quarters of the
most, means over 10,000 requests differ by 1.5 %)."""


def unchecked(
    plan: ServingPlan, client: Client, rate: float, most: float, tpot: float, meet: bool = False
) -> tuple[str, ...]:
    """In what a load is outside the bounds of the closed forms, in words; none: it is inside.

    rate, most   of all replicas, and the largest that can be served [1/s]
    tpot         time per token at that rate, as the closed forms have it [s]
    meet         whether replicas wait for each other's passes
    """
    found = []
    share, of = (MOST_MET, " of replicas that wait") if meet else (MOST_LOAD, "")
    if rate > share * most:
        found.append(f"{rate / most:.0%} of the largest rate{of} (up to {share:.0%} is checked)")
    prompts = rate / float(plan.dp) * tpot
    if prompts > MOST_PROMPTS:
        within = f"{prompts:.2g} prompts of a replica within the time of a token"
        found.append(f"{within} (up to {MOST_PROMPTS:g} are checked)")
    if client.burstiness != 1.0:
        found.append(f"burstiness {client.burstiness:g} (1 is checked)")
    if client.lengths != "uniform" or client.variation > VARIATION:
        spread = f"{client.lengths} lengths with a variation of {client.variation:g}"
        found.append(f"{spread} (uniform ones within {VARIATION:g} are checked)")
    for name, (low, high) in LENGTHS.items():
        value = float(getattr(plan, name))
        if not low <= value <= high:
            found.append(f"{name} {value:g} ({low:g} to {high:g} are checked)")
    if plan.batching == "waiting":
        found.append("prompts held until enough of them wait")
    if float(plan.polling) > 1:
        found.append(f"requests looked for every {float(plan.polling):g} passes")
    return tuple(found)


def counts(running: float, share: float, replicas: int = 1) -> tuple[int, int, int]:
    """Requests of a replica to serve in all, and those of them that come before the engine is as
    full as it stays and after the last one that counts, where so many run at a time.

    share     of the largest rate
    replicas  whose requests count
    """
    free = max(1.0 - share, LIVES / MOST)
    warm = min(math.ceil(max(FEWEST / 4, LIVES * running / free)), MOST // 2)
    ending = min(math.ceil(running), MOST // 4)
    counted = math.ceil(max(FEWEST / replicas, LIVES * running, STEADY / free**2 / replicas))
    return min(warm + counted + ending, MOST), warm, ending


def served_instead(
    model: Model,
    cluster: Cluster,
    plan: ServingPlan,
    calibration: Calibration,
    client: Client,
    rate: float,
    closed: AtRate,
) -> tuple[AtRate, Served]:
    """The prediction at a rate as requests one by one have it, and these without the first ones.

    closed   what the closed forms say of that rate

    Raises InputError where the cache holds no request.
    """
    one = closed.prediction
    running = float(one.latencies.e2e) * rate / float(plan.dp)
    share, replicas = rate / closed.most_requests_per_s, int(replicas_met(plan, model.is_moe))
    requests, warm, ending = counts(running, share, replicas)
    served = one_by_one(model, cluster, plan, calibration, requests, client, rate)
    served = served.after(warm, ending)
    return replace(closed, prediction=as_served(one, served)), served


def as_served(closed: InferencePrediction, served: Served) -> InferencePrediction:
    """A prediction with the mean latencies of requests that were served one by one.

    What they take longer is part of what others add, what they take less first of that, then of
    the wait, then of all the rest alike: no part is less than nothing.
    """
    old, parts = closed.latencies, dict(closed.breakdown)
    first, each, whole = (float(v.mean()) for v in (served.ttft, served.tpot, served.e2e))
    longer = whole - float(old.e2e)
    for name in ("others", "queue"):
        before = float(parts[name])
        parts[name] = np.asarray(max(before + longer, 0.0))
        longer -= float(parts[name]) - before
    scale = whole / float(sum(parts.values()))
    if longer < 0:
        parts = {name: value * scale for name, value in parts.items()}
    found = replace(old, ttft=np.asarray(first), tpot=np.asarray(each), e2e=np.asarray(whole),
                    queue=np.minimum(old.queue, parts["queue"]))  # fmt: skip
    return replace(closed, latencies=found, breakdown=parts)
