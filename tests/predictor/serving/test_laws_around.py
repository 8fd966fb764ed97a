"""Hosts, links, clients and modules around an engine, by hand."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from predictor import catalog
from predictor.catalog import load
from predictor.errors import InputError
from predictor.memory import node_memory, weight_bytes
from predictor.plans.serving import ServingPlan
from predictor.serving.apart import (
    HELD,
    enough_accelerators,
    holding,
    link_rate,
    most_together,
    readers,
    sending_time,
    transfer_time,
    worker,
)
from predictor.serving.around import COLD_START, DRIVE_RATE, Around, around_of
from predictor.serving.capacities import Promise, poisson_quantile
from predictor.serving.clients import VARIATION, Client, arrivals, spread_lengths
from predictor.serving.equivalents import SHARING, _in_groups, _of_two
from predictor.serving.modules import (
    COMPOSED,
    JOINED_SCORES,
    PER_EXPERT,
    SCORES,
    SMALL,
    launches,
    started,
)
from predictor.serving.offload import (
    attention_time,
    default_link,
    enforce_host,
    hosts_memory,
    riding_along,
    stream_time,
    with_decoding,
    with_prompts,
)
from predictor.serving.parts import COMPUTE, TERMS, Pass
from predictor.serving.pass_times import (
    MADE,
    MADE_LAYER,
    NOTHING,
    PICKLED,
    DeviceTime,
    Work,
    listed,
    making,
    software_of,
    told,
)
from predictor.serving.passes import _intensity, term_of
from predictor.serving.prediction import predict_inference
from predictor.serving.rates import Rates
from predictor.serving.workload import sessions, with_adapters
from predictor.timing import RunParameters
from predictor.work import cache_bytes, read_bytes, state_bytes
from predictor.work.primitives import gemm

LLAMA, DGX, NONE = catalog.model("llama3-8b"), catalog.system("dgx-h100"), load("none")


def plan(**fields: object) -> ServingPlan:
    given = {"batch": 8.0, "input_len": 1000.0, "output_len": 100.0, **fields}
    return ServingPlan(**given)  # type: ignore[arg-type]


AWAY = plan(offload="weights", host_link=2e10, host_bandwidth=1e11, tp=2.0, pp=2.0, dp=1.0)


def a_pass(each: float) -> Pass:
    return Pass({name: np.asarray(each) for name in TERMS}, np.asarray(10.0), {})


def test_weights_stream_over_the_link_and_caches_are_read_where_they_lie() -> None:
    """A quarter of the weights at 20 GB/s for each rank; the host reads the caches of five at its
    bandwidth, of which each of four ranks has a quarter, and half of the layers are here."""
    assert float(stream_time(LLAMA, AWAY)) == pytest.approx(float(weight_bytes(LLAMA, AWAY)) / 2e10)
    read = float(read_bytes(LLAMA, AWAY, 800.0))
    found = float(attention_time(LLAMA, AWAY, 5.0, 800.0))
    assert found == pytest.approx(5.0 * read / 2.0 / (1e11 / 4.0))
    hybrid = catalog.model("nemotron-h-8b")
    state = float(state_bytes(hybrid, AWAY))
    moved = float(read_bytes(hybrid, AWAY, 800.0)) + 2.0 * state
    assert float(attention_time(hybrid, AWAY, 5.0, 800.0)) == pytest.approx(
        5.0 * moved / 2.0 / (1e11 / 4.0)
    )


def test_passes_wait_for_what_does_not_hide_behind_them() -> None:
    stream = float(stream_time(LLAMA, AWAY))
    waits = with_prompts(a_pass(0.1 * stream), LLAMA, AWAY, 3.0).terms["host_transfer"]
    assert float(waits) == pytest.approx(3.0 * stream - 0.1 * stream * len(COMPUTE))
    shared = with_prompts(a_pass(1e-9), LLAMA, replace(AWAY, serving=1.0), 3.0)
    assert float(shared.terms["host_transfer"]) == 0.0
    plain = a_pass(1.0)
    for same in (with_prompts(plain, LLAMA, plan(), 3.0), riding_along(plain, plain, plan(), 2.0),
                 with_decoding(plain, LLAMA, plan(), 5.0, 800.0)):  # fmt: skip
        assert same is plain
    quick, slow = (a_pass(by * stream) for by in (0.01, 0.5))
    for own, waited in ((quick, 1.0 - 0.01 * (len(COMPUTE) - 1)), (slow, 0.0)):
        told = with_decoding(own, LLAMA, AWAY, 1e-9, 800.0).terms
        assert float(told["attention"]) == 0.0
        assert float(told["host_transfer"]) == pytest.approx(max(waited, 0.0) * stream)
    many = with_decoding(quick, LLAMA, AWAY, 1e6, 800.0).terms["host_transfer"]
    reading = float(attention_time(LLAMA, AWAY, 1e6, 800.0))
    assert float(many) == pytest.approx(reading - 0.01 * (len(COMPUTE) - 1) * stream)


def test_prompts_ride_along_while_the_device_waits() -> None:
    """Of 5 s of a prompt's kernels two passes hide 2 x 1 s; a batch by itself has none to hide."""
    prompts = a_pass(1.0)
    decoding = Pass({**a_pass(0.0).terms, "host_transfer": np.asarray(1.0)}, np.zeros(()), {})
    serving = replace(AWAY, serving=1.0)
    left = riding_along(prompts, decoding, serving, 2.0)
    assert float(left.compute) == pytest.approx(len(COMPUTE) * (1.0 - 2.0 / len(COMPUTE)))
    assert float(riding_along(prompts, decoding, serving, 99.0).compute) == 0.0
    assert float(riding_along(prompts, decoding, AWAY, 2.0).compute) == len(COMPUTE)


def test_hosts_of_whole_nodes_hold_the_weights_or_refuse() -> None:
    """PCIe 4 before 2022, 5 since: 25 and 55 GB/s are what copies reach of 32 and 64."""
    assert float(hosts_memory(DGX, 9.0)) == 2.0 * node_memory(DGX)
    years = {2020.0: 25e9, 2021.9: 25e9, 2022.0: 55e9, np.nan: 55e9}
    for year, rate in years.items():
        assert default_link(replace(DGX.accelerator, year=year)) == rate
    need = float(weight_bytes(LLAMA, AWAY)) * 4.0
    enforce_host(LLAMA, replace(AWAY, host_memory=need))
    enforce_host(LLAMA, replace(AWAY, host_memory=1.0, offload="none"))
    with pytest.raises(InputError, match=r"less than the weights of llama3-8b, 16 GB: 6 GB are"):
        enforce_host(LLAMA, replace(AWAY, host_memory=need - 6e9))


APART = plan(prefill_workers=3.0, prefill_tp=2.0, tp=4.0, dp=2.0, serving=1.0)


def test_workers_are_plans_of_their_own() -> None:
    own = worker(APART)
    assert (float(own.tp), float(own.pp), float(own.dp), float(own.ep)) == (2.0, 1.0, 1.0, 1.0)
    assert float(worker(replace(APART, ep=8.0)).ep) == 2.0
    held = holding(APART)
    assert (float(held.batch), float(held.serving)) == (HELD, 0.0) == (2.0, 0.0)
    mixed = plan()
    assert worker(mixed) is mixed
    assert holding(mixed) is mixed
    some = plan(prefill_workers=np.array([0.0, 1.0]), prefill_tp=2.0, tp=4.0, batch=8.0)
    assert np.asarray(worker(some).tp).tolist() == [4.0, 2.0]
    assert readers(APART, DGX) == (DGX, APART)
    other = replace(DGX, prefill=catalog.system("dgx-a100"))
    assert readers(APART, other)[0] is other.prefill
    with pytest.raises(InputError, match="prompts of all plans of a batch, or of none"):
        readers(some, other)
    held = SimpleNamespace(sequences=np.asarray(9.0))
    for chunk, many in ((8192.0, 4.0), (3000.0, 3.0), (500.0, 1.0)):
        assert float(most_together(replace(APART, chunk=chunk), held)) == many  # type: ignore[arg-type]


def test_caches_travel_over_the_networks_that_reach_everyone() -> None:
    """Ten accelerators lie on two nodes; four inside one; between two systems no more than those
    that decode take in."""
    inside, outside = (float(DGX.tiers[at].rate) for at in (0, -1))
    assert float(link_rate(plan(tp=4.0), DGX)) == inside
    assert float(link_rate(APART, DGX)) == outside
    assert float(link_rate(replace(APART, kv_rate=7e9), DGX)) == 7e9
    both = replace(DGX, prefill=DGX)
    for tp, rate in ((4.0, outside), (1.0, 0.5 * outside)):
        assert float(link_rate(replace(APART, tp=tp), both)) == pytest.approx(rate)
    assert bool(enough_accelerators(APART, DGX))
    small = replace(DGX, tiers=(DGX.tiers[0],))
    assert [bool(enough_accelerators(plan(tp=8.0, dp=n), small)) for n in (1.0, 2.0)] == [
        True,
        False,
    ]
    pair = replace(small, prefill=small)
    for more, fits in (({}, True), ({"prefill_workers": 5.0}, False), ({"tp": 8.0}, False)):
        assert bool(enough_accelerators(replace(APART, **more), pair)) is fits


@pytest.mark.parametrize("prompt", [0.0, 0.02, 10.0])
def test_a_cache_is_waited_for_by_its_last_layer_at_least(prompt: float) -> None:
    """All but what left while the prompt's other layers were read."""
    own = replace(APART, kv_rate=1e9)
    rank = worker(own)
    whole = float(cache_bytes(LLAMA, rank, 1000.0)) / 1e9
    assert float(sending_time(LLAMA, own, DGX)) == pytest.approx(whole)
    expected = max(whole / 32.0, whole - prompt * 31.0 / 32.0)
    assert float(transfer_time(LLAMA, own, DGX, prompt)) == pytest.approx(expected)
    assert float(transfer_time(LLAMA, plan(), DGX, prompt)) == 0.0


def product(**fields: Any) -> Any:
    given: dict[str, Any] = {"op": "gemm", "name": "x", "variant": "fwd", "module": "layer",
                             "batch": 1.0}  # fmt: skip
    return SimpleNamespace(**{**given, **fields})


def test_modules_of_pytorch_launch_what_they_are_composed_of() -> None:
    composed = plan(modules="composed", fusion="none")
    cases = [
        (product(op="norm", name="attention.norm"), COMPOSED["norm"]),
        (product(name="attention.qkv"), COMPOSED["attention.qkv"]),
        (product(name="router"), 1.0),
        (product(op="attention_decode"), SCORES),
        (product(op="moe_gemm", batch=3.0), 3.0 * PER_EXPERT),
        (product(op="moe_gemm", batch=0.2), PER_EXPERT),
    ]
    for one, small in cases:
        assert float(np.asarray(launches(one, composed))) == 1.0 + SMALL * (small - 1.0)
        assert launches(one, plan(modules="joined")) == 1.0
    fused = plan(modules="composed", fusion="fused")
    core = product(op="attention_prefill")
    assert launches(core, fused) == 1.0 + SMALL * (JOINED_SCORES - 1.0)


def test_terms_and_launches_of_kernels() -> None:
    kinds = {
        "attention": [product(op="attention_decode"), product(variant="scan"),
                      product(variant="bmm"), product(variant="recurrence")],
        "head": [product(module="head"), product(module="embedding", op="gather")],
        "experts": [product(op="moe_gemm")],
        "linear": [product()],
        "elementwise": [product(op="norm")],
    }  # fmt: skip
    assert {term_of(one) for own in kinds.values() for one in own} == set(kinds)
    for term, own in kinds.items():
        assert {term_of(one) for one in own} == {term}
    alone = np.array([2.0, 2.0, 0.0, 2.0])
    shares = started(np.array([0.0, 1.0, 0.0, 3.0]), alone)
    assert shares.tolist() == [0.0, 0.5, 0.0, 1.0]
    one = gemm(name="p", layout="fwd", phase="forward", module="layer", dtype="bf16", m=64.0,
               n=4096.0, k=4096.0, out_bytes=2.0)  # fmt: skip
    device = DGX.accelerator
    ideal = float(one.flop) / float(device.peak["bf16"])
    assert _intensity(one, device) == pytest.approx(ideal / (float(one.bytes) / device.bandwidth))
    assert _intensity(replace(one, flop=0.0), device) == 0.0


def test_operators_that_bound_others_do_their_work() -> None:
    """A product of two rows does twice the arithmetic of one; heads in two groups read their keys
    twice, and their queries once."""
    one = gemm(name="p", layout="fwd", phase="forward", module="layer", dtype="bf16", m=1.0,
               n=512.0, k=256.0, out_bytes=2.0)  # fmt: skip
    two = _of_two(one)
    assert (float(two.m), float(two.flop)) == (2.0, 2.0 * float(one.flop))
    wide = replace(one, m=5.0)
    assert (float(_of_two(wide).m), float(_of_two(wide).flop)) == (5.0, float(wide.flop))
    core = replace(one, op="attention_decode", m=64.0, batch=10.0, k=128.0, n=1000.0, bytes=1e7)
    groups = _in_groups(core, 2.0)
    ends = 2.0 * 2 * 64 * 10 * 128
    assert (float(groups.m), float(groups.batch)) == (32.0, 20.0)
    assert float(groups.bytes) == pytest.approx(ends + 2.0 * (1e7 - ends))
    assert float(groups.flop) == float(core.flop)
    few = replace(core, m=SHARING)
    assert float(_in_groups(few, 2.0).m) == SHARING
    assert float(_in_groups(core, 4.0).m) == 64.0


def test_times_between_arrivals_have_their_mean_and_shape() -> None:
    """Gamma's: spread over mean is one over the root of the shape."""
    for shape in (0.25, 1.0, 4.0):
        gaps = np.diff(arrivals(5.0, 20000, shape, 1))
        assert gaps.mean() == pytest.approx(0.2, rel=0.03)
        assert gaps.std() / gaps.mean() == pytest.approx(shape**-0.5, rel=0.05)
    for name, spread in (("uniform", 0.3 / 3**0.5), ("lognormal", 0.3), ("exponential", 1.0)):
        own = spread_lengths(1000.0, 20000, 0.3, 2, name)
        assert own.mean() == pytest.approx(1000.0, rel=0.02)
        assert own.std() / own.mean() == pytest.approx(spread, rel=0.03)
    assert spread_lengths(0.2, 5, 0.5).tolist() == [1.0] * 5
    with pytest.raises(InputError, match="none of uniform"):
        spread_lengths(1.0, 1, 0.1, lengths="long")
    plain = Client()
    assert (plain.variation, plain.burstiness, plain.think, plain.warmup) == (VARIATION, 1, 0, 0)


def test_turns_of_a_session_begin_with_what_was_said() -> None:
    """Two sessions of two turns, 10 shared tokens: the second prompts hold the first and its
    answer; a request over is left out."""
    asked, said = np.array([30.0, 5.0, 40.0, 6.0, 9.0]), np.array([7.0, 8.0, 1.0, 2.0, 3.0])
    own = sessions(asked, said, np.array([0.0, 4.0]), turns=2, shared=10.0)
    assert own.count == 4
    assert own.input_len.tolist() == [30.0, 42.0, 40.0, 47.0]
    assert own.output_len.tolist() == [7.0, 8.0, 1.0, 2.0]
    assert (own.begins, own.next) == ([0, 2], [1, -1, 3, -1])
    for pieces, length in zip(own.pieces, own.input_len, strict=True):
        assert sum(tokens for _, tokens in pieces) == length
        assert pieces[0] == ("shared", 10.0)
    assert own.pieces[1][:2] == own.pieces[0]
    alone = sessions(asked, said, None, shared=1e9)
    assert alone.pieces[0][0] == ("shared", 29.0)
    many = with_adapters(4, 4000)
    assert np.bincount(many, minlength=4) == pytest.approx(np.full(4, 1000.0), rel=0.1)


def test_a_promise_is_of_time_and_of_a_share() -> None:
    for fields in ({"ttft": 0.0}, {"tpot": -1.0}, {"ttft": np.nan}):
        with pytest.raises(InputError, match="must be above 0"):
            Promise(**fields)
    for fields in ({"ttft_share": 0.0}, {"tpot_share": 1.0}):
        with pytest.raises(InputError, match="is not between 0 and 1"):
            Promise(**fields)
    # Cornish and Fisher 1938: mean + z root + (z^2 - 1) / 6 of Poisson's skewness.
    z = 1.2815515655446004
    assert float(poisson_quantile(50.0, 0.9)) == pytest.approx(50 + z * 50**0.5 + (z * z - 1) / 6)


def test_what_is_around_an_engine_is_read_in_its_units() -> None:
    stated: dict[str, Any] = {
        "variation": 0.5, "lengths": "lognormal", "burstiness": 2.0, "think_s": 3.0, "warmup": 7,
        "replicas": 2, "most_replicas": 5, "replica_target": 8.0, "cold_start_s": 20.0,
        "router": "least-loaded", "turns": 3, "shared_prefix": 100, "slo_ttft_ms": 500.0,
        "slo_tpot_ms": 40.0, "adapters": 10, "adapter_slots": 4, "cache_host_gb": 1.0,
        "cache_drive_gb": 2.0, "cache_drive_gbs": 3.0,
    }  # fmt: skip
    own = plan(tp=2.0, serving=1.0, prefix_cache="on", adapters=10.0, adapter_rank=16.0)
    found = around_of(stated, LLAMA, DGX, own, RunParameters(), None)
    client, fleet = found.client, found.fleet
    assert (client.variation, client.lengths, client.burstiness) == (0.5, "lognormal", 2.0)
    assert (client.think, client.warmup, found.turns, found.shared) == (3.0, 7, 3, 100.0)
    assert (found.ttft, found.tpot, found.adapters) == (0.5, 0.04, 10)
    assert (fleet.replicas, fleet.most, fleet.target, fleet.cold) == (2, 5, 8.0, 20.0)
    assert (fleet.router, fleet.think, fleet.prefixes, fleet.slots) == (
        "least-loaded",
        3.0,
        True,
        4,
    )
    token = float(cache_bytes(LLAMA, own, 1100.0)) / 1100.0
    link = float(np.asarray(DGX.accelerator.host_bandwidth))
    host, drive = fleet.tiers
    assert (host.room, host.load) == pytest.approx((1e9 / (2 * token), token / link))
    assert (drive.room, drive.load) == pytest.approx((2e9 / (2 * token), 2 * token / 3e9))
    unknown = replace(DGX, accelerator=replace(DGX.accelerator, host_bandwidth=np.nan))
    other = around_of(stated, LLAMA, unknown, own, RunParameters(), None).fleet
    assert other.adapter / fleet.adapter == pytest.approx(link / 25e9)
    plain = around_of({}, LLAMA, DGX, plan(), RunParameters(), None)
    assert plain.plain
    assert plain.fleet.cold == 0.0
    scaled = around_of({"replica_target": 4.0, "most_replicas": 2}, LLAMA, DGX, plan(),
                       RunParameters(), None)  # fmt: skip
    assert scaled.fleet.cold == COLD_START
    assert not scaled.plain
    usual = around_of({"cache_drive_gb": 2.0}, LLAMA, DGX, own, RunParameters(), None).fleet.tiers
    assert usual[0].load == pytest.approx(2 * token / (DRIVE_RATE * 1e9))
    assert Around(turns=2).plain is False
    with pytest.raises(InputError, match="most_replicas 1 is fewer than the 2 replicas"):
        around_of({"replicas": 2, "most_replicas": 1}, LLAMA, DGX, plan(), RunParameters(), None)


def test_a_rate_is_the_concurrency_that_ends_as_many_and_the_wait_between() -> None:
    """Requests that meet R others end at (R + 1) / life: the rate is R of these; a mean wait of
    u / (2 (1 - u)) turns comes on top."""
    own = plan(tp=2.0, batch=np.inf, serving=1.0, scheduling="overlapped")
    rates = Rates(LLAMA, DGX, own, NONE)
    assert rates.at(1e9).saturated
    rate = 0.5 * rates.most
    found = rates.at(rate)
    latency = found.prediction.latencies
    assert not found.saturated
    assert float(latency.requests_per_s) == rate
    running = float(found.prediction.plan.batch)
    one = predict_inference(LLAMA, DGX, replace(own, batch=running, synchrony=0.0), NONE, 4096)
    ends = (running - 1.0) / running * float(one.requests_per_s)
    assert ends == pytest.approx(rate, rel=0.01)
    used = rate * float(one.latencies.prompt)
    wait = 0.5 * used / (1.0 - used) * float(one.latencies.turn)
    for name in ("ttft", "e2e", "queue"):
        before = float(getattr(one.latencies, name))
        assert float(getattr(latency, name)) == pytest.approx(before + wait)
    told = found.prediction.breakdown
    assert float(told["queue"]) == pytest.approx(float(one.breakdown["queue"]) + wait)
    assert sum(map(float, told.values())) == pytest.approx(float(latency.e2e))


def test_hosts_of_passes_by_what_they_do() -> None:
    """A session of 32 layers, of two tensors each; sixty more of ten us; told workers write and
    read every token; blocks of sixteen tokens are listed."""
    made = plan(session="made")
    assert making(made, 32.0) == pytest.approx(MADE + 32.0 * MADE_LAYER)
    assert 2 * 9e-6 < MADE_LAYER < 2 * 15e-6  # two tensors
    assert pytest.approx(60 * 10e-6) == MADE
    assert making(plan(), 32.0) == 0.0
    pickled = plan(control="pickled", tp=4.0)
    assert float(told(pickled, 100.0)) == pytest.approx(4 * 100 * PICKLED)
    assert float(told(replace(pickled, tp=1.0), 100.0)) == 0.0
    assert told(plan(tp=4.0), 100.0) == 0.0
    assert 12e-9 < PICKLED < 12e-9 + 24e-9
    assert float(np.asarray(listed(plan(block_tables="listed"), 160.0))) == 10.0
    assert listed(plan(), 160.0) == 0.0
    asked = software_of(plan(variation=0.0, scheduling="overlapped", front_end="inside"))
    assert (bool(asked["alike"]), asked["overlapped"], asked["streamed"]) == (True, 1.0, 1.0)
    other = software_of(plan(variation=0.1, drafted=3.0, draft_cost=0.1, acceptance=0.5))
    assert (bool(other["alike"]), other["overlapped"], other["streamed"]) == (False, 0.0, 0.0)
    assert float(other["drafting"]) == pytest.approx(0.3)
    assert float(other["per_pass"]) == pytest.approx(1 + 0.5 + 0.25 + 0.125)


def test_work_of_which_nothing_is_said_is_plain() -> None:
    """One pass, graphs or not, an engine that looks every time and reads its own prompts."""
    one = DeviceTime(1.0, 0.0, 1.0)
    assert one.passes == 1.0
    names = ("together", "captured", "sequences", "fill", "running", "clients", "static",
             "new_tokens", "output_len", "chunk", "synchrony")  # fmt: skip
    given: dict[str, Any] = dict.fromkeys(names, 1.0)
    work = Work(prompts=one, decoding=one, **given)
    ones = {"per_pass", "launching", "polling"}
    others = ("drafting", "overlapped", "workers", "shared", "transfer", "apart", "hold", "started",
              "streamed", "shown", "answered", "told", "making", "listed", "alike")  # fmt: skip
    assert {name: getattr(work, name) for name in ones} == dict.fromkeys(ones, 1.0)
    assert {name: getattr(work, name) for name in others} == dict.fromkeys(others, 0.0)
    assert work.single is NOTHING
