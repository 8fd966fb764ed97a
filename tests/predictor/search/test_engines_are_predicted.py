"""An engine that a search looks at is the one that a prediction of its layout completes."""

from __future__ import annotations

import numpy as np
import pytest

from predictor import catalog
from predictor.arrays import filled
from predictor.catalog import ServingPlanSpec, parse
from predictor.plans import SERVING_CATEGORIES, SERVING_NUMBERS, ServingPlan
from predictor.search.fleet_space import batches
from predictor.search.fleets import _Search, interruption, search_engines
from predictor.serving import Promise, complete_serving

KNOWN = catalog.load("kernels-only")
LENGTHS = {"input_len": 2000, "output_len": 300}
LOAD = ("batch", "serving", "synchrony", "host_memory")
"""What a search and a plan differ in: the load, and a share of a node's memory."""


def told(plan: ServingPlan, row: int = 0) -> dict[str, object]:
    """A plan's fields but for the load."""
    values = {name: getattr(plan, name) for name in sorted({*SERVING_NUMBERS, *SERVING_CATEGORIES})}
    return {
        name: value if isinstance(value, str) else float(np.ravel(filled(value, plan.shape))[row])
        for name, value in values.items()
        if name not in LOAD
    }


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm"])
@pytest.mark.parametrize(
    ("model", "system"),
    [("deepseek-r1", "dgx-h200"), ("llama3-70b", "dgx-h100"), ("gpt-oss-120b", "dgx-b200")],
)
def test_an_engine_of_a_search_is_its_layout_s_prediction(engine, model, system) -> None:
    """With the checkpoint's own data type, and with what the engine does on so many ranks."""
    own, cluster = catalog.model(model), catalog.system(system)
    stated = {"framework": (engine,), **{name: (value,) for name, value in LENGTHS.items()}}
    plans = list(batches(own, cluster, stated, KNOWN))
    asked = {"model": model, "system": system, "framework": engine, "batch": 1, **LENGTHS}
    for tp, pp, dp, ep in ((1, 1, 1, 1), (8, 1, 1, 1), (4, 2, 1, 1), (1, 1, 8, 8), (2, 4, 4, 8)):
        layout = {"tp": tp, "pp": pp, "dp": dp, "ep": ep}
        if dp > 1 and not own.is_moe:
            continue
        found = [
            told(plan, row)
            for plan in plans
            for row in range(plan.shape[0])
            if all(float(getattr(plan, name)[row]) == value for name, value in layout.items())
        ]
        assert len(found) == 1, layout
        spec = parse(ServingPlanSpec, {**asked, **layout}, "test")
        alone = complete_serving(spec, KNOWN.run, strict=False).plan
        assert found[0] == told(alone), layout


def test_what_prompts_add_to_a_token_is_part_of_it() -> None:
    """Less than the token takes, and no longer than a second where that takes less."""
    stated = {"tp": (8,), "pp": (1,), "prefill_workers": (0,), "precision": ("bf16",),
              **{name: (value,) for name, value in LENGTHS.items()}}  # fmt: skip
    own, cluster = catalog.model("llama3-70b"), catalog.system("dgx-h100")
    (engine,) = search_engines(own, [cluster], stated, Promise(5.0, 0.2, 0.9, 0.9), KNOWN).engines
    assert 0.0 < interruption(own, engine, KNOWN) < engine.tpot < 0.2


def test_engines_are_compared_by_what_the_load_needs_of_them() -> None:
    """Whole engines for a load, a share of one for a request per second."""
    asked = {"model": catalog.model("llama3-8b"), "fields": {}, "calibration": KNOWN,
             "promise": Promise(1.0, 0.1, 0.9, 0.9), "within": None, "readers": (),
             "prices": None}  # fmt: skip
    rates, gpus = np.array([4.0, 8.0]), np.array([2.0, 8.0])
    per_request = _Search(**asked, load=float("inf"))._needed(rates, gpus)
    np.testing.assert_allclose(per_request, [0.5, 1.0])
    of_load = _Search(**asked, load=10.0)._needed(rates, gpus)
    np.testing.assert_allclose(of_load, [6.0, 16.0])
