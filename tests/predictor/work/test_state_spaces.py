"""Work of state spaces alone, beside attention and of Mamba-1, counted out by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import pytest

from predictor import catalog
from predictor.plans.serving import ServingPlan
from predictor.plans.training import TrainingPlan
from predictor.precision import ELEMENT_BYTES
from predictor.timing.features import ideal
from predictor.timing.shapes import columns
from predictor.work import mamba
from predictor.work.communication import step_collectives
from predictor.work.serving import (
    cache_bytes,
    decode_attention,
    layer_operators,
    pass_collectives,
    prefill_attention,
    state_bytes,
)
from predictor.work.training import step_operators
from tests.predictor.work.served import named, of_step, plan

Make = Callable[..., TrainingPlan]
CODESTRAL, H1 = catalog.model("mamba-codestral-7b"), catalog.model("falcon-h1-34b")
JAMBA, FALCON = catalog.model("jamba-1.5-mini"), catalog.model("falcon-mamba-7b")
T, HALF = 2048.0, 2.0


def serving() -> ServingPlan:
    return plan(tp=1.0)


def blocks(found: Mapping[str, object]) -> set[str]:
    """First words of names."""
    return {name.partition(".")[0] for name in found}


def test_a_model_of_state_spaces_alone_does_nothing_else() -> None:
    served = named(layer_operators(CODESTRAL, plan(tp=8.0), 7.0))
    assert blocks(served) == {"mamba"}
    assert served["mamba.in"].n == (2 * 8192 + 2 * 8 * 128 + 128) / 8
    assert (served["mamba.in"].count, served["mamba.out"].k) == (64, 8192 / 8)
    assert blocks(named(prefill_attention(CODESTRAL, plan(tp=1.0), 1.0, T))) == {"mamba"}
    assert cache_bytes(CODESTRAL, plan(tp=8.0), 1000.0) == 0.0
    state, seen = 128 * 64 * 128, 3 * (8192 + 2 * 8 * 128)
    assert state_bytes(CODESTRAL, plan(tp=8.0)) == 64 * (4 * state + HALF * seen) / 8


def test_its_step_has_no_attention_and_no_feed_forward_block(plan: Make) -> None:
    made = plan(tp=1.0)
    found = of_step(CODESTRAL, made)
    runs = {one.name.partition(".")[0] for one in step_operators(CODESTRAL, made) if one.count > 0}
    assert not runs & {"attention", "mlp", "moe"}
    assert found["mamba.within"].flop == 2 * T / 256 * 128 * 256 * 64 * 256
    collectives = {one.name for one in step_collectives(CODESTRAL, plan(tp=8.0))}
    assert not [name for name in collectives if name.startswith(("attention", "mlp"))]


@pytest.mark.parametrize(
    "name",
    [
        "falcon-h1-34b", "jamba-1.5-mini", "falcon-mamba-7b", "zamba2-1.2b", "zamba2-7b",
    ],
)  # fmt: skip
def test_a_token_multiplies_the_weights_it_touches(name: str) -> None:
    model = catalog.model(name)
    operators = layer_operators(model, plan(tp=1.0), 1.0)
    flop = sum(o.flop * o.count for o in operators if o.op in ("gemm", "moe_gemm"))
    assert flop == pytest.approx(2.0 * model.matrix_parameters(active=True))


def test_side_by_side_one_norm_serves_both_and_is_kept_once(plan: Make) -> None:
    found = of_step(H1, plan(tp=1.0))
    assert "mamba.norm" not in found
    assert found["mamba.in"].saved == 0.0
    assert found["attention.qkv"].saved == HALF * T * 5120
    assert (found["mamba.in"].n, found["mamba.in"].k) == (2 * 4096 + 2 * 2 * 256 + 32, 5120)
    assert {found[one].count for one in ("attention.qkv", "mamba.in")} == {1.0}
    served = named(layer_operators(H1, serving(), 7.0))
    assert served["mamba.add"].bytes == 3 * HALF * 7 * 5120
    assert "mamba.norm" not in served


def test_side_by_side_ranks_gather_once_and_add_up_once_while_training(plan: Make) -> None:
    """While serving both blocks' outcomes are added up by themselves (vllm, falcon_h1.py: both are
    RowParallelLinear)."""
    made = plan(tp=2.0, sequence_parallel=1.0)
    found = {one.name: one for one in step_collectives(H1, made) if one.group == "tp"}
    assert "mamba.in.gather" not in found
    assert found["attention.qkv.gather"].bytes == HALF * T * 5120
    assert found["mlp.up.gather"].count == found["attention.qkv.gather"].count == 1.0


def test_side_by_side_both_caches_are_there() -> None:
    made = serving()
    assert cache_bytes(H1, made, 1000.0) == 72 * 1000 * HALF * 2 * 4 * 128
    assert state_bytes(H1, made) == 72 * (4 * 4096 * 256 + HALF * 3 * (4096 + 2 * 2 * 256))


def test_mamba_1_projects_what_it_selects_by_row_and_steps_by_column(plan: Make) -> None:
    found = of_step(FALCON, plan(tp=4.0))
    own = 8192 / 4
    assert (found["mamba.in"].n, found["mamba.in"].k) == (2 * own, 4096)
    assert (found["mamba.select"].n, found["mamba.select"].k) == (256 + 2 * 16, own)
    assert (found["mamba.steps"].n, found["mamba.steps"].k) == (own, 256)
    assert (found["mamba.out"].n, found["mamba.out"].k) == (4096, own)
    assert found["mamba.conv"].n == own
    assert "mamba.gate" not in found, "the scan's kernel gates"
    assert "mamba.select_norm" in found
    plain = of_step(catalog.model("mamba-2.8b"), plan(tp=1.0))
    assert "mamba.select_norm" not in plain


def test_ranks_add_up_what_mamba_1_selects(plan: Make) -> None:
    """Twice a block with the outcome's sum, and as often backward."""
    made = plan(tp=4.0, sequence_parallel=0.0)
    found = {one.name: one for one in step_collectives(FALCON, made) if one.group == "tp"}
    for name in ("reduce", "reduce.bwd"):
        one = found[f"mamba.select.{name}"]
        assert (one.op, one.bytes, one.count) == ("allreduce", HALF * T * (256 + 32), 1.0)
    assert found["mamba.out.reduce"].bytes == HALF * T * 4096
    full = {one.name: one for one in step_collectives(JAMBA, plan(tp=4.0, recompute="full"))}
    assert full["mamba.select.reduce.again"].count == pytest.approx(28 / 64)
    passes = {one.name: one for one in pass_collectives(FALCON, serving(), 10.0, 2.0)}
    assert (passes["mamba.sum"].bytes, passes["mamba.sum"].count) == (HALF * 10 * 288, 64)
    assert "mamba.sum" not in {one.name for one in pass_collectives(H1, serving(), 10.0, 2.0)}


def test_the_selective_scan_multiplies_no_matrices(plan: Make) -> None:
    """Channels, steps and gate read, sums written twice; every 2,048 tokens a state and its decay
    in 32 bits. Backward eight; steps, gate and sums are kept."""
    found = of_step(FALCON, plan(tp=1.0))
    scanned = {name for name in found if name.startswith("mamba.s") and "sel" not in name}
    assert scanned == {
        "mamba.scan", "mamba.scan.bwd", "mamba.steps", "mamba.steps.dgrad", "mamba.steps.wgrad",
    }  # fmt: skip
    elements = T * 8192
    states = T / 2048 * 8192 * 16 * 2 * 4
    ahead, back = found["mamba.scan"], found["mamba.scan.bwd"]
    assert ahead.bytes == pytest.approx(5 * HALF * elements + states)
    assert back.bytes == pytest.approx(8 * HALF * elements + states)
    assert ahead.saved == pytest.approx(3 * HALF * elements + states)
    assert ahead.flop == 18 * elements * 16
    assert (ahead.exponentials, back.exponentials) == (elements * 16, 2 * elements * 16)
    assert back.flop == 2 * ahead.flop
    assert (ahead.op, ahead.variant, ahead.k) == ("elementwise", "selective", 16)


def test_a_block_of_mamba_1_keeps_six_of_its_channels_and_what_it_selects(plan: Make) -> None:
    """Both halves of the first projection, channels behind the convolution, steps, sums, and these
    gated; the norm's outcome; steps, B and C before and behind their norms."""
    found = of_step(FALCON, plan(tp=1.0))
    kept = sum(float(found[name].saved) for name in found if name.startswith("mamba."))
    own, selected, norms = 6 * 8192, 2 * (256 + 32), 2 * 4096
    states = 8192 * 16 * 8 / 2048
    assert kept == pytest.approx(T * (HALF * (own + selected + norms) + states), rel=1e-9)


def test_a_new_token_reads_and_writes_the_state_of_every_channel() -> None:
    update = named(decode_attention(FALCON, serving(), 4.0, 1000.0))["mamba.update"]
    assert update.bytes == 2 * 4 * (4 * 8192 * 16)
    assert update.count == 64
    assert state_bytes(FALCON, serving()) == 64 * (4 * 8192 * 16 + HALF * 3 * 8192)


@pytest.mark.parametrize("name", ["H100-SXM5-80GB", "A100-SXM4-80GB"])
def test_the_selective_scan_waits_for_arithmetic_where_that_takes_longer(
    plan: Make, name: str
) -> None:
    """18 FLOP in 32 bits, or an exponential, 16 a clock and processor; else it streams."""
    found = of_step(FALCON, plan(tp=1.0))
    machine = catalog.accelerator(name)
    got = ideal(columns([found["mamba.scan"]], ()), machine)
    values = T * 8192 * 16
    arithmetic = 18 * values / machine.peak["fp32"]
    exponentials = values / (16 * machine.sms * machine.clock)
    assert got.compute[0] == pytest.approx(max(arithmetic, exponentials))
    assert got.time[0] == pytest.approx(max(got.compute[0], got.memory[0]), rel=0.1)
    assert ideal(columns([found["mamba.conv"]], ()), machine).compute[0] == 0.0
    adapters = replace(found["mamba.conv"], flop=1e15, k=64.0)  # counted for power alone
    assert ideal(columns([adapters], ()), machine).compute[0] == 0.0


ZAMBA = catalog.model("zamba2-1.2b")


def test_uses_of_shared_blocks_see_the_embedding_and_have_adapters_of_their_own(plan: Make) -> None:
    made = plan(tp=2.0)
    found = of_step(ZAMBA, made)
    assert (found["attention.norm"].n, found["mlp.norm"].n) == (4096, 2048)
    assert (found["attention.qkv"].n, found["attention.qkv"].k) == (3 * 4096 / 2, 4096)
    assert (found["attention.out"].n, found["attention.out"].k) == (2048, 4096 / 2)
    assert (found["attention.own_down"].n, found["attention.own_down"].k) == (3 * 128 / 2, 4096)
    up = found["attention.own_up"]
    assert (up.n, up.k, up.batch) == (4096 / 2, 128, 3)
    assert (found["mlp.own_down"].n, found["mlp.own_up"].n) == (128 / 2, 2 * 8192 / 2)
    assert (found["mlp.use"].n, found["mlp.use"].k) == (2048, 2048)
    assert found["attention.qkv"].count == pytest.approx(6 / 50)
    assert "attention.residual" not in found
    larger = of_step(catalog.model("zamba2-7b"), made)
    assert "attention.own_up" not in larger
    gathered = {
        one.name: one for one in step_collectives(ZAMBA, plan(tp=2.0, sequence_parallel=1.0))
    }
    assert gathered["attention.qkv.gather"].bytes == 2 * gathered["mlp.up.gather"].bytes


def test_each_use_of_a_shared_block_has_a_cache_of_its_own() -> None:
    assert cache_bytes(ZAMBA, serving(), 1000.0) == 6 * 1000 * HALF * 2 * 4096
    assert state_bytes(ZAMBA, serving()) == 38 * (4 * 4096 * 128 + HALF * 3 * (4096 + 2 * 128))


def test_elements_are_as_wide_as_assumed_here() -> None:
    assert (ELEMENT_BYTES["bf16"], mamba.STATE_BYTES, mamba.WORK, mamba.PIECE) == (2, 4, 18, 2048)


def test_ranks_that_share_a_group_have_it_whole() -> None:
    """Falcon-H1-34B, two groups: eight ranks would have a quarter of one each (vLLM pads them to
    eight)."""
    found = named(layer_operators(H1, plan(tp=4.0), 7.0))
    assert found["mamba.in"].n == (2 * 4096 + 32) / 4 + 2 * 256
    assert found["mamba.conv"].n == 4096 / 4 + 2 * 256
    assert state_bytes(H1, plan(tp=4.0)) == 72 * (
        4 * 4096 * 256 / 4 + HALF * 3 * (4096 / 4 + 2 * 256)
    )
    assert named(layer_operators(H1, plan(tp=2.0), 7.0))["mamba.in"].n == H1.mamba_in_width / 2
    assert np.all(FALCON.mamba_repeated(np.array([1.0, 2.0, 8.0])) == 0.0)
