"""Latencies, memory and completion of serving."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from predictor import catalog
from predictor.catalog.artifacts import load
from predictor.catalog.engines import engines_mapping, from_mapping
from predictor.catalog.forms import parse
from predictor.catalog.specs import ServingPlanSpec
from predictor.errors import InputError
from predictor.memory.serving import serving_memory, weight_bytes
from predictor.plans.serving import ServingPlan
from predictor.serving.completion import complete_serving
from predictor.serving.latency import latencies
from predictor.serving.pass_times import DeviceTime
from predictor.serving.prediction import BREAKDOWN, predict_inference
from predictor.timing.calibration import RunParameters
from predictor.timing.engines import EngineParameters, ServingParameters
from tests.predictor.serving.bare import BARE, bare
from tests.predictor.serving.bare import work as bare_work

CALIBRATION = replace(load("default"), serving=ServingParameters())
MODEL, CLUSTER = catalog.model("llama3-8b"), catalog.system("dgx-h100")


SINGLE = DeviceTime(2.1, 0.0, 10.0)
"""Beside a pass that decodes, a prompt adds what it takes alone."""


def work(**fields):
    return bare_work(**{"single": SINGLE, **fields})


def predict(**fields):
    plan = ServingPlan(**{"batch": 1.0, "input_len": 512.0, "output_len": 128.0, **fields})
    return predict_inference(MODEL, CLUSTER, plan, CALIBRATION)


def test_a_single_request_is_its_prompt_and_its_passes():
    found = latencies(work(), BARE)
    assert (found.ttft, found.tpot, found.e2e) == pytest.approx((2.0, 0.1, 3.0))
    assert found.requests_per_s == pytest.approx(1 / 3.0)


def met(others: float) -> float:
    """How often arrivals at random find any of others at work, so many of which run on average."""
    return 1.0 - math.exp(-others)


def while_decoding(before: float) -> float:
    """Share of a life's passes that decode ten tokens, so many others being before the first."""
    return 10.0 / (10.0 + before)


def test_prompts_of_others_fall_into_the_decoding():
    # Four run: half a pass is left, with its share of three prompts of 2 s in a life; the next has
    # its share, too, and the own prompt.
    found = latencies(work(running=4.0, clients=4.0), BARE)
    others = 3 * 2.0 * while_decoding(1.5 * met(3.0))
    assert found.ttft == pytest.approx(met(3.0) * 1.5 * (0.1 + others / 10) + 2.0)
    assert found.tpot == pytest.approx((10 * 0.1 + others) / 10)
    assert found.requests_per_s == pytest.approx(4 / found.e2e)  # Little


def test_synchronous_clients_wait_for_each_other():
    # Nothing is under way but half a pass's wait; one prompt is read alone, the others after it:
    # all three in the opening wave, a tenth of the requests, and as many as stay together later.
    found = latencies(work(running=4.0, clients=4.0, synchrony=1.0), BARE)
    rest = 3 / (1 + 3 * 1000 / 1e5)
    later = (1 + rest * (1 + rest)) / (1 + rest)
    opening = (1 + 3 * (1 + 3)) / 4
    each = 2.0 + 0.5 * 0.1 / 8.192  # and half of them decode in a pass of 8,192 tokens
    # The pass that answers, half of it for who waits for nothing, with others' prompts.
    answer = 0.1 + 0.9 * (3 - rest) * 2.0 * while_decoding(0.5) / 10
    assert found.ttft == pytest.approx(0.9 * (0.5 * answer + each * later) + 0.1 * each * opening)


def test_one_request_in_ten_meets_all_clients_where_lengths_vary():
    # The opening wave of four, 2 s each, three of them in one pass; then as if they came at random.
    apart = latencies(work(running=4.0, clients=4.0), BARE)
    found = latencies(work(running=4.0, clients=4.0, synchrony=0.1), BARE)
    opening = (2.0 + 0.05 / 8.192) * (1 + 3 * (1 + 3)) / 4
    # Nine tenths of the three others' prompts, 2 s each, are in the passes that one waits for, and
    # those of a closed loop are always there.
    usual = (0.1 + 0.6 * while_decoding(1.5 * met(3.0)), 0.1 + 0.54 * while_decoding(1.5))
    late = 1.5 * (met(3.0) * usual[0] - usual[1])
    assert found.ttft == pytest.approx(0.9 * (apart.ttft - late) + 0.1 * opening)


def test_passes_that_are_prepared_ahead_take_requests_up_one_later():
    serial = latencies(work(running=4.0, clients=4.0), BARE)
    found = latencies(work(running=4.0, clients=4.0, overlapped=1.0), BARE)
    # A pass of 0.1 s with its part of 6 s of prompts, of which all have fewer where they are more.
    often = met(3.0)
    each, fewer = (0.1 + 0.6 * while_decoding(often * before) for before in (1.5, 2.5))
    assert found.ttft - serial.ttft == pytest.approx(often * (2.5 * fewer - 1.5 * each))
    alone = latencies(work(overlapped=1.0), BARE)
    assert alone.ttft == pytest.approx(2.0)


def test_a_burst_is_read_pass_by_pass():
    # Nine prompts of 1,000 tokens, two to a pass: 1, then 3, 5, 7 and 9 have been read; no burst
    # is too large here.
    wide = bare(burst=1e12)
    found = latencies(work(running=9.0, clients=9.0, synchrony=1.0, chunk=2048.0), wide)
    assert found.ttft == pytest.approx(
        0.9 * 0.05 + (2.0 + 0.05 / 2.048) * (1 + 2 * (3 + 5 + 7 + 9)) / 9
    )


def test_passes_have_room_for_so_many_prompts():
    # Ten passes of 500 tokens take five prompts; of 20 clients, 15 are read one after the other.
    one = DeviceTime(2.2, 0.0, 10.0, 2.0)
    found = latencies(work(running=20.0, clients=20.0, chunk=500.0, single=one), BARE)
    # Half a pass under way and the own one are among those that have them.
    assert found.tpot == pytest.approx((1.0 + 5 * 2.0 * while_decoding(1.5)) / 10)
    # Every pass has half a prompt in it: a turn of all of them takes 40 passes of 1.1 s.
    assert found.e2e == pytest.approx(20 * 2 * (0.1 + 1.0))
    assert found.ttft == pytest.approx(found.e2e - 10 * found.tpot)


def test_prompts_that_come_together_are_waited_for_before_or_after_the_first_token():
    """Whoever is read first waits for the others with its next tokens: twelve prompts of 2 s, in
    passes of their own, are in everybody's time, whenever the first token comes."""
    plain = EngineParameters(
        decode=1, prefill=1, communication=1, gap=0, launch=0, step=0, sequence=0, request=0,
        mixing=1, burst=1e12,
    )  # fmt: skip
    twelve = {"running": 12.0, "clients": 12.0, "apart": 1.0, "single": DeviceTime(2.0, 0.0, 10.0)}
    for synchrony in (1e-9, 1.0):
        found = latencies(work(synchrony=synchrony, **twelve), plain)
        assert found.e2e == pytest.approx(12 * 2.0 + 10 * 0.1, rel=0.06)


def test_layers_dealt_out_to_devices_take_turns():
    spread, turns = (predict(pp=4.0, batch=8.0, pipelining=kind) for kind in ("sequences", "turns"))
    assert float(turns.work.sequences) == 4 * float(spread.work.sequences) == 8.0
    # Decoding reads the same weights either way; prompts no longer overlap.
    assert turns.latencies.tpot > spread.latencies.tpot
    assert turns.latencies.ttft > 2.0 * spread.latencies.ttft


def test_a_pipeline_that_drains_early_fills_more_often():
    """Sixteen parts through four stages: (16 + 3) / 16 together, (4 + 3) / 4 four by four."""
    fields = {"pp": 4.0, "input_len": 8192.0, "output_len": 1.0, "chunk": 512.0}
    whole, parts = (predict(window=window, **fields) for window in (np.inf, 4.0))
    fill = [(1.0 + float(found.work.fill)) * 4.0 for found in (whole, parts)]
    assert fill == pytest.approx([19 / 16, 7 / 4])


def test_what_does_not_run_waits():
    found = latencies(work(running=4.0, clients=12.0), BARE)
    life = found.e2e - found.queue
    assert found.queue == pytest.approx(2 * life)
    assert found.requests_per_s == pytest.approx(12 / found.e2e)


def test_a_static_batch_that_does_not_fit_comes_in_waves():
    half = latencies(work(static=1.0, running=2.0, clients=4.0), BARE)
    whole = latencies(work(static=1.0, running=4.0, clients=4.0), BARE)
    assert half.e2e == pytest.approx(2 * whole.e2e)


def test_launching_bounds_what_is_not_captured():
    slow = bare(launch=0.5)
    found = latencies(work(captured=0.0), slow)
    assert found.tpot == pytest.approx(10 * 0.5)
    assert found.ttft == pytest.approx(10 * 0.5)


def test_breakdown_adds_up():
    for fields in (
        {},
        {"batch": 64.0},
        {"batch": 100.0, "serving": 1.0},
        {"pp": 2.0, "batch": 8.0},
    ):
        found = predict(**fields)
        assert set(found.breakdown) == set(BREAKDOWN)
        assert sum(map(float, found.breakdown.values())) == pytest.approx(
            float(found.latencies.e2e)
        )


def test_batch_of_plans_equals_plans_one_by_one():
    batch, tp = np.array([1.0, 16.0, 300.0]), np.array([1.0, 2.0, 8.0])
    together = predict(batch=batch, tp=tp, serving=1.0)
    for i in range(3):
        alone = predict(batch=batch[i], tp=tp[i], serving=1.0)
        for name in ("ttft", "tpot", "e2e"):
            many, one = getattr(together.latencies, name)[i], getattr(alone.latencies, name)
            assert many == pytest.approx(float(one), rel=1e-3)
        assert together.sigma["e2e"][i] == pytest.approx(float(alone.sigma["e2e"]), rel=1e-2)


def test_batches_may_have_several_dimensions():
    batch, tp = np.array([[1.0], [64.0]]), np.array([1.0, 2.0, 8.0])
    wide = predict(batch=batch, tp=tp)
    assert wide.latencies.e2e.shape == (2, 3)
    flat = predict(batch=np.repeat(batch.ravel(), 3), tp=np.tile(tp, 2))
    assert wide.latencies.e2e.ravel() == pytest.approx(flat.latencies.e2e)


@settings(max_examples=15, deadline=None)
@given(
    st.sampled_from([1.0, 4.0, 32.0]),
    st.sampled_from([128.0, 1024.0]),
    st.sampled_from([1.0, 2.0, 8.0]),
)
def test_more_work_takes_no_less_time(batch, length, tp):
    base = predict(batch=batch, input_len=length, tp=tp)
    for more in (
        {"batch": 2 * batch},
        {"input_len": 2 * length},
        {"output_len": 256.0},
    ):
        fields = {"batch": batch, "input_len": length, "tp": tp, **more}
        # Fitted efficiencies ripple by a per cent.
        assert float(predict(**fields).latencies.e2e) >= float(base.latencies.e2e) * 0.985


def test_cached_prompts_are_faster():
    whole, most = predict(input_len=8192.0), predict(input_len=8192.0, cached=0.9)
    assert most.latencies.ttft < 0.3 * whole.latencies.ttft
    assert most.latencies.tpot == whole.latencies.tpot


def test_guessed_tokens_save_passes():
    """Leviathan et al. 2023, eq. 1: with acceptance a, g guesses give (1 - a^(g+1)) / (1 - a)."""
    plan = ServingPlan(1.0, 512.0, 128.0, drafted=4.0, acceptance=0.8)
    assert float(plan.tokens_per_pass) == pytest.approx(3.3616)
    plain, guessed = predict(), predict(drafted=4.0, acceptance=0.8)
    # Few tokens read the same weights: a pass is hardly longer, and there are fewer of them.
    assert 2.5 < float(plain.latencies.tpot / guessed.latencies.tpot) < 3.4
    wrong = predict(drafted=4.0, acceptance=0.0)
    assert wrong.latencies.tpot >= 0.98 * plain.latencies.tpot  # efficiencies ripple
    # At large batches checking costs arithmetic.
    many = predict(batch=512.0).latencies.tpot / predict(batch=512.0, drafted=4.0).latencies.tpot
    assert many < 2.0
    assert sum(map(float, guessed.breakdown.values())) == pytest.approx(
        float(guessed.latencies.e2e)
    )
    slow = predict(drafted=4.0, acceptance=0.8, draft_cost=0.25)
    assert slow.latencies.step > 1.8 * guessed.latencies.step


def test_weight_bytes_by_hand():
    plan = ServingPlan(batch=1.0, input_len=1.0, output_len=1.0)
    assert float(weight_bytes(MODEL, plan)) == pytest.approx(2 * MODEL.parameters, rel=1e-3)
    half = ServingPlan(batch=1.0, input_len=1.0, output_len=1.0, weights="fp8")
    ends = 2 * MODEL.vocab * MODEL.hidden
    assert float(weight_bytes(MODEL, half)) == pytest.approx(MODEL.parameters + ends, rel=1e-3)


def test_the_cache_decides_how_many_fit():
    plan = ServingPlan(batch=10.0, input_len=1000.0, output_len=24.0)
    found = serving_memory(MODEL, CLUSTER, plan, RunParameters())
    one = 32 * 1024 * 2 * 2 * 8 * 128
    assert float(found.per_sequence) == one
    assert float(found.classes["cache"]) == 10 * one
    free = float(found.capacity - found.total + found.classes["cache"])
    assert float(found.sequences) == free // one


def test_parameters_survive_their_file():
    own = ServingParameters({"vllm": EngineParameters(step=2e-3)}, {"all": 0.2}, frozenset("a"))
    again = from_mapping(engines_mapping(own))
    assert again.of("vllm", "neutral").step == pytest.approx(2e-3)
    assert again.points == own.points
    assert again.spread("tpot", "static") == 0.2


def test_eras_choose_their_period():
    old, new = EngineParameters(step=3.0), EngineParameters(step=1.0)
    known = ServingParameters({"vllm": new, "vllm until 2025-01": old, "neutral": new})
    assert known.of("vllm", "2024-09").step == 3.0
    assert known.of("vllm", "2025-06").step == 1.0
    assert known.of("vllm", "neutral").step == 1.0
    assert known.of("another", "2024").step == 1.0


def request(**fields):
    base = {"model": "llama3-70b", "system": "dgx-h100", "input_len": 512, "output_len": 128}
    spec = parse(ServingPlanSpec, {**base, **fields}, "test")
    return complete_serving(spec, RunParameters())


def test_the_smallest_layout_that_holds_the_weights():
    assert float(request().plan.tp) == 2.0  # 141 GB of weights on devices of 85.9
    assert float(request(precision="fp8").plan.tp) == 1.0
    assert float(request(system="dgx-h100", gpus=8).plan.tp) == 8.0
    filled = {a.field for a in request().assumed}
    assert {"tp", "pp", "dp", "batch", "precision", "framework"} <= filled


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"tp": 3}, "tp 3 does not divide the 64 attention heads"),
        ({"batch": 4, "concurrency": 4}, "not both"),
        ({"ep": 2}, "needs a mixture of experts"),
        ({"framework": "vlm"}, "did you mean 'vllm'"),
        ({"gpus": 6, "tp": 4}, "gpus 6 is not a multiple of tp 4; nearest 4 and 8"),
        ({"tp": 8, "dp": 2, "batch": 1}, "fewer sequences than the 2 attention replicas"),
    ],
)
def test_impossible_requests_are_refused(fields, message):
    with pytest.raises(InputError, match=message):
        request(**fields)


def test_fewer_clients_than_replicas_and_experts_that_do_not_divide_are_served():
    """Some replicas wait, some ranks have one expert more: of 256, 72 ranks have four at most."""
    asked = {"model": "deepseek-v3", "system": "gb200-nvl72", "tp": 1, "dp": 72, "precision": "fp8"}
    few = request(**asked, ep=72, concurrency=8)
    assert (float(few.plan.dp), float(few.plan.ep)) == (72.0, 72.0)
    dividing = request(**asked, ep=72, concurrency=144)
    model = catalog.model("deepseek-v3")
    spread = float(weight_bytes(model, few.plan))
    assert spread == float(weight_bytes(model, dividing.plan))
    even = replace(model, num_experts=288)  # and 32 more columns of each router
    routers = 32 * 7168 * 58
    assert float(weight_bytes(even, few.plan)) - spread == pytest.approx(routers, rel=1e-9)
    with pytest.raises(InputError, match="ep 288 is more ranks than the 256 experts"):
        request(**{**asked, "dp": 288, "gpus": 288, "system": "dgx-h100"}, ep=288, concurrency=288)


@pytest.mark.parametrize(
    "fields",
    [{"input_len": 0}, {"output_len": -1}, {"concurrency": 0}, {"precision": "q3"}, {"batc": 1}],
)
def test_bad_values_are_refused(fields):
    with pytest.raises(InputError):
        request(**fields)


def test_every_engine_setting_is_a_field_of_a_request():
    for name, engine in catalog.all_engines().items():
        for fact in engine.facts:
            assert fact.source, name
            assert fact.confidence in ("read", "second-hand", "memory"), name
            stated = 8192 if fact.value == "context" else fact.value
            if isinstance(stated, str) and stated.endswith("/dp"):
                stated = int(stated.removesuffix("/dp"))  # shared by the replicas
            parse(ServingPlanSpec, {fact.field: stated}, name)


def test_a_state_does_not_grow_with_the_context():
    model = catalog.model("nemotron-nano-9b-v2")
    assert model.matrix_parameters() + 2 * model.hidden * model.vocab == pytest.approx(
        8.9e9, rel=3e-3
    )
    base = {"model": model.name, "input_len": 100, "output_len": 10, "system": "dgx-h100"}

    def held(length):
        one = request(**{**base, "input_len": length})
        return float(serving_memory(one.model, one.cluster, one.plan, RunParameters()).per_sequence)

    token = 4 * 2 * 2 * 8 * 128
    assert held(2100) - held(100) == pytest.approx(2000 * token)
    channels = 128 * 80 + 2 * 8 * 128
    state = 27 * (4 * 128 * 80 * 128 + 2 * 3 * channels)
    assert held(100) == pytest.approx(110 * token + state)


def test_hybrids_decode_by_updating_states():
    model = catalog.model("nemotron-nano-9b-v2")
    plan = ServingPlan(batch=8.0, input_len=512.0, output_len=128.0)
    found = predict_inference(model, CLUSTER, plan, CALIBRATION)
    lines = {line.name: line for line in found.decoding.lines}
    assert lines["mamba.update"].count == 27
    assert lines["attention"].count == 4
    scanned = {line.name for line in found.prompts.lines}
    assert {"mamba.within", "mamba.states", "mamba.between", "mamba.pass"} <= scanned
    floor = weight_bytes(model, plan) / CLUSTER.accelerator.bandwidth
    assert floor < float(found.latencies.step) < 3 * floor


def test_the_host_works_before_the_device_or_beside_it():
    own = bare(step=0.03)
    slow = bare(step=0.3)
    assert latencies(work(), own).step == pytest.approx(0.13)
    assert latencies(work(overlapped=1.0), own).step == pytest.approx(0.1)
    assert latencies(work(overlapped=1.0), slow).step == pytest.approx(0.3)
    # A host of C++ takes a quarter.
    assert latencies(work(launching=0.25), own).step == pytest.approx(0.1075)


def test_a_static_batch_sends_no_request():
    own = bare(request=0.5)
    assert latencies(work(static=1.0), own).ttft == pytest.approx(2.0)
    assert latencies(work(), own).ttft == pytest.approx(2.5)


def test_the_cache_follows_the_checkpoint():
    def cache(**fields):
        spec = parse(
            ServingPlanSpec,
            {"model": "llama3-70b", "system": "dgx-h100", "input_len": 100, "output_len": 10}
            | fields,
            "test",
        )
        return complete_serving(spec, RunParameters()).plan.kv

    assert cache(framework="tensorrt-llm", precision="fp8") == "fp8"
    assert cache(framework="vllm", precision="fp8") == "bf16"
    assert cache(framework="tensorrt-llm", precision="fp8", kv_precision="bf16") == "bf16"


def test_an_unknown_engine_names_the_known_ones():
    with pytest.raises(
        InputError, match="unknown framework 'nosuch'; known: atom, deepspeed-mii, deepspeed"
    ):
        request(framework="nosuch")


def test_captured_passes_end_at_a_limit_and_are_filled_up():
    plan = ServingPlan(batch=8.0, input_len=512.0, output_len=64.0, graph_limit=512.0, padded=128.0)
    many = np.array([1.0, 128.0, 130.0, 256.0, 300.0, 512.0, 513.0])
    assert plan.captured(many).tolist() == [1, 1, 1, 1, 1, 1, 0]
    assert plan.rows(many).tolist() == [1, 128, 256, 256, 512, 512, 513]
    assert plan.rows(300.0) == 512.0
    free = replace(plan, graph_limit=np.inf, padded=np.inf)
    assert free.rows(many) is many


def test_a_norm_inside_the_all_reduce_takes_no_time_of_its_own():
    """Only where ranks add up, and only small messages: 1 MB of eight ranks on Hopper."""
    model = catalog.model("llama3-70b")

    def norms(tp, batch, reductions):
        plan = ServingPlan(batch=batch, input_len=64.0, output_len=8.0, tp=tp,
                           reductions=reductions)  # fmt: skip
        lines = predict_inference(model, CLUSTER, plan, CALIBRATION).decoding.lines
        return sum(float(line.time) for line in lines if line.op == "norm")

    assert norms(8.0, 8.0, "joined") == 0.0 < norms(8.0, 8.0, "apart")
    assert norms(1.0, 8.0, "joined") == norms(1.0, 8.0, "apart")
    # 128 rows of 8,192 elements of two bytes are 2 MB.
    assert norms(8.0, 128.0, "joined") == norms(8.0, 128.0, "apart")


def test_a_static_pool_is_of_weights_and_cache_alone():
    model = catalog.model("llama3-8b")
    plan = ServingPlan(batch=np.inf, serving=1.0, input_len=900.0, output_len=124.0)
    token = 2 * 2 * 8 * 128 * 32
    weights = float(weight_bytes(model, plan))
    for pool, fraction in (("static", 0.8), ("static", 0.5)):
        own = replace(plan, pool=pool, memory_fraction=fraction)
        found = serving_memory(model, CLUSTER, own, RunParameters())
        room = fraction * float(CLUSTER.accelerator.memory) - weights
        assert float(found.sequences) == room // (1024 * token)


def test_an_engine_that_looks_for_requests_seldom_lets_them_wait():
    """Half the passes between two looks, of which the usual look has its own half already."""
    model = catalog.model("llama3-8b")
    plan = ServingPlan(batch=16.0, serving=1.0, input_len=512.0, output_len=256.0)
    often, seldom = (
        predict_inference(model, CLUSTER, replace(plan, polling=every), CALIBRATION).latencies
        for every in (1.0, 31.0)
    )
    # The opening wave, a tenth, finds it idle, and the passes that decode have prompts in them.
    waits = 0.9 * 15 * np.array([float(often.step), float(often.tpot)])
    assert waits[0] <= float(seldom.ttft - often.ttft) <= waits[1] * (1 + 1e-6)
    # In the passes that one waits for others are read, which do not delay its tokens.
    assert float(seldom.step) < float(seldom.tpot) < float(often.tpot)


def test_an_engine_that_holds_prompts_begins_as_soon_as_enough_wait():
    """Of as many as run, three tenths have come after three of the ten passes that each takes:
    later than an engine that looks at every pass, sooner than one that looks every forty."""
    many = {"running": 100.0, "sequences": 100.0, "clients": 100.0, "apart": 1.0}
    held, rare, each = (
        float(np.max(latencies(work(**many, **own), BARE).ttft))
        for own in ({"polling": 40.0, "hold": 1.0}, {"polling": 40.0}, {"polling": 1.0})
    )
    assert each < held < rare
