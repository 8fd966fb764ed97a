"""What a host does beside each kernel, where it is the device itself."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from predictor import catalog
from predictor.catalog.artifacts import load
from predictor.errors import InputError
from predictor.hardware.accelerators import Accelerator
from predictor.hardware.systems import Cluster
from predictor.plans.serving import NATIVE, ServingPlan
from predictor.plans.training import TrainingPlan
from predictor.serving.whole_passes import decode_pass
from predictor.timing.features import ideal
from predictor.timing.kernels import operator_times, shape_times
from predictor.timing.shapes import columns
from predictor.training.prediction import predict
from predictor.work.primitives import streaming
from predictor.work.training import step_operators
from tests.predictor.dense import dense
from tests.predictor.products import matmul

NONE = load("none")
MODEL = dense(layers=3, heads=2, ffn_hidden=512, vocab=1000)
PLAN = TrainingPlan(
    tp=1.0, pp=1.0, dp=1.0, global_batch=2.0, micro_batch=2.0, seq_len=64.0, precision="fp32"
)
FACTS = {
    "name": "cpu-x", "architecture": "cpu-x86_64", "sm_count": 2, "fp32_tflops": 0.2,
    "bf16_tflops": 0.7, "memory_gb": 25, "memory_bandwidth_gbs": 100, "l2_mb": 32,
}  # fmt: skip


def cpu(**facts: float) -> Accelerator:
    return catalog.accelerator(FACTS | facts)


def cluster(ranks: int = 1, **facts: float) -> Cluster:
    system = {
        "name": "local", "accelerator": FACTS | facts, "accelerators_per_node": ranks,
        "tiers": [{"link": "gloo", "size": ranks, "bandwidth_gbs": 2.0}],
    }  # fmt: skip
    return catalog.system(system)


def test_it_adds_to_every_operator_of_a_work_list_and_to_no_kernel_by_itself() -> None:
    operators = [matmul("fp32", 4.0, 8.0, 8.0)]
    without = operator_times(operators, cpu(), NONE, ()).time
    with_host = operator_times(operators, cpu(dispatch_us=7.0), NONE, ()).time
    assert with_host - without == pytest.approx(7e-6)
    shapes = columns(operators, ())
    alone = [shape_times(shapes, one, NONE)[0] for one in (cpu(), cpu(dispatch_us=7.0))]
    np.testing.assert_array_equal(*alone)


GPU = {
    "name": "gpu-x", "architecture": "hopper", "sm_count": 132, "bf16_tflops": 800,
    "fp32_tflops": 50, "memory_gb": 80, "memory_bandwidth_gbs": 3000, "l2_mb": 50,
    "l2_bandwidth_gbs": 6000,
}  # fmt: skip


def test_a_queue_hides_it_behind_kernels_that_take_longer() -> None:
    """It is no part of a kernel on a GPU; of a plain loop that is bound by it each operator takes
    as long, and one whose kernels take longer shows nothing of it."""
    unknown, quick, slow = (
        catalog.system(
            {
                "name": "local",
                "accelerator": GPU | {"dispatch_us": us},
                "accelerators_per_node": 1,
                "tiers": [{"link": "nvlink4", "size": 1, "bandwidth_gbs": 1}],
            }
        )
        for us in (0.0, 1e-3, 5000.0)
    )
    operators = [matmul("bf16", 4.0, 8.0, 8.0)]
    both = [operator_times(operators, one.accelerator, NONE, ()).time for one in (quick, slow)]
    np.testing.assert_array_equal(*both)
    plan = replace(PLAN, precision="bf16", framework="pytorch")
    listed = step_operators(MODEL, plan)
    layers = {"layer": MODEL.layers, "dense": MODEL.layers}
    launched = sum(float(o.count) * layers.get(o.module, 1) for o in listed)
    known = load("default")

    def step(where: Cluster, framework: str = "pytorch") -> float:
        return float(predict(MODEL, where, replace(plan, framework=framework), known).step_time)

    assert step(slow) == pytest.approx(launched * 5e-3, rel=0.05)
    assert step(quick) < 0.01 * step(slow)
    # Levels of published runs say nothing of a loop on a machine that was measured, and what was
    # measured of a plain loop nothing of a framework's.
    assert step(quick) < step(unknown)
    assert step(slow, "nemo") == step(unknown, "nemo")


def test_steps_take_it_once_per_operator() -> None:
    plan = PLAN
    times = [predict(MODEL, cluster(dispatch_us=us), plan, NONE).step_time for us in (0.0, 10.0)]
    blocks = {"layer": 3.0, "dense": 3.0}
    listed = step_operators(MODEL, plan)
    count = sum(float(np.asarray(o.count)) * blocks.get(o.module, 1.0) for o in listed)
    assert times[1] - times[0] >= 0.99 * count * 10e-6
    assert times[1] - times[0] <= (count + 4) * 10e-6, "the update's operators too"


def test_distributed_tensors_cost_more_under_tensor_parallelism_alone() -> None:
    one = cpu(dispatch_us=7.0, split_dispatch_us=80.0)
    np.testing.assert_allclose(one.host_time(np.array([1.0, 2.0])), [7e-6, 80e-6])
    assert cpu(dispatch_us=7.0).host_time(2.0) == pytest.approx(7e-6), "never less than without"
    plan = replace(PLAN, tp=2.0)
    facts = {"dispatch_us": 7.0}
    plain = predict(MODEL, cluster(2, **facts), plan, NONE).step_time
    split = predict(MODEL, cluster(2, **facts, split_dispatch_us=80.0), plan, NONE).step_time
    assert split > plain + 50 * 70e-6
    both = replace(plan, tp=np.array([1.0, 2.0]))
    at_once = predict(MODEL, cluster(2, **facts, split_dispatch_us=80.0), both, NONE).step_time
    assert at_once[1] == pytest.approx(split)


def test_passes_take_it_and_native_code_a_part_of_it() -> None:
    def seconds(execution: str, us: float) -> float:
        plan = ServingPlan(
            batch=1.0, input_len=64.0, output_len=8.0, weights="bf16", kv="bf16",
            execution=execution,
        )  # fmt: skip
        return float(decode_pass(MODEL, cluster(dispatch_us=us), plan, 1.0, NONE).compute)

    added = seconds("eager", 10.0) - seconds("eager", 0.0)
    assert added > 20 * 10e-6
    native = seconds("native", 10.0) - seconds("native", 0.0)
    assert native == pytest.approx(NATIVE * added)


def test_less_than_none_is_refused() -> None:
    with pytest.raises(InputError, match="dispatch_us"):
        cpu(dispatch_us=-1.0)


@pytest.mark.parametrize("variant", ["rmsnorm", "rope", "swiglu"])
def test_on_a_host_a_kernel_takes_as_long_however_its_traffic_is_counted(variant: str) -> None:
    op = "norm" if variant == "rmsnorm" else "elementwise"
    few, many = (
        columns(
            [
                streaming(
                    name="x",
                    op=op,
                    variant=variant,
                    phase="forward",
                    module="layer",
                    dtype="bf16",
                    rows=64.0,
                    columns=512.0,
                    bytes_per_element=count,
                )
            ],
            (),
        )
        for count in (8.0, 36.0)
    )
    assert ideal(few, cpu()).time == ideal(many, cpu()).time
    gpu = catalog.accelerator("H100-SXM5-80GB")
    assert ideal(few, gpu).time < ideal(many, gpu).time
