"""Accelerators without bf16 serve too: in fp16, or in 32 bits where they have no rate for that."""

from __future__ import annotations

from dataclasses import replace

import pytest

import reckon
from predictor import catalog
from predictor.errors import InputError
from predictor.plans import ServingPlan
from predictor.serving.passes import adapted
from predictor.timing import peak_of
from predictor.work.serving import layer_operators

ASKED = {"batch": 1, "input_len": 512, "output_len": 32}
MODEL = "llama3-8b"


@pytest.mark.parametrize(
    ("name", "wide"), [("H100-SXM5-80GB", "bf16"), ("T4-16GB", "fp16"), ("P40-24GB", "fp32")]
)
def test_narrow_weights_are_widened_to_what_an_accelerator_multiplies(name: str, wide: str) -> None:
    machine = catalog.accelerator(name)
    own = adapted(
        ServingPlan(batch=1.0, input_len=1.0, output_len=1.0, weights="int4_wo", kv=wide), machine
    )
    assert own.half == machine.wide == wide
    assert float(peak_of("int4_wo", machine)) == float(machine.peak[wide])
    model = catalog.model(MODEL)
    cores = {one.dtype for one in layer_operators(model, own, 1.0) if one.name != "mlp.up"}
    assert wide in cores
    assert not cores & ({"bf16", "fp16", "fp32"} - {wide, "fp32"})


@pytest.mark.parametrize("framework", ["llama.cpp", "mlc-llm"])
@pytest.mark.parametrize("name", ["V100-SXM2-32GB", "T4-16GB", "P40-24GB", "GTX-1080Ti-11GB"])
def test_cards_without_bf16_serve_packed_weights_no_faster_than_they_read_them(
    name: str, framework: str
) -> None:
    """They were refused for a rate that no kernel there asks for."""
    machine = catalog.accelerator(name)
    plan = {**ASKED, "precision": "q4_k", "framework": framework}
    served = reckon.predict_infer(MODEL, name, plan)
    weights = 0.55 * catalog.model(MODEL).parameters  # Q4_K: 4.5 bits and more
    assert served.tpot.value > weights / machine.bandwidth
    assert served.tpot.value < 8 * weights / machine.bandwidth
    halves = 2.0 * catalog.model(MODEL).parameters / machine.bandwidth
    assert served.tpot.value < halves


def test_serving_in_32_bits_reads_twice_what_it_reads_in_16() -> None:
    machine = catalog.accelerator("P40-24GB")
    both = replace(machine, peak={**machine.peak, "fp16": machine.peak["fp32"]})
    cluster = replace(catalog.system(machine.name), accelerator=both)
    asked = {**ASKED, "precision": "fp32"}
    wide = reckon.predict_infer("llama3.2-1b", catalog.system(machine.name), asked)
    half = reckon.predict_infer("llama3.2-1b", cluster, {**asked, "precision": "fp16"})
    assert wide.tpot.value == pytest.approx(2.0 * half.tpot.value, rel=0.25)
    read = 4.0 * catalog.model("llama3.2-1b").parameters / machine.bandwidth
    assert wide.tpot.value > 0.75 * read  # embeddings are looked up, not read


def test_bf16_stated_where_there_is_none_names_what_there_is() -> None:
    with pytest.raises(InputError, match=r"P40-24GB has no fp16 rate.*fp32, int8"):
        reckon.predict_infer(MODEL, "P40-24GB", {**ASKED, "precision": "fp16"})


def test_accelerators_with_bf16_are_as_they_were() -> None:
    machine = catalog.accelerator("A100-SXM4-80GB")
    plan = ServingPlan(batch=1.0, input_len=1.0, output_len=1.0)
    assert adapted(plan, machine) is plan
