"""Norms over all heads, wide routers, products of one row or divided by rows, experts of which
nothing was timed."""

from dataclasses import replace

import numpy as np
import pytest

from predictor import catalog
from predictor.catalog import ServingPlanSpec, parse
from predictor.catalog.artifacts import load
from predictor.catalog.software import Setting, engine_named
from predictor.hardware import Accelerator, Cluster
from predictor.models.counts import experts_hit
from predictor.plans.serving import ServingPlan
from predictor.plans.training import TrainingPlan
from predictor.serving.calls import communication
from predictor.serving.completion import complete_serving
from predictor.serving.kernels import COPIED, HANDED, as_run, headwise_time, in_rows
from predictor.serving.passes import decode_cores, layers_of
from predictor.timing import RunParameters, operator_times, power_limit
from predictor.timing.alternatives import SLACK
from predictor.work.primitives import Operator, gemm, grouped
from predictor.work.serving import layer_operators, pass_collectives
from predictor.work.training import step_operators

CALIBRATION = load("default")
WHOLE = catalog.model("minimax-m2")
PLAIN = replace(WHOLE, family="qwen3")


def plan(**fields: object) -> ServingPlan:
    given = {"batch": 1.0, "input_len": 200.0, "output_len": 200.0, **fields}
    return ServingPlan(**given)  # type: ignore[arg-type]


def timed(operators: list[Operator], name: str, library: str = "vllm") -> np.ndarray:
    machine = catalog.accelerator(name)
    return operator_times(operators, machine, CALIBRATION, (), library=library).time


@pytest.mark.parametrize("tp", [1.0, 4.0])
def test_norms_over_all_heads_read_queries_and_keys_twice_and_write_them_once(tp: float) -> None:
    own = {o.name: o for o in layer_operators(WHOLE, plan(tp=tp), 7.0)}
    elements = 7.0 * (WHOLE.heads + WHOLE.kv_heads) / tp * WHOLE.head_dim
    moved = own["attention.squares"].bytes + own["attention.qk_norm"].bytes
    assert float(moved) == pytest.approx(3 * 2 * elements)
    names = {o.name for o in layer_operators(PLAIN, plan(tp=tp), 7.0)}
    assert set(own) - names == {"attention.squares", "attention.qk_norm"}


def test_ranks_add_up_two_sums_of_squares_a_token() -> None:
    sums = {c.name: c for c in pass_collectives(WHOLE, plan(tp=4.0), 7.0, 7.0)}["attention.squares"]
    assert float(sums.bytes) == 7.0 * 2 * 4
    assert float(sums.count) == WHOLE.layers
    assert sums.op == "allreduce"
    assert "attention.squares" not in {c.name for c in pass_collectives(PLAIN, plan(), 7.0, 7.0)}


def test_a_wide_router_is_read_in_32_bits_while_serving_alone() -> None:
    router = {o.name: o for o in layer_operators(WHOLE, plan(), 7.0)}["moe.router"]
    assert router.dtype == "fp32"
    given = TrainingPlan(tp=1.0, pp=1.0, dp=1.0, micro_batch=1.0, global_batch=1.0, seq_len=64.0)
    trained = {o.name: o.dtype for o in step_operators(WHOLE, given)}
    assert trained["moe.router"] != "fp32"


@pytest.mark.parametrize("name", ["B200-SXM-180GB", "H100-SXM5-80GB", "MI300X-192GB"])
def test_one_row_takes_no_longer_than_two(name: str) -> None:
    """Of vLLM's fp8 products on B200 its table says otherwise."""
    model = catalog.model("llama3-8b")
    cluster = catalog.system(
        {"B200-SXM-180GB": "DGX-B200", "H100-SXM5-80GB": "DGX-H100"}.get(name, "MI300X-8x")
    )
    given = plan(weights="fp8", library="vllm")
    one, two = (
        float(layers_of(model, cluster, given, rows, CALIBRATION, False).terms["linear"])
        for rows in (1.0, 2.0)
    )
    assert one <= two


def experts_of(model: str, dtype: str, tokens: float) -> tuple[Operator, list[Operator], float]:
    """Experts in one kernel; the two products of one of them; how many there are."""
    held = catalog.model(model)
    busy = experts_hit(tokens, float(held.top_k), float(held.num_experts), 1.0)
    rows = tokens * held.top_k / busy
    inner, width = float(held.expert_ffn_hidden), float(held.hidden)
    one = grouped("experts", "moe", dtype, rows, inner, width, busy, gated=True, size=2.0)
    products = [
        gemm(name=str(n), layout="fwd", phase="forward", module="moe", dtype=dtype, m=rows, n=n,
             k=k, out_bytes=2.0)
        for n, k in ((2 * inner, width), (width, inner))
    ]  # fmt: skip
    return one, products, float(busy)


@pytest.mark.parametrize("tokens", [1.0, 4.0, 32.0, 128.0])
@pytest.mark.parametrize("name", ["A100-SXM4-80GB", "H100-SXM5-80GB", "MI300X-192GB"])
def test_experts_take_little_more_than_one_after_the_other(name: str, tokens: float) -> None:
    """A100 and H100 were timed with such experts, MI300X was not (it took five times as long)."""
    one, products, busy = experts_of("mixtral-8x7b", "bf16", tokens)
    apart = busy * timed(products, name).sum()
    assert timed([one], name)[0] <= SLACK * apart * (1 + 1e-9)


@pytest.mark.parametrize("parts", [1.0, 2.0, 8.0])
def test_rows_of_a_product_run_side_by_side_and_are_handed_out(parts: float) -> None:
    machine = replace(catalog.accelerator("A10G-24GB"), host_bandwidth=2e10)
    one = gemm(name="mlp.down", layout="fwd", phase="forward", module="dense", dtype="fp16", m=3.0,
               n=4096.0, k=11008.0, out_bytes=2.0)  # fmt: skip
    found = float(in_rows(np.array(9e-3), one, plan(pp=parts, pipelining="rows"), machine))
    sent = 4.0 * 3.0 * (11008.0 * (parts - 1) + 4096.0 * (1 - 1 / parts)) / 2e10
    expected = 9e-3 / parts + (HANDED + 2 * COPIED * parts + sent if parts > 1 else 0.0)
    assert found == pytest.approx(expected)


def test_llama_cpp_divided_rows_before_it_dealt_out_layers() -> None:
    at = Setting(catalog.accelerator("A10G-24GB"), catalog.model("llama2-7b"))
    held = {
        era: next(d.value for d in engine_named("llama.cpp").defaults(at, era)
                  if d.field == "pipelining")
        for era in ("2023-10", "2024-05")
    }  # fmt: skip
    assert held == {"2023-10": "rows", "2024-05": "turns"}


@pytest.mark.parametrize("ranks", [2.0, 4.0, 8.0])
def test_sums_in_the_switch_are_never_slower_than_the_library_s(ranks: float) -> None:
    """Larger messages than other engines' own kernels take go through them, too."""
    model, cluster = catalog.model("llama3-70b"), catalog.system("DGX-B200")
    ways = ({"summed": "switch"}, {}, {"allreduce": "nccl"})
    for tokens in (16.0, 512.0, 1024.0, 4096.0, 65536.0):
        spent = [
            float(communication(pass_collectives(model, at, tokens, 1.0), at, cluster, CALIBRATION,
                                1.0).terms["tp_communication"])
            for at in (plan(tp=ranks, library="vllm", **how) for how in ways)
        ]  # fmt: skip
        assert spent[0] <= spent[1] * (1 + 1e-9) <= spent[2] * (1 + 2e-9)
        if tokens == 1024.0 and ranks == 8.0:
            assert spent[0] < 0.8 * spent[1]  # 17 MB


@pytest.mark.parametrize(("rack", "board"), [("GB200-NVL72", "DGX-B200"), ("TPU-v7-pod", "")])
def test_ranks_of_several_trays_that_share_their_links_add_up_as_those_of_one(
    rack: str, board: str
) -> None:
    """Eight ranks on two trays of four: no slower than the library's, and a small message takes
    them what it takes eight on a board, or less than half more than four on one tray of a torus."""
    model, cluster = catalog.model("llama3-70b"), catalog.system(rack)

    def spent(where: Cluster, ranks: float, **how: str) -> float:
        at = plan(tp=ranks, library="vllm", **how)
        moved = pass_collectives(model, at, 16.0, 1.0)
        found = communication(moved, at, where, CALIBRATION, 1.0)
        return float(found.terms["tp_communication"])

    across = spent(cluster, 8.0, reach="fabric")
    assert across <= spent(cluster, 8.0)
    assert spent(cluster, 4.0, reach="fabric") == spent(cluster, 4.0)
    if board:
        assert across == pytest.approx(spent(catalog.system(board), 8.0), rel=0.06)
    else:
        assert across < 1.5 * spent(cluster, 4.0)


def test_kernels_that_are_part_of_others_do_not_start() -> None:
    """Norms that an all-reduce does on the way, and shared experts beside the routed ones."""
    model, cluster = catalog.model("deepseek-v3"), catalog.system("DGX-H200")
    given = plan(tp=8.0, library="vllm", weights="fp8_block")
    apart, joined, beside = (
        float(layers_of(model, cluster, at, 8.0, CALIBRATION, False).kernels)
        for at in (given, replace(given, reductions="joined"),
                   replace(given, shared_experts="beside"))
    )  # fmt: skip
    assert apart - joined == 2 * model.layers
    assert 0 < apart - beside <= 3 * model.moe_layers


@pytest.mark.parametrize("tokens", [8.0, 64.0, 1024.0])
@pytest.mark.parametrize("name", ["qwen3-30b-a3b", "mixtral-8x7b"])
def test_the_busiest_rank_of_uneven_experts_is_no_quicker_than_an_even_one(
    name: str, tokens: float
) -> None:
    """It has more rows and as many experts to read."""
    model, cluster = catalog.model(name), catalog.system("DGX-H100")
    given = plan(tp=2.0, ep=2.0, library="neutral")
    found = [
        layers_of(model, cluster, replace(given, expert_load=load), tokens, CALIBRATION, False)
        for load in (1.0, 1.5, 2.0)
    ]
    spent = [float(one.terms["experts"]) for one in found]
    assert spent[0] <= min(spent[1:])
    rows = layers_of(
        model, cluster, replace(given, expert_load=np.array([1.0, 1.5, 2.0])), tokens, CALIBRATION,
        False,
    )  # fmt: skip
    assert np.broadcast_to(rows.terms["experts"], 3).tolist() == pytest.approx(spent)
    for one in found:
        whole = sum(float(np.asarray(time)) for time, _ in one.families.values())
        assert whole == pytest.approx(float(one.compute))


def test_experts_in_triton_take_no_longer_than_half_of_those_in_sixteen_bits() -> None:
    """Half the bytes, twice the rate; or as they were timed themselves, where that is less."""
    model, cluster = catalog.model("llama4-maverick-17b-128e"), catalog.system("DGX-H100")
    given = plan(tp=8.0, ep=8.0, library="vllm", weights="fp8")
    for tokens in (8.0, 128.0, 2048.0):
        own, triton, wide = (
            float(layers_of(model, cluster, at, tokens, CALIBRATION, False).terms["experts"])
            for at in (
                given, replace(given, narrow_experts="triton"), replace(given, weights="bf16")
            )
        )  # fmt: skip
        assert triton == pytest.approx(min(own, 0.5 * wide), rel=0.01)


@pytest.mark.parametrize("system", ["DGX-H100", "DGX-H200"])
@pytest.mark.parametrize(
    ("name", "precision"), [("mixtral-8x7b", "fp8"), ("gpt-oss-120b", ""), ("gpt-oss-20b", "")]
)
def test_engines_of_today_run_narrow_experts_within_twice_each_other(
    name: str, precision: str, system: str
) -> None:
    """Those of popular models on Hopper, for one to a few hundred tokens: all have kernels that
    stream narrow weights. Tables have one engine's untuned, another's widened as they are loaded:
    5 and 2.5 times."""
    times = []
    for engine in ("vllm", "sglang", "tensorrt-llm"):
        stated = {"model": name, "system": system, "framework": engine, "tp": 2, "gpus": 2,
                  "batch": 8, "input_len": 512, "output_len": 64}  # fmt: skip
        told = {**stated, "precision": precision} if precision else stated
        asked = complete_serving(parse(ServingPlanSpec, told, "test"), RunParameters())
        tokens = np.array([1.0, 16.0, 64.0, 256.0])
        given = replace(asked.plan, batch=tokens)
        found = layers_of(asked.model, asked.cluster, given, tokens, CALIBRATION, False)
        times.append(found.terms["experts"])
    assert (np.max(times, axis=0) < 2.0 * np.min(times, axis=0)).all(), times


def test_whole_experts_over_buffers_take_as_long_for_few_tokens_as_for_more_and_one_by_one() -> (
    None
):
    """Of 128 experts among four ranks each has 32, of 128 rows at least; where ranks split experts
    nothing changes, in a batch of both either."""
    model, cluster = catalog.model("qwen3-235b-a22b"), catalog.system("DGX-B200")

    def time(tokens: float, kernels: str, ep: object) -> np.ndarray:
        at = plan(
            tp=4.0, ep=ep, library="vllm", weights="fp8_block", narrow_experts=kernels
        )  # fmt: skip
        return np.asarray(
            layers_of(model, cluster, at, tokens, CALIBRATION, False).terms["experts"]
        )

    few, more = (float(time(tokens, "buffers", 4.0)) for tokens in (2.0, 32.0))
    assert more == pytest.approx(few, rel=0.1)
    assert few > 2.0 * float(time(2.0, "own", 4.0))
    assert float(time(2.0, "buffers", 2.0)) == float(time(2.0, "own", 2.0))
    both = time(2.0, "buffers", np.array([2.0, 4.0]))
    assert list(both) == pytest.approx([float(time(2.0, "buffers", ep)) for ep in (2.0, 4.0)])


@pytest.mark.parametrize("name", ["dgx-h100", "dgx-b200", "dgx-a100"])
@pytest.mark.parametrize(("sequences", "keys"), [(1.0, 4096.0), (128.0, 8192.0)])
def test_heads_that_share_keys_take_no_longer_than_groups_that_read_them_anew(
    name: str, sequences: float, keys: float
) -> None:
    """128 heads to a key head, as 64 to each of two and 32 to each of four."""
    cluster, model = catalog.system(name), catalog.model("llama2-7b")

    def time(kv_heads: int, library: str) -> float:
        one = replace(model, heads=128, kv_heads=kv_heads, head_dim=128)
        given, many = plan(batch=sequences, library=library), np.full((1,), sequences)
        steps = np.full((1,), keys)
        found = decode_cores(one, cluster, given, many, steps, np.ones((1,)), CALIBRATION)
        return float(found.terms["attention"])

    for library in ("vllm", "sglang", "neutral"):
        assert time(1, library) <= min(time(2, library), time(4, library)) * (1.0 + 1e-9)


def test_products_on_units_not_made_for_them_take_as_long_as_their_arithmetic() -> None:
    """45 % of MI300X's 163.4 TFLOP/s in 32 bits, where that is more than they take else; fp8 as
    ever."""
    machine = catalog.accelerator("MI300X-192GB")
    slow = plan(product_units="vector", weights="fp16")
    product = gemm("mlp.up", "nt", "forward", "layer", "fp16", m=256.0, n=4096.0, k=8192.0)
    bound = 2 * 256 * 4096 * 8192 / (0.45 * 163.4e12)
    assert float(as_run(np.asarray(1e-6), product, slow, machine)) == pytest.approx(bound)
    assert float(as_run(np.asarray(1.0), product, slow, machine)) == 1.0
    assert float(as_run(np.asarray(1e-6), product, plan(weights="fp16"), machine)) == 1e-6
    narrow = replace(product, dtype="fp8")
    assert float(as_run(np.asarray(1e-6), narrow, slow, machine)) == 1e-6


def test_heads_that_share_keys_read_them_from_memory_where_dies_have_caches_of_their_own() -> None:
    """Four heads to a key head: four times the cache at eight tenths of the memory's rate on
    MI300X, at half of the last-level cache's on A100."""
    core = Operator(
        name="attention", op="attention_decode", variant="fwd", phase="forward", module="layer",
        dtype="bf16", m=4.0, n=1e5, k=128.0, batch=256.0,
    )  # fmt: skip
    moved = 4 * 2 * 2 * 128 * 1e5 * 256
    for name in ("MI300X-192GB", "A100-SXM4-80GB"):
        machine = catalog.accelerator(name)
        own = name.startswith("MI")
        rate = 0.8 * machine.bandwidth if own else 0.5 * machine.l2_bandwidth
        found = float(headwise_time(core, plan(headwise="all"), machine))
        assert found == pytest.approx(moved / rate, rel=1e-3)


def test_mixed_kernels_stream_narrow_weights_until_the_matrix_units_bind() -> None:
    """Frantar et al. 2024: as long as the memory's time for a few rows, as 16-bit arithmetic at .6
    of what the power cap leaves of the peak for many; rows count in sixteens; 16-bit products and
    experts are as they were."""
    for name in ("RTX-4090-24GB", "A100-SXM4-80GB", "H100-SXM5-80GB"):
        machine = catalog.accelerator(name)

        def time(dtype: str, rows: float, machine: Accelerator = machine) -> float:
            product = gemm("mlp.up", "nt", "forward", "layer", dtype, m=rows, n=8192.0, k=8192.0)
            return float(as_run(np.asarray(1.0), product, plan(matvec="mixed"), machine))

        weights = 0.5156 * 8192.0**2
        stream = weights / (0.9 * machine.bandwidth)
        assert stream < time("int4_wo", 1.0) < stream + 3e-6  # an empty kernel's time
        left = float(machine.peak["bf16"] * power_limit(machine))
        many = 2.0 * 4096.0 * 8192.0**2 / (0.6 * left)
        assert time("int4_wo", 4096.0) == pytest.approx(many, rel=0.02)
        assert time("int4_wo", 17.0) == pytest.approx(time("int4_wo", 32.0), rel=0.02)
        assert time("int8_wo", 1.0) > 1.5 * time("int4_wo", 1.0)
        assert time("bf16", 1.0) == time("fp8", 1.0) == time("nvfp4", 1.0) == 1.0
        wide = gemm("mlp.up", "nt", "forward", "layer", "int4_wo", m=1.0, n=8192.0, k=8192.0)
        assert (
            as_run(np.asarray(1e-9), wide, plan(matvec="mixed"), machine) == 1e-9
        )  # others' are quicker


def test_a_compiler_s_kernels_widen_narrow_weights_one_by_one() -> None:
    """18 weights per clock and processor, and the memory's time: the root of the sum of squares;
    as other kernels that stream the matrix where weights have 16 bits, or rows are many."""
    machine = catalog.accelerator("A100-SXM4-80GB")
    made, written = plan(matvec="generated"), plan(matvec="matvec")

    def time(dtype: str, rows: float, own: ServingPlan) -> float:
        product = gemm("mlp.up", "nt", "forward", "layer", dtype, m=rows, n=8192.0, k=8192.0)
        return float(as_run(np.asarray(1.0), product, own, machine))

    weights = 8192.0**2
    for dtype, size in (("int8_wo", 1.0), ("int4_wo", 0.5156)):
        stream = time(dtype, 1.0, written)
        widening = weights / (18 * machine.sms * machine.clock)
        assert time(dtype, 1.0, made) == pytest.approx(np.hypot(stream, widening), rel=0.01)
        assert stream > size * weights / machine.bandwidth
    assert time("bf16", 1.0, made) == time("bf16", 1.0, written)
    assert time("int8_wo", 64.0, made) == 1.0
