"""What profiles of an H100 and an H200 show of weights that come from memory and of attention that
writes no cache."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from calibration.tables.kernel_table import check_kernels, shapes_of
from predictor import catalog
from predictor.catalog.artifacts import load
from predictor.plans.serving import ServingPlan
from predictor.plans.training import TrainingPlan
from predictor.timing.features import ideal
from predictor.timing.kernels import shape_times
from predictor.timing.shapes import Shapes, weights_time
from predictor.work.serving import prefill_attention
from predictor.work.training import step_operators
from tests.predictor.dense import dense

KERNELS = load("kernels-only")


@pytest.mark.parametrize("folder", ["h100-sxm", "h200-sxm"])
def test_what_weights_that_come_from_memory_add_is_what_was_measured(folder: str) -> None:
    """Sizes that one copy leaves in the cache and thirty drive out: what the second take longer is
    predicted within a third on the whole, and where nothing stays in either nothing is added."""
    table = pd.read_csv(catalog.data_dir() / "measurements" / folder / "residency.csv")
    device = catalog.accelerator(
        {"h100-sxm": "H100-SXM5-80GB", "h200-sxm": "H200-SXM-141GB"}[folder]
    )
    sizes = table.assign(bytes=2.0 * table["n"] * table["k"])
    few = sizes[sizes["copies"] == 1].set_index(["m", "bytes"])["latency_us"]
    last = sizes.groupby(["m", "bytes"])["copies"].transform("max")
    many = sizes[sizes["copies"] == last].set_index(["m", "bytes"])["latency_us"]
    added = ((many - few) * 1e-6).reset_index()
    small = added[5 * added["bytes"] <= 0.7 * device.l2]
    found = weights_time(small["bytes"].to_numpy(), device, 1.0)
    assert float(np.mean(found.fetch)) == pytest.approx(
        float(small["latency_us"].mean()), rel=1 / 3
    )
    large = np.array([added["bytes"].max()])
    assert weights_time(large, device, 1.0).fetch == 0.0
    assert added.set_index("bytes").loc[large[0], "latency_us"].abs().mean() < 0.5e-6


def test_training_is_spared_the_cache_that_tables_of_engines_write() -> None:
    """Keys and values read once more and written, of all tokens: twice two tensors of two bytes at
    0.92 of the bandwidth; backward, which is told by forward, 2.5 times as much. Never less than
    the ideal, and nothing where a model was not fitted to engines."""
    device = catalog.accelerator("H100-SXM5-80GB")
    tokens, heads, d = 4096.0, 32.0, 128.0
    for op, times in (("attention_prefill", 1.0), ("attention_backward", 2.5)):
        for sharing in (1.0, 4.0, 32.0):
            one = np.ones(1)
            shapes = Shapes(
                op=op, dtype="bf16", variants=("flash",), variant=np.zeros(1), m=tokens * one,
                n=tokens * one, k=d * one, batch=heads * one, sharing=sharing,
                flop=times * 2.0 * heads * tokens**2 * d * one,
                bytes=times * 4.0 * tokens * d * heads * (1 + 1 / sharing) * one,
            )  # fmt: skip
            served, trained = (
                shape_times(replace(shapes, joined=joined), device, KERNELS)[0][0]
                for joined in (0.0, 1.0)
            )
            moved = 2 * 2 * 2 * tokens * d * heads / sharing
            spared = times * moved / (0.92 * device.bandwidth)
            assert served - trained == pytest.approx(spared)
            assert trained > ideal(shapes, device).time[0]
    tiny = replace(shapes, m=64.0 * one, n=64.0 * one, joined=1.0)
    assert shape_times(tiny, device, KERNELS)[0][0] >= ideal(tiny, device).time[0]


def test_lists_of_training_say_that_they_have_no_cache() -> None:
    model = dense(layers=1, heads=2, ffn_hidden=512, vocab=1000)
    plan = TrainingPlan(
        tp=1.0, pp=1.0, dp=1.0, global_batch=1.0, micro_batch=1.0, seq_len=64.0, precision="bf16"
    )
    trained = [o for o in step_operators(model, plan) if o.op.startswith("attention")]
    assert {o.joined for o in trained} == {1.0}
    served = prefill_attention(
        model, ServingPlan(batch=1.0, input_len=64.0, output_len=1.0), 1.0, 64.0
    )
    assert {o.joined for o in served} == {0.0}


@pytest.mark.parametrize("op", ["attention_prefill", "attention_backward"])
def test_attention_of_a_profile_is_nearer_without_a_cache(op: str) -> None:
    """PyTorch's kernels on an H100 and an H200, which nothing is fitted to."""
    for folder, name in (("h100-sxm", "H100-SXM5-80GB"), ("h200-sxm", "H200-SXM-141GB")):
        table = pd.read_parquet(catalog.data_dir() / "measurements" / folder / "kernels.parquet")
        own = table[(table["op"] == op) & (table["dtype"] == "bf16")].assign(accelerator=name)
        shapes = shapes_of(check_kernels(own.reset_index(drop=True), folder), op, "bf16")
        assert np.all(shapes.joined == 1.0)
        away = []
        for joined in (0.0, 1.0):
            time = shape_times(
                replace(shapes, joined=joined + 0 * shapes.m), catalog.accelerator(name), KERNELS
            )[0]
            away.append(float(np.abs(np.log(time / (own["latency_us"].to_numpy() * 1e-6))).mean()))
        assert away[1] < away[0]
