"""A step from its operators and collectives, added up by hand."""

from __future__ import annotations

from dataclasses import asdict, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from predictor import catalog
from predictor.catalog.artifacts import load
from predictor.memory.kept import kept_by
from predictor.memory.training import lay_out, layer_activations
from predictor.plans.events import timeline
from predictor.plans.pipeline import stages
from predictor.plans.placement import blocks
from predictor.plans.schedules import pipeline_time
from predictor.plans.training import TrainingPlan
from predictor.timing import BULK, Taxes
from predictor.timing.calibration import RunParameters
from predictor.timing.collectives import collective_time
from predictor.timing.kernels import operator_times
from predictor.training.decomposition import Parts, parts
from predictor.training.doubts import Doubt
from predictor.training.explanation import Explanation, Ground, Named, Remedy
from predictor.training.fitting import Draft
from predictor.training.frame import CHANNELS, _copies, frame
from predictor.training.software import Environment, environment
from predictor.training.step import Step, assemble
from predictor.training.taxes import taxes
from predictor.work.communication import (
    Held,
    gradient_collectives,
    groups,
    pipeline_collectives,
    step_collectives,
)
from predictor.work.training import step_operators
from tests.predictor.dense import dense

NONE = load("none")
SMALL = dense(layers=6, kv_heads=4, head_dim=128, ffn_hidden=4096, vocab=8192)
DGX = catalog.system("dgx-h100")
QUIET = RunParameters(host_per_kernel=0.0, overlap={})


def plan(**fields: object) -> TrainingPlan:
    given = {"tp": 1.0, "pp": 1.0, "dp": 1.0, "micro_batch": 2.0, "global_batch": 16.0}
    given |= {"seq_len": 2048.0, **fields}
    return TrainingPlan(**given)  # type: ignore[arg-type]


def step(made: TrainingPlan, run: RunParameters = QUIET, using: Environment | None = None) -> Step:
    return assemble(taken(made), run, using or Environment())


def taken(made: TrainingPlan) -> Parts:
    return parts(SMALL, DGX, made, NONE)[0]


@pytest.mark.parametrize(
    "fields", [{}, {"recompute": "full"}, {"tp": 2.0}, {"attention": "unfused"}]
)
def test_computation_is_the_operators_times_their_executions(fields: dict[str, object]) -> None:
    """Eight micro-batches of six layers, an embedding and a head."""
    made = plan(**fields)
    operators = step_operators(SMALL, made)
    times = operator_times(operators, DGX.accelerator, NONE, (), sustained=True).time
    held = blocks(SMALL, made, stages(SMALL, made))
    added: dict[str, float] = {}
    for operator, time in zip(operators, times, strict=True):
        count = float(held[operator.module][2]) * float(operator.count) * 8
        added[operator.phase] = added.get(operator.phase, 0.0) + count * float(time)
    found = step(made)
    for phase, seconds in added.items():
        assert float(found.breakdown[phase]) == pytest.approx(seconds)
    layer = sum(
        float(o.count) * float(t)
        for o, t in zip(operators, times, strict=True)
        if o.module in ("layer", "dense")
    )
    if "tp" not in fields:
        assert float(found.layer_time) == pytest.approx(layer)
    assert sum(map(float, found.breakdown.values())) == pytest.approx(float(found.step_time))


def test_a_family_is_as_uncertain_as_its_operators_on_average() -> None:
    """By how long each lasts in a model of six layers and one of each end."""
    made = plan()
    operators = step_operators(SMALL, made)
    timing = operator_times(operators, DGX.accelerator, NONE, (), sustained=True)
    lasts, doubt = dict[str, float](), dict[str, float]()
    for at, one in enumerate(operators):
        many = 1.0 if one.module in ("embedding", "head") else 6.0
        spent = many * float(one.count) * float(timing.time[at])
        family = timing.family[at]
        lasts[family] = lasts.get(family, 0.0) + spent
        doubt[family] = doubt.get(family, 0.0) + spent * float(timing.sigma[at])
    found = taken(made).sigmas
    assert {name: float(value) for name, value in found.items()} == pytest.approx(
        {name: doubt[name] / lasts[name] if lasts[name] else 0.0 for name in lasts}
    )


def test_tensor_parallelism_costs_its_collectives() -> None:
    """Those of a layer six times, those of the ends once, of each micro-batch."""
    made = plan(tp=4.0, sequence_parallel=1.0)
    held = blocks(SMALL, made, stages(SMALL, made))
    own, seconds, layer = groups(made), 0.0, 0.0
    for one in step_collectives(SMALL, made):
        time, _ = collective_time(one.op, one.bytes, own[one.group], DGX, NONE)
        seconds += float(time) * float(one.count) * float(held[one.module][2]) * 8
        layer += float(time) * float(one.count) * (one.module in ("layer", "dense"))
    found = step(made)
    assert float(found.breakdown["tp_communication"]) == pytest.approx(seconds)
    operators = step_operators(SMALL, made)
    times = operator_times(operators, DGX.accelerator, NONE, (), sustained=True).time
    for each, spent in zip(operators, times, strict=True):
        layer += float(spent) * float(each.count) * (each.module in ("layer", "dense"))
    assert float(found.layer_time) == pytest.approx(layer), "a layer is kept up by its own, too"


@pytest.mark.parametrize("factor", [1.0, 2.0])
def test_waits_between_stages_are_of_the_links_that_carry_them(factor: float) -> None:
    """Which no software slows: families are what they are before the framework's factor."""
    found = step(plan(pp=2.0), using=Environment(factor=factor))
    waits = float(found.breakdown["pp_communication"])
    assert waits > 0
    assert float(found.families["p2p"]) == pytest.approx(waits / factor)


@pytest.mark.parametrize("sharding", ["none", "zero1", "zero3"])
def test_gradients_cost_their_collectives(sharding: str) -> None:
    """Of all parameters, where nothing hides."""
    made = plan(dp=8.0, micro_batch=1.0, sharding=sharding, grad_overlap=False, param_overlap=False,
                vocab_multiple=1.0)  # fmt: skip
    held, own = Held(float(SMALL.parameters), float(SMALL.parameters)), groups(made)
    listed = gradient_collectives(made, held, Held(0.0, 0.0), 6.0, 0.0)
    seconds = 0.0
    for one in listed:
        if float(one.count) and float(own[one.group].size) > 1:
            time, _ = collective_time(one.op, one.bytes, own[one.group], DGX, NONE)
            seconds += float(time) * float(one.count)
    assert float(step(made).breakdown["dp_communication"]) == pytest.approx(seconds)


def test_the_last_bucket_of_gradients_never_hides() -> None:
    """One part in seven of six layers and the rest; the others hide as far as the backward pass of
    a micro-batch reaches, twice as long where half of it is enough. What hides takes its channels'
    processors from the passes."""
    missed = CHANNELS / float(DGX.accelerator.sms)
    made = plan(dp=8.0, micro_batch=1.0, sharding="none", param_overlap=False)
    whole = float(step(replace(made, grad_overlap=False)).breakdown["dp_communication"])
    backward = float(step(made).breakdown["backward"]) / 2
    for share in (0.0, 0.01, 1e3):
        found = step(made, replace(QUIET, overlap={"dp": share}))
        hidden = min(share * backward, whole * 6 / 7)
        assert float(found.hidden["dp"]) == pytest.approx(hidden)
        assert float(found.breakdown["dp_communication"]) == pytest.approx(
            whole - hidden + missed * hidden
        )


@pytest.mark.parametrize("vpp", [2.0, 3.0])
def test_transfers_hide_behind_the_other_chunks_of_a_device(vpp: float) -> None:
    """Where there are any, by the share that may hide; each chunk sends its own."""
    made = plan(pp=2.0, vpp=vpp, p2p_overlap=True)
    own, listed = groups(made), pipeline_collectives(SMALL, made)
    times = [float(collective_time(c.op, c.bytes, own["pp"], DGX, NONE)[0]) for c in listed]
    whole = sum(times) * vpp * 8
    shown = step(made)
    assert float(shown.breakdown["pp_communication"]) == pytest.approx(whole)
    assert float(shown.hidden["pp"]) == 0
    hidden = step(made, replace(QUIET, overlap={"pp": 1.0}))
    assert float(hidden.breakdown["pp_communication"]) == pytest.approx(0.0, abs=1e-12)
    assert float(hidden.hidden["pp"]) == pytest.approx(whole, abs=1e-12)


@pytest.mark.parametrize("share", [0.25, np.array([0.5, 1.0])])
def test_activations_leave_and_return_by_themselves(share: float | np.ndarray) -> None:
    """So much of what stages keep of a micro-batch, at 0.83 of 63 GB/s, each way once; nothing of
    it is in flight, and no node shares its link."""
    made = plan(offload_activations=share)
    at = stages(SMALL, made)
    kept, _ = layer_activations(
        kept_by(step_operators(SMALL, made), SMALL, made), made, blocks(SMALL, made, at)
    )
    held = lay_out(SMALL, made).parameters
    found = _copies(SMALL, made, at, (held.dense, held.expert), DGX.accelerator)
    assert [slot.place for slot in found] == ["forward", "backward"]
    for one in found.values():
        assert one.time == pytest.approx(share * kept / (0.83 * 63e9))
        zero, ones = np.zeros(one.time.shape), np.ones(one.time.shape)
        for value, expected in ((one.window, zero), (one.flight, zero), (one.count, ones),
                                (one.domains, ones), (one.sigma, 0.2 * ones)):  # fmt: skip
            assert value.tolist() == expected.tolist()
    assert _copies(SMALL, plan(), at, (held.dense, held.expert), DGX.accelerator) == {}


def attention(made: TrainingPlan) -> float:
    """Seconds of fused attention in a step: of all layers and micro-batches, with the bubble."""
    found = taken(made)
    held = blocks(SMALL, made, stages(SMALL, made))
    work = ((module, time) for (module, _, own), time in found.work.items() if "attention" in own)
    busiest = sum(float(time) * float(np.max(held[module])) for module, time in work)
    return busiest * (float(made.micro_batches) + float(made.pp) - 1.0)


@pytest.mark.parametrize("tokens", [2048.0, 262144.0])
def test_what_takes_as_long_as_by_itself_is_not_stretched(tokens: float) -> None:
    """Parts made before: a step is the stretched rest plus attention and optimizer as they are, so
    that one of long sequences, nearly all attention, hardly knows its framework."""
    made = plan(seq_len=tokens, global_batch=2.0)
    plain, slow = step(made), step(made, using=Environment(factor=2.0))
    stays = float(plain.breakdown["optimizer"]) + attention(made)
    assert float(slow.step_time) == pytest.approx(2.0 * float(plain.step_time) - stays)
    assert float(sum(slow.breakdown.values())) == pytest.approx(float(slow.step_time))
    ratio = float(slow.step_time / plain.step_time)
    assert ratio < 1.5 if tokens > 1e5 else ratio > 1.5


def test_no_software_slows_a_link() -> None:
    """What stages of one chunk wait for their links is not what a framework stretches."""
    made = plan(pp=2.0, schedule="gpipe")
    slow = replace(DGX, tiers=tuple(replace(tier, latency=1.0) for tier in DGX.tiers))
    waits = []
    for where in (DGX, slow):
        found = parts(SMALL, where, made, NONE)[0]
        plain, more = (assemble(found, QUIET, Environment(factor=f)) for f in (1.0, 1.5))
        waits.append(float(plain.breakdown["pp_communication"]))
        assert float(more.breakdown["pp_communication"]) == pytest.approx(waits[-1])
        stays = waits[-1] + float(plain.breakdown["optimizer"]) + attention(made)
        rest = float(plain.step_time) - stays
        assert float(more.step_time) == pytest.approx(1.5 * rest + stays)
    assert waits[1] - waits[0] == pytest.approx(2.0, rel=1e-3)  # once each way


@pytest.mark.parametrize(("schedule", "stages"), [("gpipe", 2), ("gpipe", 3), ("1f1b", 3)])
def test_a_stage_that_copies_what_it_hands_on_works_that_much_longer(
    schedule: str, stages: int
) -> None:
    """Inner stages copy what they receive and what they send, both ways; the first micro-batch of
    a phase is copied while it travels."""
    made = plan(pp=float(stages), schedule=schedule, micro_batch=1.0)
    each, ends = 1.0, min(stages - 1.0, 2.0)
    message = 2.0 * float(made.tokens) * SMALL.hidden
    plain = step(made)
    found = step(replace(made, handed_rate=message / each))
    grown = float(found.step_time - plain.step_time)
    if schedule == "gpipe":
        first = (stages - 1.0) * (2.0 * each - float(plain.passes.hop))
        assert grown == pytest.approx(
            2.0 * (15.0 * ends * each + first), rel=1e-9 + 0.01 * (ends > 1)
        )
    assert grown > 0.99 * 2.0 * 15.0 * ends * each
    hop = float(found.passes.transfer), float(found.passes.latency)
    played = timeline(schedule, *found.passes.of_every_stage(), 16, 1, *hop)
    whole = pipeline_time(schedule, found.passes, 16.0, 1.0)
    assert played[-1].end == pytest.approx(float(whole), rel=1e-9 if schedule == "gpipe" else 0.02)


def test_a_link_slower_than_all_that_a_stage_does_hides_its_copies() -> None:
    slow = replace(DGX, tiers=tuple(replace(t, bandwidth=t.bandwidth / 1e5) for t in DGX.tiers))
    made = plan(pp=3.0, schedule="gpipe")
    turn = replace(made, handed_rate=1e10)
    times = [
        float(assemble(parts(SMALL, slow, one, NONE)[0], QUIET, Environment()).step_time)
        for one in (made, turn)
    ]
    assert times[1] == pytest.approx(times[0], rel=1e-9)
    assert float(step(turn).step_time) > float(step(made).step_time)


def test_gradients_added_by_kernels_of_their_own_are_the_bytes_that_these_move() -> None:
    """Seven of eight micro-batches: 10 bytes of each parameter at the memory's rate or slower."""
    made = plan()
    grown = float(step(replace(made, sums_apart=True)).step_time - step(made).step_time)
    least = 7.0 * 10.0 * SMALL.parameters / float(DGX.accelerator.bandwidth)
    assert least <= grown < 1.5 * least
    assert step(replace(made, sums_apart=True, global_batch=2.0)).step_time == pytest.approx(
        float(step(replace(made, global_batch=2.0)).step_time)
    )


def test_no_software_slows_what_a_stage_copies() -> None:
    made = plan(pp=3.0, schedule="gpipe", micro_batch=1.0, handed_rate=1e7, attention="unfused")
    found = parts(SMALL, DGX, made, NONE)[0]
    plain, slow = (assemble(found, QUIET, Environment(factor=f)) for f in (1.0, 2.0))
    copies = float(plain.breakdown["pp_communication"])
    assert float(slow.breakdown["pp_communication"]) == pytest.approx(copies)
    more = [float(one.passes.forward[1] * f) for one, f in ((plain, 1.0), (slow, 2.0))]
    each = 2.0 * 2.0 * float(made.tokens) * SMALL.hidden / 1e7
    assert more[1] - each == pytest.approx(2.0 * (more[0] - each))


def test_copies_of_transfers_that_are_thought_away_are_none() -> None:
    """Where a device holds several chunks transfers are in its passes already; where there is no
    transfer, or it takes no time, nothing is copied."""
    for layout in ({"pp": 1.0}, {"pp": 2.0, "vpp": 3.0}):
        made = plan(**layout)
        turn = replace(made, handed_rate=1e6)
        assert float(step(turn).step_time) == float(step(made).step_time)
    made = plan(pp=2.0, schedule="gpipe", handed_rate=1e6)
    found = parts(SMALL, DGX, made, NONE)[0]
    quiet = {key: replace(e, time=0.0 * e.time) for key, e in found.between.items()}
    free = assemble(replace(found, between=quiet), QUIET, Environment())
    assert float(free.breakdown["pp_communication"]) < 1e-5
    assert float(assemble(found, QUIET, Environment()).breakdown["pp_communication"]) > 1.0


def test_a_framework_stretches_the_step_and_a_loader_fills_it() -> None:
    made = plan(loader_rate=1e3)
    plain, slow = step(plan()), step(plan(), using=Environment(factor=1.25))
    stays = float(plain.breakdown["optimizer"]) + attention(plan())
    added = 0.25 * (float(plain.step_time) - stays)
    assert float(slow.step_time) == pytest.approx(float(plain.step_time) + added)
    assert float(slow.breakdown["framework"]) == pytest.approx(added)
    for term in ("optimizer", "bubble", "dp_communication"):
        assert float(slow.breakdown[term]) == pytest.approx(float(plain.breakdown[term]))
    waited = step(made)
    assert float(waited.step_time) == pytest.approx(16 * 2048 / 1e3)
    assert float(waited.breakdown["data_loading"]) == pytest.approx(
        16 * 2048 / 1e3 - float(plain.step_time)
    )


def test_a_host_that_launches_slowly_is_waited_for() -> None:
    """Every operator of six layers and both ends, eight times."""
    made = plan()
    listed = step_operators(SMALL, made)
    held = blocks(SMALL, made, stages(SMALL, made))
    launches = sum(float(o.count) * float(held[o.module][2]) for o in listed)
    found = step(made, replace(QUIET, host_per_kernel=1.0))
    device = sum(float(found.breakdown[t]) for t in ("forward", "backward", "recompute"))
    assert float(found.breakdown["host"]) == pytest.approx(8 * launches - device)


def test_gradients_hide_behind_a_pass_that_waits_for_its_host_as_long_as_it_lasts() -> None:
    """A host that launches slowly leaves a pass as long as its launches, whatever the device has to
    do: with work of twice the time the step takes as long, and what the gradients hide behind too.
    (It was shorter: the time in which the device waits hid nothing.)"""
    run = replace(QUIET, host_per_kernel=1e-4, overlap={"dp": 0.01})
    made = plan(dp=8.0, global_batch=16.0, sharding="zero1")
    known = taken(made)
    more = {key: 2.0 * time for key, time in known.work.items()}
    once, twice = (
        assemble(replace(known, work=work), run, Environment()) for work in (known.work, more)
    )
    assert float(twice.breakdown["host"]) > 0.0
    assert float(once.breakdown["dp_communication"]) > 0.0
    assert float(once.hidden["dp"]) == pytest.approx(float(twice.hidden["dp"]))
    assert float(once.step_time) == pytest.approx(float(twice.step_time))
    slower = assemble(known, replace(run, host_per_kernel=2e-4), Environment())
    assert float(slower.hidden["dp"]) == pytest.approx(2.0 * float(once.hidden["dp"]))


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1"])
def test_families_share_the_time_of_the_pipeline(schedule: str) -> None:
    """With its bubble: what is uncertain of the work is so of the waiting for it."""
    found = step(plan(pp=3.0, schedule=schedule))
    families = sum(float(value) for value in found.families.values())
    assert families == pytest.approx(float(found.step_time))
    of = found.passes
    each = np.asarray(of.forward + of.backward + of.weights)
    slowest = float(each.max())
    assert int(found.slowest) == int(np.argmax(np.where(of.count > 0, each, -1)))
    bubble = float(found.breakdown["bubble"])
    ends = ("optimizer", "dp_communication", "pp_communication")
    rest = sum(float(found.breakdown[term]) for term in ends)
    assert float(found.step_time) == pytest.approx(8 * slowest + bubble + rest)


def test_passes_of_a_stage_are_its_operators() -> None:
    """Forward; backward less the gradients of weights; and these."""
    made = plan()
    operators = step_operators(SMALL, made)
    times = operator_times(operators, DGX.accelerator, NONE, (), sustained=True).time
    held = blocks(SMALL, made, stages(SMALL, made))
    ahead, late, whole = 0.0, 0.0, 0.0
    for one, time in zip(operators, times, strict=True):
        spent = float(time) * float(one.count) * float(held[one.module][2])
        whole += spent
        ahead += spent if one.phase == "forward" else 0.0
        late += spent if one.variant in ("wgrad", "bias_grad") else 0.0
    of = step(made).passes
    found = [float(v[2]) for v in (of.forward, of.backward, of.weights)]
    assert found == pytest.approx([ahead, whole - ahead - late, late])


def test_shares_are_of_the_whole_step() -> None:
    named = Named("a", "forward", 2.0, 0.25, 1.0, "memory", "measured")
    remedy, ground = Remedy("b", 4.0, 0.5, ""), Ground("c", 1.0, "measured", 0.1, 3)
    own = Explanation(
        step_time=8.0,
        terms={"forward": 2.0, "backward": 6.0},
        operators=(named,),
        remedies=(remedy,),
        grounds=(ground,),
        doubts=(Doubt("vpp", 1.0, 2, -0.1, 0.02),),
        taxes=Taxes(8.0, {"launch": 2.0}, 2.0),
    )
    told = own.to_dict()
    assert told["worth_stating"] == [
        {"field": "vpp", "assumed": 1, "other": 2, "change": -0.1, "expected": 0.02}
    ]
    assert {name: one["share"] for name, one in told["terms"].items()} == {
        "forward": 0.25,
        "backward": 0.75,
    }
    assert sum(one["time_s"] for one in told["terms"].values()) == 8.0
    assert told["longest_operators"][0]["time_s"] == 2.0
    assert (told["would_help"][0]["saves_s"], told["would_help"][0]["share"]) == (4.0, 0.5)


def test_micro_batches_of_unequal_attention_wait_for_each_other() -> None:
    """The same work, more of it waiting; none where there is nobody to wait for."""
    for layout, waits in (({"pp": 2.0, "dp": 4.0, "micro_batch": 1.0}, True), ({}, False)):
        own = taken(plan(**layout))
        uneven = replace(own, attention_cv=own.attention_cv + 0.5)
        equal, other = (assemble(one, QUIET, Environment()) for one in (own, uneven))
        added = float(other.breakdown["bubble"] - equal.breakdown["bubble"])
        assert (added > 0.0) is waits
        assert float(other.step_time - equal.step_time) == pytest.approx(added)
        assert sum(map(float, other.breakdown.values())) == pytest.approx(float(other.step_time))


def test_a_family_is_as_uncertain_as_what_it_is_made_of() -> None:
    """Links as the most uncertain of their collectives, kernels as their operators in the mean,
    each as long as it lasts: a tiny operator that nobody timed says nothing of large products."""
    own, listed = parts(
        SMALL, DGX, plan(tp=4.0, dp=2.0, micro_batch=1.0, sequence_parallel=1.0), NONE
    )
    found = assemble(own, QUIET, Environment())
    for op in {slot.op for slot, _ in own.inside}:
        each = [float(np.max(one.sigma)) for (slot, _), one in own.inside.items() if slot.op == op]
        each += [float(np.max(e.sigma)) for (s, _), e in own.gradients.items() if s.op == op]
        assert 0.0 < float(found.sigmas[op]) <= max(each) + 1e-12
    for family, sigma in own.sigmas.items():
        assert float(np.max(found.sigmas[family])) == pytest.approx(float(np.max(sigma)))
        rows = zip(listed.operators, listed.timing.family, listed.timing.sigma, strict=True)
        every = [float(s) for o, name, s in rows if name == family and float(o.count) > 0] or [0.0]
        assert min(every) - 1e-12 <= float(sigma) <= max(every) + 1e-12


@pytest.mark.parametrize(
    ("split", "tp", "divides"),
    [("tp", 1, False), ("tp", 2, True), (True, 1, True), (False, 8, False), ("", 8, False)],
)
def test_sequences_are_divided_as_the_framework_has_it(split: Any, tp: int, divides: bool) -> None:
    assert Draft.sequence_parallel(SimpleNamespace(split=split), tp) is divides  # type: ignore[arg-type]


def test_an_overlap_that_nobody_states_is_none() -> None:
    """Of collectives that hide behind products: what their bulk costs, too."""
    made = plan(tp=4.0, sequence_parallel=1.0, tp_overlap=True)
    found = [
        taxes(SMALL, DGX, made, replace(NONE, run=replace(QUIET, overlap=overlap)))
        for overlap in ({}, {"tp": 0.0}, {"tp": 1.0})
    ]
    assert found[0] == found[1]
    assert found[2].total < found[0].total
    assert found[2].alone[BULK] < found[0].alone[BULK]


def test_software_that_nobody_levelled_adds_nothing() -> None:
    for framework, era in (("megatron-lm", "2024-05"), ("pytorch", "neutral")):
        assert asdict(environment({}, framework, era)) == asdict(Environment())


@pytest.mark.parametrize("sharding", ["zero1", "zero3", "fsdp"])
def test_one_replica_shards_with_nobody(sharding: str) -> None:
    """All that is trained is updated, experts too, however it is sharded."""
    mixed = replace(SMALL, num_experts=8, top_k=2, expert_ffn_hidden=512)
    times = [
        float(np.max(frame(mixed, DGX, plan(sharding=one), NONE).update))
        for one in ("none", sharding)
    ]
    assert times[0] == pytest.approx(times[1])
    dense_alone = float(np.max(frame(SMALL, DGX, plan(sharding="none"), NONE).update))
    assert dense_alone < times[0]
