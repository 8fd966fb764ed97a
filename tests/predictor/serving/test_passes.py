"""Work lists of serving, and the time of passes."""

from dataclasses import replace

import numpy as np
import pytest

from predictor import catalog
from predictor.catalog.artifacts import load
from predictor.memory.serving import weight_bytes
from predictor.models.counts import experts_hit
from predictor.plans.serving import ServingPlan, runnable
from predictor.serving.kernels import beside_routed, matvec_time
from predictor.serving.parts import TERMS
from predictor.serving.pass_times import prompt_time
from predictor.serving.passes import body, decode_cores, prefill_cores, steps
from predictor.serving.prediction import predict_inference
from predictor.serving.prompts import beside
from predictor.timing.engines import EngineParameters
from predictor.work.serving import (
    decode_attention,
    end_operators,
    kv_token_bytes,
    layer_operators,
    pass_collectives,
    prefill_attention,
)
from tests.predictor.products import matmul

LLAMA = catalog.model("llama2-13b")
CALIBRATION = load("default")


def plan(**fields):
    return ServingPlan(**{"batch": 1.0, "input_len": 200.0, "output_len": 200.0, **fields})


def test_a_dense_layer_multiplies_its_weights_once_per_token():
    operators = layer_operators(LLAMA, plan(), 1.0)
    flop = sum(o.flop * o.count for o in operators if o.op == "gemm")
    assert flop == pytest.approx(2.0 * LLAMA.matrix_parameters())


@pytest.mark.parametrize("weights", ["bf16", "int8_wo", "int4_wo", "fp8"])
def test_weights_are_read_as_narrow_as_they_are_stored(weights):
    width = {"bf16": 2.0, "int8_wo": 1.0, "int4_wo": 0.5156, "fp8": 1.0}[weights]
    operators = layer_operators(LLAMA, plan(weights=weights), 1.0)
    moved = sum(o.bytes * o.count for o in operators if o.op == "gemm")
    assert moved == pytest.approx(width * LLAMA.matrix_parameters(), rel=2e-3)


def test_decoding_reads_keys_and_values_once():
    (core,) = decode_attention(LLAMA, plan(), 4.0, 1000.0)
    cache = 4.0 * 1000.0 * 2 * 2.0 * LLAMA.kv_width
    assert core.bytes == pytest.approx(cache, rel=2e-3)
    assert core.count == LLAMA.layers
    assert core.variant == "", "an 8-bit cache alone has a kernel of its own"
    halved = decode_attention(LLAMA, plan(kv="fp8"), 4.0, 1000.0)[0]
    assert halved.variant == "kv8"
    assert halved.bytes == pytest.approx(cache / 2, rel=4e-3)


def test_key_heads_are_replicated_where_ranks_outnumber_them():
    model = catalog.model("llama3-70b")  # eight key heads
    eight, sixteen = (kv_token_bytes(model, plan(tp=tp)) for tp in (8.0, 16.0))
    assert eight == sixteen == 2 * 2 * 128
    assert kv_token_bytes(model, plan(tp=4.0)) == 2 * eight


def test_latent_cache_is_whole_on_every_rank_and_read_by_all_heads():
    model = catalog.model("deepseek-v3")
    assert kv_token_bytes(model, plan(tp=8.0)) == 2 * (512 + 64)
    core = decode_attention(model, plan(tp=8.0), 3.0, 100.0)[0]
    assert (core.variant, core.m, core.k, core.batch) == ("mla", 16.0, 576.0, 3.0)
    assert core.flop == 2 * 3 * 16 * 100 * (576 + 512)


def test_windowed_layers_see_their_window_only():
    model = catalog.model("gpt-oss-120b")
    cores = {o.name: o for o in decode_attention(model, plan(), 1.0, 5000.0)}
    assert cores["attention.window"].n == 128
    assert cores["attention"].n == 5000
    assert sum(o.count for o in cores.values()) == model.layers


def test_cached_tokens_are_seen_but_not_computed():
    whole = prefill_attention(LLAMA, plan(), 1.0, 1000.0)[0]
    tail = prefill_attention(LLAMA, plan(), 1.0, 100.0, 900.0)[0]
    head = prefill_attention(LLAMA, plan(), 1.0, 900.0)[0]
    assert tail.flop + head.flop == pytest.approx(whole.flop)


def test_expected_distinct_experts():
    # One token goes to two of eight; what one has chosen, others are more likely to choose, too: a
    # second finds each of its two new with probability 3/5 (3/4 where all are chosen alike).
    assert experts_hit(1.0, 2, 8) == pytest.approx(2.0)
    assert experts_hit(2.0, 2, 8) == pytest.approx(3.2)
    assert experts_hit(1e4, 2, 8) == pytest.approx(8.0, rel=1e-3)


def test_experts_have_all_tokens_between_them():
    model = catalog.model("mixtral-8x7b")
    for layout in ({"tp": 4.0}, {"tp": 4.0, "ep": 4.0}, {"dp": 4.0, "ep": 4.0}):
        own = plan(**layout)
        (experts,) = (o for o in layer_operators(model, own, 64.0) if o.op == "moe_gemm")
        share = own.ep * own.etp / own.dp
        flop = 2.0 * 64 * model.top_k * 3 * model.hidden * model.expert_ffn_hidden
        assert experts.flop * share == pytest.approx(flop)


def test_two_reductions_per_layer_and_none_without_ranks():
    found = pass_collectives(LLAMA, plan(tp=4.0), 8.0, 8.0)
    reduced = sum(o.count for o in found if o.op == "allreduce")
    assert reduced == 2 * LLAMA.layers + 1  # and the embedding
    assert found[0].bytes == 8 * 5120 * 2


def test_steps_are_one_by_one_or_integrated():
    contexts, weights = steps(plan(output_len=4.0))
    assert contexts.tolist() == [201, 202, 203]
    assert weights.tolist() == [1, 1, 1]
    long = plan(output_len=np.array([20001.0, 3.0]))
    contexts, weights = steps(long)
    assert weights.sum(axis=0) == pytest.approx([20000.0, 2.0])
    mean = (contexts * weights).sum(axis=0) / weights.sum(axis=0)
    assert mean == pytest.approx([200 + 10000.5, 201.5])


def test_integrated_steps_agree_with_single_ones():
    cluster = catalog.system("dgx-h100")
    one = plan(output_len=3000.0, batch=8.0)
    exact = decode_cores(LLAMA, cluster, one, 8.0, *steps(one, 3000), CALIBRATION)
    rule = decode_cores(LLAMA, cluster, one, 8.0, *steps(one), CALIBRATION)
    assert len(steps(one, 3000)[0]) > 100 * len(steps(one)[0])
    assert float(rule.compute) == pytest.approx(float(exact.compute), rel=1e-3)


@pytest.mark.parametrize("listed", [0, 8, 100, 4096])
def test_how_steps_are_summed_is_up_to_each_plan(listed):
    lengths = np.array([1.0, 2.0, 9.0, 10.0, 64.0, 2000.0])
    contexts, weights = steps(plan(output_len=lengths), listed)
    for column, length in enumerate(lengths):
        own, counts = steps(plan(output_len=float(length)), listed)
        there = weights[:, column] > 0
        assert contexts[there, column].tolist() == own[counts > 0].tolist()
        assert weights[there, column].tolist() == counts[counts > 0].tolist()


def test_a_batch_of_plans_equals_the_plans_one_by_one():
    cluster = catalog.system("dgx-h100")
    tps, tokens = np.array([1.0, 2.0, 2.0, 8.0]), np.array([1.0, 64.0, 1.0, 64.0])
    together = body(
        LLAMA, cluster, plan(tp=tps), tokens, tokens, CALIBRATION, captured=True, sustained=False
    )
    for i, (tp, many) in enumerate(zip(tps, tokens, strict=True)):
        alone = body(
            LLAMA, cluster, plan(tp=tp), many, many, CALIBRATION, captured=True, sustained=False
        )
        for name in TERMS:
            assert together.terms[name][i] == pytest.approx(float(alone.terms[name]))
        assert together.kernels[i] == alone.kernels


@pytest.mark.parametrize(
    ("system", "ridge", "bound"), [("dgx-a100", 153.0, "compute"), ("dgx-h100", 295.2, "memory")]
)
def test_boundness_of_the_published_example(system, ridge, bound):
    """Llama-2-13B, 200 tokens, batch 1: projections have 186 to 191 FLOP per byte, beyond the ridge
    of an A100 and before that of an H100; decoding has one (Kundu et al. 2024, section 5)."""
    cluster = catalog.system(system)
    for tokens, intensity, expected in ((200.0, (190.1, 185.5, 191.1, 189.8), bound), (
        1.0, (1.0, 1.0, 1.0, 1.0), "memory",
    )):  # fmt: skip
        found = body(
            LLAMA, cluster, plan(), tokens, 1.0, CALIBRATION, captured=False, sustained=False
        )
        lines = [line for line in found.lines if line.op == "gemm" and line.name != "head"]
        assert [line.bound for line in lines] == [expected] * 4
        for line, flop_per_byte in zip(lines, intensity, strict=True):
            assert line.intensity * ridge == pytest.approx(flop_per_byte, rel=0.01)


def test_narrow_types_fall_back_to_what_is_multiplied():
    a100 = catalog.accelerator("A100-SXM4-80GB")
    assert runnable("fp8", a100) == "int8_wo"
    assert runnable("nvfp4", a100) == "int4_wo"
    assert runnable("fp8", catalog.accelerator("H100-SXM5-80GB")) == "fp8"


def test_prompts_take_longer_behind_a_longer_past():
    cluster = catalog.system("dgx-h100")
    short, long = (
        prefill_cores(LLAMA, cluster, plan(), 1.0, 512.0, past, CALIBRATION, sustained=True)
        for past in (0.0, 8192.0)
    )
    assert long.compute > short.compute
    assert replace(plan(), cached=0.5).new_tokens == 100.0


def test_one_block_walks_over_all_keys_at_its_own_rate():
    llama = catalog.model("llama3-70b")
    cluster = catalog.system("dgx-h100")

    def time(keys, **fields):
        contexts, weights = np.array([keys]), np.ones(1)
        own = plan(tp=8.0, **fields)
        cores = decode_cores(llama, cluster, own, 1.0, contexts, weights, CALIBRATION)
        return float(cores.terms["attention"])

    slope = (time(16000.0, splitting="none") - time(8000.0, splitting="none")) / 8000.0
    # Two of 128 elements of 2 bytes per key and layer, 32 KiB in 600 ns.
    assert slope == pytest.approx(80 * 512 / (32 * 1024 / 600e-9))
    assert time(16000.0) < 0.3 * time(16000.0, splitting="none")


def test_scores_and_small_kernels_go_through_memory_where_nothing_is_fused():
    fused, apart = (
        {o.name: o for o in prefill_attention(LLAMA, plan(fusion=fusion), 1.0, 512.0)}
        for fusion in ("fused", "unfused")
    )
    assert set(apart) - set(fused) == {"attention.scores"}
    # The mask hides half of the square, which is computed all the same.
    assert apart["attention.scores"].bytes == 16.0 * LLAMA.heads * 512 * 512
    assert apart["attention"].flop == 2.0 * fused["attention"].flop
    norms = [layer_operators(LLAMA, plan(fusion=f), 8.0)[0].bytes for f in ("fused", "unfused")]
    assert norms[1] == 3.0 * norms[0]


def test_passes_over_parts_of_a_prompt_compute_no_later_parts_scores():
    own = plan(fusion="unfused", chunk=128.0)
    found = {o.name: o for o in prefill_attention(LLAMA, own, 1.0, 512.0)}
    # Four parts of 128 over 128, 256, 384 and 512 keys.
    assert found["attention.scores"].bytes == 16.0 * LLAMA.heads * 128 * 1280


def test_products_of_many_rows_are_converted_around():
    """Llama 3 8B, a row: inputs of queries, keys, values, output, gate, up [4096] and down [14336]
    from 4 bytes to 2; outputs [6144 + 4096 + 28672 + 4096] from 2 to 4."""
    model, own = catalog.model("llama3-8b"), plan(fusion="converted")
    few, many = ({o.name: o for o in layer_operators(model, own, rows)} for rows in (1.0, 512.0))
    moved = sum(float(o.bytes) * float(o.count) for n, o in many.items() if n.endswith(".convert"))
    columns = 6 * 4096 + 14336 + 6144 + 4096 + 28672 + 4096
    assert moved == 6.0 * 512 * columns * model.layers
    assert all(float(o.count) == 0.0 for n, o in few.items() if n.endswith(".convert"))
    cores = {o.name: o for o in prefill_attention(model, own, 1.0, 512.0)}
    each = model.heads * 512 * 512
    assert cores["attention.scores"].bytes == 8.0 * each
    assert cores["attention.convert"].bytes == 16.0 * each


def test_narrow_weights_are_widened_in_memory_for_many_rows_only():
    own = plan(weights="q4_k", fusion="unfused", accumulation="fp16")
    few, many = ({o.name: o for o in layer_operators(LLAMA, own, rows)} for rows in (1.0, 512.0))
    counts = [
        [float(found[f"mlp.down{part}"].count) for part in ("", ".widen", ".wide")]
        for found in (few, many)
    ]
    assert counts == [[LLAMA.layers, 0.0, 0.0], [0.0, LLAMA.layers, LLAMA.layers]]
    matrix = LLAMA.ffn_hidden * LLAMA.hidden
    assert many["mlp.down.widen"].bytes == pytest.approx(matrix * 2.606)
    assert many["mlp.down.wide"].dtype == "fp16_acc"


def test_few_rows_stream_the_matrix():
    cluster = catalog.system("dgx-a100-80gb")

    def linear(rows, matvec):
        own = plan(weights="int4_wo", matvec=matvec)
        taken = body(LLAMA, cluster, own, rows, rows, CALIBRATION, captured=True, sustained=False)
        return float(taken.terms["linear"])

    assert linear(1.0, "matvec") < linear(1.0, "gemm")
    assert linear(64.0, "matvec") == linear(64.0, "gemm")


def test_plain_kernels_wait_for_their_loads_where_a_processor_has_much_bandwidth():
    a100, a6000 = (catalog.accelerator(n) for n in ("A100-SXM4-80GB", "RTX-A6000-48GB"))
    for device, slower in ((a100, 1.9), (a6000, 1.1)):
        deep, plain = (float(matvec_time(1e9, device, kind)) for kind in ("matvec", "plain"))
        # 90 % of the bandwidth; 6.8 bytes per clock and processor.
        assert deep == pytest.approx(1e9 / (0.9 * device.bandwidth), rel=0.01)
        assert 1.0 < plain / deep < slower
        assert plain > 1e9 / (6.8 * device.sms * device.clock)
    assert matvec_time(1e9, a100, "plain") > 1.7 * matvec_time(1e9, a100, "matvec")


def test_heads_that_work_alone_read_the_cache_for_themselves():
    cluster = catalog.system("dgx-h100")
    device = cluster.accelerator

    def each(model, headwise):
        contexts, ones = np.array([8192.0]), np.ones(1)
        own = plan(headwise=headwise)
        cores = decode_cores(model, cluster, own, 64.0, contexts, ones, CALIBRATION)
        return float(cores.terms["attention"]) / model.layers

    cache = 64 * 8192 * 2 * 2 * 128.0  # keys and values of one key head, 16 bits
    alone, eight = catalog.model("llama2-7b"), catalog.model("llama3-70b")
    once = 32 * cache / (0.8 * device.bandwidth)
    assert each(alone, "all") == pytest.approx(once, rel=0.01)
    shared = 8 * 8 * cache / (0.5 * device.l2_bandwidth)
    assert each(eight, "all") == pytest.approx(shared, rel=0.01)
    assert each(eight, "but8") == each(eight, "single") == each(eight, "none") < each(eight, "all")
    assert each(alone, "single") == each(alone, "but8") == each(alone, "all")
    four, wide = catalog.model("llama3-8b"), catalog.model("falcon-180b")
    assert each(four, "to8") == each(four, "none") < each(four, "but8")
    assert each(alone, "to8") == each(alone, "all")
    assert each(wide, "to8") == each(wide, "all") > each(wide, "none")
    copied = (3 + 2 * 8) * 8 * cache / (0.9 * device.bandwidth)
    assert each(eight, "copied") == pytest.approx(copied, rel=0.01)


def test_packed_formats_pack_the_output_projection_too():
    assert [plan(weights=w).head for w in ("q4_k", "exl2_4", "int4_wo")] == [
        "q6_k", "exl2_6", "bf16",
    ]  # fmt: skip


def test_checkpoints_may_be_narrow_in_the_experts_alone():
    model = catalog.model("gpt-oss-120b")
    own = plan(weights="w4a16_mxfp4", narrowed="experts")
    dtypes = {o.name: o.dtype for o in layer_operators(model, own, 4.0)}
    assert (dtypes["moe.experts"], dtypes["attention.qkv"]) == ("w4a16_mxfp4", "bf16")


def test_shared_experts_beside_the_others_hide_behind_them():
    """In passes of few tokens both take what the longer takes, at least what reading both takes;
    beyond 256 tokens, and without shared experts, nothing changes."""
    system = catalog.system("dgx-h100")

    def terms(name, batch, when):
        own = plan(batch=batch, serving=1.0, output_len=8.0, tp=8.0, shared_experts=when)
        found = predict_inference(catalog.model(name), system, own, CALIBRATION)
        own = {line.name: float(line.time) for line in found.decoding.lines}
        shared = sum(own.get(f"shared.{part}", 0.0) for part in ("up", "activation", "down"))
        return shared, sum(own.values())

    for batch in (1.0, 16.0, 256.0):
        after, beside = (terms("deepseek-v3", batch, when) for when in ("after", "beside"))
        assert 0.0 <= beside[0] < after[0]
        assert after[1] - beside[1] == pytest.approx(after[0] - beside[0])
    assert terms("deepseek-v3", 257.0, "after") == terms("deepseek-v3", 257.0, "beside")
    assert terms("mixtral-8x7b", 16.0, "after") == terms("mixtral-8x7b", 16.0, "beside")


def test_two_streams_take_no_less_than_reading_what_both_read():
    """Hand count: routed experts of 30 us, shared of 20 us; together they read for 40 us."""
    machine = catalog.system("dgx-h100").accelerator
    size = float(machine.bandwidth) * 20e-6
    own = plan(shared_experts="beside")
    names = ("moe.experts", "shared.up", "shared.activation", "shared.down", "attention.out")
    made = [
        replace(matmul("bf16", 4.0, 8.0, 8.0, name=n), flop=1.0, bytes=b)
        for n, b in zip(names, (size, size, 0.0, 0.0, size), strict=True)
    ]
    alone = [np.array(t) for t in (30e-6, 12e-6, 3e-6, 5e-6, 9e-6)]
    found = [float(t) for t in beside_routed(made, alone, own, machine)]
    assert sum(found[:4]) == pytest.approx(40e-6)
    assert (found[0], found[4]) == (30e-6, 9e-6)


def test_drawing_from_the_likeliest_alone_sorts_all_logits_on_every_rank():
    """Hand count for one sequence of 32,000 logits: six passes of a radix sort read keys of 4 bytes
    twice and positions of 8 once and write both (28 bytes a pass), 82 bytes around them; penalties
    85. A kernel made for it reads 16 bytes of each. Nothing but the draw changes."""

    def ends(**fields):
        return {o.name: o.bytes for o in end_operators(LLAMA, plan(tp=4.0, **fields), 8.0, 8.0)}

    logits = 8.0 * LLAMA.vocab
    plain = ends()
    assert plain["sample"] == 12.0 * logits
    assert ends(sampler="fused") == plain
    told = ends(sampling="filtered")
    assert told.pop("filter") == (6 * 28 + 82) * logits
    assert told == plain
    told = ends(sampling="penalised", sampler="fused")
    assert told.pop("filter") == 16.0 * logits
    assert told.pop("penalties") == (2 * 17 + 10 + 24 + 17) * logits
    assert told == plain


def test_more_work_for_a_draw_is_never_faster():
    system = catalog.system("dgx-h100")

    def tpot(**fields):
        own = plan(batch=256.0, serving=1.0, output_len=64.0, scheduling="overlapped", **fields)
        return float(predict_inference(LLAMA, system, own, CALIBRATION).latencies.tpot)

    plain, fused = tpot(), tpot(sampling="filtered", sampler="fused")
    assert plain < fused < tpot(sampling="filtered") < tpot(sampling="penalised")


def test_checkpoints_may_be_narrow_in_the_feed_forward_blocks_alone():
    """Llama 3.1 405B: 126 x 3 x 16384 x 53248 weights of one byte (330 GB); attention of 126 x
    (2 x 16384 + 2 x 1024) x 16384 (144 GB) and two tables of 128,256 rows (8.4 GB) of two."""
    model = catalog.model("llama3.1-405b")
    own = plan(weights="fp8", narrowed="feed_forward")
    dtypes = {o.name: o.dtype for o in layer_operators(model, own, 4.0)}
    assert {dtypes["mlp.up"], dtypes["mlp.down"]} == {"fp8"}
    assert {dtypes["attention.qkv"], dtypes["attention.out"]} == {"bf16"}
    inner, h = 126 * 3 * 16384 * 53248, 16384
    wide = 126 * (2 * h + 2 * 1024) * h + 2 * 128256 * h
    assert float(weight_bytes(model, own)) == pytest.approx(inner + 2 * wide, rel=1e-3)


def test_a_prompt_that_rides_along_adds_less_than_it_takes_alone():
    """It shares weights and launches with the tokens that decode, and each of its passes."""
    model, cluster = catalog.model("llama3-8b"), catalog.system("dgx-h100")
    for given, chunk in ((512.0, 8192.0), (6000.0, 2000.0)):
        plan = ServingPlan(
            batch=8.0, serving=1.0, input_len=given, output_len=100.0, chunk=chunk, batching="mixed"
        )
        work = predict_inference(model, cluster, plan, CALIBRATION).work
        apart = replace(plan, batching="apart")
        alone = predict_inference(model, cluster, apart, CALIBRATION).work
        assert float(work.single.passes) == np.ceil(given / chunk)
        own = replace(EngineParameters(), mixing=1.0)
        added = float(beside(work, own))
        assert 0.0 < added < float(prompt_time(alone, own, single=True))


def test_passes_are_kept_for_when_the_same_are_asked_for_again():
    """And for no others: any number of the plan, the tokens, the machine or the calibration counts,
    but not how many workers read prompts beside the engine."""
    known, system, own = replace(CALIBRATION), catalog.system("dgx-h100"), plan(tp=2.0)

    def told(of=own, tokens=64.0, on=system, calibration=known, captured=1.0, sustained=False):
        return body(
            LLAMA, on, of, tokens, tokens, calibration, captured=captured, sustained=sustained
        )

    first = told()
    assert told(plan(tp=np.float64(2.0)), np.asarray(64.0)) is first
    assert told(replace(own, prefill_workers=3.0)) is first
    others = [
        {"of": replace(own, tp=4.0)},
        {"of": replace(own, input_len=201.0)},
        {"of": replace(own, allreduce="nccl")},
        {"of": replace(own, batch=np.array([1.0]))},
        {"tokens": 65.0},
        {"on": catalog.system("dgx-a100")},
        {"calibration": replace(CALIBRATION)},
        {"captured": 0.0},
        {"sustained": True},
    ]
    assert not any(told(**other) is first for other in others)
    apart = told(replace(own, prefill_workers=3.0), calibration=replace(CALIBRATION))
    assert {name: float(one) for name, one in apart.terms.items()} == {
        name: float(one) for name, one in first.terms.items()
    }
    many = plan(tp=2.0, batch=np.arange(1.0, 3001.0))  # as large as they are hardly met again
    assert told(many) is not told(many)
    contexts = np.array([[300.0], [400.0]])
    cores = [
        decode_cores(LLAMA, system, own, 8.0, contexts[:1] + more, np.ones((1,)), known)
        for more in (0.0, 0.0, 1.0)
    ]
    assert cores[0] is cores[1] is not cores[2]
    prompts = [
        prefill_cores(LLAMA, system, own, 1.0, 64.0, past, known, sustained=True)
        for past in (0.0, 0.0, 8.0)
    ]
    assert prompts[0] is prompts[1] is not prompts[2]
