"""Training over slow and long links: how wide a model must be to hide them (the square-cube law of
SWARM, arXiv 2301.11913, section 3.1), what binds, what packed messages bring, what of a plan should
cross regions, and many small accelerators against a few large ones (FusionAI, arXiv 2309.01172).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pandas as pd

from predictor import catalog
from predictor.arrays import Array
from predictor.catalog import TrainingPlanSpec, load, parse
from predictor.hardware import Cluster, Tier
from predictor.models import Model
from predictor.plans import TrainingPlan
from predictor.timing import Calibration
from predictor.training import complete_training, dealt_step, predict
from predictor.training.regions import Regions
from reckon.views.page import Figure, Result, Series

COMPUTE = ("forward", "backward", "recompute", "framework", "host")
"""Terms of a breakdown in which the slowest stage works."""

BINDS = ("arithmetic", "rate of links", "latency of links", "gradients", "fill and drain")
"""What a step can be spent on, as `shares` names it."""


def slow_cluster(name: str, megabits: float, ms: float) -> Cluster:
    """One accelerator in each node, behind a link of that rate [Mb/s] and one-way delay [ms]."""
    link = Tier("ethernet", np.inf, megabits * 1e6 / 8, latency=ms * 1e-3)
    return Cluster(f"{name} nodes", catalog.accelerator(name), 1, (link,))


def shares(
    model: Model, cluster: Cluster, plan: TrainingPlan, calibration: Calibration
) -> dict[str, float]:
    """Step time [s], and shares of it by `BINDS`, which add up to 1.

    Delays are taken away first, then all of the links: what the step loses by either is theirs,
    but for what it loses of gradients; the rest is the slowest stage's work, and its waiting while
    the pipeline fills and drains.
    """
    outer = cluster.tiers[-1]
    near = replace(cluster, tiers=(replace(outer, latency=1e-9),))
    free = replace(cluster, tiers=(replace(outer, latency=1e-9, bandwidth=1e18),))
    real, no_delay, no_links = (predict(model, c, plan, calibration) for c in (cluster, near, free))
    step, prompt, alone = (float(one.step_time) for one in (real, no_delay, no_links))
    late, early = (float(one.breakdown["dp_communication"]) for one in (real, no_delay))
    gone = float(no_links.breakdown["dp_communication"])
    work = sum(float(no_links.breakdown[term]) for term in COMPUTE)
    spent = {
        "arithmetic": work,
        "rate of links": (prompt - alone) - (early - gone),
        "latency of links": (step - prompt) - (late - early),
        "gradients": late - gone,
        "fill and drain": alone - work,
    }
    return {"step_s": step, **{name: spent[name] / step for name in BINDS}}


def binds(found: Mapping[str, float]) -> str:
    """What takes the largest share of a step."""
    return max(BINDS, key=lambda name: found[name])


def _plan(
    fields: Mapping[str, Any], model: Model, cluster: Cluster, known: Calibration
) -> TrainingPlan:
    spec = parse(TrainingPlanSpec, dict(fields), "slow-links")
    return complete_training(spec, known.run, model=model, cluster=cluster, strict=False).plan


def _wide(model: Model, width: int, layers: int) -> Model:
    """The model with other layers, heads of 64 and four times the width between, and without the
    vocabulary, which is no matter of links."""
    return replace(
        model, layers=layers, hidden=width, heads=width // 64, kv_heads=width // 64, head_dim=64,
        ffn_hidden=4 * width, vocab=2,
    )  # fmt: skip


def _widths(parameters: Mapping[str, Any], known: Calibration) -> pd.DataFrame:
    """Each width over each link; over one of them with more layers to a stage, and with packed
    messages, too."""
    base, fields, at = catalog.model(parameters["model"]), parameters["plan"], "at_megabits"
    few, more = parameters["layers_per_stage"]
    packed = {"handed_bytes": parameters["packed_bytes"]}
    cases: list[tuple[float, int, dict[str, float]]]
    cases = [(megabits, few, {}) for megabits in parameters["megabits"]]
    cases += [(parameters[at], more, {}), (parameters[at], few, packed)]
    rows = []
    for width in parameters["widths"]:
        for megabits, layers, handed in cases:
            cluster = slow_cluster(parameters["accelerator"], megabits, parameters["delay_ms"])
            model = _wide(base, width, layers * fields["pp"])
            own = shares(model, cluster, _plan({**fields, **handed}, model, cluster, known), known)
            rows.append(
                {
                    "width": width,
                    "layers_per_stage": layers,
                    "megabits_per_s": megabits,
                    "packed": bool(handed),
                    **own,
                    "binds": binds(own),
                }
            )
    return pd.DataFrame(rows)


def _delays(parameters: Mapping[str, Any], known: Calibration) -> pd.DataFrame:
    """One width over links of one rate and many delays, by schedule."""
    base = catalog.model(parameters["model"])
    width, layers = parameters["at_width"], max(parameters["layers_per_stage"])
    model, rows = _wide(base, width, layers * parameters["plan"]["pp"]), []
    for schedule in ("gpipe", "1f1b"):
        for ms in parameters["delays_ms"]:
            cluster = slow_cluster(parameters["accelerator"], parameters["at_megabits"], ms)
            plan = _plan({**parameters["plan"], "schedule": schedule}, model, cluster, known)
            own = shares(model, cluster, plan, known)
            rows.append({"schedule": schedule, "delay_ms": ms, **own, "binds": binds(own)})
    return pd.DataFrame(rows)


def _regions(parameters: Mapping[str, Any], known: Calibration) -> pd.DataFrame:
    """What of a plan crosses two regions, against its batch and the rate between them."""
    own = parameters["regions"]
    inside, rows = own["inside_megabits"] * 1e6 / 8, []
    cluster = slow_cluster(parameters["accelerator"], own["inside_megabits"], own["inside_ms"])
    apart = 1.0 - np.eye(2)
    delays = 1e-3 * (own["inside_ms"] * np.eye(2) + own["between_ms"] * apart)
    model = catalog.model(own["model"])
    for batch, megabits in product(own["batches"], own["megabits"]):
        fields = {**own["plan"], "global_batch": batch}
        spec = parse(TrainingPlanSpec, fields, "slow-links")
        request = complete_training(spec, known.run, model=model, cluster=cluster, strict=False)
        rates: Array = inside * np.eye(2) + megabits * 1e6 / 8 * apart
        for crossing in ("pipelines", "replicas"):
            placed = replace(request, regions=Regions(("one", "other"), rates, delays, crossing))
            found, _ = dealt_step(placed, known)
            rows.append(
                {
                    "global_batch": batch,
                    "megabits_per_s": megabits,
                    "crosses": crossing,
                    "step_s": float(found.step_time),
                    "pp_communication_s": float(found.breakdown["pp_communication"]),
                    "dp_communication_s": float(found.breakdown["dp_communication"]),
                }
            )
    return pd.DataFrame(rows)


def _many_against_few(parameters: Mapping[str, Any], known: Calibration) -> pd.DataFrame:
    """Tokens per second of many small accelerators over a link, over those of a few large ones."""
    own = parameters["many_against_few"]
    model = replace(catalog.model(own["model"]), layers=own["layers"])
    few = catalog.system(own["few"]["system"])
    plan = _plan(own["few"]["plan"], model, few, known)
    rate = float(predict(model, few, plan, known).tokens_per_s)
    rows = []
    for megabits in own["megabits"]:
        cluster = slow_cluster(own["many"]["accelerator"], megabits, own["delay_ms"])
        plan = _plan(own["many"]["plan"], model, cluster, known)
        found = shares(model, cluster, plan, known)
        tokens = float(plan.global_batch * plan.seq_len) / found["step_s"]
        rows.append(
            {"megabits_per_s": megabits, "many_over_few": tokens / rate, **found}
            | {"binds": binds(found)}
        )
    return pd.DataFrame(rows)


def run(parameters: Mapping[str, Any]) -> Result:
    """Train over slow and long links.

    parameters   `model` whose layers are made as wide as `widths`, `layers_per_stage` (few, more),
                 `accelerator`, `plan`, `megabits`, `delay_ms`, `packed_bytes`; `at_width`,
                 `at_megabits`, `delays_ms`; `regions`; `many_against_few`
    """
    known = load(parameters.get("calibration", "default"))
    wide, late = _widths(parameters, known), _delays(parameters, known)
    placed, many = _regions(parameters, known), _many_against_few(parameters, known)
    fewest = wide[~wide["packed"] & (wide["layers_per_stage"] == parameters["layers_per_stage"][0])]
    between = placed[placed["megabits_per_s"] == parameters["regions"]["megabits"][0]]
    figures = [
        Figure("Time in which stages work", "width of a layer", "per cent",
               _lines(fewest, "megabits_per_s", "width", "arithmetic", "Mb/s"), log_x=True),
        Figure("Steps over links of many delays", "delay one way, ms", "s",
               _lines(late, "schedule", "delay_ms", "step_s", "", 1.0), log_x=True, log_y=True),
        Figure("What crosses two regions", "sequences of a step", "s",
               _lines(between, "crosses", "global_batch", "step_s", "", 1.0),
               log_x=True, log_y=True),
        Figure("Many small accelerators over a few large ones", "Mb/s", "times",
               [Series("tokens/s", list(many["megabits_per_s"]), list(many["many_over_few"]))],
               log_x=True),
    ]  # fmt: skip
    tables = {"Widths": wide, "Delays": late, "Regions": placed, "Many against few": many}
    return Result(figures, tables, _facts(parameters, wide, late, placed, many))


def _lines(
    table: pd.DataFrame, by: str, x: str, y: str, unit: str, factor: float = 100.0
) -> list[Series]:
    return [
        Series(f"{name:g} {unit}" if unit else str(name), list(own[x]), list(own[y] * factor),
               group=number)
        for number, (name, own) in enumerate(table.groupby(by, sort=False))
    ]  # fmt: skip


def _crossover(placed: pd.DataFrame) -> str:
    """Which crossing is faster for which batches, at every rate."""
    steps = placed.pivot_table(
        index=["global_batch", "megabits_per_s"], columns="crosses", values="step_s"
    )
    better = steps.idxmin(axis=1).groupby(level=0).unique()
    return "; ".join(f"{batch:,} {' or '.join(names)}" for batch, names in better.items())


def _facts(
    parameters: Mapping[str, Any],
    wide: pd.DataFrame,
    late: pd.DataFrame,
    placed: pd.DataFrame,
    many: pd.DataFrame,
) -> dict[str, Any]:
    """Numbers of the reading."""
    here = wide[wide["megabits_per_s"] == parameters["at_megabits"]]
    few, more = parameters["layers_per_stage"]

    def words(table: pd.DataFrame, column: str, unit: str) -> str:
        return "; ".join(
            f"{at:g}{unit} {share:.0%} ({what})"
            for at, share, what in zip(
                table[column], table["arithmetic"], table["binds"], strict=True
            )
        )

    single = here[~here["packed"] & (here["layers_per_stage"] == few)]
    deeper, packed = here[here["layers_per_stage"] == more], here[here["packed"]]
    ends = late.groupby("schedule")["step_s"].agg(["first", "last"])
    return {
        "accelerator": parameters["accelerator"],
        "megabits": f"{parameters['at_megabits']:g}",
        "widths": words(single, "width", ""),
        "packed": words(packed, "width", ""),
        "deeper": words(deeper, "width", ""),
        "delays": ", ".join(
            f"{name} {last / first:.1f} times" for name, first, last in ends.itertuples(name=None)
        ),
        "longest": f"{max(parameters['delays_ms']):g}",
        "crossing": _crossover(placed),
        "many": "; ".join(
            f"{rate:g} Mb/s {ratio:.2f} ({what})"
            for rate, ratio, what in zip(
                many["megabits_per_s"], many["many_over_few"], many["binds"], strict=True
            )
        ),
    }
