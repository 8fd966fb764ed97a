"""Machines from budgets: the three that exist come out, and the laws hold for those that do not."""

from pathlib import Path

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from predictor import catalog
from predictor.arrays import stack
from predictor.catalog import technology as tech
from predictor.catalog.artifacts import load
from predictor.catalog.cost import cost_assumptions, die_yield, dies_per_wafer, machine_cost
from predictor.errors import InputError
from predictor.hardware import budget as budgets
from predictor.plans.serving import ServingPlan
from predictor.plans.training import TrainingPlan
from predictor.serving.prediction import predict_inference
from predictor.training.prediction import predict

NODES = ("N12", "N10", "N7", "N5", "N3", "N2", "N1.4", "N1")
A100 = {
    "node": "N7", "area_mm2": 826, "power_w": 400, "memory": "HBM2E", "stacks": 5,
    "scale_up": "NVLink3", "scale_out": "HDR",
}  # fmt: skip
H100 = {
    "node": "N5", "area_mm2": 814, "power_w": 700, "memory": "HBM3", "stacks": 5,
    "scale_up": "NVLink4", "scale_out": "NDR",
}  # fmt: skip
B200 = {
    "node": "N4", "area_mm2": 1600, "power_w": 1000, "memory": "HBM3E", "stacks": 8,
    "scale_up": "NVLink5", "scale_out": "NDR",
}  # fmt: skip
CHIPS = [("A100-SXM4-80GB", A100), ("H100-SXM5-80GB", H100), ("B200-SXM-180GB", B200)]


def machine(**keys: object) -> budgets.DerivedMachine:
    return tech.machine(tech.budget({**H100, **keys}))


@pytest.mark.parametrize("limited", [True, False])
@pytest.mark.parametrize(("name", "keys"), CHIPS)
def test_datasheets_come_out_of_budgets(name: str, keys: dict, limited: bool) -> None:
    budget = {k: v for k, v in keys.items() if limited or k != "power_w"}
    made, real = tech.machine(tech.budget(budget)), catalog.accelerator(name)
    for dtype in set(real.peak) & set(made.accelerator.peak) - {"fp32"}:
        assert made.accelerator.peak[dtype] == pytest.approx(real.peak[dtype], rel=0.15)
    assert made.accelerator.bandwidth == pytest.approx(real.bandwidth, rel=0.15)
    assert made.power == pytest.approx(real.power, rel=0.15)
    assert made.accelerator.sms == pytest.approx(real.sms, rel=0.15)


def test_constants_are_shared_and_few() -> None:
    sources = catalog.read_mapping(catalog.data_dir() / "technology" / "assumptions.yaml")
    assert sum(entry["source"].startswith("fitted") for entry in sources.values()) == 4
    assert all(entry["source"] for entry in sources.values())


def test_areas_add_up_to_the_dies() -> None:
    made = machine()
    assert sum(made.areas.values()) == pytest.approx(814e-6)


def test_newer_nodes_never_compute_less() -> None:
    peaks = [
        float(machine(node=name, processor="hopper").accelerator.peak["bf16"]) for name in NODES
    ]
    assert np.all(np.diff(peaks) > 0)


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(NODES), st.floats(400, 2000), st.floats(1.01, 1.5))
def test_more_power_never_slows_and_never_exceeds_the_budget(
    name: str, watts: float, more: float
) -> None:
    low, high = (machine(node=name, processor="hopper", power_w=w) for w in (watts, watts * more))
    assert high.clock >= low.clock
    assert low.power <= watts * (1 + 1e-9)
    assert low.clock <= low.design_clock


def test_a_batch_of_machines_equals_them_one_by_one() -> None:
    many = [
        tech.budget({**H100, "node": name, "processor": "hopper", "power_w": watts})
        for name in ("N7", "N5", "N3")
        for watts in (500, 700, 1000)
    ]
    together = tech.machine(stack(many))
    known, model = load("default"), catalog.model("gpt3-13b")
    plan = TrainingPlan(tp=8.0, pp=1.0, dp=4.0, micro_batch=1.0, global_batch=32.0, seq_len=2048.0)
    model = catalog.model("llama2-13b")
    batch = predict(model, together.cluster, plan, known)
    serving = ServingPlan(batch=8.0, input_len=512.0, output_len=64.0, tp=2.0)
    served = predict_inference(model, together.cluster, serving, known)
    for at, one in enumerate(many):
        alone = tech.machine(one)
        single = predict(model, alone.cluster, plan, known)
        assert batch.step_time[at] == pytest.approx(float(single.step_time), rel=1e-12)
        assert batch.sigma[at] == pytest.approx(float(single.sigma), rel=1e-12)
        latency = predict_inference(model, alone.cluster, serving, known).latencies
        assert served.latencies.e2e[at] == pytest.approx(float(latency.e2e), rel=1e-12)
        assert together.power[at] == pytest.approx(float(alone.power))


def test_intervals_are_wider_than_the_relatives() -> None:
    known, model = load("default"), catalog.model("llama2-13b")
    plan = TrainingPlan(tp=8.0, pp=1.0, dp=4.0, micro_batch=1.0, global_batch=32.0, seq_len=2048.0)
    real = predict(model, catalog.system("dgx-h100"), plan, known)
    made = predict(model, machine().cluster, plan, known)
    assert made.high / made.low > real.high / real.low


def test_stacks_find_room_on_the_edge() -> None:
    assert float(budgets.devices(tech.budget({**A100, "area_mm2": 826}), tech.assumptions())) == 5
    free = tech.budget({k: v for k, v in A100.items() if k != "stacks"})
    assert float(budgets.devices(free, tech.assumptions())) == 6  # the sites of GA100
    longer = tech.budget({**A100, "stacks": 9, "perimeter_mm": 200})
    assert tech.machine(longer).accelerator.bandwidth == pytest.approx(9 * 409.6e9)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"node": "N6"}, "unknown logic node 'N6'"),
        ({"memory": "HBM9"}, "unknown memory technology"),
        ({"scale_up": "NDR"}, "unknown scale-up network"),
        ({"processor": "fermi"}, "unknown processor"),
        ({"stacks": 9}, "need 94 mm of the edge"),
        ({"area_mm2": 900, "dies": 1}, "more than a reticle"),
        ({"power_w": 100}, "memory and links alone draw"),
        ({"area_mm2": -1}, "is not a positive number"),
        ({"l2_share": 0.99}, "too little for a processor"),
        ({"colour": "red"}, "unknown key of a technology 'colour'"),
    ],
)
def test_impossible_budgets_are_refused_in_one_line(keys: dict, words: str) -> None:
    with pytest.raises(InputError) as caught:
        machine(**keys)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_assumptions_can_be_replaced_and_are_checked() -> None:
    hot = tech.assumptions({"pj_per_flop": 2.0})
    assert tech.machine(tech.budget(H100), hot).clock < machine().clock
    with pytest.raises(InputError, match="did you mean 'pj_per_flop'"):
        tech.assumptions({"pj_per_flops": 2.0})
    with pytest.raises(InputError, match="not a number"):
        tech.assumptions({"pj_per_flop": "much"})


def test_yield_and_dies_by_hand() -> None:
    known = cost_assumptions()
    # 8 cm² at 0.1 per cm², alpha 3: (1 + 0.8 / 3) ** -3
    assert die_yield(8e-4, 0.1e4, 3.0) == pytest.approx(0.49203, rel=1e-4)
    # 800 mm² on 294 mm: 67,887 / 800 - 923.6 / 40 = 84.86 - 23.09
    assert dies_per_wafer(800e-6, known) == 61


def test_cost_adds_up_and_grows_with_what_is_bought() -> None:
    cheap, dear = (machine_cost(machine(stacks=s)) for s in (4, 5))
    assert sum(dear.parts.values()) == pytest.approx(float(dear.capital))
    assert dear.parts["memory"] == pytest.approx(1.25 * cheap.parts["memory"])
    assert dear.capital > cheap.capital
    free = machine_cost(machine(), cost_assumptions({"gross_margin": 0}))
    assert free.parts["margin"] == pytest.approx(0.0)
    assert machine_cost(machine()).capital > free.capital
    # An H100 is said to cost some 3,000 USD to build, and sells for 25,000 to 35,000.
    built = free.capital - sum(free.parts[p] for p in ("scale-up network", "scale-out network"))
    assert 1500 < built - free.parts["host"] < 5000


def test_a_budget_is_a_system_like_any_other(tmp_path: Path) -> None:
    path = tmp_path / "machine.yaml"
    path.write_text(yaml.safe_dump({"name": "next", "technology": H100}))
    made = catalog.system(str(path))
    assert made.accelerator.name == "next"
    assert made.accelerator.peak == machine().accelerator.peak
    assert [tier.link for tier in made.tiers] == ["nvlink4", "infiniband-ndr"]
    with pytest.raises(InputError, match="did you mean 'technology'"):
        catalog.system({"technology": H100, "technologie": {}})
    with pytest.raises(InputError, match="expected keys and values"):
        catalog.system({"technology": 3})
