"""Many requests in one call are what each is in a call of its own."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from predictor import catalog
from predictor.catalog.artifacts import load
from predictor.errors import InputError
from reckon.sweeping import sweep
from reckon.verbs.serving import predict_each_serving
from reckon.verbs.training import predict_each, predict_train

Cli = Callable[..., tuple[int, str, str]]
CALIBRATION = load("default")

TRAINED: dict[str, Any] = {"model": "gpt3-13b", "gpus": 32, "tp": 8, "pp": 1, "global_batch": 64,
                           "seq_len": 2048, "precision": "bf16"}  # fmt: skip
SERVED: dict[str, Any] = {"model": "llama3-8b", "tp": 8, "pp": 2, "batch": 8, "input_len": 512,
                          "output_len": 32, "precision": "bf16"}  # fmt: skip


def system(change: Callable[[dict[str, Any]], object] = lambda _: None) -> dict[str, Any]:
    """DGX-H100 under its own name, with its accelerator written out, and something changed."""
    found = copy.deepcopy(catalog.to_mapping(catalog.spec_of("systems", "dgx-h100")))
    device = catalog.to_mapping(catalog.spec_of("accelerators", found["accelerator"]))
    found = {**found, "accelerator": device, "facts": {}}
    change(found)
    return found


CHANGES: dict[str, Callable[[dict[str, Any]], object]] = {
    "nothing": lambda _: None,
    "oversubscription": lambda s: s["tiers"][-1].update(oversubscription=8.0),
    "rate of a tier": lambda s: s["tiers"][-1].update(bandwidth_gbs=12.5),
    "in_switch": lambda s: s["tiers"][0].update(in_switch=False),
    "latency": lambda s: s["tiers"][0].update(latency_us=200.0),
    "memory": lambda s: s["accelerator"].update(memory_bandwidth_gbs=500.0),
    "cache": lambda s: s["accelerator"].update(l2_mb=5.0),
    "peak": lambda s: s["accelerator"].update(bf16_tflops=100.0),
    "processors": lambda s: s["accelerator"].update(sm_count=20.0),
}


def training(requests: list[dict[str, Any]]) -> list[Any]:
    found = predict_each(requests, CALIBRATION, "request")
    return [str(one) if isinstance(one, InputError) else one.to_dict() for one in found]


def serving(requests: list[dict[str, Any]]) -> list[Any]:
    found = predict_each_serving(requests, CALIBRATION, "request")
    return [str(one) if isinstance(one, InputError) else one.to_dict() for one in found]


@pytest.mark.parametrize("change", [name for name in CHANGES if name != "nothing"])
@pytest.mark.parametrize(("predict", "request_"), [(training, TRAINED), (serving, SERVED)])
def test_machines_of_one_name_are_told_apart_by_every_number(
    change: str, predict: Callable[..., list[Any]], request_: dict[str, Any]
) -> None:
    two = [{**request_, "system": system()}, {**request_, "system": system(CHANGES[change])}]
    together = predict(two)
    assert together == [predict([one])[0] for one in two]
    if change not in ("latency", "in_switch", "cache"):  # of these two plans, some feel nothing
        assert together[0] != together[1]


def test_a_slower_fabric_is_seen_beside_a_faster_one(cli: Cli, tmp_path: Path) -> None:
    paths = []
    for name in ("nothing", "oversubscription"):
        paths.append(tmp_path / f"{name}.yaml")
        paths[-1].write_text(yaml.safe_dump(system(CHANGES[name])))
    flags = [f"--{key.replace('_', '-')}={value}" for key, value in TRAINED.items()]

    def times(*systems: Path) -> list[float]:
        names = ",".join(str(path) for path in systems)
        found = json.loads(cli("predict", "train", *flags, "--system", names, "--json", "-")[1])
        return [one["step_time_s"]["value"] for one in found.get("predictions", [found])]

    fast, slow = times(*paths)
    assert slow > 1.2 * fast
    assert [fast, slow] == [*times(paths[0]), *times(paths[1])]


def test_models_of_one_name_are_told_apart_by_their_dimensions() -> None:
    small = catalog.to_mapping(catalog.spec_of("models", "gpt3-13b"))
    large = {**small, "layers": 2 * small["layers"]}
    two = [{**TRAINED, "system": "dgx-h100", "model": one, "tp": 8} for one in (small, large)]
    together = training(two)
    assert together == [training([one])[0] for one in two]
    assert together[1]["step_time_s"]["value"] > 1.5 * together[0]["step_time_s"]["value"]


def test_rows_of_a_sweep_have_their_own_network(tmp_path: Path) -> None:
    grid = {**SERVED, "system": "dgx-h100", "inter_link_gbps": [100.0, 400.0]}
    sweep(grid, tmp_path / "both", workers=1)
    rows = pd.read_parquet(tmp_path / "both").set_index("cell")
    for number, rate in enumerate(grid["inter_link_gbps"]):
        sweep({**grid, "inter_link_gbps": rate}, tmp_path / str(number), workers=1)
        (alone,) = pd.read_parquet(tmp_path / str(number)).to_dict("records")
        assert rows.loc[alone["cell"], "e2e_s"] == alone["e2e_s"]
    assert rows["e2e_s"].nunique() == 2


SYSTEMS = st.one_of(
    st.sampled_from(["dgx-a100", "dgx-h100", "mi300x-8x"]),
    st.sampled_from(sorted(CHANGES)).map(lambda name: system(CHANGES[name])),
)
TRAINING = st.fixed_dictionaries(
    {
        "model": st.sampled_from(["gpt3-13b", "mixtral-8x7b", "llama3-8b"]),
        "system": SYSTEMS,
        "gpus": st.sampled_from([16, 64]),
        "tp": st.sampled_from([1, 2, 3, 8]),
        "global_batch": st.sampled_from([64, 128]),
        "seq_len": st.just(2048),
    },
    optional={
        "inter_link_gbps": st.sampled_from([50.0, 400.0]),
        "recompute": st.sampled_from(["none", "selective", "full"]),
        "sharding": st.sampled_from(["none", "zero1", "fsdp"]),
        "precision": st.sampled_from(["bf16", "fp8"]),
        "schedule": st.sampled_from(["1f1b", "zb-h1"]),
        "framework": st.sampled_from(["megatron-bridge", "nemo"]),
        "cuda_graphs": st.sampled_from(["attention", "layers", "step"]),
        "expert_loads": st.sampled_from(["zipf:0.6", "zipf:1"]),
        "documents": st.sampled_from(["wlb", "wikipedia"]),
        "packing": st.sampled_from(["fixed", "balanced"]),
        "power_limit": st.sampled_from([300.0, 350.0]),
        "trained": st.sampled_from(["lora", "lora_qkv"]),
        "frozen_precision": st.sampled_from(["fp8", "nf4"]),
        "saves_narrow": st.booleans(),
        "fused_norm": st.booleans(),
        "stops_early": st.booleans(),
        "expert_chunks": st.sampled_from([2, 4]),
        "stage_systems": st.sampled_from(["dgx-h100:1+dgx-a100:1", "dgx-a100:2"]),
        "replica_systems": st.sampled_from(["dgx-h100:1+dgx-a100:1"]),
        "handed_bytes": st.sampled_from([0.5, 1.0]),
    },
)
SERVING = st.fixed_dictionaries(
    {
        "model": st.sampled_from(["llama3-8b", "mixtral-8x7b"]),
        "system": SYSTEMS,
        "tp": st.sampled_from([1, 2, 3, 8]),
        "input_len": st.sampled_from([100, 1024]),
        "output_len": st.sampled_from([1, 2, 9, 64, 300]),
    },
    optional={
        "inter_link_gbps": st.sampled_from([50.0, 400.0]),
        "batch": st.sampled_from([1, 16]),
        "precision": st.sampled_from(["bf16", "fp8"]),
        "framework": st.sampled_from(["vllm", "sglang"]),
        "version": st.sampled_from(["0.5.0", "0.9.2"]),
        "batching": st.sampled_from(["mixed", "apart", "waiting"]),
        "polling": st.sampled_from([1, 10]),
        "memory_fraction": st.sampled_from([0.8, 0.9]),
        "reductions": st.sampled_from(["apart", "joined"]),
        "graph_limit": st.sampled_from([0, 256]),
        "expert_loads": st.sampled_from(["zipf:0.6", "zipf:1"]),
        "power_limit": st.sampled_from([300.0, 350.0]),
        "concurrency": st.sampled_from([4, 16]),
        "variation": st.sampled_from([0.0, 0.1]),
        "expert_chunks": st.sampled_from([2, 4]),
        "prefill_system": st.sampled_from(["dgx-h100", "dgx-a100"]),
        "prefill_workers": st.sampled_from([1, 2]),
    },
)


def alike(first: Any, second: Any) -> bool:
    """Equal, numbers to 1e-9: exponentials of four at a time round otherwise than of one, which the
    clock under a limit of power shows in the twelfth digit."""
    if isinstance(first, dict) and isinstance(second, dict):
        return first.keys() == second.keys() and all(alike(first[k], second[k]) for k in first)
    if isinstance(first, list) and isinstance(second, list):
        return len(first) == len(second) and all(map(alike, first, second))
    if isinstance(first, float) and isinstance(second, float):
        return math.isclose(first, second, rel_tol=1e-9, abs_tol=1e-12)
    return bool(first == second)


@settings(max_examples=12)
@given(st.lists(TRAINING, min_size=2, max_size=6))
def test_any_list_of_training_requests_is_its_requests_one_by_one(
    requests: list[dict[str, Any]],
) -> None:
    assert alike(training(requests), [training([one])[0] for one in requests])


@settings(max_examples=12)
@given(st.lists(SERVING, min_size=2, max_size=6))
def test_any_list_of_serving_requests_is_its_requests_one_by_one(
    requests: list[dict[str, Any]],
) -> None:
    assert alike(serving(requests), [serving([one])[0] for one in requests])


def test_a_request_that_cannot_be_costs_the_others_nothing() -> None:
    """Stages on accelerators that do not multiply fp8 are refused as they are timed, not before."""
    plain = {"model": "gpt3-13b", "system": "dgx-a100", "gpus": 16, "tp": 1, "global_batch": 64,
             "seq_len": 2048}  # fmt: skip
    mixed = {"precision": "fp8", "stage_systems": "dgx-h100:1+dgx-a100:1"}
    found = training([plain, {**plain, **mixed}, plain])
    assert found[0] == found[2] == training([plain])[0]
    assert found[1] == training([{**plain, **mixed}])[0]
    assert "fp8" in found[1]


def test_power_is_known_beside_fleets_of_which_it_is_not() -> None:
    plain = {"model": "llama3-8b", "system": "dgx-a100", "tp": 1, "input_len": 100,
             "output_len": 64, "concurrency": 4}  # fmt: skip
    fleet = {**plain, "prefill_workers": 1, "prefill_system": "dgx-h100"}
    alone = serving([plain])[0]
    assert alone["power"] is not None
    assert serving([plain, fleet]) == [alone, serving([fleet])[0]]


ASKED_BEFORE: dict[str, Any] = {
    "adapters": 1, "inter_link_gbps": 50, "rank_order": "tp-cp-pp-dp", "dispatch": "once",
    "routing": "in_turn", "expert_load": 2.0, "expert_chunks": 2, "etp": 1, "micro_batch": 2,
    "precision": "fp8", "attention": "unfused", "fused": False, "cuda_graphs": "layers",
    "power_limit": 400, "framework": "torchtitan",
}  # fmt: skip


@pytest.mark.parametrize("name", ASKED_BEFORE)
def test_a_prediction_does_not_depend_on_what_was_asked_before(name: str) -> None:
    """What is kept of one request is another's only where nothing differs: nodes with one adapter
    left their exchanges' times to whole ones."""
    plain = {"gpus": 64, "tp": 2, "pp": 2, "ep": 8, "global_batch": 128, "seq_len": 4096}
    both = [plain, {**plain, name: ASKED_BEFORE[name]}]
    found = []
    for order in (both, both[::-1]):
        fresh = replace(CALIBRATION)  # nothing kept yet
        one = [predict_train("mixtral-8x7b", "dgx-h100", asked, fresh) for asked in order]
        found.append([step.step_time for step in (one if order is both else one[::-1])])
    assert found[0] == found[1]
