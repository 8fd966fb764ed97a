"""Latencies, passes, queues and requests one by one, counted by hand or against another way."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import reckon
from predictor import catalog
from predictor.catalog.artifacts import load
from predictor.catalog.forms import parse
from predictor.catalog.specs import ServingPlanSpec
from predictor.hardware.accelerators import Accelerator
from predictor.memory.serving import ServingMemory
from predictor.plans.serving import NATIVE, ServingPlan
from predictor.serving.apart import most_together
from predictor.serving.apart_capacities import _between, _reaches
from predictor.serving.apart_events import serve_apart
from predictor.serving.capacities import (
    Promise,
    capacity,
)
from predictor.serving.clients import poisson, spread_lengths
from predictor.serving.completion import complete_serving
from predictor.serving.events import serve
from predictor.serving.kernels import headwise_time, matvec_time
from predictor.serving.latency import latencies
from predictor.serving.parts import COMMUNICATION, TERMS, Pass
from predictor.serving.pass_times import (
    NOTHING,
    decode_time,
    prompt_time,
)
from predictor.serving.passes import body, prefill_cores
from predictor.serving.prediction import predict_inference
from predictor.serving.reading import ReadTable, read_table
from predictor.serving.spreads import spread_of
from predictor.serving.tables import PassTable, between, pass_table
from predictor.serving.whole_passes import prompt_pass
from predictor.timing.calibration import RunParameters
from predictor.timing.engines import ServingParameters
from predictor.work.primitives import Operator
from predictor.work.serving import layer_operators
from tests.predictor.dense import dense
from tests.predictor.serving.bare import bare
from tests.predictor.serving.counted import OWN, plan, work

SMALL = dense(layers=4, kv_heads=4, ffn_hidden=1024, vocab=2048)
CLUSTER = catalog.system("dgx-h100")
PLAIN = replace(load("none"), serving=ServingParameters())
BARE = bare(burst=1e12)


def test_a_pass_is_its_kernels_its_collectives_its_gaps_and_the_host() -> None:
    device = 1.1 * 0.1 + 1.3 * 0.02
    host = 0.05 + 0.01 * 6
    assert float(decode_time(work(), OWN)) == pytest.approx(device + 40e-3 + host)
    # Beside it where the host prepares the next pass meanwhile.
    beside = decode_time(work(overlapped=1.0), OWN)
    assert float(beside) == pytest.approx(max(device + 40e-3, host))
    # What it does per sequence shows where penalties need the last tokens.
    shown = decode_time(work(overlapped=1.0, shown=1.0), OWN)
    assert float(shown) == pytest.approx(max(device + 40e-3, 0.05) + 0.06)
    assert float(decode_time(work(shown=1.0), OWN)) == pytest.approx(device + 40e-3 + host)
    # Workers that are told of each of the six sequences.
    assert float(decode_time(work(told=2e-3), OWN)) == pytest.approx(device + 40e-3 + host + 12e-3)

    before, after = (float(decode_time(work(listed=n), OWN)) for n in (0.0, 192.0))
    sequences = float(work().sequences)
    assert after - before == pytest.approx(sequences * 192 * 0.25e-6)  # serial: nothing hides it
    answered = float(decode_time(work(streamed=1.0), OWN))
    assert answered - before == pytest.approx(sequences * 0.35e-3)
    # What is launched one by one lasts as long as the launches: 2 ms each.
    eager = decode_time(work(captured=0.0), OWN)
    assert float(eager) == pytest.approx(max(device + 40e-3, 80e-3) + host)
    slow = replace(OWN, launch=0.1)
    assert float(decode_time(work(captured=0.0), slow)) == pytest.approx(40 * 0.1 + host)
    native = decode_time(work(captured=0.0, launching=0.25), slow)
    assert float(native) == pytest.approx(10 * 0.1 + 0.25 * host)
    guessed = decode_time(work(drafting=0.5), OWN)
    assert float(guessed) == pytest.approx(1.5 * (device + 40e-3) + host)


def test_prompts_are_launched_one_kernel_after_the_other() -> None:
    device, host = 1.2 * 2.0 + 1.3 * 0.5, 3 * 0.05
    assert float(prompt_time(work(), OWN)) == pytest.approx(device + host)
    slow = replace(OWN, launch=0.1)
    assert float(prompt_time(work(), slow)) == pytest.approx(100 * 0.1 + host)
    beside = prompt_time(work(overlapped=1.0), OWN)
    assert float(beside) == pytest.approx(max(device, host))


def test_one_token_is_there_when_its_prompt_is_read() -> None:
    """No pass decodes after it, no prompt of others comes between, no cache travels."""
    for static in (0.0, 1.0):
        found = latencies(work(output_len=1.0, static=static, transfer=3.0), BARE)
        assert float(found.e2e) == float(found.ttft)
        assert float(found.tpot) == float(found.step)


@pytest.mark.parametrize("fill", [0.0, 0.5])
def test_a_static_batch_by_hand(fill: float) -> None:
    """All prompts, then ten passes; twice as many requests as fit come in two waves."""
    found = latencies(work(static=1.0, fill=fill, clients=12.0), BARE)
    life = 2.5 * (1 + fill) + 10 * 0.12
    assert float(found.e2e) == pytest.approx(2 * life)
    assert float(found.ttft) == pytest.approx(2.5 * (1 + fill) + 0.5 * life)
    assert float(found.tpot) == pytest.approx(0.12)
    assert float(found.queue) == pytest.approx(life)
    assert float(found.requests_per_s) == pytest.approx(6 / life)
    assert float(found.prompt) == pytest.approx(1.25 * (1 + fill))


def test_a_concurrency_by_hand() -> None:
    """Six run: a request waits for half a pass under way and the one that answers, with their
    shares of prompts, and for what its own adds to that one. Five of others come while it decodes:
    some of them in passes that another one is in, to which they add what they take in a full one.
    """
    own = replace(OWN, launch=0.0, gap=0.0)
    step, prompt = float(decode_time(work(), own)), float(prompt_time(work(), own)) / 2
    closed = {"synchrony": 1e-12}  # the next prompt of a client comes where a pass ends
    found = latencies(work(**closed), own)
    alone = 1.2 * 1.1 + 1.3 * 0.3 + own.step + 6 * own.sequence
    beside = 0.4 * (alone - step)

    def read(many: float, passes: float) -> float:
        single = passes * (1 - np.exp(-many / passes))
        return float(single * beside + (many - single) * 0.4 * prompt)

    def five(passes: float) -> float:  # in the whole of a life, before the first token and after
        host = 0.5 / (step + read(5.0, passes) / passes)
        return read(5.0 * passes / (passes + 1.5 + host), passes)

    others = five(10.0)
    first = 0.5 + 1.5 * (step + others / 10) + beside
    rest = 10 * step + others
    assert float(found.ttft) == pytest.approx(first)
    assert float(found.e2e) == pytest.approx(first + rest)
    assert float(found.tpot) == pytest.approx(rest / 10)
    assert float(found.requests_per_s * found.e2e) == pytest.approx(6)
    twice = latencies(work(per_pass=2.0, **closed), own)
    assert float(twice.e2e - twice.ttft) == pytest.approx(5 * step + five(5.0))
    apart = latencies(work(apart=1.0, single=NOTHING, **closed), own)
    # Half a pass is under way, none answers with the tokens of others.
    some = 10.0 / (10.5 + 0.5 / (step + 5 * prompt / 10))
    assert float(apart.e2e - apart.ttft) == pytest.approx(10 * step + 5 * some * prompt)


def served(
    most: float = 64.0, pool: float = 1e9, admission: str = "mean", **fields: float
) -> PassTable:
    """A pass takes 1 s; a prompt 0.01 s per token, by itself or not."""
    plan = ServingPlan(batch=most, input_len=100.0, output_len=10.0, chunk=1000.0,
                       admission=admission, **fields)  # fmt: skip
    rows = [[1.0, 1.0], [1.0, 1.0]]
    costs, nodes = [0.1, 100.0], [10.0, 1e4]
    return PassTable(
        running=[1.0, most], contexts=[0.0, 1e6], decode=rows, lengths=nodes, prompt=costs,
        alone=costs, core=[0.0, 0.0], tokens=nodes, beside=[costs, costs], pool=pool, plan=plan,
        own=BARE,
    )  # fmt: skip


def test_who_gives_way_is_read_again_with_what_it_had_said() -> None:
    """Two prompts of 100 tokens are read in 2 s, at which each has a token; there is room for 220:
    nine passes more, at 11 s. The second gives way. It would fit in as it is, but who gave way is
    not let in before a pass is made, after which it does not: the first ends its 15 five passes on,
    and prompt and ten tokens are read in 1.1 s. These yield the eleventh, four passes the rest."""
    found = serve(served(pool=220.0), np.full(2, 100.0), np.full(2, 15.0), clients=2)
    assert found.preempted == 1
    assert found.first.tolist() == pytest.approx([2.0, 2.0])
    alone = 11 + 5
    assert found.last.tolist() == pytest.approx([alone, alone + 1.1 + 4])


def test_cached_tokens_are_not_read() -> None:
    """A quarter of 400 is new: 1 s. Of a wholly cached prompt the last token is, in a pass as long
    as one over ten, the shortest that is known."""
    for cached, tokens in ((0.75, 100.0), (1.0, 10.0)):
        found = serve(served(cached=cached), np.full(1, 400.0), np.full(1, 3.0), clients=1)
        assert found.ttft[0] == pytest.approx(0.01 * tokens)
        assert found.e2e[0] == pytest.approx(0.01 * tokens + 2.0)


def test_whole_requests_are_let_in_while_their_full_length_fits() -> None:
    """Three of 110 tokens and room for two: the third starts when the first two have ended."""
    own = served(pool=220.0, admission="whole")
    found = serve(own, np.full(3, 100.0), np.full(3, 10.0), clients=3)
    assert found.first.tolist() == pytest.approx([2.0, 2.0, 12.0])
    assert found.last.tolist() == pytest.approx([11.0, 11.0, 21.0])
    assert found.requests_per_s == pytest.approx(3 / 21)


def test_a_request_is_sent_before_all_else() -> None:
    """Half a second of network and tokens before its first token; native code takes a quarter."""
    own = replace(BARE, request=0.5)
    for execution, sent in (("graph", 0.5), ("native", 0.125)):
        table = served()
        table = replace(table, own=own, plan=replace(table.plan, execution=execution))
        found = serve(table, np.full(1, 100.0), np.full(1, 3.0), clients=1)
        assert (found.first[0], found.last[0]) == pytest.approx((1.0 + sent, 3.0 + sent))


def test_no_more_decode_than_a_pass_takes() -> None:
    found = serve(served(most=2.0), np.full(3, 100.0), np.full(3, 10.0), clients=3)
    assert found.first.tolist() == pytest.approx([2.0, 2.0, 12.0])


def test_caches_that_have_come_wait_for_room_at_their_full_length() -> None:
    """Prompts of 2.5 s one after the other; requests of 110 tokens, room for two of them. The first
    decodes from 2.5 s on; the second, read by 5 s, from the pass at 5.5 s; the third, read by
    7.5 s, from 11.5 s, when the first has ended."""
    plan = ServingPlan(batch=8.0, input_len=100.0, output_len=10.0, chunk=100.0,
                       prefill_workers=1.0)  # fmt: skip
    reading = ReadTable(
        sizes=[1.0], lengths=[100.0], times=[[2.5]], sending=0.0, layers=1.0, plan=plan,
        request=0.0, variation=0.0,
    )  # fmt: skip
    decoding = replace(served(pool=220.0), plan=plan)
    sizes = np.full(3, 100.0), np.full(3, 10.0)
    found = serve_apart(reading, decoding, *sizes, np.array([0.0, 0.0, 0.0]))
    assert found.first.tolist() == pytest.approx([2.5, 5.0, 7.5])
    assert found.last.tolist() == pytest.approx([11.5, 14.5, 20.5])
    # Room for less than two: one after the other.
    few = serve_apart(reading, replace(decoding, pool=215.0), *sizes, np.array([0.0, 0.0, 0.0]))
    assert few.last.tolist() == pytest.approx([11.5, 20.5, 29.5])


def test_what_was_served_adds_up() -> None:
    given, made = spread_lengths(100.0, 30, 0.4, 1), spread_lengths(20.0, 30, 0.4, 2)
    assert np.all((given >= 60) & (given <= 140) & (given == np.round(given)))
    found = serve(served(), given, made, arrivals=poisson(0.2, 30, 3))
    assert found.ttft + found.tpot * (made - 1) == pytest.approx(found.e2e)
    assert np.all(found.arrival + found.e2e == pytest.approx(found.last))
    told = found.summary()["e2e"]
    assert told["mean"] == pytest.approx(found.e2e.mean())
    assert told["p50"] <= told["p90"] <= told["p99"] <= found.e2e.max()
    assert found.requests_per_s == pytest.approx(30 / (found.last.max() - found.arrival.min()))


@given(st.floats(0.0, 10.0))
def test_between_nodes_is_linear(value: float) -> None:
    nodes = [1.0, 2.0, 5.0, 7.0]
    at, share = between(nodes, value)
    inside = min(max(value, 1.0), 7.0)
    above = nodes[min(at + 1, 3)]
    assert nodes[at] + share * (above - nodes[at]) == pytest.approx(inside)
    assert 0 <= share < 1


def test_a_plane_is_looked_up_exactly() -> None:
    """Times that grow with sequences and with contexts, and prompts with their tokens."""
    plan = ServingPlan(batch=1.0, input_len=1.0, output_len=1.0)
    running, contexts, lengths = [1.0, 4.0, 8.0], [1.0, 11.0, 21.0], [10.0, 20.0, 40.0]
    rows = [[2 * r + 3 * c for c in contexts] for r in running]
    beside = [[11 * r + 13 * v - 200 for v in lengths] for r in running]
    made = PassTable(
        running=running, contexts=contexts, decode=rows, lengths=lengths,
        prompt=[5 * v for v in lengths], alone=[7 * v for v in lengths],
        core=[17 * v for v in lengths], tokens=lengths, beside=beside, pool=1e9, plan=plan,
        own=BARE,
    )  # fmt: skip
    decode, more = made.lookups()
    for r in (1, 2, 4, 7, 8):
        for c in (1.0, 5.0, 11.0, 20.0, 21.0):
            assert decode.at(r, c) == pytest.approx(2 * r + 3 * c)
    for tokens in (10.0, 15.0, 30.0, 40.0):
        assert made.prompts(tokens, False) == pytest.approx(5 * tokens)
        assert made.prompts(tokens, True) == pytest.approx(7 * tokens)
        assert made.cores(tokens) == pytest.approx(17 * tokens)
        assert more.at(2, tokens) == pytest.approx(22 + 13 * tokens - 200)
    # A part of a prompt costs its share; a pass over it alone at least that of the shortest.
    assert made.prompts(2.0, False) == pytest.approx(10)
    assert made.prompts(2.0, True) == pytest.approx(70)


def test_prompts_of_the_mean_length_are_read_without_interpolation() -> None:
    """The mean is a node of the table, as are the ends of the range of lengths."""
    own = plan(prefill_workers=2.0, chunk=4096.0)
    table = read_table(SMALL, CLUSTER, own, PLAIN, 0.3)
    assert 1000.0 in table.lengths
    assert (table.lengths[0], table.lengths[-1]) == pytest.approx((700.0, 1300.0))
    assert np.allclose(np.diff(table.lengths, 2), 0)
    assert table.most == 4
    found = [table.reading(n, 1000.0) for n in (1, 2, 4)]
    assert found == sorted(found)


@pytest.mark.parametrize(("held", "expected"), [(1.0, 1), (2.0, 1), (4.0, 2), (7.0, 3), (99.0, 4)])
def test_a_worker_reads_what_it_holds_twice_one_prompt_at_least(held: float, expected: int) -> None:
    one = np.array(held)
    memory = ServingMemory({}, one, one, one, one, one, one)
    assert float(most_together(plan(chunk=4096.0), memory)) == expected
    assert float(most_together(plan(chunk=512.0), memory)) == 1


def test_prompts_of_a_batch_are_read_while_the_cache_holds_them() -> None:
    """Ten sequences, of which four fit whole and eight as prompts: with blocks taken on demand
    eight first tokens come from the first passes, and the last two wait, half as long as the last
    wave on average. The time of the whole batch is no other."""
    fits = latencies(work(static=1.0, clients=4.0, running=4.0, together=4.0), BARE)
    whole = latencies(work(static=1.0, clients=10.0, running=4.0, together=4.0), BARE)
    paged = latencies(work(static=1.0, clients=10.0, running=4.0, together=4.0, started=8.0), BARE)
    life = float(fits.e2e)
    assert float(whole.ttft) == pytest.approx(float(fits.ttft) + 0.5 * (6 / 4) * life)
    assert float(paged.ttft) == pytest.approx(2 * float(fits.ttft) + 0.5 * (2 / 4) * life)
    assert float(paged.e2e) == float(whole.e2e) == pytest.approx((1 + 6 / 4) * life)
    assert float(paged.tpot) == float(whole.tpot)


def test_blocks_on_demand_let_more_prompts_in_than_whole_requests() -> None:
    """A batch for which the cache is too small: prompts are half of the requests' lengths."""
    own = plan(batch=4e6, serving=0.0, input_len=1000.0, output_len=1000.0, admission="mean")
    paged = predict_inference(SMALL, CLUSTER, own, PLAIN)
    held = predict_inference(SMALL, CLUSTER, replace(own, admission="whole"), PLAIN)
    assert float(paged.work.started) == float(paged.memory.entered) < own.batch
    assert float(paged.memory.entered) == pytest.approx(2 * float(paged.memory.sequences), rel=1e-3)
    assert float(held.work.started) == float(held.work.running) == float(held.memory.sequences)


def test_one_client_has_one_prompt_read_at_a_time() -> None:
    for batch, together in ((1.0, 1), (2.0, 2), (100.0, 4)):
        own = plan(batch=batch, prefill_workers=1.0, chunk=4096.0)
        assert float(predict_inference(SMALL, CLUSTER, own, PLAIN).work.together) == together


def test_prompts_are_read_behind_what_is_cached_of_them() -> None:
    """Attention over new tokens behind cached ones; none behind a prompt that is wholly new."""
    for cached in (0.0, 0.75):
        own = plan(cached=cached)
        new = 1000 * (1 - cached)
        found, passes = prompt_pass(SMALL, CLUSTER, own, 2.0, PLAIN)
        cores = prefill_cores(SMALL, CLUSTER, own, 2.0, new, 1000.0 - new, PLAIN, sustained=True)
        assert float(passes) == 1
        assert float(found.terms["attention"]) == pytest.approx(float(cores.terms["attention"]))


def test_a_pass_launches_every_kernel_of_every_block() -> None:
    found = body(SMALL, CLUSTER, plan(), 50.0, 7.0, PLAIN, captured=False, sustained=False)
    listed = sum(float(np.asarray(o.count)) for o in layer_operators(SMALL, plan(), 50.0))
    # Embedding, final norm, head and draw; nothing is sent by one device.
    assert float(found.kernels) == listed + 4
    assert float(found.communication) == 0
    assert float(found.compute) == pytest.approx(sum(float(line.time) for line in found.lines))
    assert sum(line.count for line in found.lines) == listed + 4
    # Two ranks reduce behind the two products of each of four layers and the embedding, and gather
    # the logits.
    two = body(SMALL, CLUSTER, plan(tp=2.0), 50.0, 7.0, PLAIN, captured=False, sustained=False)
    assert float(two.kernels) == listed + 4 + 2 * 4 + 2
    for each in (found, two):
        spent = sum(float(time) for time, _ in each.families.values())
        assert spent == pytest.approx(float(each.compute + each.communication))


def test_loads_of_replicas_are_those_of_each() -> None:
    """From one running request of each of two replicas to as many as they admit."""
    own = plan(dp=np.array([1.0, 2.0]), batch=8.0)
    found = capacity(SMALL, CLUSTER, own, PLAIN, Promise())
    assert found.running[:, 0].tolist() == pytest.approx([1.0, 2.0])
    assert found.rate[1] == pytest.approx(2 * found.rate[0])
    # One running, as Little has it: a request meets one other, being there itself (Wolff 1982).
    met = predict_inference(SMALL, CLUSTER, plan(batch=2.0, synchrony=0.0), PLAIN).latencies
    assert found.rate[0, 0] == pytest.approx(1.0 / float(met.e2e))
    assert found.used[0, 0] == pytest.approx(float(found.rate[0, 0] * met.prompt))
    assert found.kept(Promise()).all()
    assert found.best(Promise()).tolist() == [int(np.argmax(row)) for row in found.rate]
    assert not found.kept(Promise(ttft=1e-9)).any()


def test_passes_one_after_the_other_add_up() -> None:
    def one(start: float) -> Pass:
        terms = {name: np.asarray(start + i) for i, name in enumerate(TERMS)}
        families = {"gemm": (np.asarray(start), np.asarray(0.1 * start))}
        return Pass(terms, np.asarray(10.0 * start), families)

    both = one(1.0).plus(one(3.0))
    assert all(float(both.terms[n]) == 4 + 2 * i for i, n in enumerate(TERMS))
    assert float(both.kernels) == 40
    assert [float(v) for v in both.families["gemm"]] == pytest.approx([4.0, 0.3])
    thrice = one(2.0).times(3.0)
    assert all(float(thrice.terms[n]) == 3 * (2 + i) for i, n in enumerate(TERMS))
    assert float(thrice.kernels) == 60
    assert [float(v) for v in thrice.families["gemm"]] == pytest.approx([6.0, 0.2])
    assert spread_of(thrice).tolist() == pytest.approx([6.0 * 0.2, 0.0])


@pytest.mark.parametrize("fields", [{}, {"serving": 0.0}, {"chunk": 4000.0}, {"tp": 2.0}])
def test_a_request_has_its_own_share_of_a_pass_over_prompts(fields: dict[str, float]) -> None:
    """Of four that are read together one has a quarter; of a static batch each waits for all."""
    found = predict_inference(SMALL, CLUSTER, plan(**fields), PLAIN)
    share = 1.0 if fields.get("serving") == 0.0 else 1 / float(found.work.together)
    own, after = found.parameters, 99.0
    for name in TERMS:
        talk = name in COMMUNICATION
        expected = share * found.prompts.terms[name] * (own.communication if talk else own.prefill)
        expected += after * found.decoding.terms[name] * (own.communication if talk else own.decode)
        assert float(found.breakdown[name]) == pytest.approx(float(expected))
    assert sum(map(float, found.breakdown.values())) == pytest.approx(float(found.latencies.e2e))


@pytest.mark.parametrize("fields", [{}, {"drafted": 2.0, "acceptance": 0.5, "draft_cost": 0.1}])
def test_tables_answer_what_predictions_do(fields: dict[str, float]) -> None:
    """Time per token, at the context of the one pass of requests of two tokens."""
    own = plan(output_len=2.0, batch=4.0, serving=0.0, **fields)
    table = pass_table(SMALL, CLUSTER, own, PLAIN, (1000.0, 100.0))
    for batch in (1.0, 2.0, 4.0):
        one = predict_inference(SMALL, CLUSTER, replace(own, batch=batch), PLAIN).latencies
        found = table.lookups()[0].at(int(batch), 1001.0)
        tokens = float(own.tokens_per_pass)
        assert found == pytest.approx(float(one.step) / tokens, rel=0.01)
    assert table.pool > 4 * 1002


@given(st.floats(0.0, 4.0), st.floats(0.5, 20.0))
def test_places_between_nodes_and_where_a_bound_is_reached(place: float, bound: float) -> None:
    """Rows that rise evenly: value and place are each other's inverse."""
    rows = np.array([[2.0, 4.0, 6.0, 8.0, 10.0], [1.0, 2.0, 3.0, 4.0, 5.0]])
    found = _between(rows, np.full((2, 1), place))
    assert found[:, 0].tolist() == pytest.approx([2 + 2 * place, 1 + place])
    reached = _reaches(rows, np.full((2, 1), bound))[:, 0]
    expected = [min(max(bound / 2 - 1, 0), 4), min(max(bound - 1, 0), 4)]
    assert reached.tolist() == pytest.approx(expected)


def test_whole_engines_serve_what_all_replicas_do() -> None:
    one, two = (
        predict_inference(SMALL, CLUSTER, plan(dp=n, batch=8.0 * n), PLAIN) for n in (1.0, 2.0)
    )
    assert float(two.requests_per_s) == pytest.approx(2 * float(one.requests_per_s))
    assert float(one.output_tokens_per_s) == pytest.approx(100 * float(one.requests_per_s))
    assert float(one.total_tokens_per_s) == pytest.approx(1100 * float(one.requests_per_s))
    low, high = one.interval("e2e", one.latencies.e2e)
    assert float(low * high) == pytest.approx(float(one.latencies.e2e) ** 2)
    assert float(low) < float(one.latencies.e2e) < float(high)


def test_stated_clients_follow_each_other() -> None:
    fields = {"model": "llama3-8b", "system": "dgx-h100", "input_len": 100, "output_len": 10}
    for stated, batch, serving in (({"concurrency": 5}, 5, 1), ({"batch": 5}, 5, 0), ({}, 1, 0),
                                 ({"saturated": True}, math.inf, 1)):  # fmt: skip
        found = complete_serving(parse(ServingPlanSpec, {**fields, **stated}, "t"), RunParameters())
        assert (float(found.plan.batch), float(found.plan.serving)) == (batch, serving)


DEVICE = Accelerator(
    name="device", architecture="none", peak={"bf16": 4e14}, memory=4e10, bandwidth=1.5e12, l2=3e7,
    l2_bandwidth=5e12, sms=70.0, clock=1.5e9, year=2020.0,
)  # fmt: skip


def test_kernels_that_stream_a_matrix_or_a_cache_by_hand() -> None:
    """2.5 us and the traffic: at 0.9 of the memory's rate; plain ones as fast as their loads come,
    6.8 bytes per clock of each processor, and where both limits are one, at the root of two to the
    fourth below; heads one by one at 0.8 of the memory's and half of the cache's rate."""
    assert float(matvec_time(1e9, DEVICE, "matvec")) == pytest.approx(2.5e-6 + 1e9 / (0.9 * 1.5e12))
    loads = 6.8 * 70 * 1.5e9
    slow = replace(DEVICE, bandwidth=1e15)
    assert float(matvec_time(1e9, slow, "plain")) == pytest.approx(2.5e-6 + 1e9 / loads, rel=1e-6)
    even = replace(DEVICE, bandwidth=loads / 0.9)
    time = 2.5e-6 + 1e9 / loads * 2**0.25
    assert float(matvec_time(1e9, even, "plain")) == pytest.approx(time)
    core = Operator(
        name="attention", op="attention_decode", variant="fwd", phase="forward", module="layer",
        dtype="bf16", m=4.0, n=1000.0, k=64.0, batch=20.0,
    )  # fmt: skip
    cache = 2 * 20 * 1000 * 2 * 64
    own = plan(headwise="all")
    expected = 2.5e-6 + max(cache / (0.8 * 1.5e12), 4 * cache / (0.5 * 5e12))
    assert float(headwise_time(core, own, DEVICE)) == pytest.approx(expected)
    single = replace(core, m=1.0)
    expected = 2.5e-6 + max(cache / (0.8 * 1.5e12), cache / (0.5 * 5e12))
    assert float(headwise_time(single, own, DEVICE)) == pytest.approx(expected)
    copied = headwise_time(core, replace(own, headwise="copied"), DEVICE)
    assert float(copied) == pytest.approx(2.5e-6 + (3 + 2 * 4) * cache / (0.9 * 1.5e12))
    assert 0.2 <= NATIVE <= 4 / 10


@pytest.mark.parametrize("output_len", [2, 16, 64])
def test_prompts_that_ride_along_delay_a_token_by_no_more_than_a_full_pass(output_len: int) -> None:
    """64 clients of 30,000 tokens each: whoever's prompt is read has a token in every pass, which
    reads `chunk` of the others' at most; requests one by one say so too (the closed form once said
    14 times as long)."""
    fields = {
        "gpus": 8, "tp": 8, "input_len": 30000, "output_len": output_len, "concurrency": 64,
        "framework": "vllm",
    }  # fmt: skip
    found = reckon.predict_infer("llama3-8b", "HGX-H20", fields)
    alone = reckon.predict_infer("llama3-8b", "HGX-H20", {**fields, "concurrency": 1})
    passes = 30000 / float(found.request.plan.chunk)
    assert found.tpot.value < 1.5 * alone.ttft.value / passes
    served = reckon.predict_infer("llama3-8b", "HGX-H20", {**fields, "simulate": 200})
    mean = served.to_dict()["simulated"]["tpot_s"]["mean"]
    assert found.tpot.value == pytest.approx(mean, rel=0.25)
