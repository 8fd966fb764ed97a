"""Replicas of attention that share experts make their passes together."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictor import catalog
from predictor.plans import ServingPlan
from predictor.serving import predict_inference
from predictor.serving.joint import _met, joint, repeated
from predictor.serving.latency import latencies, riding
from predictor.serving.meeting import _at_random, met, together, under_way
from predictor.serving.pass_times import DeviceTime
from predictor.serving.whole_passes import prompt_pass
from tests.predictor.serving import bare

REPLICAS = st.integers(2, 32)
PROMPTS = st.floats(1e-3, 3.0)


MODEL, CLUSTER = catalog.model("deepseek-v3"), catalog.system("dgx-h200")


def wide(**fields: str) -> ServingPlan:
    """Sixteen replicas that share their experts, with prompts among their passes."""
    layout = {"batch": 512.0, "tp": 1.0, "dp": 16.0, "ep": 16.0}
    load = {"input_len": 4000.0, "output_len": 500.0, "serving": 1.0, "chunk": 8192.0}
    return ServingPlan(**layout, **load, weights="fp8_block", kv="bf16", **fields)


def work(**fields):
    """Passes of 0.1 s; one prompt beside them takes 0.3 s, of many in a pass each 0.04 s."""
    base = {"prompts": DeviceTime(0.4, 0.0, 10.0), "together": 10.0, "running": 20.0,
            "single": DeviceTime(0.3, 0.0, 10.0), "clients": np.inf, "chunk": 1e5}  # fmt: skip
    return bare.work(**{**base, **fields})


def test_the_longest_of_poisson_s_numbers_is_the_mean_of_draws():
    rng = np.random.default_rng(1)
    for prompts, replicas in ((0.03, 8), (0.5, 4), (1.0, 8), (3.0, 16)):
        some, most = _met(work(meeting=replicas), np.array(prompts))
        drawn = rng.poisson(prompts, (40_000, replicas)).max(axis=1)
        assert float(most) == pytest.approx(drawn.mean(), rel=0.02)
        assert float(some) == pytest.approx((drawn > 0).mean(), rel=0.03)


def test_a_pass_holds_no_more_prompts_than_there_is_room_for():
    _, most = _met(work(meeting=64.0, chunk=2000.0), np.array(5.0))
    assert float(most) == pytest.approx(2.0, abs=1e-6)


@given(PROMPTS, REPLICAS)
def test_replicas_wait_for_at_least_their_own_prompts_and_at_most_for_all(prompts, replicas):
    some, most = _met(work(meeting=float(replicas)), np.array(prompts))
    assert prompts * (1.0 - 1e-6) <= float(most) <= replicas * prompts * (1.0 + 1e-9)
    assert 0.0 <= float(some) <= min(1.0, float(most)) + 1e-12


def test_more_replicas_never_delay_less():
    many = np.random.default_rng(3).uniform(1.0, 30.0, 400)

    def delay(count: int) -> np.ndarray:
        one = work(meeting=float(count))
        return riding(one, bare.BARE, many, np.array(0.04), np.array(10.0))

    delays = [delay(count) for count in range(1, 34)]
    for fewer, more in pairwise(delays):
        worst = np.argmax(fewer / more)
        assert fewer[worst] <= more[worst] * (1.0 + 1e-9), many[worst]


@pytest.mark.parametrize("apart", [0.0, 1.0])
@given(many=st.floats(0.5, 30.0), replicas=REPLICAS, divided=st.floats(0.01, 0.99))
def test_what_replicas_do_together_they_do_not_wait_for(apart, many, replicas, divided):
    """Waiting without padding delays less than padding, the less the more is divided among all, and
    never less than one's own prompts. Where a replica that reads does not decode, what the others
    decode meanwhile hides what it pads, but not what all do together."""

    meeting, shares = [replicas, 1, replicas, replicas], [0.0, 0.0, divided, 1.0]
    one = work(apart=apart, meeting=np.array(meeting, float), divided=np.array(shares))
    padded, own, waiting, whole = riding(one, bare.BARE, many, np.array(0.04), np.array(10.0))
    most = padded + divided * own if apart else padded
    assert own * (1.0 - 1e-6) <= waiting <= most * (1.0 + 1e-6)
    if not apart:
        assert waiting == pytest.approx(padded - divided * (padded - own), rel=1e-9)
        assert whole == pytest.approx(own, rel=1e-9)


def test_prompts_of_several_passes_overlap():
    """Of replicas that have one under way for a share of the time, passes without any are rarer the
    more replicas meet; all wait for those that have one, not for each in turn."""
    rng = np.random.default_rng(2)
    for busy, replicas in ((0.05, 4), (0.3, 8), (0.9, 2)):
        drawn = (rng.random((60_000, replicas)) < busy).any(axis=1).mean()
        assert float(under_way(np.array(busy), np.array(replicas))) == pytest.approx(
            drawn, rel=0.02
        )
    assert float(under_way(np.array(3.0), np.array(2.0))) == 1.0, "it reads one at a time"
    long = {"single": DeviceTime(2.0, 0.0, 10.0, 8.0), "chunk": 125.0}

    def delay(replicas: float) -> float:
        one = work(meeting=replicas, **long)
        return float(riding(one, bare.BARE, 10.0, np.array(0.3), np.array(1000.0)))

    alone = delay(1.0)
    assert alone < delay(4.0) < 4.0 * alone
    assert delay(64.0) <= 1000.0 / 10.0 / 8.0 * alone * (1.0 + 1e-9), "no more than every pass"


def test_replicas_that_wait_compute_no_padding():
    waits = work(meeting=8.0, divided=0.4)
    assert float(repeated(waits)) == 1.0 < float(repeated(work(meeting=8.0)))


def test_experts_and_their_exchange_are_what_replicas_divide():
    known = catalog.load("default")

    def served(passes: str):
        return predict_inference(MODEL, CLUSTER, wide(replica_passes=passes), known)

    one, _ = prompt_pass(MODEL, CLUSTER, wide(replica_passes="waiting"), 1.0, known)
    whole = one.compute + one.communication
    ours = one.terms["experts"] + one.terms["ep_communication"]
    assert float(served("waiting").work.divided) == pytest.approx(float(ours / whole))
    tpots = [float(served(passes).latencies.tpot) for passes in ("apart", "waiting", "padded")]
    assert tpots == sorted(tpots)
    assert tpots[0] < tpots[1] < tpots[2]


def test_one_replica_is_as_if_none_met():
    one = work()
    assert float(repeated(one)) == 1.0
    same, alone = latencies(replace(one, meeting=1.0), bare.BARE), latencies(one, bare.BARE)
    assert float(same.tpot) == float(alone.tpot)


def test_rare_prompts_are_waited_for_by_every_replica():
    assert float(repeated(work(meeting=8.0, running=0.001))) == pytest.approx(8.0, rel=1e-3)


@pytest.mark.parametrize(("tp", "dp", "ep"), [(1, 16, 16), (2, 8, 16), (1, 16, 1), (4, 4, 2)])
def test_all_replicas_of_a_mixture_meet(tp, dp, ep):
    """However experts are divided: whole ones among all ranks of a stage, or each among some."""

    def replicas(passes: str) -> float:
        sizes = replace(wide(replica_passes=passes), tp=float(tp), dp=float(dp), ep=float(ep))
        found = predict_inference(MODEL, CLUSTER, sizes, catalog.load("default"))
        return float(found.work.meeting)

    assert replicas("padded") == replicas("waiting") == dp
    assert replicas("apart") == 1.0, "of passes apart nobody is waited for"


def test_replicas_of_a_dense_model_share_nothing():
    dense = catalog.model("llama3-8b")
    alone = replace(wide(replica_passes="waiting"), ep=1.0, weights="bf16")
    found = predict_inference(dense, CLUSTER, alone, catalog.load("default"))
    assert float(found.work.meeting) == 1.0


@pytest.mark.parametrize(("running", "per_pass"), [(20.0, 1.0), (10.0, 2.0), (3.0, 1.0)])
def test_a_replica_reads_or_waits_for_as_many_as_the_busiest(running, per_pass):
    """Prompts of a pass come as Poisson's numbers, those that run over the passes of each."""
    one = work(meeting=8.0, running=running, per_pass=per_pass, output_len=11.0)
    each = running / (10.0 / per_pass)
    drawn = np.random.default_rng(4).poisson(each, (40_000, 8)).max(axis=1).mean()
    assert float(repeated(one)) == pytest.approx(drawn / each, rel=0.02)


def told(one, each):
    """What waiting does where a prompt's share of a full pass is 0.04 s, an idle pass 0.1 s."""
    return joint(one, bare.BARE, np.array(each), np.array(0.04), np.array(0.1), np.array(0.04))


@pytest.mark.parametrize("divided", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("room", [2, 100])
def test_a_prompt_of_full_passes_takes_its_part_of_one(divided, room):
    """All replicas read as many, so that it is the same who reads what. Beside decoding: a pass of
    0.1 s, which the first prompt makes 0.2 s longer and every other one 0.04 s. Apart, 0.3 s for
    the first: of what each reads itself, others decode during 0.1 s, which pass in any case."""
    read = 0.3 + (room - 1) * 0.04
    for apart in (0.0, 1.0):
        one = work(meeting=8.0, divided=divided, apart=apart, chunk=1000.0 * room + 900.0)
        whole = max(0.1, (1.0 - divided) * read) + divided * read if apart else read
        assert float(told(one, 0.5).turn) == pytest.approx(whole / room)


@pytest.mark.parametrize(("chunk", "passes"), [(1900.0, 1.0), (500.0, 2.0), (100.0, 10.0)])
def test_prompts_that_have_passes_to_themselves_keep_a_replica_for_these(chunk, passes):
    single = DeviceTime(0.3 * passes, 0.0, 10.0, passes)
    found = told(work(meeting=8.0, divided=0.4, chunk=chunk, single=single), 0.05)
    assert float(found.turn) == pytest.approx(passes * float(found.usual))


@pytest.mark.parametrize("passes", [1.0, 2.0])
@pytest.mark.parametrize("apart", [0.0, 1.0])
@pytest.mark.parametrize("divided", [0.0, 0.4, 1.0])
def test_a_prompt_alone_takes_its_part_of_what_all_divide(passes, apart, divided):
    """Nobody else reads: of that share of 0.4 s an eighth is its own. Where it rides along, the
    passes before its last one take 0.1 s in any case."""
    single = DeviceTime(0.4, 0.0, 10.0, passes)
    found = told(work(meeting=8.0, divided=divided, apart=apart, single=single), 1e-9)
    part = 1.0 - divided + divided / 8.0
    before = 0.0 if apart else 0.1 * (passes - 1.0)
    adds = 0.4 if apart else 0.4 - 0.1 * passes
    waits = max((1.0 - divided) * 0.4, 0.1 * passes) + divided / 8.0 * 0.4  # for who decodes
    expected = waits if apart else part * adds + before
    assert float(found.scale) == pytest.approx(expected / (adds + before), rel=1e-6)
    assert float(found.usual) == pytest.approx(0.1, rel=1e-6)


@pytest.mark.parametrize("each", [0.02, 0.3, 0.9])
def test_a_replica_that_reads_does_not_decode(each):
    """Of one prompt for every x tokens, in a pass of its own: x tokens take x + 1 passes."""
    found = together(
        each=np.array(each), step=np.array(0.1), first=np.array(0.5), share=np.array(0.5),
        passes=np.array(1.0), room=np.array(1.0), replicas=np.array(4.0), divided=0.25,
        apart=np.array(True), random=np.array(False),
    )  # fmt: skip
    assert float(found.interval / found.length) == pytest.approx(1.0 + each)


@pytest.mark.parametrize("unit", [1e-3, 1.0, 60.0])
@pytest.mark.parametrize("room", [1.0, 10.0])
@pytest.mark.parametrize("arriving", [False, True])
def test_passes_are_of_two_lengths_whatever_time_is_counted_in(unit, room, arriving):
    """Of passes without prompts and those with some the mean is a pass on average; the mean square
    over the square of that is 1 and a two-valued variance, p (1 - p) d^2: no matter the unit."""
    found = together(
        each=np.array(0.3), step=np.array(0.1 * unit), first=np.array(0.5 * unit),
        share=np.array(0.2 * unit), passes=np.array(1.0), room=np.array(room),
        replicas=np.array(4.0), divided=0.25, apart=np.array(False), random=np.array(arriving),
    )  # fmt: skip
    some, length = float(found.some), float(found.length) / unit
    apart = (length - 0.1) / some
    assert float(found.longer) == pytest.approx(1.0 + some * (1.0 - some) * (apart / length) ** 2)
    if room < 2:  # one prompt after the other: of each replica 0.3 passes, of four 1 - 0.7^4
        assert some == pytest.approx(1.0 - 0.7**4)
        assert length == pytest.approx(0.1 + 0.5 * (0.75 * some + 0.25 * 0.3))
    assert float(found.interval) == float(found.length), "they decode in every pass"


def test_prompts_that_gather_follow_the_pass_before():
    """Shares of a chain of passes without and with prompts, which are 0.2 and 0.9 s long: of those
    behind either, the share and the numbers are Poisson's of what came meanwhile."""
    rate, room, replicas = np.array(1.3), np.array(4.0), np.array(3.0)
    some, most, reads = map(float, _at_random(rate, np.array(0.2), np.array(0.9), room, replicas))
    behind = [[float(one) for one in met(rate * time, replicas, room)] for time in (0.2, 0.9)]
    chain = np.array([[1.0 - one, one] for one, _ in behind])
    shares = np.linalg.matrix_power(chain, 200)[0]
    assert some == pytest.approx(shares[1])
    assert most == pytest.approx(shares @ [one for _, one in behind])
    assert reads == pytest.approx(1.0 - shares @ np.exp(-1.3 * np.array([0.2, 0.9])))
