"""Hosts wait at every mixture for what its router counted; how tokens and biases take their way."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from predictor import catalog
from predictor.catalog.artifacts import load
from predictor.plans.pipeline import stages
from predictor.plans.placement import blocks
from predictor.plans.training import TrainingPlan
from predictor.timing.calibration import RunParameters
from predictor.training.decomposition import parts
from predictor.training.software import Environment
from predictor.training.step import Step, assemble
from predictor.work.graphs import captured
from predictor.work.primitives import Operator
from predictor.work.training import step_operators

NONE = load("none")
MIXTRAL = catalog.model("mixtral-8x7b")
OSS = catalog.model("gpt-oss-120b")
DGX = catalog.system("dgx-h100")
PLAN = TrainingPlan(
    tp=1.0, pp=1.0, dp=8.0, ep=8.0, etp=1.0, micro_batch=1.0, global_batch=8.0, seq_len=2048.0
)


def step(plan: TrainingPlan, launch: float, routed: float) -> Step:
    """With a microsecond of the host per launch, times a factor outside and inside mixtures."""
    run = RunParameters(host_per_kernel=1e-6, overlap={})
    using = Environment(launch=launch, routed=routed)
    return assemble(parts(MIXTRAL, DGX, plan, NONE)[0], run, using)


@pytest.mark.parametrize("name", ["TPU-v5e-pod", "AWS-trn2.48xlarge"])
def test_chips_that_walk_through_their_program_wait_for_no_launches(name: str) -> None:
    """A TPU's core and a Trainium's engines fetch the next instruction themselves (Norrie et al.
    2021); what a host takes for a launch is nothing to them, and much to a GPU."""
    using = Environment(launch=1e4, routed=1e4)
    run = RunParameters(host_per_kernel=1e-6, overlap={})
    found = assemble(parts(MIXTRAL, catalog.system(name), PLAN, NONE)[0], run, using)
    assert float(found.breakdown["host"]) == 0.0
    assert float(step(PLAN, 1e4, 1e4).breakdown["host"]) > 0.0


def launched(mixture: bool, each: float) -> float:
    """Seconds of the host for a micro-batch: every operator once, every further kernel of it."""
    held = blocks(MIXTRAL, PLAN, stages(MIXTRAL, PLAN))
    return 1e-6 * sum(
        float(o.count) * float(held[o.module][2]) * (each + float(o.kernels) - 1.0)
        for o in step_operators(MIXTRAL, PLAN)
        if (o.module == "moe") == mixture
    )


def test_slack_outside_mixtures_does_not_hide_what_the_host_takes_inside() -> None:
    """The host cannot run ahead of a router: what mixtures launch beyond their own kernels shows,
    however long the device is busy elsewhere."""
    idle = step(PLAN, launch=0.0, routed=0.0)
    slow, slower = (step(PLAN, launch=0.0, routed=each) for each in (1e4, 2e4))
    assert float(idle.breakdown["host"]) == 0.0
    added = float(slower.breakdown["host"] - slow.breakdown["host"])
    assert added == pytest.approx(launched(True, 2e4) - launched(True, 1e4))
    device = float(idle.step_time)
    assert float(slow.breakdown["host"]) > launched(True, 1e4) - device
    assert float(slow.breakdown["host"]) < launched(True, 1e4)


def test_both_parts_wait_for_their_own_launches() -> None:
    """Where all is bound by launches, nothing else is left: the host's time is all of them less all
    that the device does."""
    idle, slow = step(PLAN, 0.0, 0.0), step(PLAN, 1e4, 1e4)
    ends = sum(float(idle.breakdown[t]) for t in ("dp_communication", "optimizer"))
    device = float(idle.step_time) - ends
    whole = launched(True, 1e4) + launched(False, 1e4)
    assert float(slow.breakdown["host"]) == pytest.approx(whole - device)


def named(plan: TrainingPlan, model: object = OSS) -> dict[str, Operator]:
    return {o.name: o for o in step_operators(model, plan)}  # type: ignore[arg-type]


def test_a_bias_of_experts_is_a_chain_of_kernels_in_fp32() -> None:
    """Seventeen passes of 4 bytes over every element that the experts put out, forward and back:
    seven and ten (`mixture.BIASED`). Experts without one have no such kernel."""
    found = named(PLAN)
    elements = 2048 * 4 * 2880  # tokens times experts chosen times width, balanced
    assert float(np.asarray(found["moe.bias"].bytes)) == pytest.approx(7 * 4 * elements)
    assert float(np.asarray(found["moe.bias.bwd"].bytes)) == pytest.approx(10 * 4 * elements)
    assert "moe.bias" not in named(PLAN, MIXTRAL)


def test_tokens_that_travel_once_are_put_in_order_where_they_arrive() -> None:
    """A permutation less each way: copies are made by the rank that runs them."""
    loaded = replace(PLAN, expert_load=1.5)
    for plan, rows in ((loaded, 2048 * 4), (replace(loaded, dispatch="once"), 1.5 * 2048 * 4)):
        found = named(plan)
        sorts = float(np.asarray(found["moe.sort"].count + found["moe.unsort"].count))
        assert sorts == (0.0 if plan.dispatch == "once" else 2.0)
        assert float(np.asarray(found["moe.permute"].m)) == pytest.approx(rows)


def test_a_routers_graph_holds_nothing_that_depends_on_its_choice() -> None:
    held = {o.name for o in step_operators(OSS, PLAN) if captured(o, ("router",))}
    assert {"moe.router", "moe.route", "moe.norm"} <= held
    sized = ("up", "down", "activation", "bias", "permute", "sort", "unsort", "unpermute")
    assert not [name for name in held if name.split(".")[1] in sized]


def test_a_block_that_predicts_twice_has_two_heads_more() -> None:
    """NVIDIA-NeMo/Megatron-Bridge recipes/nemotronh/nemotron_3_super.py: mtp_num_layers 2."""
    model = catalog.model("nemotron-3-super-120b-a12b")
    plan = replace(PLAN, mtp=True)
    assert float(blocks(model, plan, stages(model, plan))["head"][2]) == 3.0
    assert float(blocks(model, replace(plan, mtp=False), stages(model, plan))["head"][2]) == 1.0
