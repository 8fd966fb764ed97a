"""Latencies written again, request by request in plain numbers, from what docstrings say."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from predictor.serving.gathering import pass_lengths
from predictor.serving.latency import (
    WAITING_SHARE,
    Latencies,
    _first_ones,
    _own_passes,
    latencies,
    looks,
)
from predictor.serving.meeting import with_prompts
from predictor.serving.pass_times import (
    ANSWERING,
    LISTING,
    DeviceTime,
    Work,
    decode_time,
    host_bound,
    prompt_time,
    with_host,
)
from predictor.serving.prompts import full_share, read_time
from predictor.timing.engines import EngineParameters
from tests.predictor.serving import bare, counted


class Hand:
    """One engine and its work, counted in plain numbers."""

    def __init__(self, work: Work, own: EngineParameters) -> None:
        self.w, self.e = work, own
        self.passes = max(work.single.passes, 1.0)
        self.step, self.after = self.decoding(), max(work.output_len - 1, 0) / work.per_pass
        self.ride = not work.apart
        self.opening = min(work.synchrony, 1.0 / max(work.rounds, 1.0))
        rest = 1.0 - self.opening
        self.later = (work.synchrony - self.opening) / rest if rest > 0 else 1.0
        unread = work.answered / max(work.new_tokens, 1.0)
        self.batch = self.prompts(work.prompts) * (1.0 - unread)
        self.share = self.batch / work.together * (1.0 + work.fill)
        added = self.mixed() - self.passes * self.decoding(guesses=False)
        self.beside = own.mixing * max(added, 0.0) * (1.0 + work.fill)
        self.of_pass = work.chunk / work.new_tokens

    def decoding(self, guesses: bool = True) -> float:
        """Kernels and collectives with gaps, or launches without a graph; the host before
        or beside it; what is sampled with penalties is never beside."""
        w, e = self.w, self.e
        device = e.decode * w.decoding.compute + e.communication * w.decoding.communication
        busy = device + e.gap * w.decoding.kernels
        if not w.captured:
            busy = max(busy, e.launch * w.launching * w.decoding.kernels)
        each = e.sequence + LISTING * w.listed + w.told
        each += ANSWERING * w.streamed * (1.0 - w.static)
        before = w.launching * e.step
        of_all = w.launching * each * w.sequences
        busy *= 1.0 + w.drafting * guesses
        if w.overlapped:
            return max(busy, before + of_all * (1.0 - w.shown)) + of_all * w.shown
        return busy + before + of_all

    def prompts(self, of: DeviceTime) -> float:
        """Kernels and collectives, or their launches, and the host for each pass."""
        w, e = self.w, self.e
        busy = max(
            e.prefill * of.compute + e.communication * of.communication,
            e.launch * w.launching * of.kernels,
        )
        host = w.launching * e.step * of.passes
        return max(busy, host) if w.overlapped else busy + host

    def mixed(self) -> float:
        """A prompt by itself, and the host's work for those that decode in its passes."""
        w, e = self.w, self.e
        each = (e.sequence + LISTING * w.listed + w.told) * w.sequences
        seen = w.shown if w.overlapped else 1.0
        return self.prompts(w.single) + self.passes * seen * w.launching * each

    def full(self, prompt: float, step: float) -> float:
        """A prompt's part of a pass that is full of them: of the decoding and of the first one's
        addition a part, of the others' shares the rest."""
        part = self.w.new_tokens / self.w.chunk
        others = max(1.0 - part, 0.0) * self.e.mixing * prompt
        return part * step + min(part, 1.0) * self.beside + others

    def waves(self) -> bool:
        w = self.w
        alone = math.isfinite(w.clients) and w.clients <= w.running
        return bool(alone and w.synchrony > 0 and w.alike and self.ride)

    def following(self) -> float:
        return 1.0 - min(max(self.of_pass, 1.0) / max(self.w.running, 1.0), 1.0)

    def full_pass(self) -> float:
        return self.of_pass * self.full(self.share, self.step)

    def together(self) -> float:
        """Prompts of a later wave, damped by what an engine takes at once."""
        w, others = self.w, max(self.w.running - 1.0, 0.0)
        back = 0.0
        if self.waves():
            usual = self.step + self.following() * (self.full_pass() - self.step)
            back = max(self.of_pass, 1.0) * (1.0 + w.launching * self.e.request / usual) - 1.0
        many = max(self.later * others, min(back, others))
        if w.apart and self.later >= 1.0 and not w.workers:  # all that are back while some are read
            return 1.0 + many
        return 1.0 + many / (1.0 + many * w.new_tokens / self.e.burst)

    def room(self) -> float:
        return self.after * max(self.of_pass, 1e-9)

    def burst(self) -> float:
        own = self.together()
        return own if self.w.workers > 0 else max(own, self.w.running - self.room())

    def ahead(self, burst: float) -> float:
        """The first alone, the rest pass by pass: half of them and a pass are read before a mean
        one of these has been."""
        rest = burst - 1.0
        filling = min(max(math.floor(self.of_pass), 1.0), rest)
        return (1.0 + rest * (1.0 + 0.5 * (rest + filling))) / burst

    def first(self, burst: float, prompt: float, alone: float) -> float:
        return max(self.ahead(burst) * prompt - max(prompt - alone, 0.0), alone)

    def own_prompt(self, prompt: float) -> float:
        if self.w.apart:
            return max(prompt, self.prompts(self.w.single))
        return self.beside + (self.passes - 1.0) * self.step

    def reading(self, burst: float, prompt: float, alone: float) -> float:
        w = self.w
        idle = mine = prompt
        if w.running > 1 and w.workers <= 0:
            mine = self.own_prompt(prompt)
            if self.ride:
                idle = max(prompt, self.full(prompt, 0.5 * self.step))
                many = min(max(math.floor(self.of_pass), 1.0), max(burst, 1.0))
                mine = (mine + (many - 1.0) * self.e.mixing * prompt) / many
        mine = self.met() * mine + (1.0 - self.met()) * prompt
        mine = self.later * idle + (1.0 - self.later) * mine
        each = alone / prompt
        rest = self.first(burst, mine, each * mine)
        if w.overlapped and 0.0 < self.later < 1.0:
            rest += min(burst, max(self.of_pass, 1.0)) * mine
        opening = self.first(w.running, idle, each * idle)
        return (1.0 - self.opening) * rest + self.opening * opening + w.launching * self.e.request

    def riding(self, many: float, prompt: float) -> float:
        w, each = self.w, many / max(self.after, 1e-9)
        if w.apart:
            numbers = (np.asarray(one) for one in (many, prompt, self.after))
            return many * prompt + float(_own_passes(w, self.e, *numbers))
        share = self.e.mixing * prompt
        ones = each
        if self.passes <= 1:
            numbers = (np.asarray(one) for one in (each, self.beside, share))
            ones = float(_first_ones(w, self.e, *numbers))
        ones = min(self.after * ones, many)
        return ones * self.beside + (many - ones) * share

    def looked(self) -> float:
        """Passes from one look to the next: where prompts are held, until enough others came."""
        w = self.w
        if not w.hold:
            return w.polling
        others = max(WAITING_SHARE * w.running - 1.0, 0.0) / w.running
        return min(w.polling, 1.0 + others * self.after)

    def decoding_share(self, read: float, prompt: float) -> float:
        """Of a life's passes, those that decode: not those before the first token, nor the host's
        time, unless another one waits to come in."""
        w, after = self.w, max(self.after, 1e-9)
        if w.static or w.workers > 0:
            return 1.0
        usual = self.step + self.riding(read, prompt) / after
        before = 0.5 * (self.looked() - 1.0) + (1.0 - self.later) * (0.5 + w.overlapped)
        if self.ride:
            before += 1.0 - 0.5 * self.later
        full = math.isfinite(w.clients) and w.clients > w.running
        host = 0.0 if full else w.launching * self.e.request / usual
        return after / (after + self.met() * before + host)

    def residual(self, usual: float) -> float:
        """Half of the looks that are missed, half a pass under way, the pass that answers."""
        w = self.w
        if w.running <= 1:
            return 0.0
        waits = 0.5 * (self.looked() - 1.0) * usual
        if self.ride:
            waits += (1.0 - 0.5 * self.later) * usual
        begins = (0.5 + w.overlapped) * usual
        if self.waves():
            whole = self.full_pass()
            behind = max(whole - w.launching * self.e.request, 0.0) + w.overlapped * whole
            follow = self.following()
            begins = follow * behind + (1.0 - follow) * begins
        return self.met() * (waits + (1.0 - self.later) * begins)

    def met(self) -> float:
        """How often others run when a request comes: at random, or always."""
        if self.w.synchrony <= 0 and math.isfinite(self.w.clients):
            return 1.0 - math.exp(min(1.0 - self.w.running, 0.0))
        return float(self.w.running > 1)

    def behind(self, prompt: float, room: float) -> float:
        w = self.w
        if not math.isfinite(w.clients):
            return 0.0
        every, later = max(w.running, 1.0), self.together()
        many = self.opening * (every - self.ahead(every))
        many += (1.0 - self.opening) * (later - self.ahead(later))
        if w.apart:
            return many * prompt
        return min(many, max(room, 0.0)) * self.e.mixing * prompt

    def all(self) -> dict[str, float]:
        """What `Latencies` says."""
        w, apart = self.w, self.w.workers > 0
        tokens = max(w.output_len - 1.0, 0.0)
        turn = self.share / max(w.shared, 1.0) if apart else self.share
        prompt = self.share / w.workers if apart else self.share
        burst = self.burst()
        read = (1.0 - self.opening) * max(w.running - burst, 0.0)
        read *= self.decoding_share(read, prompt)
        mixed = self.riding(read, prompt)
        plain = w.static or apart
        delay = 0.0 if plain or self.after <= 0 else mixed / self.after
        several = mixed / read if read > 0 else prompt
        if w.static:
            ttft = self.batch * (1.0 + w.fill) + w.making
        else:
            ttft = self.reading(burst, prompt, self.batch / max(w.together, 1.0))
            if not apart:
                ttft += (1.0 - self.opening) * self.residual(self.step + delay)
        ttft += w.answered * self.step
        ahead = several if w.apart else self.full(prompt, self.step)
        if plain or w.running <= 1:
            ahead = 0.0
        decoding = self.after * self.step + (w.transfer if tokens > 0 else 0.0)
        if not plain and tokens >= 1:
            decoding += mixed + self.behind(prompt, self.room() - read)
        pace = prompt if apart else 0.0 if w.apart else ahead
        busy = max(w.running * pace - ttft - decoding, 0.0)
        ttft += busy
        life = ttft + decoding
        waiting = max((w.clients if math.isfinite(w.clients) else w.running) - w.running, 0.0)
        queue = waiting / w.running * life
        if w.static:
            started = max(w.started, w.running)
            told = ttft * started / w.running
            told += 0.5 * max(w.clients - started, 0.0) / w.running * life
        else:
            told = ttft + queue
        return {
            "ttft": told,
            "tpot": decoding / tokens if tokens > 0 else self.step / w.per_pass,
            "e2e": life + queue,
            "requests_per_s": w.running / life,
            "step": self.step,
            "prompt": ahead if ahead > 0 else prompt,
            "turn": ahead if ahead > 0 and w.apart else turn,
            "queue": queue + busy,
        }


def drawn(lots: np.random.Generator) -> tuple[Work, EngineParameters]:
    """An engine and its work at random, of every kind."""

    def one(low: float, high: float) -> float:
        return float(math.exp(lots.uniform(math.log(low), math.log(high))))

    def flag(share: float = 0.5) -> float:
        return float(lots.random() < share)

    own = EngineParameters(
        decode=one(0.5, 2), prefill=one(0.5, 2), communication=one(0.5, 2), gap=one(1e-5, 1e-3),
        launch=one(1e-5, 5e-3), step=one(1e-3, 0.2), sequence=one(1e-4, 1e-2), request=one(0.01, 2),
        mixing=one(0.3, 1.5), burst=one(1e3, 1e6),
    )  # fmt: skip
    running = float(lots.integers(1, 40))
    static, workers = flag(0.15), lots.choice([0.0, 0.0, 0.0, 0.5, 2.0])
    clients = float(lots.choice([running, running * 3.0, math.inf]))
    work = Work(
        prompts=DeviceTime(one(0.5, 5), one(0.01, 1), one(10, 1000), float(lots.integers(1, 4))),
        together=float(lots.integers(1, 5)),
        decoding=DeviceTime(one(0.02, 0.5), one(0.001, 0.1), one(10, 500)),
        captured=flag(), sequences=running / lots.choice([1.0, 2.0]), fill=one(0.01, 0.5) * flag(),
        running=running, clients=running * 2.0 if static and flag() else clients, static=static,
        new_tokens=one(50, 20000), output_len=float(lots.choice([1.0, 2.0, 11.0, 200.0])),
        chunk=one(500, 16000), synchrony=float(lots.choice([0.0, 0.05, 0.3, 1.0])),
        per_pass=float(lots.choice([1.0, 2.5])), drafting=0.2 * flag(0.3), overlapped=flag(),
        workers=float(workers), shared=2.0 * workers, transfer=0.3 * flag(), answered=flag(0.3),
        launching=float(lots.choice([1.0, 0.4])), apart=flag() if not workers else 1.0, hold=flag(),
        polling=float(lots.choice([1.0, 8.0])), started=running * 1.5 * flag(), told=1e-3 * flag(),
        single=DeviceTime(one(0.2, 4), one(0.01, 1), one(10, 500), float(lots.choice([1.0, 3.0]))),
        streamed=flag(), shown=flag(0.3), making=0.2 * flag(), listed=one(1, 5000) * flag(),
        alike=flag(), rounds=float(lots.choice([1.0, 3.0, 10.0])),
    )  # fmt: skip
    return work, own


def joined(works: list[Any]) -> Any:
    """Records of numbers as one of arrays."""
    if isinstance(works[0], float | int):
        return np.array(works, float)
    names = [one.name for one in fields(works[0])]
    return replace(works[0], **{n: joined([getattr(one, n) for one in works]) for n in names})


def test_latencies_are_those_of_a_request_counted_by_hand() -> None:
    """Engines of every kind, 400 of them in a batch: graphs or launches, prompts beside or apart,
    workers, waves, static batches, closed loops and random arrivals."""
    lots = np.random.default_rng(12)
    pairs = [drawn(lots) for _ in range(400)]
    works, engines = (joined([pair[k] for pair in pairs]) for k in (0, 1))
    found, shares = latencies(works, engines), full_share(works, engines)
    for at, pair in enumerate(pairs):
        hand = Hand(*pair)
        for name, expected in hand.all().items():
            value = float(getattr(found, name)[at])
            assert value == pytest.approx(expected, rel=1e-6, abs=1e-9), (name, *pair)
        assert float(shares[at]) == pytest.approx(hand.share)


def test_engines_of_a_batch_are_each_of_them() -> None:
    """Of every kind beside each other."""
    lots = np.random.default_rng(5)
    pairs = [drawn(lots) for _ in range(30)]
    works, engines = (joined([pair[k] for pair in pairs]) for k in (0, 1))
    together = latencies(works, engines)
    for at, (work, own) in enumerate(pairs):
        alone = latencies(work, own)
        for one in fields(Latencies):
            value = float(getattr(alone, one.name))
            assert getattr(together, one.name)[at] == pytest.approx(value, rel=1e-9, abs=1e-12)


def test_hosts_and_devices_work_beside_or_after_each_other() -> None:
    assert [float(with_host(3.0, host, 1.0)) for host in (2.0, 5.0)] == [3.0, 5.0]
    assert float(with_host(3.0, 2.0, 0.0)) == 5.0
    assert [float(host_bound(device, 100.0, 0.02)) for device in (1.5, 3.0)] == [0.5, 0.0]


def test_what_takes_no_host_is_what_its_kernels_take() -> None:
    """An engine that adds nothing: graphs and launches are alike, whoever prepares them."""
    for more in ({}, {"captured": 0.0}, {"overlapped": 1.0}, {"shown": 1.0}):
        one = bare.work(**more)
        assert float(decode_time(one, bare.BARE)) == pytest.approx(0.1)
        assert float(prompt_time(one, bare.BARE)) == pytest.approx(2.0)


def test_twice_as_quick_everything_is_half_as_long() -> None:
    """Whatever has a time: devices, hosts, links; and twice as many requests end in a second."""
    lots = np.random.default_rng(8)
    for _ in range(25):
        work, own = drawn(lots)
        work = replace(work, streamed=0.0, listed=0.0)  # whose host times are numbers of the code
        times = ("gap", "launch", "step", "sequence", "request")
        quick = replace(own, **{name: 0.5 * getattr(own, name) for name in times})
        halved = {
            name: replace(
                getattr(work, name),
                compute=0.5 * getattr(work, name).compute,
                communication=0.5 * getattr(work, name).communication,
            )
            for name in ("prompts", "decoding", "single")
        }
        rest = {name: 0.5 * getattr(work, name) for name in ("transfer", "told", "making")}
        slow, fast = latencies(work, own), latencies(replace(work, **halved, **rest), quick)
        for one in fields(Latencies):
            by = 2.0 if one.name == "requests_per_s" else 0.5
            value = by * float(getattr(slow, one.name))
            assert float(getattr(fast, one.name)) == pytest.approx(value, rel=1e-9, abs=1e-12)


def test_little_holds() -> None:
    """Requests of a closed loop: as many as its clients are under way."""
    lots = np.random.default_rng(9)
    for _ in range(25):
        work, own = drawn(lots)
        if work.static or not math.isfinite(work.clients):
            continue
        found = latencies(work, own)
        many = max(work.clients, work.running)
        assert float(found.requests_per_s * found.e2e) == pytest.approx(many)


def test_passes_with_prompts_are_a_chain_of_two_states() -> None:
    """Shares of a chain whose passes without prompts are followed by one with them in a of all
    cases, and those with k + 1 of them by one without in exp(-r (l + k e)): its matrix's own."""
    rate, step, one, share, more = 0.7, 0.4, 1.1, 0.25, 1.5
    some = 1.0 - math.exp(-rate * step)
    ratio = more / (1.0 + more)  # geometric of that mean
    none = sum((1.0 - ratio) * ratio**k * math.exp(-rate * (one + k * share)) for k in range(200))
    chain = np.array([[1.0 - some, some], [none, 1.0 - none]])
    shares = np.linalg.matrix_power(chain, 200)[0]
    found = float(with_prompts(np.asarray(rate), np.asarray(step), np.asarray(one), share, more))
    assert found == pytest.approx(shares[1])
    alone = float(with_prompts(np.asarray(rate), np.asarray(step), np.asarray(one)))
    some_alone = some / (math.exp(-rate * one) + some)  # no pass has more than one prompt
    assert alone == pytest.approx(some_alone)


def test_engines_look_for_requests_every_so_many_passes() -> None:
    """One that holds prompts begins as soon as there are enough of them: three tenths of those that
    run, of which one has come and the others do in the passes of a request, as all that run."""
    held = counted.work(hold=1.0, polling=8.0, running=10.0)
    assert float(looks(held, 10.0)) == pytest.approx(3.0)
    assert float(looks(held, 2.0)) == pytest.approx(1.4)
    assert float(looks(held, 100.0)) == 8.0
    for few in (1.0, 2.0, 3.0):  # any of whom is enough
        assert float(looks(counted.work(hold=1.0, polling=8.0, running=few), 100.0)) == 1.0
    assert float(looks(counted.work(polling=8.0), 10.0)) == 8.0


@pytest.mark.parametrize("synchrony", [0.0, 0.5])
def test_five_times_as_many_prompts_in_five_times_as_many_passes(synchrony: float) -> None:
    """Take five times as long beyond their shares of full passes."""
    own = counted.work(apart=1.0, synchrony=synchrony)
    engine, prompt = counted.OWN, np.asarray(0.7)
    one, five = (
        float(_own_passes(own, engine, np.asarray(0.6 * n), prompt, n)) for n in (1.0, 5.0)
    )
    assert five == pytest.approx(5.0 * one)
    assert one > 0.0


def test_lengths_of_passes_by_hand() -> None:
    """Where prompts have passes of their own: one by itself, every other its share of a full one
    and no more; where they ride along: the passes and what the first adds, the others' shares as
    far as they delay."""
    lots = np.random.default_rng(3)
    for _ in range(40):
        work, own = drawn(lots)
        hand, found = Hand(work, own), pass_lengths(work, own)
        alone = hand.prompts(work.single)
        first, each = hand.passes * hand.step + hand.beside, own.mixing * hand.share
        if work.apart:
            first, each = alone, min(hand.share, alone)
        expected = (hand.step, first, each, alone)
        told = [float(getattr(found, name)) for name in ("step", "first", "each", "alone")]
        assert told == pytest.approx(list(expected))


@pytest.mark.parametrize("new", [1.0, 2.0, 4.0])
def test_a_last_token_that_is_decoded_is_not_read(new: float) -> None:
    """Of a prompt of one new token nothing is read, of four three quarters."""
    made = [counted.work(answered=of, new_tokens=new) for of in (0.0, 1.0)]
    whole, rest = (float(read_time(one, counted.OWN)) for one in made)
    assert rest == pytest.approx(whole * (new - 1.0) / new)
