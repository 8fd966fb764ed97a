"""Names of the loops that `tools/real_models.py` times, and what their rows say of their plans."""

from __future__ import annotations

import pytest

from predictor import catalog
from predictor.plans import SHARDINGS, TRAINING_FIELDS
from tools import asked, loops, real_models

ROW = {"framework", "precision", "recompute"}
KNOWN = {"single", "transformers", "autocast", "compiled", "regional", "float8", "rowwise",
         "narrow", "liger", "early", "dpo", "hosted", *asked.OPTIMIZERS, *asked.HOSTED}  # fmt: skip
CASES = [case for cases in real_models.SETS.values() for case in cases]


@pytest.mark.parametrize("case", CASES, ids=lambda case: "_".join(map(str, case)))
def test_every_loop_is_known_and_says_what_plans_read(case: tuple[str, int, int, str, str]) -> None:
    name, sequences, length, whose, recompute = case
    model = real_models.named(name)
    assert min(sequences, length) >= 1
    assert model.parameters > 1e8
    rest = loops.words(whose) - KNOWN
    assert all(word.removeprefix("q").removeprefix("int8").startswith("lora") for word in rest)
    said = loops.stated(whose, recompute)
    assert said["recompute"] == recompute
    assert said.pop("dp_sharding", "none") in SHARDINGS  # as tables have it
    assert set(said) - ROW <= set(TRAINING_FIELDS)
    for key, value in said.items():
        if TRAINING_FIELDS[key].choices and isinstance(value, str):
            assert value in TRAINING_FIELDS[key].choices


def test_what_loops_say() -> None:
    assert loops.stated("single", "none") == {"recompute": "none"}
    assert loops.stated("transformers-lora16", "full")["adapter_style"] == "fp32"
    few = {one: loops.stated(f"transformers-{one}lora16-narrow", "none") for one in ("q", "int8")}
    assert [one["frozen_precision"] for one in few.values()] == ["nf4", "int8"]
    assert loops.stated("transformers-lora16-narrow-dpo", "full")["compared_with"] == "adapters"
    away = loops.stated("zero3cpu", "full")
    assert (away["dp_sharding"], away["offload_weights"]) == ("zero3", 1)
    assert loops.stated("transformers-lora16-autocast", "full")["adapter_style"] == "autocast"
    narrow = loops.stated("transformers-loraqv8-narrow", "none")
    assert (narrow["adapter_style"], narrow["trained"], narrow["lora_rank"]) == (
        "apart", "lora_qkv", 8,
    )  # fmt: skip
    rows = loops.stated("single-regional-float8-rowwise", "none")
    assert (rows["precision"], rows["saves_narrow"], rows["fused"]) == ("fp8_rowwise", 0, 1)
    wide = loops.stated("transformers-autocast", "none")
    assert (wide["weight_bytes"], wide["optimizer_bytes"]) == (4.0, 8.0)
    assert set(catalog.frameworks()) >= {wide["framework"]}
