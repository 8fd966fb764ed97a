"""What records and functions leave open: nothing of what is added, one of what multiplies, no
limit."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import math
import pkgutil
from collections.abc import Iterator
from statistics import NormalDist
from types import FunctionType, ModuleType

import pytest

import predictor
from predictor.catalog.systems import NODE_FALLBACK
from predictor.hardware.accelerators import DEFAULT_CLOCK
from predictor.memory import MEMORY_FRACTION
from predictor.plans import TrainingPlan
from predictor.plans.fields import (
    AMOUNT,
    BUDGET,
    COUNT,
    LOAD,
    NATURAL,
    PART,
    POSITIVE,
    SHARE,
)
from predictor.precision import ELEMENT_BYTES, PRECISIONS
from predictor.search.ranking import DAY, HOUR
from predictor.serving.clients import VARIATION
from predictor.serving.completion import ROUNDS
from predictor.timing.adaptation import STRAYED
from predictor.units import CM2, GB, GIB, MM, MM2, PJ_PER_BIT, SUFFIXES, Z80

ONES: dict[str, str] = {
    "catalog": "Setting.tp Setting.dp",
    "hardware": "Accelerator.cluster Tier.oversubscription Budget.dies Budget.oversubscription",
    "memory": "",
    "models": "Model.moe_every_n Tower.merged",
    "plans": """
        TrainingPlan.cp TrainingPlan.vpp TrainingPlan.recompute_share TrainingPlan.recompute_chunk
        TrainingPlan.ep TrainingPlan.etp TrainingPlan.expert_load TrainingPlan.expert_chunks
        TrainingPlan.attention_load TrainingPlan.useful ServingPlan.tp ServingPlan.pp
        ServingPlan.dp ServingPlan.ep ServingPlan.polling ServingPlan.expert_load
        ServingPlan.expert_chunks ServingPlan.prefill_tp ServingPlan.prefill_dp
        Optimizer.stretch""",
    "power": "",
    "search": "Rollouts.epochs",
    "serving": """
        Client.burstiness Around.turns FleetSettings.replicas FleetSettings.most DeviceTime.passes
        Work.per_pass Work.launching Work.polling Work.meeting Served.replicas PassTable.meeting""",
    "timing": """
        RunParameters.contention EngineParameters.decode EngineParameters.prefill
        EngineParameters.communication EngineParameters.mixing Shapes.sharing""",
    "training": """
        Reserve.group Environment.factor Environment.young Environment.launch
        Environment.routed Environment.nodes Reliability.blocking""",
    "variation": "Meeting.chunks Meeting.sections Packed.cp_load Packed.useful",
    "work": """
        Operator.k Operator.batch Operator.count Operator.sharing Operator.kernels
        Operator.stretch Pass.stretch Small.times Small.stretch Collective.count
        Collective.calls Collective.copies Reading.split Reading.blocks WorkList.share Region.narrow
        Software.traffic""",
}
"""Fields by room that multiply or divide, or count at least themselves: ranks, shares of a whole,
times. Any other that is open at 0 or 1 is added, and there is none of it."""


def left_open(room: str) -> dict[str, float]:
    """Numbers that records of a room leave open, by 'Record.field'."""
    package = importlib.import_module(f"predictor.{room}")
    names = [one.name for one in pkgutil.iter_modules(package.__path__, f"predictor.{room}.")]
    found = {}
    for name in names:
        for record in vars(importlib.import_module(name)).values():
            if not isinstance(record, type) or record.__module__ != name:
                continue
            for one in dataclasses.fields(record) if dataclasses.is_dataclass(record) else ():
                if type(one.default) in (int, float):
                    found[f"{record.__name__}.{one.name}"] = float(one.default)
    return found


@pytest.mark.parametrize("room", ONES)
def test_what_a_record_leaves_open_changes_nothing(room: str) -> None:
    found, ones = left_open(room), set(ONES[room].split())
    assert {name for name, value in found.items() if value == 1.0} == ones
    assert {found[name] for name in ones} <= {1.0}


def test_every_room_is_looked_at() -> None:
    rooms = {one.name for one in pkgutil.iter_modules(predictor.__path__) if one.ispkg}
    assert rooms == set(ONES) == set(FUNCTIONS)


def test_rooms_leave_the_same_open() -> None:
    """What several records say of one thing, and what follows from something else."""
    wide = ELEMENT_BYTES["fp32"]
    plans, power = left_open("plans"), left_open("power")
    serving, timing = left_open("serving"), left_open("timing")
    work, hardware = left_open("work"), left_open("hardware")
    assert work["Software.state"] == wide, "states of scans add up in 32 bits"
    assert plans["TrainingPlan.optimizer_bytes"] == 3.0 * wide, "weights, and Adam's two moments"
    assert plans["ServingPlan.rounds"] == serving["Work.rounds"] == ROUNDS
    assert plans["ServingPlan.synchrony"] == pytest.approx(1.0 / ROUNDS)
    assert plans["ServingPlan.variation"] == serving["Client.variation"] == VARIATION
    assert serving["Promise.ttft_share"] == serving["Promise.tpot_share"]
    assert left_open("search")["Limits.memory_fraction"] == MEMORY_FRACTION
    assert hardware["Budget.domain"] == hardware["Budget.in_node"] == NODE_FALLBACK
    assert hardware["Accelerator.clock"] == DEFAULT_CLOCK
    # An interval that holds so much of a normal is so many standard deviations to either side.
    level = timing["Calibration.interval_level"]
    assert timing["Calibration.interval_q"] == pytest.approx(
        NormalDist().inv_cdf(0.5 + 0.5 * level), abs=1e-4
    )
    assert timing["Prior.strayed"] == STRAYED
    assert timing["RunParameters.sigma"] == timing["RunParameters.sigma_moe"]
    training = left_open("training")
    assert training["Reserve.repair"] == DAY, "a day"
    assert training["Reserve.returned"] == HOUR, "an hour"
    assert left_open("models")["Model.delta_conv"] == 4.0  # Qwen3-Next's linear_conv_kernel_dim
    assert 1.0 < power["Tariff.pue"] < 1.5


FUNCTIONS: dict[str, str] = {
    "catalog": "",
    "hardware": "",
    "memory": "",
    "models": "experts_hit.ranks hardware_flop_per_token.share",
    "plans": "timeline.fills timeline.vpp precedence.vpp pipeline_time.vpp",
    "power": "operating.clock settle.clock",
    "search": "ratio.weight template.pp",
    "serving": "arrivals.burstiness sessions.turns counts.replicas handed_over.slower",
    "timing": "latency.pace traffic.pace _traffic.copies collective_time.copies",
    "training": "plan.micro_batch goodput.q holding.room remembered.room",
    "variation": "interrupted.group replay.least draw.share packed.cp line_time.vpp",
    "work": """
        _permute.times gemm.batch gemm.count gemm.kernels grouped.count lookup.count streaming.count
        streaming.kernels streaming.stretch adapted.outcomes
        prompt_choice.ratio on.share stream.times product.batch product.groups product.times
        linear.groups""",
}
"""Parameters by room that multiply or divide, are a whole, a rank, a stage or a turn of one, or
count at least themselves. Any other number that is open is added (or begins a sequence of random
numbers), and is 0."""

SIZES: dict[str, float] = {
    "alternatives.most": 3, "ties.most": 200, "search_train.keep": 100, "draw.draws": 400,
    "with_churn.draws": 4000, "gemm.out_bytes": PRECISIONS["bf16"].weight,
}  # fmt: skip
"""How many are shown, kept or drawn unless a caller says so; bytes of 16 bits."""


def functions_of(module: ModuleType) -> Iterator[object]:
    """Those that a module defines, methods with them."""
    for one in vars(module).values():
        if getattr(one, "__module__", "") != module.__name__:
            continue
        if isinstance(one, type):
            yield from (getattr(own, "__func__", own) for own in vars(one).values())
        else:
            yield inspect.unwrap(one) if callable(one) else one


def open_parameters(room: str) -> dict[str, float]:
    """Numbers that functions of a room leave open, by 'function.parameter'."""
    package = importlib.import_module(f"predictor.{room}")
    found = {}
    for own in pkgutil.iter_modules(package.__path__, f"predictor.{room}."):
        for one in functions_of(importlib.import_module(own.name)):
            if not inspect.isfunction(one) or one.__name__ == "__init__":
                continue
            for name, parameter in inspect.signature(one).parameters.items():
                if type(parameter.default) in (int, float) and not is_named(parameter.default, one):
                    found[f"{one.__name__}.{name}"] = float(parameter.default)
    return found


def is_named(value: float, function: FunctionType) -> bool:
    """Whether it is a constant of the function's file, which has its own tests."""
    known = function.__globals__.items()
    return any(name.isupper() and own is value for name, own in known)


@pytest.mark.parametrize("room", FUNCTIONS)
def test_what_a_function_leaves_open_changes_nothing(room: str) -> None:
    found, ones = open_parameters(room), set(FUNCTIONS[room].split())
    assert {name for name, value in found.items() if value == 1.0} == ones
    rest = {name: value for name, value in found.items() if name not in ones}
    assert {one: v for one, v in rest.items() if 0.0 < v < math.inf} == {
        name: value for name, value in SIZES.items() if name in rest
    }


def test_a_plan_that_states_no_bytes_has_those_of_sixteen_bits() -> None:
    """Gradients add up in 32 (Megatron Core's default), logits have their gradients beside them."""
    open_, usual = TrainingPlan(1.0, 1.0, 1.0, 1.0, 1.0, 1.0), PRECISIONS["bf16"]
    assert (open_.weight_bytes, open_.gather_bytes) == (usual.weight, usual.weight)
    assert open_.optimizer_bytes == usual.optimizer
    assert (open_.gradient_bytes, open_.reduce_bytes, open_.logit_bytes) == (4.0, 4.0, 8.0)


def test_what_published_software_takes_unless_told() -> None:
    """Megatron's make-vocab-size-divisible-by; DeepEP's `Buffer.num_sms`; vLLM's tokens of a pass
    on H100 (engine/arg_utils.py @ 0.8.0) and its share of the memory; adapters of rank 16 (PEFT's
    examples), served as they were trained."""
    plans = left_open("plans")
    assert plans["TrainingPlan.vocab_multiple"] == 128.0
    assert plans["TrainingPlan.dispatch_processors"] == 20.0
    assert plans["ServingPlan.chunk"] == 8192.0
    assert plans["ServingPlan.memory_fraction"] == 0.9
    assert plans["TrainingPlan.lora_rank"] == plans["ServingPlan.adapter_rank"] == 16.0
    assert 0.6 <= plans["ServingPlan.acceptance"] <= 0.8


def test_kinds_of_numbers_end_where_their_meaning_does() -> None:
    """Shares at nothing and at all, parts above nothing, ratios from one on, counts at one or at
    nothing."""
    assert (SHARE.least, SHARE.most, PART.above, PART.most) == (0, 1, 0, 1)
    assert (LOAD.least, LOAD.most) == (1, 1000)
    assert (COUNT.least, NATURAL.least, COUNT.most) == (1, 0, NATURAL.most)
    for kind in (POSITIVE, BUDGET, AMOUNT):
        assert kind.below == 1e30
    assert (POSITIVE.above, BUDGET.above, AMOUNT.least) == (0, 0, 0)


def test_units_are_powers_of_ten() -> None:
    """Of a square as the square of its side's; bits an eighth of bytes."""
    assert (GB, GIB) == (10.0**9, 1024.0**3)
    assert pytest.approx(MM**2) == MM2
    assert (MM, CM2) == (1e-3, 1e-4)
    assert pytest.approx(8 * 1e-12) == PJ_PER_BIT
    assert pytest.approx(NormalDist().inv_cdf(0.9), abs=1e-4) == Z80
    for suffix, value in SUFFIXES.items():
        scale = {"g": 9, "t": 12, "m": 6, "k": 3}.get(suffix[1], 0)
        scale = {"_us": -6, "_ms": -3}.get(suffix, scale)
        eighth = 8.0 if suffix == "_gbps" else 1.0
        expected = GIB if suffix == "_gib" else 10.0**scale / eighth
        assert value == pytest.approx(expected), suffix
