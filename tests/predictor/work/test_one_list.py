"""Training and serving are the same list: the forward pass of a step is a prefill of its tokens."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest

from predictor import catalog
from predictor.memory.serving import weight_bytes
from predictor.models.model import Model
from predictor.plans.serving import ServingPlan
from predictor.plans.training import TrainingPlan
from predictor.work.layer import embedding, head, layer_blocks, mean_layer
from predictor.work.primitives import Operator
from predictor.work.serving import (
    end_operators,
    layer_operators,
    pass_collectives,
    prefill_attention,
    prompts,
    serving_list,
)
from predictor.work.training import step_operators, training_list
from predictor.work.worklist import LAYER_MODULES

MODELS = (
    "gpt3-175b",  # products with biases, gelu, learned positions
    "llama3-70b",  # grouped heads, gated
    "falcon-40b",
    "gemma3-12b",  # windows
    "gpt-oss-20b",  # windows and experts
    "mixtral-8x7b",
    "qwen3-30b-a3b",
    "deepseek-v2-lite",  # latents of keys alone
    "deepseek-v3",  # latents of queries too, shared experts
    "nemotron-h-8b",  # state space
    "nemotron-3-nano-30b-a3b",  # state space and experts
    "nemotron-3-super-120b-a12b",  # experts on narrower tokens
)
KIMI = ("kimi-linear-48b-a3b", "kimi-k3")  # decays by channel, a gate at once or through few
SEQUENCES, LENGTH = 2.0, 2048.0
SPLIT = ("moe.router", "moe.route", "moe.latent_down", "moe.latent_up", "moe.permute")
"""What a rank does for its own tokens in training, and for all of them while serving, where every
tensor-parallel rank has them."""


def even(name: str) -> Model:
    """A model of the catalog, its vocabulary padded so that ranks share it evenly."""
    model = catalog.model(name)
    return replace(model, vocab=64 * math.ceil(model.vocab / 64))


def plans(tp: float, ep: float) -> tuple[TrainingPlan, ServingPlan]:
    """Both of one replica: experts divided among `ep` ranks of its `tp`, and split by the rest."""
    trained = TrainingPlan(
        tp=tp, pp=1.0, dp=1.0, micro_batch=SEQUENCES, global_batch=SEQUENCES, seq_len=LENGTH,
        ep=ep, etp=tp / ep, mtp=False, vocab_multiple=1.0,
    )  # fmt: skip
    served = ServingPlan(batch=SEQUENCES, input_len=LENGTH, output_len=1.0, tp=tp, ep=ep)
    return trained, served


ENOUGH = 1e13
"""Tokens that leave no expert without any."""


def prefill(model: Model, plan: ServingPlan, tokens: float = SEQUENCES * LENGTH) -> list[Operator]:
    """All kernels of a pass over whole prompts that yields all logits."""
    found = layer_operators(model, plan, tokens) + end_operators(model, plan, tokens, tokens)
    return found + prefill_attention(model, plan, SEQUENCES, LENGTH)


def blocks(model: Model, operator: Operator) -> float:
    """How many units of an operator's module a model has where a list counts them one by one."""
    units = {"dense": model.ffn_blocks - model.moe_layers, "moe": model.moe_layers}
    ends = dict.fromkeys(("embedding", "head"), 1)
    return float({"layer": model.layers, **units, **ends}[operator.module])


def arithmetic(model: Model, found: list[Operator], *, counted: bool) -> dict[str, float]:
    """FLOPs by part of the model; `counted` where counts are of all layers already."""
    total: dict[str, float] = defaultdict(float)
    for one in found:
        flop = float(one.flop * one.count) * (1.0 if counted else blocks(model, one))
        if flop and one.name not in SPLIT:
            total[one.name.split(".")[0]] += flop
    return total


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(("tp", "ep"), [(1.0, 1.0), (4.0, 1.0), (4.0, 4.0)])
def test_a_forward_pass_and_a_prefill_multiply_alike(name: str, tp: float, ep: float) -> None:
    """Whatever each joins in one kernel: products and attention are the model's."""
    model = even(name)
    trained, served = plans(tp, ep)
    forward = [o for o in step_operators(model, trained) if o.phase == "forward"]
    ours = arithmetic(model, forward, counted=False)
    theirs = arithmetic(model, prefill(model, served), counted=True)
    assert ours.keys() == theirs.keys()
    for part, flop in ours.items():
        assert flop == pytest.approx(theirs[part], rel=1e-9), part


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(("tp", "ep"), [(1.0, 1.0), (4.0, 1.0), (4.0, 4.0)])
@pytest.mark.parametrize("attention", ["flash", "unfused"])
def test_run_by_the_same_software_they_are_the_same_kernels(
    name: str, tp: float, ep: float, attention: str
) -> None:
    model = even(name)
    trained, served = plans(tp, ep)
    trained = replace(trained, attention=attention)
    at = serving_list(model, served, SEQUENCES * LENGTH)
    learned = training_list(model, trained)
    # Training's tokens are many enough for all experts; a few would miss some of them.
    portion = replace(at.portion, busy=learned.portion.busy)
    at = replace(at, software=learned.software, portion=portion)
    layer_blocks(at, mean_layer(model), prompts(model, SEQUENCES, LENGTH))
    embedding(at.on("embedding"))
    head(at.on("head"), SEQUENCES * LENGTH)
    theirs = {o.name: o for o in at.operators if o.name != "sample"}
    ours = {o.name: o for o in step_operators(model, trained) if o.phase == "forward"}
    for name in ("loss", "loss.over"):
        ours.pop(name)
    assert list(ours) == list(theirs)
    for label, one in ours.items():
        if tp > 1 and label in (*SPLIT, "moe.unpermute"):
            continue
        other = theirs[label]
        for quantity in ("m", "n", "k", "batch", "flop", "bytes", "count", "idle"):
            assert np.allclose(
                getattr(one, quantity), getattr(other, quantity), rtol=1e-9, atol=0.0
            ), (label, quantity)
        assert (one.op, one.variant, one.dtype, one.module) == (
            other.op, other.variant, other.dtype, other.module,
        )  # fmt: skip
        assert other.saved == 0.0


@pytest.mark.parametrize("name", [*MODELS, "qwen3-next-80b-a3b", "deepseek-v3.2", *KIMI])
def test_the_weights_of_the_list_are_the_parameters_of_the_model(name: str) -> None:
    """Every matrix once; norms and biases aside, and the kernels of short convolutions, which are
    in no product. Experts count where all of them have tokens."""
    model = catalog.model(name)
    trained, served = plans(1.0, 1.0)
    convolution = model.delta_layers * model.delta_conv * model.delta_mixed_width
    expected = model.matrix_parameters() - convolution + model.vocab * model.hidden
    found = 0.0
    for one in prefill(model, served, ENOUGH):
        if one.op == "moe_gemm":
            found += float((3 if model.gated else 2) * one.n * one.k * one.batch * one.count)
        elif one.op == "gemm" and one.variant == "fwd":
            found += float(one.n * one.k * one.count)
    assert found == pytest.approx(expected, rel=1e-9)
    forward = [o for o in step_operators(model, trained) if o.phase == "forward"]
    products = [o for o in forward if o.op == "gemm" and o.variant == "fwd"]
    held = sum(float(o.n * o.k * o.batch * o.count) * blocks(model, o) for o in products)
    assert held == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("name", MODELS)
def test_ranks_divide_the_arithmetic(name: str) -> None:
    """All of it but the projections to latents, which every rank has whole, and the choice of
    experts."""
    model = even(name)
    one, two = (
        [o for o in prefill(model, plans(tp, 1.0)[1]) if o.name != "attention.down"]
        for tp in (1.0, 2.0)
    )
    halves = arithmetic(model, two, counted=True)
    for part, flop in arithmetic(model, one, counted=True).items():
        assert halves[part] == pytest.approx(flop / 2, rel=1e-9), part


@pytest.mark.parametrize("name", ["llama3-70b", "mixtral-8x7b", "deepseek-v3", "nemotron-h-8b"])
def test_weights_in_memory_are_those_that_are_read(name: str) -> None:
    """In 16 bits: matrices of the list and the embedding, and vectors beside them."""
    model = catalog.model(name)
    _, served = plans(1.0, 1.0)
    products = [
        o
        for o in prefill(model, served, ENOUGH)
        if o.op == "moe_gemm" or (o.variant == "fwd" and o.flop)
    ]
    sides = {"moe_gemm": 3 if model.gated else 2}
    read = sum(
        2.0 * float(sides.get(o.op, 1) * o.n * o.k * o.count)
        * (float(o.batch) if o.op == "moe_gemm" else 1.0)
        for o in products
    )  # fmt: skip
    tables = model.embedding_parameters - (model.vocab * model.hidden - model.head_parameters)
    vectors = float(weight_bytes(model, served)) - read - 2.0 * tables
    assert vectors == pytest.approx(2.0 * model.vector_parameters, abs=1e-6 * read)


def test_a_list_without_a_backward_pass_keeps_nothing(llama: Model) -> None:
    _, served = plans(1.0, 1.0)
    assert all(o.saved == 0.0 and o.phase == "forward" for o in prefill(llama, served))


def test_an_adapter_leaves_the_products_of_its_layer_as_they_are(llama: Model) -> None:
    """Training what is added beside frozen weights multiplies them forward all the same."""
    trained, _ = plans(2.0, 1.0)
    whole, adapted = (
        {
            o.name: float(o.flop)
            for o in step_operators(llama, replace(trained, trained=kind))
            if o.phase == "forward" and o.module in LAYER_MODULES
        }
        for kind in ("all", "lora")
    )
    assert {name: adapted[name] for name in whole} == whole
    assert all(".lora_" in name for name in adapted.keys() - whole.keys())


def test_tokens_travel_to_their_experts_as_wide_as_they_enter_them() -> None:
    """Nemotron 3 Super projects tokens from 4096 to 1024 before it sends them to 22 experts."""
    model = catalog.model("nemotron-3-super-120b-a12b")
    own = replace(plans(1.0, 1.0)[1], dp=8.0, ep=8.0, batch=8.0)
    sent = {c.name: c.bytes for c in pass_collectives(model, own, 10.0, 1.0)}["moe.dispatch"]
    assert sent == 2 * 10 * 22 * 1024
    put = {o.name: o for o in layer_operators(model, own, 10.0)}
    assert put["moe.experts"].k == put["moe.latent_down"].n == put["moe.latent_up"].k == 1024
