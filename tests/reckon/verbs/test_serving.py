"""`reckon predict infer` and its facade."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import reckon
from predictor.serving.prediction import BREAKDOWN
from reckon.views.serving import TERM_NAMES

Cli = Callable[..., tuple[int, str, str]]
RUN = ["predict", "infer", "--model", "llama3-8b", "--system", "dgx-h100", "--tp", "1",
       "--input-len", "512", "--output-len", "128"]  # fmt: skip


def test_a_prediction_is_printed(cli: Cli) -> None:
    status, out, err = cli(*RUN, "--batch", "16")
    assert (status, err) == (0, "")
    for text in ("first token", "per token", "tokens/s", "memory", "assumed", "80%", "decode"):
        assert text in out


def test_the_json_is_the_contract(cli: Cli) -> None:
    status, out, _ = cli(*RUN, "--concurrency", "32", "--framework", "vllm", "--json", "-")
    found = json.loads(out)
    assert status == 0
    assert found["kind"] == "inference"
    for name in ("ttft_s", "tpot_s", "e2e_s", "output_tokens_per_s"):
        assert found[name]["low"] < found[name]["value"] < found[name]["high"]
    assert sum(found["breakdown_s"].values()) == pytest.approx(found["e2e_s"]["value"])
    assert found["requests_per_s"] * found["e2e_s"]["value"] == pytest.approx(32)
    assert {"capacity_gb", "largest_batch", "classes", "fits"} <= set(found["memory"])
    assert {line["phase"] for line in found["operators"]} == {"prefill", "decode"}
    assert {"bound", "compute_over_memory", "pedigree"} <= set(found["operators"][0])


def test_every_term_has_a_name_to_show() -> None:
    assert set(TERM_NAMES) == set(BREAKDOWN)


def test_comma_lists_give_a_row_each(cli: Cli) -> None:
    status, out, _ = cli(*RUN, "--batch", "1,8,64", "--precision", "bf16,fp8", "--json", "-")
    found = json.loads(out)
    assert status == 0
    rates = [one["output_tokens_per_s"]["value"] for one in found["predictions"]]
    assert len(rates) == 6
    single = json.loads(cli(*RUN, "--batch", "64", "--precision", "fp8", "--json", "-")[1])
    assert single["output_tokens_per_s"]["value"] == pytest.approx(rates[5], rel=1e-3)
    assert "TPOT ms" in cli(*RUN, "--batch", "1,8")[1]


def test_what_does_not_fit_says_what_would(cli: Cli) -> None:
    arguments = [*RUN, "--batch", "5000"]
    status, out, _ = cli(*arguments)
    assert status == 2
    assert "does not fit" in out
    assert "largest batch that fits is" in out
    assert cli(*arguments, "--allow-oom")[0] == 0


def test_rates_and_requests_one_by_one(cli: Cli) -> None:
    status, out, _ = cli(*RUN, "--rate", "5", "--simulate", "300", "--json", "-")
    found = json.loads(out)
    assert status == 0
    assert not found["rate"]["saturated"]
    assert found["simulated"]["requests"] == 300
    ttft = found["simulated"]["ttft_s"]
    assert 0 < ttft["p50"] <= ttft["p90"] <= ttft["p99"]
    assert "P99" in cli(*RUN, "--concurrency", "8", "--simulate", "100")[1]
    assert "saturated" in cli(*RUN, "--rate", "1e5")[1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--concurrency", "0"], "concurrency"),
        (["--batch", "0"], "batch"),
        (["--precision", "q4"], "precision"),
        (["--framework", "vlllm"], "did you mean 'vllm'"),
        (["--batch", "2", "--rate", "3"], "not both"),
        (["--simulate", "10"], "follow each other"),
        (["--output-len", "0"], "output_len"),
        (["--set", "cached=2"], "cached"),
        (["--tp", "5"], "does not divide"),
    ],
)
def test_bad_input_gives_one_line_and_status_2(
    cli: Cli, arguments: list[str], message: str
) -> None:
    status, out, err = cli(*RUN, *arguments)
    assert (status, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


def test_flags_override_the_file(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(
        "model: llama3-8b\nsystem: dgx-h100\ninput_len: 100\noutput_len: 10\nbatch: 4\n"
    )
    found = json.loads(cli("predict", "infer", str(path), "--batch", "8", "--json", "-")[1])
    assert found["inputs"]["batch"] == 8


def test_the_facade_takes_mappings_and_arrays() -> None:
    plan = {"batch": 8, "input_len": 512, "output_len": 128, "tp": 2}
    one = reckon.predict_infer("llama3-8b", "dgx-h100", plan)
    frame = one.to_frame()
    assert frame["ttft_s"].iloc[0] == one.ttft.value
    arrays = replace(one.request.plan, batch=np.array([8.0, 64.0]))
    many = reckon.predict_infer("llama3-8b", "dgx-h100", arrays)
    assert many.latencies.e2e[0] == pytest.approx(one.e2e.value, rel=1e-3)
    with pytest.raises(reckon.InputError, match="did you mean"):
        reckon.predict_infer("llama3-8b", "dgx-h100", {"batchs": 1})


def test_a_goodput_is_that_of_all_data_parallel_ranks() -> None:
    """One of ranks that are alike is followed: four at four times the rate keep four times what one
    does at its own."""
    asked = {"input_len": 256, "output_len": 32, "simulate": 200, "framework": "vllm",
             "slo_ttft_ms": 1e6}  # fmt: skip
    one, four = (
        reckon.predict_infer(
            "llama3-8b", "dgx-h100", {**asked, "tp": 1, "dp": dp, "rate": 5.0 * dp}
        ).to_dict()["simulated"]
        for dp in (1, 4)
    )
    assert one["attained"] == four["attained"] == 1.0
    assert four["goodput_requests_per_s"] == pytest.approx(4 * one["goodput_requests_per_s"])


def test_what_a_promise_asks_is_told_without_asking_for_requests_one_by_one() -> None:
    """It was dropped wherever closed forms answer; batches of which no request follows another keep
    none."""
    plan = {"input_len": 256, "output_len": 64, "tp": 1, "slo_ttft_ms": 30}
    told = reckon.predict_infer("llama3-8b", "dgx-h100", {**plan, "rate": 2}).to_dict()
    assert 0 < told["simulated"]["attained"] <= 1
    with pytest.raises(reckon.InputError, match="promises or replicas needs requests that follow"):
        reckon.predict_infer("llama3-8b", "dgx-h100", {**plan, "batch": 2})


def test_more_tokens_than_a_model_is_known_for_are_told(cli: Cli) -> None:
    load = ["--model", "llama3-8b", "--system", "dgx-h100", "--gpus", "1", "--batch", "1"]
    for asked, told in (("8000", False), ("8200", True)):
        code, out, _ = cli("predict", "infer", *load, "--input-len", asked, "--output-len", "64")
        assert code == 0
        assert ("llama3-8b is known for 8,192" in out) is told
