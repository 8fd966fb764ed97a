"""Rows of inference tables, and the fit of serving engines."""

import json
import shutil
from dataclasses import replace
from functools import cache

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import minimize_scalar

from calibration.checks.scoreboard import refold, score
from calibration.checks.scored import summary
from calibration.serving.engines import (
    KNEE,
    OWN,
    PRIORS,
    SCALE,
    contradictory,
    fit_engines,
    held_out,
    lineage,
    parameters_of,
    weights,
)
from calibration.serving.fit import fit, main
from calibration.serving.spreads import class_of, fit_spreads
from calibration.serving.timed import published, timed, values
from calibration.tables.requests import InferencePoint, inference_point
from calibration.tables.runs import Skipped
from predictor import catalog
from predictor.catalog.artifacts import load
from predictor.catalog.engines import read_parameters
from predictor.timing.calibration import RunParameters
from predictor.timing.engines import KERNELS_SHARE, EngineParameters
from reckon import validate

CALIBRATION = load("default")
RUN = RunParameters()

BASE = {
    "point_id": "a",
    "source": "paper",
    "published": "2024-06",
    "accelerator": "H100-SXM5-80GB",
    "num_gpus": 8,
    "model": "llama3-70b",
    "weights_precision": "fp16",
    "tp": 8.0,
    "pp": 1.0,
    "batch": 16.0,
    "concurrency": np.nan,
    "input_len": 500.0,
    "output_len": 100.0,
    "framework": "vllm",
    "metric": "e2e_latency_s",
    "value": 3.0,
    "notes": "",
}


def point(**fields):
    found = inference_point({**BASE, **fields}, RUN)
    assert isinstance(found, InferencePoint), found
    return found


@pytest.mark.parametrize(
    ("fields", "kind", "metric", "value"),
    [
        ({}, "static", "e2e_s", 3.0),
        ({"metric": "ttft_ms", "value": 250.0}, "prefill", "ttft_s", 0.25),
        ({"concurrency": 16.0, "metric": "ttft_ms"}, "serving", "ttft_s", 0.003),
        ({"batch": np.nan, "metric": "output_tokens_per_s"}, "saturated", None, 3.0),
        ({"metric": "output_tokens_per_s_per_gpu"}, "static", "output_tokens_per_s", 24.0),
        (
            {"framework": "gpt-fast", "metric": "output_tokens_per_s", "value": 160.0},
            "static",
            "tpot_s",
            0.1,
        ),
        (
            {"metric": "total_tokens_per_s", "output_len": 0.0, "value": 16000.0},
            "prefill",
            "ttft_s",
            0.5,
        ),
    ],
)
def test_what_a_row_states(fields, kind, metric, value):
    found = point(**fields)
    assert found.kind == kind
    assert found.metric == (metric or fields["metric"])
    assert found.value == pytest.approx(value)


@pytest.mark.parametrize("metric", ["ttft_ms", "tpot_ms", "e2e_latency_s"])
def test_latency_of_who_says_nothing_of_others_is_of_one_alone(metric):
    """What can be measured of one request is not that of as many as there is room for."""
    alone, one = (point(metric=metric, batch=batch) for batch in (np.nan, 1.0))
    assert (alone.kind, alone.request.plan.batch) == (one.kind, one.request.plan.batch)
    assert float(one.request.plan.batch) == 1.0
    stream = {"framework": "llama.cpp", "metric": "output_tokens_per_s", "value": 50.0}
    found = point(**stream, batch=np.nan, num_gpus=1, tp=1.0)
    assert (found.metric, found.value) == ("tpot_s", pytest.approx(0.02))


def test_precisions_and_engines_under_their_own_names():
    assert point(weights_precision="int4 (AWQ)").request.plan.weights == "int4_wo"
    assert point(weights_precision="fp8").request.plan.weights == "fp8"
    assert point(model="deepseek-v3", weights_precision="fp8").request.plan.weights == "fp8_block"
    assert point(weights_precision="exl2-2.5bpw").request.plan.weights == "exl2_2.5"
    a100 = point(accelerator="A100-SXM4-80GB", weights_precision="fp8")
    assert a100.request.plan.weights == "int8_wo"
    assert point(framework="nvidia-nim (tensorrt-llm)").request.plan.framework == "nim"
    assert point(accelerator="MI300X-192GB").request.plan.framework == "vllm-rocm"


def test_a_stated_limit_of_sequences_is_the_engines():
    stated = {"batch": 2048.0, "concurrency": 1900.0}
    limited = point(**stated, notes="batch=max_num_seqs, concurrency=measured avg batch size")
    assert [float(p.request.plan.max_batch) for p in (limited, point(**stated))] == [2048.0, 256.0]


def test_layers_that_take_turns_are_pipeline_stages():
    found = point(framework="llama.cpp", tp=np.nan, pp=np.nan, num_gpus=4, batch=1.0)
    assert (float(found.request.plan.tp), float(found.request.plan.pp)) == (1.0, 4.0)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"input_len": np.nan}, "lengths"),
        (
            {**dict.fromkeys(("batch", "tp", "num_gpus"), np.nan), "metric": "output_tokens_per_s"},
            "neither layout nor batch",
        ),
        ({"accelerator": np.nan}, "accelerator is not stated"),
        ({"accelerator": "H1000"}, "unknown accelerator"),
        ({"model": "glm-50"}, "not in the catalog"),
        ({"metric": "joules"}, "not predicted"),
        ({"value": np.nan}, "no value"),
    ],
)
def test_reasons_to_skip(fields, reason):
    found = inference_point({**BASE, **fields}, RUN)
    assert isinstance(found, Skipped)
    assert reason in found.reason


NEUTRAL = EngineParameters()


def rows(truth, sources=("one", "two", "three"), framework="vllm"):
    """Points whose values follow from engines with known parameters."""
    return list(rows_of(truth, sources, framework))


@cache
def rows_of(truth, sources, framework):
    made = [
        point(
            point_id=f"{source}-{batch}-{length}-{metric}",
            source=source,
            batch=batch,
            input_len=length,
            metric=metric,
            framework=framework,
        )
        for source in sources
        for batch in (1.0, 8.0, 64.0)
        for length in (128.0, 2000.0)
        for metric in ("e2e_latency_s", "tpot_ms")
    ]
    found, refused = timed(made, CALIBRATION)
    assert not refused
    true = values(found, truth)[0]
    return [
        InferencePoint(
            point_id=p.point_id,
            source=p.source,
            request=p.request,
            kind=p.kind,
            metric=p.metric,
            value=float(v),
            pure=False,
            flagged=False,
        )
        for p, v in zip(found.points, true, strict=True)
    ]


def test_the_fit_recovers_what_the_points_follow():
    """Ten sources agree: what they share is the engine's."""
    truth = EngineParameters(decode=1.1, step=3e-3)
    sources = tuple(f"source {i}" for i in range(10))
    found, _ = timed(rows(truth, sources), CALIBRATION)
    fitted = fit_engines(found)
    predicted = values(found, parameters_of(found, fitted))[0]
    error = np.abs(np.log(predicted / published(found)))
    before = np.abs(np.log(values(found, EngineParameters())[0] / published(found)))
    assert error.mean() < 0.35 * before.mean()
    assert 1e-3 < fitted["vllm until 2025-01"].step < 5e-3


def test_launches_that_bind_are_found_though_documented_ones_would_hide():
    """A small model on a fast accelerator, launched one by one at twice the documented cost: at
    that cost itself the device takes longer, and nothing in the rows would tell launches apart."""
    truth, eager = EngineParameters(launch=30e-6), "vllm-rocm until 2025-01"
    plan = {"model": "llama3-8b", "tp": 1.0, "accelerator": "MI300X-192GB", "output_len": 64.0}
    made = [
        point(point_id=f"{source}-{batch}", source=source, batch=batch, **plan)
        for source in ("one", "two", "three")
        for batch in (1.0, 4.0, 16.0)
    ]
    found, _ = timed(made, CALIBRATION)
    found.points[:] = [
        replace(one, value=float(value))
        for one, value in zip(found.points, values(found, truth)[0], strict=True)
    ]
    assert fit_engines(found)[eager].launch == pytest.approx(truth.launch, rel=0.1)


def test_few_points_of_an_engine_stay_near_the_others():
    common = rows(EngineParameters(step=3e-3))
    odd = rows(EngineParameters(step=30e-3), ("odd",), framework="sglang")[:1]
    found, _ = timed([*common, *odd], CALIBRATION)
    fitted = fit_engines(found)
    assert fitted["sglang"].step < 3 * fitted["neutral"].step


def test_held_out_predictions_do_not_see_their_group():
    points = rows(EngineParameters(step=3e-3))
    found, _ = timed(points, CALIBRATION)
    sources = [p.source for p in found.points]
    before = held_out(found, sources)
    changed = [replace(p, value=5 * p.value) if p.source == "two" else p for p in found.points]
    other, _ = timed(changed, CALIBRATION)
    after = held_out(other, sources)
    two = np.array([source == "two" for source in sources])
    assert after[two] == pytest.approx(before[two])
    assert not np.allclose(after[~two], before[~two])


def test_what_a_source_s_rows_share_is_hardly_the_engine_s():
    """One source of four takes twice as long throughout: the engine's factor moves by less than
    two thirds of what the mean of the four does."""
    honest = rows(NEUTRAL, ("one", "two", "three"))
    slow = [
        InferencePoint(
            point_id=p.point_id,
            source="slow",
            request=p.request,
            kind=p.kind,
            metric=p.metric,
            value=2 * p.value,
            pure=False,
            flagged=False,
        )
        for p in rows(NEUTRAL, ("slow",))
    ]
    without, beside = (
        fit_engines(timed(points, CALIBRATION)[0])["vllm"] for points in (honest, honest + slow)
    )
    moved = np.log(beside.decode / without.decode), np.log(beside.prefill / without.prefill)
    assert max(np.abs(moved)) < 2.0 / 3.0 * np.log(2.0) / 4


def test_doubtful_rows_leave_the_others_of_their_source_their_weight():
    sure = [point(point_id=f"s{i}", value=3.0) for i in range(20)]
    odd = [point(point_id=f"o{i}", value=9.0, notes="FLAG x") for i in range(200)]
    few, many = (weights(timed(rows, CALIBRATION)[0]) for rows in (sure, sure + odd))
    assert few == pytest.approx(np.full(20, 15 / 20))
    assert many[:20] == pytest.approx(few)
    assert many[20:] == pytest.approx(np.full(200, 0.1 * 15 / 200))


@pytest.mark.parametrize("model", ["qwen3.5-397b-a17b", "glm-5"])
def test_linear_and_sparse_attention_are_served(model):
    fields = {"model": model, "batch": np.nan, "concurrency": 8.0, "framework": "sglang"}
    one = point(**fields, metric="tpot_ms", value=10.0, weights_precision="fp8")
    (kept,), refused = (lambda t: (t[0].points, t[1]))(timed([one], CALIBRATION))
    assert (kept.request.model.name, refused) == (model, [])


def test_fitted_spreads_cover_their_share():
    rng = np.random.default_rng(1)
    made = [
        replace(p, value=p.value * float(np.exp(0.3 * rng.standard_normal())))
        for p in rows(NEUTRAL, tuple("abcdefgh"))
    ]
    fitted = fit(made, CALIBRATION)
    classes = {class_of(p) for p in made}
    spreads = {name: s for name, s in fitted.sigma.items() if not name.startswith(KERNELS_SHARE)}
    assert classes | {name.partition(".")[0] for name in classes} | {"all"} == set(spreads)
    assert all(0.1 < sigma < 0.6 for sigma in spreads.values())
    assert fitted.points == {p.point_id for p in made}


def test_first_tokens_under_load_and_doubtful_rows_say_nothing_of_other_spreads():
    calm = rows(NEUTRAL, tuple("abcdefgh"))
    queued = [replace(p, kind="serving", metric="ttft_s") for p in calm]
    doubtful = [replace(p, flagged=True) for p in calm]
    errors = np.full(len(calm), 0.1) * np.where(np.arange(len(calm)) % 2, 1, -1)
    points = [*calm, *queued, *doubtful]
    wild = np.concatenate([errors, 20 * errors, 20 * errors])
    still = np.zeros(len(points))
    found = fit_spreads(
        points, wild, np.stack([still, still]), np.stack([still, still]), 1.2816, 0.8
    )
    assert found["all"] < 0.15
    assert found["e2e"] == found["e2e.static"] < 0.15
    assert found["ttft.serving"] > 0.5


def test_sources_that_doubt_their_own_figures_say_what_clients_may_meet_though_they_are_left_out():
    """Eight sources meet their first tokens within a tenth; eight more, doubtful, come late by a
    factor of seven: intervals reach further up only where these sources say so themselves."""
    calm = [replace(p, kind="serving", metric="ttft_s") for p in rows(NEUTRAL, tuple("abcdefgh"))]
    late = [replace(p, source=p.source * 2, flagged=True) for p in calm]

    def found(points):
        errors = np.array([-2.0 if p.flagged else 0.1 for p in points])
        nothing = np.zeros((2, len(points)))
        return fit_spreads(points, errors, nothing, nothing, 1.2816, 0.8)["ttft.late"]

    own = [replace(p, tentative=True) for p in late]
    assert found([*calm, *late]) == found(calm) < 0.2
    assert found([*calm, *own]) > 2 * found(calm)


def test_two_sources_say_not_how_far_others_lie_off():
    """Requests of eight sources miss by a half, tokens of two of them by a hundredth: a third
    source's tokens get the spread of all, not the hundredth; those of a third source that is as
    near make it their own."""
    static = [replace(p, metric="e2e_s") for p in rows(NEUTRAL, tuple("abcdefgh"))]
    few = [replace(p, metric="tpot_s") for p in rows(NEUTRAL, tuple("ab")) * 3]
    more = [replace(p, metric="tpot_s") for p in rows(NEUTRAL, tuple("abc")) * 2]

    def found(points):
        sign = np.where(np.arange(len(points)) % 2, 1.0, -1.0)
        away = sign * np.array([0.01 if p.metric == "tpot_s" else 0.5 for p in points])
        nothing = np.zeros(len(points))
        return fit_spreads(
            points, away, np.stack([nothing, nothing]), np.stack([nothing, nothing]), 1.2816, 0.8
        )

    assert not {"tpot", "tpot.static"} & set(found([*static, *few]))
    assert found([*static, *more])["tpot.static"] < 0.05 < found([*static, *few])["all"]


def table_of(tmp_path, **fields):
    records = [
        {
            **BASE,
            "point_id": f"{source}{batch}",
            "source": source,
            "batch": batch,
            "value": 2.0 + batch / 20,
            **fields,
        }
        for source in ("one", "two")
        for batch in (1.0, 4.0, 16.0, 64.0, 128.0)
    ]
    records.append({**BASE, "point_id": "other", "model": "glm-50"})
    path = tmp_path / "runs.csv"
    pd.DataFrame(records).to_csv(path, index=False)
    return path


def test_every_row_is_scored_or_skipped_with_its_reason(tmp_path):
    scores = score([table_of(tmp_path)], CALIBRATION)
    assert scores.kind == "inference"
    assert (len(scores.rows), len(scores.skipped)) == (10, 1)
    folded = refold(scores, CALIBRATION, "source")
    assert len(folded.rows) == 10
    result = summary(folded, 0.8)
    target = result["inference"]["static e2e"]
    assert target["n"] == 10
    assert set(target["by_source"]) == {"one", "two"}
    assert set(target["by_tp"]) == {"8"}
    assert all(row["low"] < row["predicted"] < row["high"] for row in result["points"])


def test_refitting_writes_what_predictions_read(tmp_path):
    out = tmp_path / "calibration"
    main([str(table_of(tmp_path)), "--out", str(out)])
    found = read_parameters(out / "serving.json")
    assert "vllm until 2025-01" in found.engines
    assert len(found.points) == 10


def test_a_row_is_as_old_as_its_engine():
    # Months of the releases on PyPI; of one between two that were read, that of the older.
    assert point(framework_version="0.11.2", published="2026-02").request.plan.era == "2025-11"
    assert point(framework_version="v0.19.1", published="2026").request.plan.era == "2026-04"
    assert point(framework_version="nightly", published="2026-02").request.plan.era == "2026-02"
    assert point(framework_version="", published="2024/2025").request.plan.era == "2024"


def test_parameters_are_drawn_along_the_lineage():
    assert lineage("neutral") == ["neutral"]
    assert lineage("vllm until 2025-01") == ["neutral", "vllm", "vllm until 2025-01"]
    assert lineage("nim")[:2] == ["neutral", "tensorrt-llm"]
    slow = [point(point_id=str(i), framework="tensorrt-llm", value=30.0) for i in range(40)]
    fitted = fit_engines(timed(slow, CALIBRATION)[0])
    assert fitted["nim"].decode > fitted["neutral"].decode > 1.0
    assert fitted["vllm"].decode == fitted["neutral"].decode


def test_validation_uses_the_engines_of_the_calibration_s_folder(tmp_path):
    """Also where the folder has another name than the calibration within."""
    mine = shutil.copytree(catalog.calibration_dir("kernels-only"), tmp_path / "mine")
    kept = {"engines": {"neutral": {"step_us": 5e4}}, "sigma": {"all": 0.2}, "points": ["one64.0"]}
    (mine / "serving.json").write_text(json.dumps(kept))
    table = table_of(tmp_path)
    own, other = (validate(table, name)["points"] for name in (mine, "kernels-only"))
    for slow, quick in zip(own, other, strict=True):
        assert slow["in_sample"] == (slow["point_id"] == "one64.0")
        if slow["metric"] == "e2e_s":
            # Every token waits for the host: 50 ms a pass, elsewhere less than half of that.
            longer = slow["predicted"] - quick["predicted"]
            assert longer > 25e-3 * (BASE["output_len"] - 1)


def loss_of(found, fitted):
    """The objective as documented: Cauchy's loss of log errors beside what a source's rows of one
    kind share, squares of these, and squares of what each engine's logarithms are from those of the
    one before, in units of the priors."""
    error = np.log(values(found, parameters_of(found, fitted))[0] / published(found)) / SCALE
    weight = weights(found)
    shared = np.array([f"{p.source}/{p.metric}/{p.kind}" for p in found.points])

    def with_common(common, own):
        bent = np.log1p(((error[own] + OWN / SCALE * common) / KNEE) ** 2)
        return float(np.sum(weight[own] * KNEE**2 * bent) + common**2)

    total = sum(minimize_scalar(with_common, args=(shared == one,)).fun for one in set(shared))
    for name, own in fitted.items():
        above = EngineParameters() if name == "neutral" else fitted.get(lineage(name)[-2:][0])
        if above is None:  # built on a period of another that has no rows: stays as it is
            continue
        level = "mean" if name == "neutral" else "period" if " until " in name else "engine"
        for key, prior in PRIORS.items():
            off = np.log(getattr(own, key) / getattr(above, key)) / getattr(prior, level)
            total += float(off**2)
    return total


def test_no_step_from_the_fit_lowers_its_objective():
    found, _ = timed(rows(EngineParameters(decode=1.3, step=3e-3)), CALIBRATION)
    fitted = fit_engines(found)
    least = loss_of(found, fitted)
    assert least < loss_of(found, {name: EngineParameters() for name in fitted})
    for name in ("neutral", "vllm", "vllm until 2025-01"):
        for key in ("decode", "step", "sequence", "gap"):
            for by in (0.97, 1.03):
                moved = replace(fitted[name], **{key: by * getattr(fitted[name], key)})
                assert loss_of(found, {**fitted, name: moved}) > least - 1e-4


@pytest.mark.parametrize(
    ("first", "odd"), [((55.0, 60.0, 90.0), False), ((550.0, 310.0, 230.0), True)]
)
def test_first_tokens_that_fall_as_clients_are_added_contradict_one_another(first, odd):
    """One server at 8, 16 and 32 clients: more of them never shorten the wait by a third. What
    the rows say of the time per token stands."""
    common = {"batch": None, "input_len": 1024, "output_len": 512, "framework": "vllm"}
    rows = [
        point(**common, concurrency=clients, metric=metric, value=value, point_id=f"{metric}{i}")
        for i, clients in enumerate((8, 16, 32))
        for metric, value in (("ttft_ms", first[i]), ("tpot_ms", 8.0))
    ]
    found, _ = timed(rows, CALIBRATION)
    told = {
        p.point_id: bool(one) for p, one in zip(found.points, contradictory(found), strict=True)
    }
    assert told == {row.point_id: odd and row.metric == "ttft_s" for row in rows}
