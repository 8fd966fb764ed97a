from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import reckon
from predictor import catalog
from predictor.plans.rules import check
from predictor.plans.training import TrainingPlan
from reckon.console.cli import main
from reckon.verbs.asking import batch_of
from reckon.views.plans import table

Cli = Callable[..., tuple[int, str, str]]
TRAIN = ["plan", "train", "--model", "llama3-8b", "--system", "dgx-h100", "--gpus", "16",
         "--global-batch", "64", "--seq-len", "8192", "--schedule", "1f1b",
         "--cp", "1", "--micro-batch", "1,2"]  # fmt: skip
INFER = ["plan", "infer", "--model", "llama3-8b", "--system", "dgx-h100,dgx-a100", "--pp", "1",
         "--input-len", "1024", "--output-len", "256", "--ttft-ms", "300",
         "--tpot-ms", "15"]  # fmt: skip


@dataclass(frozen=True)
class Told:
    """What one search told: printed, as JSON, in pictures."""

    out: str
    json: dict[str, Any]
    page: Path


def told(folder: Path, *request: str) -> Told:
    """Ask a search for all of it at once."""
    page, table = folder / "report.html", folder / "found.json"
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main([*request, "--json", str(table), "--report", str(page)])
    assert (status, err.getvalue()) == (0, "")
    return Told(out.getvalue(), json.loads(table.read_text()), page)


@pytest.fixture(scope="module")
def layouts(tmp_path_factory: pytest.TempPathFactory) -> Told:
    compare = ("--compare", "tp=8 pp=2 micro_batch=1")
    return told(tmp_path_factory.mktemp("layouts"), *TRAIN, *compare, "--top", "5")


@pytest.fixture(scope="module")
def fleets(tmp_path_factory: pytest.TempPathFactory) -> Told:
    load = ("--rate", "30", "--simulate", "500")
    return told(tmp_path_factory.mktemp("fleets"), *INFER, *load, "--top", "3")


def test_a_search_is_printed(layouts: Told) -> None:
    for text in ("plans:", "possible", "fit", "Pareto front", "runner-up", "instead", "your plan",
                 "over the best", "assumed"):  # fmt: skip
        assert text in layouts.out


def test_the_json_holds_plans_that_predict_the_same(layouts: Told) -> None:
    found = layouts.json
    assert found["kind"] == "training-search"
    assert len(found["plans"]) == 5
    model, system = catalog.model("llama3-8b"), catalog.system("dgx-h100")
    for entry in found["plans"]:
        plan = TrainingPlan(**entry["plan"])
        check(plan, model)
        alone = reckon.predict_train(model, system, plan)
        assert float(alone.step_time) == pytest.approx(entry["step_time_s"]["value"], rel=1e-9)
        assert float(alone.low) == pytest.approx(entry["step_time_s"]["low"], rel=1e-9)
        assert float(alone.memory.peak) / 1e9 == pytest.approx(entry["peak_gb"], rel=1e-9)
    assert found["plans"][0]["over_best"]["value"] == 1.0
    counts = found["counts"]
    order = [counts[name] for name in ("enumerated", "possible", "fitting", "timed")]
    assert order == sorted(order, reverse=True)
    own = found["compare"]
    assert own["rank"] > 1
    assert sum(own["spends_more_s"].values()) == pytest.approx(
        own["step_time_s"] - found["plans"][0]["step_time_s"]["value"]
    )


def test_json_alone_goes_to_the_terminal(cli: Cli) -> None:
    status, out, err = cli(*TRAIN, "--tp", "8", "--pp", "2", "--json", "-", "--top", "2")
    assert (status, err) == (0, "")
    assert len(json.loads(out)["plans"]) == 2


def test_the_winner_held_against_itself_is_first() -> None:
    fields = {"gpus": 16, "global_batch": 64, "seq_len": 8192, "tp": [1, 2, 8], "cp": 1,
              "micro_batch": 1, "recompute": ["none", "full"]}  # fmt: skip
    best = reckon.search("llama3-8b", "dgx-h100", fields).plans[0]
    keys = {"tp", "pp", "vpp", "cp", "dp", "micro_batch", "recompute", "recompute_modules",
            "recompute_share", "sharding", "schedule", "sequence_parallel", "cp_kind",
            "rank_order"}  # fmt: skip
    own = reckon.search(
        "llama3-8b", "dgx-h100", fields, compare={k: v for k, v in best.items() if k in keys}
    ).own
    assert own is not None
    assert own.rank == 1
    assert own.slower.value == pytest.approx(1.0, rel=1e-12)
    assert own.slower.tie


def test_a_budget_ranks_by_cost_and_frames_have_a_row_each(cli: Cli) -> None:
    found = reckon.search(
        "llama3-8b",
        "dgx-h100",
        {
            "gpus": "8..32",
            "batch_tokens": 64 * 8192,
            "seq_len": 8192,
            "cp": 1,
            "micro_batch": 1,
            "recompute": ["none", "full"],
        },
        tokens=1e10,
        days=6.0,
        price=2.0,
    )
    frame = found.to_frame(20)
    assert len(frame) == 20
    assert frame["cost"].is_monotonic_increasing
    assert (frame["training_days"] <= 6.0).all()
    hours = 24 * frame["training_days"] * frame["gpus"]
    assert frame["cost"].to_numpy() == pytest.approx((2.0 * hours).to_numpy())


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--tp", "16", "--tp-in-node"], "node of 8"),
        (["--vpp", "2", "--schedule", "zb-h1", "--pp", "2"], "zb-h1"),
        (["--dp", "3"], "dp stated, 3"),
        (["--days", "3"], "--tokens"),
        (["--objective", "speed"], "'speed'"),
        (["--batch-tokens", "9"], "not both"),
        (["--compare", "tp=3 pp=1"], "not a multiple of tp 3"),
        (["--tp", "8..2"], "ends below where it starts"),
        (["--memory-fraction", "2"], "between 0 and 1"),
    ],
)
def test_bad_requests_are_one_line(cli: Cli, more: list[str], words: str) -> None:
    status, out, err = cli(*TRAIN, *more)
    assert status == 2
    assert out == ""
    assert err.count("\n") == 1
    assert words in err


def test_what_does_not_fit_says_the_least_memory(cli: Cli) -> None:
    status, _, err = cli("plan", "train", "--model", "llama3-405b", "--system", "dgx-h100",
                         "--gpus", "8", "--global-batch", "8", "--seq-len", "8192")  # fmt: skip
    assert status == 2
    assert "the least that would is" in err


def test_a_fleet_is_printed_and_checked_by_simulation(fleets: Told) -> None:
    for text in ("ways to serve", "keep the promise", "GPUs", "TTFT", "TPOT", "throughput against",
                 "served one by one"):  # fmt: skip
        assert text in fleets.out


LONG = ["plan", "infer", "--model", "llama3-70b", "--system", "dgx-h100", "--rate", "20",
        "--input-len", "4096", "--output-len", "256", "--ttft-ms", "1000", "--tpot-ms", "40",
        "--pp", "1"]  # fmt: skip


def test_prompts_are_read_apart_where_that_takes_fewer_and_the_reason_is_told(
    cli: Cli, tmp_path: Path
) -> None:
    table = tmp_path / "found.json"
    status, out, _ = cli(*LONG, "--simulate", "1000", "--json", table, "--top", "2")
    found = json.loads(table.read_text())
    assert status == 0
    assert "why: prompts read apart delay no token, and their workers are busy" in out
    best, prompts = found["fleets"][0], found["prompts"]
    plan = best["plan"]
    assert prompts["apart"]
    assert plan["prefill_workers"] > 0
    each = plan["tp"] * plan["pp"] * plan["dp"] + plan["prefill_workers"] * plan["prefill_tp"]
    assert best["gpus_per_engine"] == each
    other = prompts["other"]
    assert other["plan"]["prefill_workers"] == 0
    assert other["gpus"] > best["gpus"]
    assert 0 < prompts["delay_per_token_s"] < 0.04
    assert found["simulated"]["tpot_s_at_share"] == pytest.approx(best["tpot_s"], rel=0.1)
    assert found["simulated"]["ttft_s_at_share"] == pytest.approx(best["ttft_s"], rel=0.4)
    status, out, _ = cli(
        *LONG, "--set", "prefill_workers=0", "--simulate", "1000", "--json", "-", "--top", "1"
    )
    alone = json.loads(out)
    assert alone["fleets"][0]["gpus"] == other["gpus"]
    assert alone["prompts"]["other"] is None
    assert "prefill_workers 0 was asked for" in alone["prompts"]["reason"]


def test_fleets_follow_the_hours_of_a_table(cli: Cli, tmp_path: Path) -> None:
    table = tmp_path / "load.csv"
    table.write_text("hour,requests_per_s\n0,1\n1,60\n2,20\n")
    status, out, _ = cli(*INFER, "--load", str(table), "--headroom", "0.2", "--json", "-",
                         "--top", "8",
                         "--price-per-gpu-hour", "dgx-h100=2.5,dgx-a100=1.2")  # fmt: skip
    found = json.loads(out)
    assert status == 0
    costs = [fleet["cost_per_hour"] for fleet in found["fleets"]]
    assert costs == sorted(costs)
    for fleet in found["fleets"]:
        most = fleet["most_requests_per_s_per_engine"]
        assert fleet["engines"] >= 60 * 1.2 / most > fleet["engines"] - 1
        each = [max(1, -(-rate * 1.2 // most)) for rate in (1, 60, 20)]
        assert fleet["gpu_hours_following_load"] == sum(each) * fleet["gpus_per_engine"]
        assert fleet["ttft_s"] <= 0.3
        assert fleet["tpot_s"] <= 0.015


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ([], "--rate"),
        (["--rate", "-1"], "0 or more"),
        (["--rate", "5", "--tpot-ms", "0.1"], "closest takes"),
        (["--rate", "5", "--price-per-gpu-hour", "cheap"], "--price-per-gpu-hour"),
        (["--rate", "5", "--price-per-gpu-hour", "dgx-h100=2"], "says nothing of"),
        (["--rate", "5", "--objective", "cost"], "needs a --price-per-gpu-hour"),
        (["--load", "nowhere.csv"], "cannot read nowhere.csv"),
        (["--rate", "5", "--ttft-percentile", "100"], "between 0 and 1"),
    ],
)
def test_bad_loads_are_one_line(cli: Cli, more: list[str], words: str) -> None:
    status, out, err = cli(*INFER, *more)
    assert status == 2
    assert out == ""
    assert err.count("\n") == 1
    assert words in err


@pytest.mark.parametrize("verb", ["train", "infer"])
def test_pictures_are_one_file_that_needs_no_network(
    layouts: Told, fleets: Told, verb: str
) -> None:
    found = fleets if verb == "infer" else layouts
    path = found.page
    assert str(path) in found.out
    page = path.read_text(encoding="utf-8")
    charts = json.loads(page.partition('id="charts">')[2].partition("</script>")[0])
    assert len(charts) >= 2
    assert page.count('class="chart"') == len(charts)
    assert "<script src=" not in page
    assert "Plotly" in page
    assert "\x1b" not in page
    assert "prefers-color-scheme:dark" in page
    assert "reckon plan" in page  # the command that was given
    assert path.stat().st_size < 1.5e6
    for chart in charts:
        assert "GB" not in json.dumps(chart["layout"]).replace("GiB", "")
    if verb == "infer":
        drawn = [x for one in charts[0]["data"] for x in one["x"]]
        assert 0 < min(drawn) <= max(drawn) < 1e4  # ms: an axis of 10^40 says nothing
    else:
        errors = charts[1]["data"][0]["error_x"]
        assert all(value >= 0 for value in errors["array"])


def test_a_report_that_fails_does_not_lose_the_ranking(cli: Cli, tmp_path: Path) -> None:
    nowhere = str(tmp_path / "nowhere" / "report.html")
    status, out, err = cli(*TRAIN, "--tp", "8", "--pp", "2", "--report", nowhere)
    assert status == 2
    assert "step s" in out
    assert "cannot write" in err


@pytest.mark.parametrize(
    ("verb", "narrower"),
    [
        ("train", ["--tp", "8", "--cp", "1", "--micro-batch", "1"]),
        ("infer", ["--tp", "4", "--pp", "1", "--set", "prefill_workers=0"]),
    ],
)
def test_help_shows_an_example_that_runs(cli: Cli, verb: str, narrower: list[str]) -> None:
    out = cli("plan", verb, "--help")[1]
    example = " ".join(out.split("Example: reckon ")[1].split(". Every")[0].split())
    status, _, err = cli(*example.split(), *narrower, "--top", "1")
    assert (status, err) == (0, "")


@pytest.mark.parametrize(
    ("model", "fields"),
    [
        ("mixtral-8x7b", {"gpus": 16, "global_batch": 32, "tp": [1, 2], "cp": 1}),
        (
            "llama3-8b",
            {
                "gpus": 8,
                "global_batch": 16,
                "tp": 2,
                "sharding": ["zero1", "fsdp"],
                "trained": "lora",
            },
        ),
    ],
)
def test_a_plan_that_was_found_may_be_asked_for_again(model: str, fields: dict[str, Any]) -> None:
    """Its request gives its step and its memory, whichever plan it is."""
    found = reckon.search(model, "dgx-h100", {**fields, "seq_len": 4096, "micro_batch": 1})
    for at in np.linspace(0, len(found.result) - 1, 20).astype(int).tolist():
        again = reckon.predict_train(model, "dgx-h100", found.request(at))
        assert again.step_time.value == pytest.approx(float(found.result.step_time[at]), rel=1e-9)
        assert again.peak_memory == pytest.approx(float(found.result.memory[at]), rel=1e-9)


def test_plans_that_are_listed_do_not_look_alike() -> None:
    """Chunks of experts had no column: three rows of one line, and three times."""
    found = reckon.search(
        "mixtral-8x7b",
        "dgx-h100",
        {"gpus": 16, "tp": 2, "pp": 1, "cp": 1, "ep": 8, "global_batch": 32, "seq_len": 2048,
         "micro_batch": 1, "recompute": "full", "sharding": "zero1", "expert_chunks": [1, 2, 4]},
    )  # fmt: skip
    head, *rows = table(found, list(range(min(6, len(found.result))))).splitlines()
    assert "expert_chunks" in head
    looks = {row[2 : head.index("step s")] for row in rows}
    assert len(looks) == len(rows) == 6


def test_the_order_of_ranks_is_no_choice_where_all_lie_in_one_domain() -> None:
    """All eight accelerators of a node are as near to each other as any two are: every other row
    was the one above it once more."""
    plan = {"gpus": 8, "pp": 2, "tp": 1, "cp": 1, "global_batch": 16, "seq_len": 2048,
            "micro_batch": 1, "recompute": "none"}  # fmt: skip
    for gpus, orders in ((8, 1), (16, 2)):
        found = reckon.search("llama3-8b", "dgx-h100", {**plan, "gpus": gpus})
        assert len(set(found.result.column("rank_order", list(range(len(found.result)))))) == orders


@pytest.mark.parametrize(
    ("tokens", "sequences"),
    [(4e6, 1024), (4_194_304, 1024), (0.5e6, 128), (16e6, 4096), (3 * 4096, 3), (12_000, 3)],
)
def test_a_batch_in_tokens_is_of_sequences_that_replicas_divide(
    tokens: float, sequences: int
) -> None:
    """Four million tokens were 977 sequences, a prime number: one replica. Whole numbers stay."""
    assert batch_of({"batch_tokens": tokens, "seq_len": 4096}) == {
        "seq_len": 4096, "global_batch": sequences,
    }  # fmt: skip


@pytest.mark.parametrize("name", ["model", "system"])
def test_a_search_of_plans_is_of_one_of_each(cli: Cli, name: str) -> None:
    """'unknown system dgx-h100,mi300x; did you mean DGX-H100?' it said."""
    stated = {"model": "llama3-8b", "system": "dgx-h100", name: "mi300x,dgx-h100"}
    flags = [word for key, value in stated.items() for word in (f"--{key}", value)]
    code, _, err = cli(
        "plan", "train", *flags, "--gpus", "8", "--global-batch", "8", "--seq-len", "1024"
    )
    assert code == 2
    assert f"is of one {name}" in err
