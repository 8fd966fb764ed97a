from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictor import catalog
from predictor.catalog.artifacts import load
from predictor.catalog.forms import parse
from predictor.catalog.specs import TrainingPlanSpec
from predictor.memory.kept import GOING, kept_by
from predictor.memory.parameters import layer_parameters
from predictor.memory.training import CLASSES, DRIVER, memory
from predictor.models.model import Model
from predictor.plans.training import TrainingPlan
from predictor.timing.calibration import RunParameters
from predictor.training.completion import complete_training
from predictor.units import GIB
from predictor.work.training import step_operators

Make = Callable[..., TrainingPlan]
RUN = RunParameters()

PLANS = {  # Korthikanti et al. 2022, table 3
    "22B": ("korthikanti-22b", 1, 1, 4, 4),
    "175B": ("korthikanti-175b", 8, 3, 1, 64),
    "530B": ("korthikanti-530b", 35, 3, 1, 280),
    "1T": ("korthikanti-1t", 64, 1, 1, 512),
}


def published() -> list[tuple[str, str, float]]:
    path = catalog.data_dir() / "reference" / "memory_korthikanti.csv"
    with path.open() as stream:
        rows = list(csv.DictReader(stream))
    return [
        (row["model"], row["quantity"], float(row["published"]))
        for row in rows
        if row["quantity"].endswith("_GiB")
    ]


@pytest.mark.parametrize(("name", "quantity", "gib"), published())
def test_the_twelve_published_values(name: str, quantity: str, gib: float, plan: Make) -> None:
    model, pp, vpp, micro, batch = PLANS[name]
    selective = "selective" in quantity
    made = plan(
        pp=float(pp),
        vpp=float(vpp),
        micro_batch=float(micro),
        global_batch=float(batch),
        precision="fp16",
        recompute="selective" if selective else "none",
        sequence_parallel=float(selective),
        attention="unfused",
        dropout=True,
        sharding="none",
    )
    classes = memory(catalog.model(model), made, RUN).classes
    which = "layer weights and optimizer" if "params" in quantity else "activations"
    # One stage in all is of the kind 'last'; several: the first holds most.
    stage = 2 if pp == 1 else 0
    assert classes[which][stage] / GIB == pytest.approx(gib, rel=1e-3)


def test_there_are_twelve_of_them() -> None:
    assert len(published()) == 12


def test_full_recomputation_keeps_the_layer_input(gpt3: Model, plan: Make) -> None:
    made = plan(pp=1.0, recompute="full", attention="unfused", dropout=True)
    kept = memory(gpt3, made, RUN).classes["activations"][2]
    assert kept == pytest.approx(2 * 2048 * gpt3.hidden * gpt3.layers)


def test_classes_add_up_to_the_peak(llama: Model, plan: Make) -> None:
    found = memory(llama, plan(), RUN)
    assert set(found.classes) == set(CLASSES)
    assert max(sum(found.classes[c][i] for c in CLASSES) for i in range(3)) == found.peak


@given(
    st.sampled_from([1, 2, 4, 8]),
    st.sampled_from([1, 2, 4, 8]),
    st.sampled_from(["none", "zero1", "zero2", "zero3"]),
)
def test_sharding_never_needs_more(tp: int, dp: int, sharding: str) -> None:
    model = catalog.model("llama3-8b")

    def peak(kind: str, ranks: int) -> float:
        made = TrainingPlan(float(tp), 1.0, float(ranks), 1.0, 8.0, 4096.0, sharding=kind)
        found = memory(model, made, RUN)
        return float(found.classes["layer weights and optimizer"][2])

    assert peak(sharding, dp) <= peak("none", dp) * (1 + 1e-12)
    assert peak(sharding, 2 * dp) <= peak(sharding, dp) * (1 + 1e-12)


def test_state_is_eighteen_bytes_per_parameter(llama: Model, plan: Make) -> None:
    made = plan(tp=1.0, pp=1.0, sharding="none")
    found = memory(llama, made, RUN).classes["layer weights and optimizer"][2]
    assert found == pytest.approx(18.0 * llama.layers * layer_parameters(llama, 1.0))


def classes(model: Model, plan: TrainingPlan, run: RunParameters = RUN) -> dict[str, float]:
    """Bytes by class on the last stage."""
    return {name: float(value[2]) for name, value in memory(model, plan, run).classes.items()}


def test_fully_sharded_weights_are_gathered_two_layers_at_a_time(llama: Model, plan: Make) -> None:
    common = {"tp": 1.0, "pp": 1.0, "dp": 64.0, "gather_bytes": 2.0, "reduce_bytes": 4.0}
    found = classes(llama, plan(**common, sharding="fsdp"))
    assert found["gathered layers"] == pytest.approx((2 * 2 + 4) * layer_parameters(llama, 1.0))
    assert classes(llama, plan(**common, sharding="zero1"))["gathered layers"] == 0


def test_weights_that_are_not_resharded_stay(llama: Model, plan: Make) -> None:
    common = {"tp": 1.0, "pp": 1.0, "dp": 64.0, "sharding": "fsdp", "reduce_bytes": 4.0}
    found = classes(llama, plan(**common, reshard=False))["gathered layers"]
    assert found == pytest.approx((2 * llama.layers + 4) * layer_parameters(llama, 1.0))


def test_gradients_that_are_reduced_last_add_up_whole(llama: Model, plan: Make) -> None:
    """FSDP2 without synchronization: of each parameter 2 bytes of weights and 4 of moments on four
    ranks, and 4 of gradients whole; with one micro-batch nothing adds up."""
    common = {"tp": 1.0, "pp": 1.0, "dp": 4.0, "sharding": "fsdp", "gradient_bytes": 2.0,
              "optimizer_bytes": 4.0, "micro_batch": 1.0, "reduce_last": True}  # fmt: skip
    parameters = llama.layers * layer_parameters(llama, 1.0)
    found = classes(llama, plan(**common, global_batch=8.0))["layer weights and optimizer"]
    assert found == pytest.approx(parameters * (6.0 / 4.0 + 4.0))
    alone = classes(llama, plan(**common, global_batch=4.0))["layer weights and optimizer"]
    assert alone == pytest.approx(parameters * 8.0 / 4.0)


def test_ranks_may_hold_the_vocabulary_whole(llama: Model, plan: Make) -> None:
    """Logits and embedding of all, the output projection of a quarter."""
    common = {"tp": 4.0, "pp": 1.0, "sharding": "none"}
    part, whole = (classes(llama, plan(**common, vocab_parallel=own)) for own in (True, False))
    table = 18.0 * llama.vocab * llama.hidden
    edges = "embedding and head weights and optimizer"
    assert whole[edges] - part[edges] == pytest.approx(0.75 * table, rel=5e-3)
    logits = "embedding and head activations"
    assert whole[logits] > 3.0 * part[logits]


def test_narrow_products_keep_narrow_inputs(llama: Model, plan: Make) -> None:
    """The inputs of the linear layers, of 8 bits instead of 16."""
    wide, narrow = (
        classes(llama, plan(tp=1.0, pp=1.0, precision=p))["activations"] for p in ("bf16", "fp8")
    )
    inputs = 2 * llama.hidden + llama.ffn_hidden  # attention keeps the output projection's itself
    assert wide - narrow == pytest.approx(2048 * llama.layers * inputs)


def test_full_recomputation_needs_one_layer_at_work(gpt3: Model, plan: Make) -> None:
    """Beside the gradients that pass through a layer however much is recomputed."""
    common = {"pp": 1.0, "attention": "unfused", "dropout": True, "logit_bytes": 1e-6}
    one = classes(gpt3, plan(**common, global_batch=1.0))["activations"] / gpt3.layers
    found, without = (
        classes(gpt3, plan(**common, recompute=r))["backward workspace"] for r in ("full", "none")
    )
    assert without > 0.0
    assert found - without == pytest.approx(one)


def test_recomputation_keeps_less_the_more_it_repeats(llama: Model, plan: Make) -> None:
    kept = [
        classes(llama, plan(recompute=r, attention="unfused"))["activations"]
        for r in ("none", "selective", "per_op", "full")
    ]
    assert kept[0] > kept[1] > kept[2] > kept[3] > 0


def test_the_allocator_loses_a_share_of_all_but_the_context(llama: Model, plan: Make) -> None:
    found = classes(llama, plan(), RunParameters(context=3e9, fragmentation=0.1))
    lost = found.pop("fragmentation")
    context = found.pop("context")
    assert 0.0 < context <= 3e9
    assert lost == pytest.approx(0.1 * sum(found.values()))


@pytest.mark.parametrize(("fields", "gb"), [({"dp": 1.0}, 0.6), ({"dp": 8.0}, 3.0)])
def test_a_device_by_itself_has_no_communicators(
    llama: Model, plan: Make, fields: dict[str, float], gb: float
) -> None:
    """The driver's 0.6 GB alone, or all of the context."""
    found = classes(llama, plan(tp=1.0, pp=1.0, **fields), RunParameters(context=3e9))
    assert found["context"] == pytest.approx(gb * 1e9)


def test_frozen_weights_may_be_narrower_than_they_are_multiplied(llama: Model, plan: Make) -> None:
    """Layers of Llama 3 70B: 68.45e9 parameters; 0.516 bytes each in nf4, 1 in fp8, 2 in bf16."""
    one = {"tp": 1.0, "pp": 1.0, "dp": 1.0, "trained": "lora_qkv", "lora_rank": 8.0}
    stored = {
        name: classes(llama, plan(**one, frozen_precision=name))["layer weights and optimizer"]
        for name in ("as multiplied", "fp8", "nf4")
    }
    assert stored["as multiplied"] - stored["fp8"] == pytest.approx(68.45e9, rel=0.001)
    assert stored["as multiplied"] - stored["nf4"] == pytest.approx(1.484 * 68.45e9, rel=0.001)


def test_what_no_adapter_reads_is_not_kept(llama: Model, plan: Make) -> None:
    """Adapters beside queries, keys and values alone: the inputs of the other products, of hidden,
    hidden and feed-forward width, go (those of attention's output are attention's own)."""
    every, some = (
        classes(llama, plan(tp=1.0, pp=1.0, trained=trained))["activations"]
        for trained in ("lora", "lora_qkv")
    )
    tokens = float(plan().micro_batch * plan().seq_len)
    gone = 2.0 * tokens * (llama.hidden + llama.ffn_hidden) * llama.layers
    low = 2.0 * tokens * 16.0 * 5 * llama.layers  # x A of every adapter that went
    assert every - some == pytest.approx(gone + low, rel=0.02)


def test_what_frameworks_keep_of_narrow_products(llama: Model, plan: Make) -> None:
    """Inputs of the four products of a layer in 16 bits rather than 8: a byte an element more."""
    narrow, wide = (
        classes(llama, plan(tp=1.0, pp=1.0, precision="fp8", saves_narrow=saves, fused=False))[
            "activations"
        ]
        for saves in (True, False)
    )
    tokens = float(plan().micro_batch * plan().seq_len)
    # Attention's output is kept by attention itself.
    widths = 2 * llama.hidden + llama.ffn_hidden
    assert wide - narrow == pytest.approx(tokens * widths * llama.layers, rel=0.01)


def test_gradients_that_add_up_before_they_are_reduced(llama: Model, plan: Make) -> None:
    """Under a pipeline whose gathered weights are kept, all layers of a stage wait unreduced."""
    common = {"tp": 1.0, "pp": 8.0, "dp": 8.0, "sharding": "fsdp", "global_batch": 512.0}
    kept, dropped = (
        classes(llama, plan(**common, reshard=again))["gathered layers"] for again in (False, True)
    )
    layer = 68.45e9 / llama.layers
    assert dropped == pytest.approx(layer * (2 * 2.0 + 4.0), rel=0.001)
    assert kept == pytest.approx(10 * layer * (2.0 + 4.0), rel=0.001)


def test_a_tied_embedding_is_held_once_or_at_both_ends(plan: Make) -> None:
    model = catalog.model("gpt3-175b")
    assert model.tied_embeddings
    table = 16.0 * catalog_table(model)
    one = classes(model, plan(tp=8.0, pp=1.0, weight_bytes=0.0, gradient_bytes=4.0))
    two = memory(model, plan(tp=8.0, pp=2.0, weight_bytes=0.0, gradient_bytes=4.0), RUN).classes
    key = "embedding and head weights and optimizer"
    positions, norm = 16.0 * 2048 * model.hidden, 16.0 * 2 * model.hidden
    assert one[key] == pytest.approx(table + positions + norm)
    assert two[key][0] == pytest.approx(table + positions)
    assert two[key][2] == pytest.approx(table + norm)


def catalog_table(model: Model) -> float:
    """Embedding elements on one of eight ranks, whose vocabulary is padded to 128 rows each."""
    return float(-(-model.vocab // 1024) * 128 * model.hidden)


def test_logits_are_kept_on_the_last_stage_only(llama: Model, plan: Make) -> None:
    found = memory(llama, plan(), RUN).classes["embedding and head activations"]
    logits = (2 + 4) * 2048 * 128256 / 8  # 16-bit logits and their fp32 softmax
    assert found[2] > logits > found[0]


def test_sharded_state_is_divided_over_its_own_group(llama: Model, plan: Make) -> None:
    common = {"tp": 1.0, "pp": 1.0, "dp": 64.0, "sharding": "hsdp"}
    key = "layer weights and optimizer"
    over64 = classes(llama, plan(**common))[key]
    over8 = classes(llama, plan(**common, dp_shard=8.0))[key]
    assert over8 == pytest.approx(8 * over64)
    # zero2 divides the gradients too, zero1 only the optimizer state
    zero1, zero2 = (
        classes(llama, plan(**{**common, "sharding": s}))[key] for s in ("zero1", "zero2")
    )
    gradients = 4.0 * llama.layers * layer_parameters(llama, 1.0)
    assert zero1 - zero2 == pytest.approx(gradients * (1 - 1 / 64))


def test_probability_of_not_fitting_is_half_at_the_brim(llama: Model, plan: Make) -> None:
    found = memory(llama, plan(), RUN)
    assert found.probability_over(float(found.peak), 0.1) == pytest.approx(0.5)
    assert found.probability_over(2 * float(found.peak), 0.1) < 1e-6


def test_logits_of_an_eager_loss_are_kept_more_than_once(llama: Model, plan: Make) -> None:
    """2048 tokens of 128256 logits on the last stage, an eighth of them on each of eight ranks."""
    logits = 2048 * 128256 / 8
    in_place, apart = (
        classes(llama, plan(pp=1.0, logit_bytes=b, vocab_multiple=1.0))[
            "embedding and head activations"
        ]
        for b in (8.0, 14.0)
    )
    assert apart - in_place == pytest.approx(6.0 * logits, rel=1e-9)


def test_what_the_allocator_reserves_leaves_out_the_context(llama: Model, plan: Make) -> None:
    found = memory(llama, plan(), RunParameters(context=3e9))
    assert found.peak - found.reserved == found.classes["context"][0] > 0


def test_losses_of_routers_keep_what_ran_before_them(plan: Make) -> None:
    """Of layers checkpointed whole, as many bytes as their mixers and routers keep without
    checkpoints: beside the last layer's backward pass, where nothing else is left of a step. What
    is kept anyway, or belongs to no mixture, is not held twice."""
    model = catalog.model("mixtral-8x7b")
    own = {"tp": 1.0, "pp": 1.0, "dp": 8.0, "global_batch": 8.0, "sharding": "fsdp"}
    own |= {"logit_bytes": 1e-6, "sequence_parallel": 0.0}
    class_ = "graphs of routers"
    for recompute, name in (("none", "mixtral-8x7b"), ("full", "llama3-8b")):
        made = plan(**own, recompute=recompute, routers_kept=True)
        assert classes(catalog.model(name), made)[class_] == 0
    held, without = (
        classes(model, plan(**own, recompute="full", routers_kept=kept)) for kept in (True, False)
    )
    assert without[class_] == 0
    tokens = float(plan().micro_batch * plan().seq_len)
    # Inputs of two norms, of queries, keys and values and of the router, these themselves, and what
    # attention puts out with its sums; the inputs of layers went as the graphs came.
    kept = 2 * (4 * model.hidden + 2 * model.hidden + 2 * model.kv_heads * model.head_dim)
    each = tokens * (kept + 4 * model.heads - 2 * model.hidden)
    assert held[class_] == pytest.approx(model.layers * each, rel=1e-3)


def test_a_model_built_whole_takes_its_weights_at_least(plan: Make) -> None:
    """Before it is divided a device has all of it in 16 bits, and nothing else of the run; what a
    step takes is untouched, and parts sum to the whole."""
    model = catalog.model("llama3-8b")
    for ranks in (1.0, 64.0, 1024.0):
        shape = {"dp": ranks, "global_batch": ranks, "sharding": "fsdp", "recompute": "full"}
        step = memory(model, plan(**shape), RUN)
        whole = memory(model, plan(**shape, built_whole=True), RUN)
        least = 2.0 * model.parameters
        assert whole.tensors == max(float(step.tensors), least)
        assert whole.reserved == max(float(step.reserved), least)
        assert whole.peak == pytest.approx(max(float(step.peak), least + DRIVER))
        assert sum(value[2] for value in whole.classes.values()) == pytest.approx(float(whole.peak))


def test_a_batch_of_models_built_whole_is_its_plans_one_by_one(plan: Make) -> None:
    """Frozen weights are built in the bytes that they are kept in."""
    model, held = catalog.model("llama3-8b"), np.array([2.0, 4.0])
    own = {"built_whole": True, "sharding": "fsdp", "trained": "lora", "lora_rank": 16.0}
    many = memory(model, plan(**own, dp=64.0, global_batch=64.0, weight_bytes=held), RUN)
    for at, each in enumerate(held):
        one = memory(model, plan(**own, dp=64.0, global_batch=64.0, weight_bytes=each), RUN)
        assert (many.peak[at], many.tensors[at]) == (one.peak, one.tensors)
        assert one.tensors >= min(each, 2.0) * model.parameters


def test_tensors_are_what_the_allocator_holds_less_what_it_loses(plan: Make) -> None:
    found = memory(catalog.model("llama3-8b"), plan(dp=8.0, global_batch=8.0), RUN)
    assert found.reserved == pytest.approx(found.tensors * (1.0 + RUN.fragmentation))


@pytest.mark.parametrize(("framework", "dp", "batch", "together"), [
    ("pytorch", 1.0, 1.0, False), ("huggingface", 1.0, 1.0, False), ("torchtune", 1.0, 1.0, False),
    ("megatron-lm", 1.0, 1.0, True), ("pytorch", 2.0, 2.0, True), ("pytorch", 1.0, 2.0, True),
])  # fmt: skip
def test_gradients_of_a_loop_come_when_activations_go(
    framework: str, dp: float, batch: float, together: bool, llama: Model, plan: Make
) -> None:
    """Either all activations are there or all gradients, unless ranks keep buckets, buffers stay,
    or several micro-batches add up."""
    alone = {"tp": 1.0, "pp": 1.0, "dp": dp, "global_batch": batch, "micro_batch": 1.0,
             "sharding": "none", "framework": framework}  # fmt: skip
    made = plan(**alone)
    found, other = (
        memory(llama, replace(made, gradient_bytes=g), RunParameters()) for g in (2.0, 0.0)
    )
    gradients = 2.0 * llama.parameters
    going = sum(other.classes[name].max() for name in GOING)
    assert 0.0 < going < gradients  # a large model and one sequence
    extra = float(found.tensors - other.tensors)
    assert extra == pytest.approx(gradients if together else gradients - going, rel=0.01)


def test_a_layer_recomputed_starts_with_the_residual_stream(llama: Model, plan: Make) -> None:
    """However its first norm is written, and in fp32 under autocast."""
    made = plan(tp=1.0, pp=1.0, dp=1.0, recompute="full", framework="huggingface", sharding="none")
    rows = float(made.tokens) * llama.hidden
    for weights, size in ((2.0, 2.0), (4.0, 4.0)):
        for joined in (False, True):
            one = replace(made, weight_bytes=weights, fused=False, fused_norm=joined)
            assert kept_by(step_operators(llama, one), llama, one).start == size * rows


def test_a_compiled_graph_makes_inputs_of_narrow_products_again(llama: Model, plan: Make) -> None:
    """Those behind norms and activations; what attention put out it keeps."""
    made = plan(tp=1.0, pp=1.0, precision="fp8", saves_narrow=False)
    apart, joined = (
        {o.name: float(o.saved) for o in step_operators(llama, replace(made, fused=fused))}
        for fused in (False, True)
    )
    again = {name for name in apart if apart[name] > 0.0 == joined[name]}
    assert again == {"attention.qkv", "mlp.up", "mlp.down"}
    wide = replace(made, precision="bf16")
    assert all(o.saved > 0 for o in step_operators(llama, wide) if o.name in again)


def test_weights_that_are_updated_as_gradients_come_keep_none() -> None:
    """Of one device and one micro-batch: 2 bytes of each parameter less; of several, which add up,
    and of several devices none."""
    model = catalog.model("llama3.2-1b")
    fields = {"gpus": 1, "global_batch": 2, "micro_batch": 2, "seq_len": 64, "recompute": "full",
              "framework": "torchtune", "sharding": "none"}  # fmt: skip

    def state(early: bool, **own: Any) -> float:
        spec = parse(TrainingPlanSpec, {**fields, "update_early": early, **own}, "test")
        run = load("none").run
        plan = complete_training(spec, run, model=model, cluster=catalog.system("dgx-h100")).plan
        found = memory(model, plan, run).classes
        return sum(float(found[name].max()) for name in CLASSES if name.endswith("optimizer"))

    assert state(False) - state(True) == pytest.approx(2.0 * model.parameters, rel=1e-3)
    for own in ({"micro_batch": 1}, {"gpus": 2, "global_batch": 4}):
        assert state(False, **own) == state(True, **own)
