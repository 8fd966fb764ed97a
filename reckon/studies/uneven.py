"""Training on work that is uneven: documents packed into sequences (WLB-LLM, arXiv 2503.17924),
experts that are not asked alike (EPLB; RAPID-LLM, arXiv 2512.19606), and exchanges of experts in
chunks (EPS-MoE, arXiv 2410.12247).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from predictor.catalog import TrainingPlanSpec, load, parse
from predictor.timing import Calibration
from predictor.training import TrainingRequest, complete_training, predict
from reckon.views.page import Figure, Result, Series


def _timed(fields: Mapping[str, Any], known: Calibration) -> tuple[TrainingRequest, float]:
    """A plan as it was completed, and its step [s]."""
    spec = parse(TrainingPlanSpec, dict(fields), "uneven")
    request = complete_training(spec, known.run, strict=False)
    found = predict(request.model, request.cluster, request.plan, known)
    return request, float(found.step_time)


def _documents(parameters: Mapping[str, Any], known: Calibration) -> pd.DataFrame:
    """Each length of sequences under each policy; gains are over fixed windows divided whole."""
    own = parameters["documents"]
    rows = []
    for window, ranks in own["windows"].items():
        fields = {**own["plan"], "model": own["model"], "system": parameters["system"],
                  "seq_len": window, "cp": ranks}  # fmt: skip
        _, whole = _timed(fields, known)
        steps = []
        for policy in own["policies"]:
            request, step = _timed({**fields, "documents": own["corpus"], **policy}, known)
            steps.append(step)
            rows.append(
                {
                    "seq_len": window,
                    "cp": ranks,
                    "packing": policy["packing"],
                    "cp_sharding": policy.get("cp_sharding", ""),
                    "step_s": step,
                    "over_whole": step / whole,
                    "slowest_rank_over_mean": float(request.plan.attention_load),
                    "sequences_cv": float(request.plan.attention_cv),
                }
            )
        fixed = steps[[policy["packing"] for policy in own["policies"]].index("fixed")]
        for row, step in zip(rows[-len(steps) :], steps, strict=True):
            row["gain"] = fixed / step
    return pd.DataFrame(rows)


def _experts(parameters: Mapping[str, Any], known: Calibration) -> pd.DataFrame:
    """Each distribution of loads on each number of ranks, placed in each way."""
    own = parameters["experts"]
    rows = []
    for ranks in own["ranks"]:
        fields = {**own["plan"], "model": own["model"], "system": parameters["system"], "ep": ranks}
        _, even = _timed({**fields, "expert_loads": "even"}, known)
        for loads in own["loads"]:
            for placed in own["placed"]:
                request, step = _timed({**fields, "expert_loads": loads, **placed}, known)
                rows.append(
                    {
                        "ep": ranks,
                        "loads": loads,
                        "placement": placed.get("expert_placement", "in order"),
                        "replicas": placed.get("expert_replicas", 0),
                        "busiest_over_mean": float(request.plan.expert_load),
                        "step_s": step,
                        "over_even": step / even,
                    }
                )
    return pd.DataFrame(rows)


def _chunks(parameters: Mapping[str, Any], known: Calibration) -> pd.DataFrame:
    """Each number of chunks on each number of ranks."""
    own = parameters["experts"]
    rows = []
    for ranks in own["ranks"]:
        fields = {**own["plan"], "model": own["model"], "system": parameters["system"], "ep": ranks}
        steps = [_timed({**fields, "expert_chunks": n}, known)[1] for n in own["chunks"]]
        rows += [
            {"ep": ranks, "chunks": n, "step_s": step, "over_one": step / steps[0]}
            for n, step in zip(own["chunks"], steps, strict=True)
        ]
    return pd.DataFrame(rows)


def _facts(
    parameters: Mapping[str, Any], packed: pd.DataFrame, hot: pd.DataFrame, cut: pd.DataFrame
) -> dict[str, str]:
    """Numbers of the reading."""
    windows = list(parameters["documents"]["windows"])
    by = packed.set_index("seq_len")
    masked = by[by["packing"] == "fixed"]["over_whole"].groupby(level=0).first()
    gains = by["gain"].groupby(level=0).max()
    ranks = parameters["experts"]["ranks"][-1]
    plain = hot[(hot["ep"] == ranks) & (hot["placement"] == "in order") & (hot["replicas"] == 0)]
    last = hot[(hot["ep"] == ranks) & (hot["loads"] == parameters["experts"]["loads"][-1])]
    best = cut.loc[cut.groupby("ep")["step_s"].idxmin()]
    return {
        "longest": f"{windows[-1]:,}",
        "shortest": f"{windows[0]:,}",
        "masked": f"{masked[windows[-1]]:.0%}",
        "gain": f"{gains[windows[-1]]:.2f}",
        "gain_short": f"{gains[windows[0]]:.2f}",
        "ranks": str(ranks),
        "hot": ", ".join(
            f"{row.loads} {row.busiest_over_mean:.2f} times the mean, the step {row.over_even:.2f}"
            for row in plain.itertuples()
        ),
        "placed": f"{last['over_even'].iloc[-1]:.2f}",
        "best_chunks": ", ".join(
            f"{chunks} on {ep} ranks ({over - 1.0:+.1%})"
            for chunks, ep, over in zip(best["chunks"], best["ep"], best["over_one"], strict=True)
        ),
    }


def run(parameters: Mapping[str, Any]) -> Result:
    """Train on uneven work.

    parameters   `system`; `documents`: `corpus`, `model`, `plan`, `windows` (tokens: ranks that
                 divide a sequence), `policies`; `experts`: `model`, `plan`, `ranks`, `loads`,
                 `placed`, `chunks`
    """
    known = load(parameters.get("calibration", "default"))
    packed = _documents(parameters, known)
    hot, cut = _experts(parameters, known), _chunks(parameters, known)
    named = packed["packing"] + " " + packed["cp_sharding"]
    figures = [
        Figure("Steps of packed documents over whole sequences", "tokens of a sequence", "times",
               [Series(str(name).strip(), list(own["seq_len"]), list(own["over_whole"]), group=at)
                for at, (name, own) in enumerate(packed.groupby(named, sort=False))],
               log_x=True),
        Figure("Hot experts", "load of the busiest rank over the mean", "step over the even one",
               [Series(f"{ep} ranks", list(own["busiest_over_mean"]), list(own["over_even"]),
                       "point", group=at)
                for at, (ep, own) in enumerate(hot.groupby("ep"))]),
        Figure("Experts in chunks", "chunks", "step over that of one",
               [Series(f"{ep} ranks", list(own["chunks"]), list(own["over_one"]), group=at)
                for at, (ep, own) in enumerate(cut.groupby("ep"))],
               log_x=True),
    ]  # fmt: skip
    tables = {"Documents": packed, "Experts": hot, "Chunks": cut}
    return Result(figures, tables, _facts(parameters, packed, hot, cut))
