from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from predictor import catalog
from predictor.models.flops import model_flop_per_token
from predictor.models.model import Model
from predictor.plans.training import TrainingPlan
from predictor.precision import ELEMENT_BYTES
from predictor.work.communication import Held
from predictor.work.primitives import Operator
from predictor.work.training import flat_operators, step_operators, update_operators
from predictor.work.worklist import LAYER_MODULES
from tests.predictor.work.served import named

Make = Callable[..., TrainingPlan]


def total_flop(model: Model, plan: TrainingPlan) -> float:
    operators = step_operators(model, plan)
    layers = float(model.layers)
    per = {"layer": layers, "dense": layers * model.dense_share, "moe": layers * model.moe_share}
    per |= {"embedding": 1.0, "head": 1.0}
    return sum(float(o.flop * o.count) * per[o.module] for o in operators)


@pytest.mark.parametrize("attention", ["flash", "unfused"])
def test_products_add_up_to_the_published_formula(gpt3: Model, plan: Make, attention: str) -> None:
    made = plan(tp=1.0, pp=1.0, attention=attention, vocab_multiple=1.0)
    convention = "megatron" if attention == "unfused" else "megatron_causal"
    expected = model_flop_per_token(gpt3, made.seq_len, convention) * made.seq_len
    found = total_flop(gpt3, made)
    if attention == "flash":  # the fused backward pass computes the scores once more
        extra = 0.5 * 2.0 * gpt3.attention_width * made.seq_len**2 * gpt3.layers
        found -= extra
    assert found == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("name", ["gpt3-175b", "llama3-70b", "llama3-8b", "mpt-7b"])
@pytest.mark.parametrize("attention", ["flash", "unfused"])
def test_tensor_parallelism_divides_the_products(name: str, attention: str, plan: Make) -> None:
    model = catalog.model(name)
    one = total_flop(model, plan(tp=1.0, attention=attention, vocab_multiple=1.0))
    eight = total_flop(model, plan(tp=8.0, attention=attention, vocab_multiple=1.0))
    assert eight * 8 == pytest.approx(one, rel=2e-3)


def saved(model: Model, plan: TrainingPlan) -> float:
    return sum(float(o.saved) for o in step_operators(model, plan) if o.module in LAYER_MODULES)


@pytest.mark.parametrize("t", [1, 2, 8])
@pytest.mark.parametrize("split", [0, 1])
def test_activation_bytes_are_korthikanti_table_2(
    gpt3: Model, plan: Make, t: int, split: int
) -> None:
    made = plan(tp=float(t), sequence_parallel=float(split), attention="unfused", dropout=True)
    s, b, h, a = 2048, 1, gpt3.hidden, gpt3.heads
    whole = 1 if not split else t
    expected = s * b * h * (10 / whole + 24 / t + 5 * a * s / (h * t))
    assert saved(gpt3, made) == pytest.approx(expected, rel=1e-12)


def test_a_norm_that_nothing_fuses_is_its_kernels(plan: Make) -> None:
    """Llama's RMS norm in 16 bits with its fp32 casts: 36 bytes an element forward, 92 backward,
    against 4 and 6 of the fused one; a layer norm is one kernel either way."""
    llama, mpt = catalog.model("llama3-8b"), catalog.model("mpt-7b")
    for model, expected in ((llama, (36, 92)), (mpt, (4, 6))):
        listed = step_operators(model, plan(tp=1.0, fused=False))
        moved = {o.name: float(o.bytes / (o.m * o.n)) for o in listed if o.op == "norm"}
        assert (moved["mlp.norm"], moved["mlp.norm.bwd"]) == expected
    # Nor does it matter to a norm that is one kernel whether other chains are.
    for made in (plan(), plan(tp=1.0, fused=False, fused_norm=True)):
        fused = {o.name: float(o.bytes / (o.m * o.n)) for o in step_operators(llama, made)}
        assert (fused["mlp.norm"], fused["mlp.norm.bwd"]) == (4, 6)


@pytest.mark.parametrize(("precision", "joined", "apart"), [("bf16", 6, 14), ("fp32", 8, 8)])
def test_a_loss_of_plain_operators_widens_its_logits_first(
    llama: Model, plan: Make, precision: str, joined: int, apart: int
) -> None:
    """Logits of 16 bits are read and written in 32, then read and written as logarithms: 2 + 4 +
    4 + 4 bytes; as much on the way back. In 32 bits there is nothing to widen."""
    for fused, expected in ((True, joined), (False, apart)):
        listed = step_operators(llama, plan(tp=1.0, precision=precision, fused=fused))
        moved = {o.name: float(o.bytes / (o.m * o.n)) for o in listed if o.op == "loss"}
        assert moved == {"loss": expected, "loss.bwd": expected}


def test_flash_attention_keeps_no_scores(gpt3: Model, plan: Make) -> None:
    short = saved(gpt3, plan(tp=1.0, seq_len=1024.0))
    long = saved(gpt3, plan(tp=1.0, seq_len=4096.0))
    assert long == pytest.approx(4 * short)


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize("attention", ["flash", "unfused"])
def test_the_list_depends_on_categories_only(
    llama: Model, plan: Make, recompute: str, attention: str
) -> None:
    one = step_operators(llama, plan(recompute=recompute, attention=attention))
    many = plan(
        tp=np.array([1.0, 2.0, 8.0]),
        sequence_parallel=np.array([0.0, 1.0, 1.0]),
        recompute=recompute,
        attention=attention,
    )
    assert [o.name for o in step_operators(llama, many)] == [o.name for o in one]


def test_recomputation_repeats_forward_kernels(gpt3: Model, plan: Make) -> None:
    none, selective, full = (
        step_operators(gpt3, plan(recompute=r, attention="unfused"))
        for r in ("none", "selective", "full")
    )
    forward = [o for o in none if o.phase == "forward" and o.module in LAYER_MODULES]
    again = [o for o in full if o.phase == "recompute"]
    assert sum(float(o.flop) for o in again) == sum(float(o.flop) for o in forward)
    core = [o for o in selective if o.phase == "recompute"]
    assert {o.name for o in core} == {
        "attention.scores.again",
        "attention.softmax.again",
        "attention.context.again",
    }


def test_gradients_have_twice_the_products_flops(llama: Model, plan: Make) -> None:
    found = named(step_operators(llama, plan()))
    for name in ("attention.qkv", "attention.out", "mlp.up", "mlp.down", "head"):
        both = found[f"{name}.dgrad"].flop + found[f"{name}.wgrad"].flop
        assert both == pytest.approx(2 * found[name].flop)


def test_kv_heads_are_replicated_beyond_their_number(llama: Model, plan: Make) -> None:
    widths = {
        t: float(named(step_operators(llama, plan(tp=float(t))))["attention.qkv"].n)
        for t in (8, 16)
    }
    d = llama.head_dim
    assert widths[8] == (64 / 8 + 2 * 1) * d
    assert widths[16] == (64 / 16 + 2 * 1) * d


def test_fp8_runs_the_linear_layers_only(llama: Model, plan: Make) -> None:
    found = named(step_operators(llama, plan(precision="fp8")))
    assert found["mlp.up.wgrad"].dtype == "fp8"
    assert found["head"].dtype == found["attention"].dtype == "bf16"


def test_adam_moves_thirty_bytes_per_parameter(plan: Make) -> None:
    found = named(update_operators(plan(), 1e9))
    assert found["optimizer"].bytes == pytest.approx(30e9)
    own = plan(weight_bytes=4.0, gradient_bytes=4.0, optimizer_bytes=8.0)
    assert named(update_operators(own, 1e9))["optimizer"].bytes == pytest.approx(28e9)


def test_an_unfused_llama_makes_more_passes(llama: Model, plan: Make) -> None:
    """Eager PyTorch: rotary embedding is two products, a rotation and a sum; the gated activation
    two kernels of three streams (and their gradients)."""
    fused, eager = (named(step_operators(llama, plan(fused=f))) for f in (True, False))
    for name, times in (
        ("attention.rope", 3.0),
        ("attention.rope.bwd", 3.0),
        ("mlp.activation", 5.0 / 3.0),
        ("mlp.activation.bwd", 8.0 / 5.0),
        ("attention.norm", 36 / 4),
    ):
        assert eager[name].bytes == pytest.approx(times * fused[name].bytes)


def test_eager_attention_scales_its_scores_by_a_kernel_of_its_own(gpt3: Model, plan: Make) -> None:
    """Two more passes over 16-bit scores, a read and a write each: one forward, one backward; once
    more where the core is computed again. Nothing else differs."""
    for recompute, again in (("none", 0), ("full", 1)):
        apart, eager = (
            named(step_operators(gpt3, plan(tp=1.0, attention=a, recompute=recompute)))
            for a in ("unfused", "eager")
        )
        more = {name: eager.pop(name) for name in set(eager) - set(apart)}
        for name, one in eager.items():
            other = apart[name]
            assert (float(one.bytes), float(one.saved)) == (float(other.bytes), float(other.saved))
        assert len(more) == 2 + again
        scores = 2048.0 * 2048.0 * gpt3.heads
        assert all(float(one.bytes) == 4.0 * scores for one in more.values())
        assert sum(float(one.saved) for one in more.values()) == 0.0
        assert sum(one.phase == "backward" for one in more.values()) == 1


def test_the_two_ends_move_their_tables(llama: Model, plan: Make) -> None:
    made = plan(tp=1.0, pp=1.0)
    found = named(step_operators(llama, made))
    rows, h, vocab = 2048.0, llama.hidden, float(made.vocab_share(llama.vocab))
    assert found["embedding"].bytes == pytest.approx(2 * 2 * rows * h)
    assert found["embedding.bwd"].bytes == pytest.approx(3 * 2 * rows * h + 2 * vocab * h)
    # 16-bit logits in, fp32 softmax out; backward the other way round.
    assert found["loss"].bytes == found["loss.bwd"].bytes == pytest.approx(6 * rows * vocab)


def test_clipping_reads_gradients_twice_and_writes_them(plan: Make) -> None:
    clipped, free = (
        named(update_operators(plan(grad_clip=c, gradient_bytes=4.0), 1e9))["gradient.clip"].bytes
        for c in (True, False)
    )
    assert (clipped, free) == (16e9, 4e9)  # and clear them, in either case


def casts(llama: Model, made: TrainingPlan) -> dict[str, float]:
    """Bytes of what is cast beside the products of a layer's feed-forward block, by phase."""
    whole = dict.fromkeys(("forward", "backward"), 0.0)
    for one in step_operators(llama, made):
        if one.module == "dense" and (".cast" in one.name or ".turn" in one.name):
            whole[one.phase] += float(one.bytes * one.count)
    return whole


WEIGHTS, INPUTS, OUTPUTS = 3 * 8192 * 28672, 2048 * (8192 + 28672), 2048 * (2 * 28672 + 8192)
"""Elements of a Llama's feed-forward block: its matrices, what goes into them and comes out."""


def test_scales_by_row_cast_both_operands_of_each_product(llama: Model, plan: Make) -> None:
    """Bytes beside the products: weights 2 + 2 + 1 along their rows and their columns, inputs and
    gradients along theirs."""
    made = plan(tp=1.0, pp=1.0, precision="fp8_rowwise")
    found = casts(llama, made)
    assert found["forward"] == pytest.approx(5 * WEIGHTS)
    assert found["backward"] == pytest.approx(5 * WEIGHTS + 5 * (INPUTS + OUTPUTS))


@pytest.mark.parametrize(("precision", "looked"), [("fp8", 2), ("mxfp8", 0)])
def test_what_keeps_nothing_narrow_casts_weights_and_inputs_again(
    precision: str, looked: int, llama: Model, plan: Make
) -> None:
    """torchao: weights 2 + 1 both ways, inputs 2 + 1 for their gradient; with one scale for a
    whole matrix, weights and inputs are read once more to find it. Nothing where all is kept."""
    made = plan(tp=1.0, pp=1.0, precision=precision)
    assert casts(llama, made) == {"forward": 0.0, "backward": 0.0}
    found = casts(llama, replace(made, saves_narrow=False))
    cast = 2 + ELEMENT_BYTES[precision]
    assert found["forward"] == pytest.approx((cast + looked) * WEIGHTS)
    assert found["backward"] == pytest.approx(cast * WEIGHTS + (cast + looked) * INPUTS)
    sent = replace(made, saves_narrow=False, sharding="fsdp", gather_bytes=1.0)
    assert casts(llama, sent)["forward"] == 0.0
    assert casts(llama, sent)["backward"] == pytest.approx((cast + looked) * INPUTS)
    frozen = casts(llama, replace(made, saves_narrow=False, trained="lora"))
    assert frozen == {"forward": found["forward"], "backward": 0.0}


@pytest.mark.parametrize(("reduce_last", "reduced"), [(False, 4.0), (True, 1.0)])
def test_flat_buffers_are_read_and_written_once_more(
    reduce_last: bool, reduced: float, plan: Make
) -> None:
    """Of 1e9 weights in four micro-batches: gathered twice each, 2 + 2 bytes; gradients, in 16
    bits, become 32 as they are copied, each time or once. None without a division."""
    made = plan(tp=1.0, pp=1.0, dp=8.0, global_batch=32.0, sharding="fsdp", flat_copies=True,
                reduce_last=reduce_last, reduce_bytes=4.0)  # fmt: skip
    held = Held(1e9, 1e9)
    found = named(flat_operators(made, held, 8.0))
    assert float(found["weights.copy_out"].bytes) == 4e9
    assert float(found["weights.copy_out"].count) == 8
    assert float(found["gradients.copy_in"].bytes) == 6e9
    assert float(found["gradients.copy_in"].count) == reduced
    assert all(float(o.count) == 0 for o in flat_operators(made, held, 1.0))
    kept = named(flat_operators(replace(made, reshard=False), held, 8.0))
    assert float(kept["weights.copy_out"].count) == 4
    for other in (replace(made, flat_copies=False), replace(made, sharding="zero1")):
        assert flat_operators(other, held, 8.0) == []


def test_per_operator_recomputation_repeats_every_other_matrix(llama: Model, plan: Make) -> None:
    """Queries 1, keys 2, values 3, output 4, gate 5, up 6, down 7: those with even numbers."""
    found = step_operators(llama, plan(recompute="per_op"))
    again = {o.name: float(o.count) for o in found if o.phase == "recompute"}
    assert again["mlp.up.again"] == 0.5
    assert again["attention.qkv.again"] == pytest.approx(1024 / (8192 + 2 * 1024))
    assert again["attention.out.again"] == 1.0
    assert again["mlp.activation.again"] == again["attention.norm.again"] == 1.0
    assert not {"attention.again", "mlp.down.again"} & set(again)
    from predictor.models.flops import hardware_flop_per_token

    kept, more = (
        float(np.asarray(hardware_flop_per_token(llama, 2048.0, "megatron_causal", r)))
        for r in ("none", "per_op")
    )
    repeated = sum(float(o.flop * o.count) for o in found if o.phase == "recompute") * 8 / 2048
    assert more - kept == pytest.approx(repeated * llama.layers, rel=1e-6)


def test_checkpoints_by_operator_end_where_nothing_more_is_needed(llama: Model, plan: Make) -> None:
    for stops, last in ((True, set()), (False, {"mlp.residual.again"})):
        made = step_operators(llama, plan(recompute="per_op", stops_early=stops))
        assert {o.name for o in made if o.name == "mlp.residual.again"} == last


def test_some_layers_may_stay_wide(llama: Model, plan: Make) -> None:
    """15 % of 80 layers are 12, whose products are those of a plan in 16 bits; the others' those of
    a plan without wide layers. Attention and the head are wide in any case."""
    mixed, narrow, wide = (
        step_operators(llama, plan(precision=p, wide_share=share, recompute="per_op"))
        for p, share in (("nvfp4", 0.15), ("nvfp4", 0.0), ("bf16", 0.0))
    )

    def flop(found: Sequence[Operator], dtype: str, phase: str) -> float:
        own = (o for o in found if o.module in ("layer", "dense") and o.phase == phase)
        return sum(float(o.flop * o.count) for o in own if o.op == "gemm" and o.dtype == dtype)

    for phase in ("forward", "recompute", "backward"):
        assert flop(mixed, "nvfp4", phase) == pytest.approx(0.85 * flop(narrow, "nvfp4", phase))
        assert flop(mixed, "bf16", phase) == pytest.approx(0.15 * flop(wide, "bf16", phase))
    assert sum(o.count for o in mixed if o.name == "head") == sum(
        o.count for o in wide if o.name == "head"
    )


def test_checkpoints_by_operator_never_keep_products_of_four_bits(llama: Model, plan: Make) -> None:
    found = step_operators(llama, plan(precision="nvfp4", recompute="per_op", stops_early=True))
    again = {o.name: float(o.count) for o in found if o.phase == "recompute" and o.op == "gemm"}
    whole = ("attention.qkv.again", "attention.out.again", "mlp.up.again")
    assert again == dict.fromkeys(whole, 1.0)


def test_what_ranks_gather_narrow_each_has_narrowed_before(llama: Model, plan: Make) -> None:
    """Of eight ranks each casts an eighth of what all multiply: inputs of the first products of a
    block, gradients of the last's outcome. Scales by row are found after it has been gathered."""

    def came(**fields: object) -> dict[str, float]:
        found = step_operators(llama, plan(tp=8.0, **{"sequence_parallel": 1.0, **fields}))
        inward = [o for o in found if o.op == "gemm" and o.phase in ("forward", "backward")]
        return {o.name: float(np.asarray(o.joined)) for o in inward if o.module != "head"}

    ends = ("attention.qkv", "mlp.up", "attention.out.dgrad", "mlp.down.dgrad")
    found = came(precision="fp8")
    assert {name: found[name] for name in ends} == dict.fromkeys(ends, 0.875)
    others = {name: share for name, share in found.items() if name not in ends}
    assert all(share == 0.0 for name, share in others.items() if not name.endswith("wgrad"))
    both = came(precision="mxfp8")["mlp.up"], came(precision="mxfp8")["mlp.down"]
    assert both[0] == pytest.approx(0.875 + 0.125 * both[1])
    for fields in ({"precision": "fp8_rowwise"}, {"precision": "bf16"}):
        assert set(came(**fields).values()) <= {0.0, 1.0}
    assert came(precision="fp8", sequence_parallel=0.0)["mlp.up"] == 0.0


def test_keys_and_values_move_once_per_rank_beyond_their_heads(llama: Model, plan: Make) -> None:
    """Eight heads of keys: 16 tensor-parallel ranks hold one each, with half the queries of 8."""
    made = {t: named(step_operators(llama, plan(tp=t)))["attention"] for t in (8.0, 16.0)}
    queries, keys = 2 * 2048 * 128 * 2, 2 * 2048 * 128 * 2
    assert made[8.0].bytes == pytest.approx(8 * queries + keys)
    assert made[16.0].bytes == pytest.approx(4 * queries + keys)


@pytest.mark.parametrize("keeps", [True, False])
def test_gradients_of_weights_find_both_operands_narrow_where_these_were_kept(
    keeps: bool, llama: Model, plan: Callable[..., TrainingPlan]
) -> None:
    """Transformer Engine narrows an input forward and a gradient before the product of its input,
    both for either direction; torchao keeps 16 bits and narrows again."""
    made = step_operators(llama, plan(precision="fp8", saves_narrow=keeps))
    narrow = [one for one in made if one.dtype == "fp8"]
    assert {one.variant for one in narrow} == {"fwd", "dgrad", "wgrad"}
    for one in narrow:
        assert one.joined == float(keeps and one.variant == "wgrad")


@pytest.mark.parametrize(
    ("precision", "width"), [("fp8", 0.0), ("mxfp8", 33 / 32), ("nvfp4", 9 / 16)]
)
def test_scales_along_what_is_added_up_are_cast_for_both_directions(
    precision: str, width: float, llama: Model, plan: Callable[..., TrainingPlan]
) -> None:
    """The gradient of weights adds up along tokens, the other products along columns: one kernel
    reads 16 bits and writes narrow ones twice, once more than tables time with a product."""
    made = plan(precision=precision)
    narrow = [one for one in step_operators(llama, made) if one.dtype == precision]
    assert {one.variant for one in narrow} == {"fwd", "dgrad", "wgrad"}
    for one in narrow:
        more = 1.0 if one.variant == "wgrad" else -width / (2 + width)
        assert one.joined == pytest.approx(more)
    for other in (replace(made, saves_narrow=False), replace(made, trained="lora")):
        found = step_operators(llama, other)
        assert all(one.joined == 0.0 for one in found if one.dtype == precision)
