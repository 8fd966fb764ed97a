"""Low-rank adapters beside frozen weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from predictor import catalog
from predictor.catalog.artifacts import load
from predictor.memory.training import memory
from predictor.models.model import Model
from predictor.plans.training import TrainingPlan
from predictor.timing.calibration import RunParameters
from predictor.training.calls import ADAPTED, HOOKED, SWITCHED, UNPACKED, calls
from predictor.training.prediction import predict
from predictor.work.communication import step_collectives
from predictor.work.training import step_operators

Make = Callable[..., TrainingPlan]
DGX = catalog.system("dgx-h100")
KERNELS = load("kernels-only")


def adapters(model: Model, rank: int) -> int:
    """Parameters of adapters at the four linear layers, counted from the dimensions."""
    h, ffn = model.hidden, model.ffn_hidden
    qkv = model.attention_width + 2 * model.kv_width
    shapes = ((h, qkv), (model.attention_width, h), (h, 2 * ffn), (ffn, h))
    return model.layers * sum(rank * (k + n) for k, n in shapes)


def test_frozen_weights_have_no_gradients(llama: Model, plan: Make) -> None:
    """Hu et al. 2021: two thirds of the arithmetic of the products, and a little for adapters."""
    full, lora = (plan(tp=1.0, trained=t, attention="unfused") for t in ("all", "lora"))
    flop = [
        sum(
            float(o.flop * o.count)
            for o in step_operators(llama, p)
            if o.op == "gemm" and not o.core
        )
        for p in (full, lora)
    ]
    head = 2.0 * 2048 * float(full.vocab_share(llama.vocab)) * llama.hidden
    added = 3 * 2.0 * 2048 * adapters(llama, 16) / llama.layers
    assert flop[1] == pytest.approx((flop[0] - 3 * head) * 2 / 3 + 2 * head + added)
    frozen = {o.name for o in step_operators(llama, lora)}
    assert not {"mlp.up.wgrad", "head.wgrad", "embedding.bwd", "attention.qkv.bias"} & frozen


def test_only_adapters_have_state(llama: Model, plan: Make) -> None:
    made = plan(tp=1.0, pp=1.0, dp=8.0, trained="lora", lora_rank=8.0, sharding="none")
    found = memory(llama, made, RunParameters()).classes
    held = sum(
        found[f"{part} weights and optimizer"][2] for part in ("layer", "embedding and head")
    )
    padded = 2 * (float(made.vocab_share(llama.vocab)) - llama.vocab) * llama.hidden
    expected = 2 * (llama.parameters + padded) + 18 * adapters(llama, 8)
    assert held == pytest.approx(expected, rel=1e-9)


def test_a_step_is_shorter_and_moves_fewer_gradients(llama: Model, plan: Make) -> None:
    made = plan(tp=4.0, pp=1.0, dp=16.0, sequence_parallel=1.0, grad_overlap=False)
    full, lora = (
        predict(llama, DGX, replace(made, trained=t), KERNELS).breakdown for t in ("all", "lora")
    )
    assert 0.45 < float(lora["backward"] / full["backward"]) < 0.65
    assert lora["dp_communication"] < 0.05 * full["dp_communication"]
    assert lora["optimizer"] < 0.05 * full["optimizer"]


def test_sequence_parallel_inputs_are_not_gathered_again(llama: Model, plan: Make) -> None:
    """The second gathering feeds weight gradients, which frozen weights do not have."""
    made = plan(sequence_parallel=1.0, trained="lora", tp_overlap=True)
    names = {c.name for c in step_collectives(llama, made)}
    assert "mlp.up.gather" in names
    assert "mlp.up.regather" not in names
    behind = {c.behind for c in step_collectives(llama, made) if c.behind}
    assert behind <= {o.name for o in step_operators(llama, made)}


def test_adapters_may_be_at_queries_keys_and_values_only(llama: Model, plan: Make) -> None:
    made = plan(tp=1.0, pp=1.0, dp=8.0, trained="lora_qkv", lora_rank=8.0, sharding="none")
    adapted = {o.name.split(".lora_")[0] for o in step_operators(llama, made) if ".lora_" in o.name}
    assert adapted == {"attention.qkv"}
    qkv = llama.attention_width + 2 * llama.kv_width
    whole, none = (
        memory(llama, replace(made, lora_rank=r), RunParameters()).classes[
            "layer weights and optimizer"
        ][2]
        for r in (8.0, 0.0)
    )
    assert whole - none == pytest.approx(18 * llama.layers * 8 * (llama.hidden + qkv))


def moved(model: Model, made: TrainingPlan, name: str) -> dict[str, float]:
    """Bytes of small kernels around the adapters of a linear layer, all of its matrices' together,
    by what they do."""
    found: dict[str, float] = {}
    for one in step_operators(model, made):
        if one.name.startswith(f"{name}.lora_") and one.op == "elementwise":
            label = one.name.removeprefix(f"{name}.lora_")
            found[label] = found.get(label, 0.0) + float(one.count * one.bytes)
    return found


@pytest.mark.parametrize(
    ("style", "expected"),
    [
        ("joined", {"add": 6, "add.bwd": (6, 1)}),
        ("apart", {"add": 6, "add.bwd": (6, 2), "scale": 4, "scale.bwd": 4}),
        (
            "autocast",
            {"add": 6, "add.bwd": (6, 2), "scale": 4, "scale.bwd": 4, "cast": (12, 2),
             "cast.bwd": (12, 2)},
        ),
        (
            "fp32",
            {"add": 10, "add.bwd": (6, 2), "scale": 8, "scale.bwd": 8, "cast": (6, 2),
             "cast.bwd": (6, 2), "out": 6, "out.bwd": 6},
        ),
    ],
)  # fmt: skip
def test_what_adapters_move(style: str, expected: dict, llama: Model, plan: Make) -> None:
    """Beside gate and up: bytes an element of what comes out, or of the input, once per matrix."""
    made = plan(tp=1.0, pp=1.0, trained="lora", adapter_style=style)
    width, hidden = 2.0 * llama.ffn_hidden, float(llama.hidden)
    bytes_of = {
        label: one * width if isinstance(one, int) else one[0] * one[1] * hidden
        for label, one in expected.items()
    }
    tokens = float(made.tokens)
    found = moved(llama, made, "mlp.up")
    assert found == pytest.approx({label: tokens * one for label, one in bytes_of.items()})


def test_adapters_beside_each_matrix_are_more(llama: Model, plan: Make) -> None:
    """An A for each of queries, keys and values, and of gate and up; no more B."""
    made = plan(tp=1.0, pp=1.0, dp=8.0, trained="lora", lora_rank=8.0, sharding="none")
    joined, apart = (
        memory(llama, replace(made, adapter_style=style), RunParameters()).classes[
            "layer weights and optimizer"
        ][2]
        for style in ("joined", "apart")
    )
    assert apart - joined == pytest.approx(18 * llama.layers * 8 * 3 * llama.hidden)


def test_adapters_in_full_are_multiplied_in_full(llama: Model, plan: Make) -> None:
    made = plan(tp=1.0, pp=1.0, trained="lora", adapter_style="fp32")
    found = {o.dtype for o in step_operators(llama, made) if ".lora_" in o.name and o.op == "gemm"}
    assert found == {"fp32"}
    keeps = [
        sum(float(o.saved * o.count) for o in step_operators(llama, replace(made, adapter_style=s)))
        for s in ("apart", "autocast", "fp32")
    ]
    h, ffn, tokens = llama.hidden, llama.ffn_hidden, float(made.tokens)
    inputs = 3 * h + llama.attention_width + 2 * h + ffn  # of every adapter
    assert keeps[1] - keeps[0] == pytest.approx(2 * tokens * inputs)
    # A's output of 16 channels is kept for B, in fp32 too.
    assert keeps[2] - keeps[1] == pytest.approx(tokens * (2 * inputs + 7 * 2 * 16))


def small(model: Model, made: TrainingPlan, end: str) -> dict[str, tuple[float, float]]:
    """Bytes that operators of a layer move whose names end so, and their exponentials."""
    return {
        o.name: (float(o.bytes * o.count), float(o.exponentials * o.count))
        for o in step_operators(model, made)
        if o.name.endswith(end)
    }


def test_weights_in_four_bits_are_unpacked_for_each_product(llama: Model, plan: Make) -> None:
    """0.516 bytes are read and two written of every weight of a layer, both ways, and 3.3
    exponentials' worth of time is spent on each."""
    made = plan(tp=1.0, trained="lora", frozen_precision="nf4")
    weights = 2.0 * llama.hidden * (llama.attention_width + llama.kv_width)
    weights += 3.0 * llama.hidden * llama.ffn_hidden
    for end in (".widen", ".widen.bwd"):
        found = small(llama, made, end).values()
        assert sum(moved for moved, _ in found) == pytest.approx(2.516 * weights)
        assert sum(worked for _, worked in found) == pytest.approx(3.3 * weights)
    assert not small(llama, plan(tp=1.0, trained="lora"), ".widen")


def test_weights_in_eight_bits_narrow_what_they_read(llama: Model, plan: Make) -> None:
    """7 bytes of each input's elements and 10 of what is put out; widened for the gradient alone,
    their scales in a pass of its own."""
    made = plan(tp=1.0, trained="lora", frozen_precision="int8")
    rows, ffn = float(made.tokens), float(llama.ffn_hidden)
    narrow, scale = (small(llama, made, end) for end in (".narrow", ".scale"))
    assert narrow["mlp.down.narrow"][0] == pytest.approx(7.0 * rows * ffn)
    assert scale["mlp.up.scale"][0] == pytest.approx(10.0 * rows * 2.0 * ffn)
    assert not small(llama, made, ".widen")
    wide = small(llama, made, "mlp.down.widen.bwd")["mlp.down.widen.bwd"]
    assert wide[0] == pytest.approx(7.0 * llama.hidden * ffn)


def test_a_widened_stream_is_kept_and_read_in_fp32(llama: Model, plan: Make) -> None:
    """Twice the stream of every layer, and embedding and output projection in fp32; products of few
    bits put out fp32, too."""
    made = plan(tp=1.0, pp=1.0, dp=8.0, trained="lora", frozen_precision="nf4", recompute="full",
                adapter_style="autocast", sharding="none")  # fmt: skip
    wide = replace(made, stream_widened=True)
    found = [memory(llama, one, RunParameters()).classes for one in (made, wide)]
    kept = [one["activations"].max() for one in found]
    assert kept[1] == pytest.approx(2.0 * kept[0])
    ends = [one["embedding and head weights and optimizer"].max() for one in found]
    assert ends[1] == pytest.approx(2.0 * ends[0])
    moved = [small(llama, one, "mlp.activation")["mlp.activation"][0] for one in (made, wide)]
    assert moved[1] == pytest.approx(2.0 * moved[0])
    assert not small(llama, made, "mlp.up.lora_out")
    assert small(llama, wide, "mlp.up.lora_out")


def test_a_host_calls_modules_hooks_and_switches(llama: Model, plan: Make) -> None:
    """In operators' worth: hooks of what a non-reentrant checkpoint runs again, peft's module
    around an adapter, adapters switched off and on, bitsandbytes around a product."""
    made = plan(tp=1.0, trained="lora", frozen_precision="nf4", recompute="full", fused=False,
                framework="huggingface", stops_early=True, adapter_style="autocast")  # fmt: skip

    def of(name: str, one: TrainingPlan) -> float:
        return next(calls(o, one) for o in step_operators(llama, one) if o.name == name)

    assert of("mlp.up", made) == 1.0
    assert of("mlp.up.again", made) == HOOKED
    assert of("mlp.up.again", replace(made, stops_early=False)) == 1.0
    assert of("mlp.up.again", replace(made, framework="neutral", fused=True)) == 1.0
    for framework, times in (("torchtitan", 1.0), ("huggingface", HOOKED)):
        router = replace(next(o for o in step_operators(llama, made) if o.name == "mlp.up.again"),
                         module="moe")  # fmt: skip
        assert calls(router, replace(made, framework=framework)) == times
    assert of("mlp.up.lora_add", made) == 1.0 + ADAPTED
    switched = replace(made, learns_from="dpo", compared_with="adapters", referred=1.0)
    assert of("mlp.up.lora_add", switched) == 1.0 + ADAPTED + SWITCHED
    assert of("mlp.up.widen", made) == of("mlp.up.widen.bwd", made) == 1.0 + UNPACKED
    assert of("mlp.up.widen.again", made) == HOOKED * (1.0 + UNPACKED)
    assert of("mlp.up.widen", replace(made, framework="neutral")) == 1.0
