from __future__ import annotations

import csv
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictor import catalog
from predictor.efficiency import RunParameters
from predictor.memory import CLASSES, layer_parameters, memory
from predictor.model import Model
from predictor.plan import TrainingPlan
from predictor.units import GIB

Make = Callable[..., TrainingPlan]
RUN = RunParameters()

PLANS = {  # Korthikanti et al. 2022, table 3
    "22B": ("korthikanti-22b", 1, 1, 4, 4),
    "175B": ("korthikanti-175b", 8, 3, 1, 64),
    "530B": ("korthikanti-530b", 35, 3, 1, 280),
    "1T": ("korthikanti-1t", 64, 1, 1, 512),
}


def published() -> list[tuple[str, str, float]]:
    path = catalog.data_dir() / "reference" / "memory_korthikanti.csv"
    with path.open() as stream:
        rows = list(csv.DictReader(stream))
    return [
        (row["model"], row["quantity"], float(row["published"]))
        for row in rows
        if row["quantity"].endswith("_GiB")
    ]


@pytest.mark.parametrize(("name", "quantity", "gib"), published())
def test_the_twelve_published_values(name: str, quantity: str, gib: float, plan: Make) -> None:
    model, pp, vpp, micro, batch = PLANS[name]
    selective = "selective" in quantity
    made = plan(
        pp=float(pp),
        vpp=float(vpp),
        micro_batch=float(micro),
        global_batch=float(batch),
        precision="fp16",
        recompute="selective" if selective else "none",
        sequence_parallel=float(selective),
        attention="unfused",
        dropout=True,
        sharding="none",
    )
    classes = memory(catalog.model(model), made, RUN).classes
    which = "layer weights and optimizer" if "params" in quantity else "activations"
    # One stage in all is of the kind 'last'; several: the first holds most.
    stage = 2 if pp == 1 else 0
    assert classes[which][stage] / GIB == pytest.approx(gib, rel=1e-3)


def test_there_are_twelve_of_them() -> None:
    assert len(published()) == 12


def test_full_recomputation_keeps_the_layer_input(gpt3: Model, plan: Make) -> None:
    made = plan(pp=1.0, recompute="full", attention="unfused", dropout=True)
    kept = memory(gpt3, made, RUN).classes["activations"][2]
    assert kept == pytest.approx(2 * 2048 * gpt3.hidden * gpt3.layers)


def test_classes_add_up_to_the_peak(llama: Model, plan: Make) -> None:
    found = memory(llama, plan(), RUN)
    assert set(found.classes) == set(CLASSES)
    assert max(sum(found.classes[c][i] for c in CLASSES) for i in range(3)) == found.peak


@given(
    st.sampled_from([1, 2, 4, 8]),
    st.sampled_from([1, 2, 4, 8]),
    st.sampled_from(["none", "zero1", "zero2", "zero3"]),
)
def test_sharding_never_needs_more(tp: int, dp: int, sharding: str) -> None:
    model = catalog.model("llama3-8b")

    def peak(kind: str, ranks: int) -> float:
        made = TrainingPlan(float(tp), 1.0, float(ranks), 1.0, 8.0, 4096.0, sharding=kind)
        found = memory(model, made, RUN)
        return float(found.classes["layer weights and optimizer"][2])

    assert peak(sharding, dp) <= peak("none", dp) * (1 + 1e-12)
    assert peak(sharding, 2 * dp) <= peak(sharding, dp) * (1 + 1e-12)


def test_state_is_eighteen_bytes_per_parameter(llama: Model, plan: Make) -> None:
    made = plan(tp=1.0, pp=1.0, sharding="none")
    found = memory(llama, made, RUN).classes["layer weights and optimizer"][2]
    assert found == pytest.approx(18.0 * llama.layers * layer_parameters(llama, 1.0))


def test_probability_of_not_fitting_is_half_at_the_brim(llama: Model, plan: Make) -> None:
    found = memory(llama, plan(), RUN)
    assert found.probability_over(float(found.peak), 0.1) == pytest.approx(0.5)
    assert found.probability_over(2 * float(found.peak), 0.1) < 1e-6
