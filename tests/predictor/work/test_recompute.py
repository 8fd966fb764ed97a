"""Named parts of a layer that run again, and what they free, against counts by hand."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from predictor import catalog
from predictor.memory.training import memory
from predictor.models.model import Model
from predictor.plans.training import RECOMPUTE_MODULES, TrainingPlan
from predictor.timing.calibration import RunParameters
from predictor.work.communication import step_collectives
from predictor.work.recompute import PARTS
from predictor.work.training import step_operators

Make = Callable[..., TrainingPlan]
DEEPSEEK = catalog.model("deepseek-v3")
MIXTRAL = catalog.model("mixtral-8x7b")


def again(model: Model, plan: TrainingPlan) -> set[str]:
    found = [o for o in step_operators(model, plan) if o.phase == "recompute"]
    return {operator.name.removesuffix(".again") for operator in found}


def kept(model: Model, plan: TrainingPlan) -> float:
    return float(memory(model, plan, RunParameters()).classes["activations"][2])


def test_every_named_part_has_its_rules() -> None:
    assert tuple(PARTS) == RECOMPUTE_MODULES


@pytest.mark.parametrize(
    ("part", "names"),
    [
        ("core_attn", {"attention"}),
        ("layernorm", {"attention.norm", "mlp.norm"}),
        ("mlp", {"mlp.up", "mlp.activation", "mlp.down"}),
        ("core_attn,mlp", {"attention", "mlp.up", "mlp.activation", "mlp.down"}),
    ],
)
def test_a_part_runs_again(llama: Model, plan: Make, part: str, names: set[str]) -> None:
    assert again(llama, plan(recompute="selective", recompute_modules=part)) == names


def test_latents_are_projected_up_again(plan: Make) -> None:
    """DeepSeek-V3: of queries and keys of 192 and values and outputs of 128, the last are kept."""
    plain = plan(tp=1.0, pp=1.0, global_batch=1.0, mtp=False)
    made = plan(
        tp=1.0, pp=1.0, global_batch=1.0, mtp=False,
        recompute="selective", recompute_modules="mla_up_proj",
    )  # fmt: skip
    assert again(DEEPSEEK, made) == {"attention.q_up", "attention.kv_up", "attention.rope"}
    per_token = 128 * (2 * (2 * 192 + 2 * 128) + 4)
    freed = 61 * 2048 * per_token * (2 * 192 + 128) / (2 * 192 + 2 * 128)
    assert kept(DEEPSEEK, plain) - kept(DEEPSEEK, made) == pytest.approx(freed)


def test_a_feed_forward_block_that_runs_again_keeps_its_input(llama: Model, plan: Make) -> None:
    """Gate and up (2 f) and their product (f), 2 bytes each, are not kept."""
    plain, made = (
        plan(tp=1.0, pp=1.0, recompute=r, recompute_modules="mlp", global_batch=1.0)
        for r in ("none", "selective")
    )
    freed = 2 * 3 * llama.ffn_hidden * 2048 * llama.layers
    assert kept(llama, plain) - kept(llama, made) == pytest.approx(freed)


def test_a_mixture_that_runs_again_sends_its_tokens_again(plan: Make) -> None:
    common = {"tp": 1.0, "pp": 1.0, "dp": 8.0, "ep": 8.0, "recompute": "selective"}
    made = plan(**common, recompute_modules="moe")
    sent = {c.name for c in step_collectives(MIXTRAL, made) if c.phase == "recompute"}
    assert {"moe.dispatch.again", "moe.combine.again"} <= sent
    core = plan(**common, recompute_modules="core_attn")
    assert not {c.name for c in step_collectives(MIXTRAL, core)} & sent
    assert {"moe.router", "moe.up", "moe.down", "moe.permute"} <= again(MIXTRAL, made)
    # Of the block only its norm's input and its own are kept: 2 x 2 bytes of each token's width.
    block = [o for o in step_operators(MIXTRAL, made) if o.module == "moe"]
    saved = sum(float(o.saved) for o in block) * 32
    left = 2 * 2 * 2048 * 4096 * 32
    plain = plan(**{**common, "recompute": "none"}, global_batch=8.0)
    less = plan(**common, recompute_modules="moe", global_batch=8.0)
    assert kept(MIXTRAL, plain) - kept(MIXTRAL, less) == pytest.approx(saved - left)


def test_parts_add_up(llama: Model, plan: Make) -> None:
    """Naming more parts never keeps more, nor runs less."""
    common = {"tp": 1.0, "pp": 1.0, "recompute": "selective"}
    some, all_ = ("mlp", "core_attn,layernorm,mlp")
    made = [plan(**common, recompute_modules=parts) for parts in (some, all_)]
    assert kept(llama, made[1]) < kept(llama, made[0])
    assert again(llama, made[0]) < again(llama, made[1])


def test_an_activation_that_alone_runs_again(llama: Model, plan: Make) -> None:
    """Of gate, up (2 f) and their product (f) the last is not kept, 2 bytes each; where the whole
    block is named, nothing more is."""
    common = {"tp": 1.0, "pp": 1.0, "global_batch": 1.0, "recompute": "selective"}
    made = plan(**common, recompute_modules="mlp_act")
    assert again(llama, made) == {"mlp.activation"}
    plain = plan(tp=1.0, pp=1.0, global_batch=1.0)
    freed = 2 * llama.ffn_hidden * 2048 * llama.layers
    assert kept(llama, plain) - kept(llama, made) == pytest.approx(freed)
    whole, both = (plan(**common, recompute_modules=parts) for parts in ("mlp", "mlp,mlp_act"))
    assert kept(llama, both) == kept(llama, whole)
    assert again(llama, both) == again(llama, whole)


def test_experts_whose_activation_alone_runs_again(plan: Make) -> None:
    """Mixtral: two of eight experts see each token; of 4096 + 3 x 14336 values of each copy the
    activation's 14336 are not kept, at 2 bytes."""
    common = {"tp": 1.0, "pp": 1.0, "dp": 8.0, "ep": 8.0, "global_batch": 8.0}
    made = plan(**common, recompute="selective", recompute_modules="moe_act")
    assert again(MIXTRAL, made) == {"moe.activation"}
    freed = 2 * 2 * 2048 * 14336 * 32
    assert kept(MIXTRAL, plan(**common)) - kept(MIXTRAL, made) == pytest.approx(freed)
    both = plan(**common, recompute="selective", recompute_modules="moe,moe_act")
    alone = plan(**common, recompute="selective", recompute_modules="moe")
    assert again(MIXTRAL, both) == again(MIXTRAL, alone)


def test_shared_experts_run_again(plan: Make) -> None:
    common = {"tp": 1.0, "pp": 1.0, "dp": 8.0, "ep": 8.0, "global_batch": 8.0, "mtp": False}
    made = plan(**common, recompute="selective", recompute_modules="shared_experts")
    assert again(DEEPSEEK, made) == {"shared.up", "shared.activation", "shared.down"}
    assert kept(DEEPSEEK, made) < kept(DEEPSEEK, plan(**common))


def test_one_input_of_so_many_layers_is_kept(llama: Model, plan: Make) -> None:
    """Uniform recomputation of chunks of four keeps a quarter of the inputs, and works on four
    layers at a time."""
    common = {"tp": 1.0, "pp": 1.0, "recompute": "full", "global_batch": 1.0}
    one, four = (
        memory(llama, plan(**common, recompute_chunk=chunk), RunParameters()).classes
        for chunk in (1.0, 4.0)
    )
    assert float(one["activations"][2]) == pytest.approx(4 * float(four["activations"][2]))
    passing = memory(llama, plan(**{**common, "recompute": "none"}), RunParameters()).classes
    work = [float(found["backward workspace"][1]) for found in (one, four, passing)]
    assert 4 * (work[0] - work[2]) == pytest.approx(work[1] - work[2])


def test_what_stops_early_leaves_the_end_of_a_layer(llama: Model, plan: Make) -> None:
    """The gradients of the last product need its inputs, not what it put out (torch/utils/
    checkpoint.py: non-reentrant checkpoints stop once all needed tensors are there)."""
    whole, short = (plan(recompute="full", stops_early=early) for early in (False, True))
    assert again(llama, whole) - again(llama, short) == {"mlp.down", "mlp.residual"}
    nothing = plan(recompute="none", stops_early=True)
    assert not again(llama, nothing)


def test_collectives_after_the_end_do_not_run_again(llama: Model, plan: Make) -> None:
    """Of two gathers and two scatters of a layer's forward pass, the last scatter is left out."""

    def count(op: str, early: bool) -> float:
        made = plan(tp=2.0, sequence_parallel=1.0, recompute="full", stops_early=early)
        found = step_collectives(llama, made)
        return sum(float(c.count) for c in found if c.phase == "recompute" and c.op == op)

    assert [count("reducescatter", early) for early in (False, True)] == [2.0, 1.0]
    assert [count("allgather", early) for early in (False, True)] == [2.0, 2.0]
