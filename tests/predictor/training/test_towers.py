"""Training of two towers, and serving of images."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate
from typing import Any

import numpy as np
import pytest

from predictor import catalog
from predictor.catalog.artifacts import load
from predictor.catalog.forms import parse
from predictor.catalog.specs import ServingPlanSpec, TrainingPlanSpec
from predictor.errors import InputError
from predictor.models import Tower, around_layers, tower_parameters
from predictor.plans.serving import ServingPlan
from predictor.serving.completion import complete_serving
from predictor.serving.prediction import InferencePrediction, predict_inference
from predictor.training import towers
from predictor.training.completion import TrainingRequest, complete_training
from predictor.training.dealt import Dealt
from predictor.training.decomposition import COMPUTE_TERMS
from predictor.training.prediction import predict
from predictor.training.uneven import dealt_step
from predictor.training.unlike_stages import ACTIVE, STATES, _line

KNOWN = load("default")
PLAIN = catalog.model("llama3-8b")
TOWER = Tower("vision", 24, 1024, 16, 4096, patches=1025, tokens=256, patch_width=588, merged=4)
SEES = replace(PLAIN, tower=TOWER)
BASE = {"system": "dgx-h100", "tp": 2, "pp": 4, "global_batch": 32, "seq_len": 4096, "gpus": 8}


def complete(model: Any = SEES, **fields: Any) -> TrainingRequest:
    spec = parse(TrainingPlanSpec, {**BASE, **fields}, "test")
    return complete_training(spec, KNOWN.run, model=model)


def step(**fields: Any) -> tuple[float, Dealt]:
    found, dealt = dealt_step(complete(**fields), KNOWN)
    return float(found.step_time), dealt


def test_no_images_are_the_language_model() -> None:
    one, plain = complete(images=0), complete(PLAIN)
    assert not one.uneven
    ours, theirs = (predict(r.model, r.cluster, r.plan, KNOWN) for r in (one, plain))
    assert float(ours.step_time) == float(theirs.step_time)
    assert float(ours.memory.peak) == float(theirs.memory.peak)


@pytest.mark.parametrize("tp", [1, 2])
def test_a_frozen_tower_has_its_weights_alone(tp: int) -> None:
    """Of 16 bits: four matrices of 1,024 x 1,024 and two of 1,024 x 4,096 a layer, divided among
    ranks, and what is around layers as so many more; nothing is kept, nothing returns."""
    request = complete(images=3, tower="frozen", tp=tp, pp=4, gpus=4 * tp)
    assert request.seen is not None
    made = towers.tower_layer(SEES, request.cluster, request.plan, KNOWN, request.seen)
    layer = 4 * 1024 * 1024 + 2 * 1024 * 4096
    around = 1.0 + around_layers(TOWER, PLAIN.hidden) / 24
    assert made.state == pytest.approx(2.0 * around * layer / tp)
    assert made.activations == 0.0
    assert made.passes[1:] == (0.0, 0.0)
    assert {name for name, value in made.terms.items() if value} == {"forward"}
    assert set(made.ends.values()) == {0.0}


@pytest.mark.parametrize(
    "more", [{}, {"micro_batch": 4}, {"cp": 2, "pp": 2}, {"cp": 4, "tp": 1, "pp": 2}]
)
def test_every_tile_is_seen_once(more: dict[str, Any]) -> None:
    """Ranks of a sequence share its tiles out: all replicas and micro-batches together see those of
    the global batch."""
    request = complete(images=3, image_tiles=4, **more)
    seen = request.seen
    assert seen is not None
    assert seen.tiles == 12.0
    told = complete(images=3, image_tiles=1 / 3 + 0.00113, **more)
    assert [one.value for one in told.assumed if one.field == "tiles"] == [1.003]
    ranks = request.plan
    ((_, own),) = towers._plans(SEES, ranks, seen)
    assert float(own.micro_batch) * float(ranks.cp) == 12.0 * float(ranks.micro_batch)
    assert float(own.micro_batches) == float(ranks.micro_batches)
    assert float(own.global_batch) == 12.0 * float(ranks.global_batch)
    assert (float(own.dp), float(own.cp)) == (float(ranks.dp * ranks.cp), 1.0)
    assert float(own.seq_len) == TOWER.patches


def test_what_is_around_a_towers_layers_counts_once_however_many_they_are() -> None:
    """Passes of n layers and of `around_layers` more, of which each takes as long."""
    one = complete(images=3)
    seen = one.seen
    assert seen is not None

    def whole(layers: int) -> np.ndarray:
        model = replace(PLAIN, tower=replace(TOWER, layers=layers))
        made = towers.tower_layer(model, one.cluster, one.plan, KNOWN, seen)
        assert made.many == layers
        return layers * np.array([*made.passes, made.state])

    few, more, most = (whole(n) for n in (12, 24, 48))
    around = around_layers(TOWER, PLAIN.hidden)
    each = (more - few) / 12
    np.testing.assert_allclose(few, each * (12 + around), rtol=1e-9)
    np.testing.assert_allclose(most, each * (48 + around), rtol=1e-9)


def test_a_layer_of_a_tower_keeps_as_much_of_a_micro_batch_in_every_pipeline() -> None:
    one = complete(images=3)
    seen = one.seen
    assert seen is not None
    kept = [
        towers.tower_layer(SEES, one.cluster, replace(one.plan, pp=pp), KNOWN, seen).activations
        for pp in (2.0, 4.0, 8.0)
    ]
    assert kept[0] > 0.0
    assert kept == pytest.approx([kept[0]] * 3)


def test_a_tower_of_next_to_nothing_costs_next_to_nothing() -> None:
    tiny = Tower("vision", 1, 1024, 16, 4096, patches=64, tokens=16, patch_width=588)
    found, _ = dealt_step(complete(replace(PLAIN, tower=tiny), images=1, pp=1, gpus=2), KNOWN)
    plain = complete(PLAIN, pp=1, gpus=2)
    alone = predict(plain.model, plain.cluster, plain.plan, KNOWN)
    # Launches are left, of the kernels of a layer and of what is around it.
    assert 1.0 <= float(found.step_time) / float(alone.step_time) < 1.05


def test_one_stage_holds_both_towers_and_takes_as_long_as_both() -> None:
    """More images, more time, and in proportion: the language model's part stays."""
    # Enough of them that the host does not bind: up to 8,192 of the tokens.
    times = [step(images=n, pp=1, gpus=2, seq_len=8192)[0] for n in (8, 16, 32)]
    less, more = times[1] - times[0], times[2] - times[1]
    assert more == pytest.approx(2 * less, rel=0.15)  # larger products are a little faster
    _, dealt = step(images=4, pp=1, gpus=2)
    assert (dealt.shares[0].tower, dealt.shares[0].layers) == (24, 32)


def test_a_stage_behind_the_tower_holds_the_language_model_as_one_by_itself_does() -> None:
    """Embedding, layers and head: its passes, its weights and what ends a step with them."""
    request = complete(images=3, pp=2, gpus=4)
    assert request.seen is not None
    line = _line(SEES, [(request.cluster, 2)], request.plan, KNOWN, request.seen, (), ())
    own = line.spans([TOWER.layers, PLAIN.layers])[1]
    assert (own.tower, own.layers, own.embeds, own.heads) == (0, PLAIN.layers, True, True)
    alone = predict(PLAIN, request.cluster, replace(request.plan, pp=1.0), KNOWN)
    passes = sum(
        float(np.max(getattr(alone.passes, n))) for n in ("forward", "backward", "weights")
    )
    assert line.time(1, TOWER.layers, line.items) == pytest.approx(passes)
    held = line.classes(1, own)
    for name, value in alone.memory.classes.items():
        if "weights" in name:
            assert held[name] == pytest.approx(float(np.max(value))), name
    update = line._terms(1, own, "ends")["optimizer"]
    told = float(alone.breakdown["optimizer"])  # small updates fill it less
    assert update * line.tables[1].factor == pytest.approx(told, rel=1e-5)


def test_a_stages_passes_are_its_terms_of_both_towers_however_slow() -> None:
    """What computes longer does so in its kernels alone; the step is told by any of its stages."""
    request, slower = complete(images=3), (1.0, 1.5, 1.0, 2.0)
    kinds = [(request.cluster, 4)]
    sound, slow = (
        _line(SEES, kinds, request.plan, KNOWN, request.seen, (), paces) for paces in ((), slower)
    )
    counts = [TOWER.layers // 2, TOWER.layers // 2 + 4, 12, 16]
    for line in (sound, slow):
        ends = list(accumulate(counts))
        for stage, own in enumerate(line.spans(counts)):
            terms = line._terms(stage, own, "terms")
            time = line.time(stage, ends[stage] - counts[stage], ends[stage])
            assert time == pytest.approx(sum(terms.values()))
            before = sound._terms(stage, own, "terms")
            more = slower[stage] if line is slow else 1.0
            for name, value in terms.items():
                longer = more if name in COMPUTE_TERMS else 1.0
                assert value == pytest.approx(longer * before[name])
            told = line.breakdown(counts, stage)
            late = told.pop("data_loading")
            assert late == 0.0
            assert sum(told.values()) == pytest.approx(line.total(counts)[0])


def test_stages_hold_their_layers_of_the_tower_beside_those_of_the_model() -> None:
    """Weights of each, and what each keeps of four micro-batches in flight on the first of four."""
    request = complete(images=3)
    line = _line(SEES, [(request.cluster, 4)], request.plan, KNOWN, request.seen, (), ())
    own = line.spans([TOWER.layers + 8, 8, 8, 8])[0]
    assert (own.tower, own.layers) == (TOWER.layers, 8)
    both, alone = line.classes(0, own), line.classes(0, replace(own, tower=0))
    tower, lost = line.tower[0], both["fragmentation"] - alone["fragmentation"]
    added = {name: both[name] - alone[name] for name in both if name != "fragmentation"}
    assert added.pop(STATES) == pytest.approx(TOWER.layers * tower.state)
    assert added.pop(ACTIVE) == pytest.approx(TOWER.layers * 4.0 * tower.activations)
    assert set(added.values()) == {0.0}
    whole = TOWER.layers * (tower.state + 4.0 * tower.activations)
    share = alone["fragmentation"] / (
        sum(alone.values()) - alone["fragmentation"] - alone["context"]
    )
    assert lost == pytest.approx(share * whole)


def test_layers_of_both_towers_are_dealt_and_no_worse_than_evenly() -> None:
    found, dealt = step(images=8)
    assert sum(one.tower for one in dealt.shares) == 24
    assert sum(one.layers for one in dealt.shares) == 32
    assert found <= dealt.even
    assert dealt.shares[0].tower > 0
    times = [one.time for one in dealt.shares]
    assert max(times) < 1.25 * sum(times) / 4
    assert 0 < dealt.towers < 1


def test_the_towers_share_is_what_images_add() -> None:
    """Work of all stages with images less that without, over all of it; as many layers of text on
    each stage either way."""
    _, seen = step(images=8, pp=1, gpus=2)
    asked = complete(PLAIN, pp=1, gpus=2)
    text = predict(asked.model, asked.cluster, asked.plan, KNOWN)
    passes = sum(float(np.max(getattr(text.passes, n))) for n in ("forward", "backward", "weights"))
    work = seen.shares[0].time
    assert seen.towers * work == pytest.approx(work - float(asked.plan.micro_batches) * passes)


def test_frozen_towers_have_forward_passes_alone() -> None:
    trained, frozen = (step(images=8, pp=1, gpus=2, tower=t) for t in ("trained", "frozen"))
    text = predict(*(getattr(complete(PLAIN, pp=1, gpus=2), n) for n in ("model", "cluster", "plan")), KNOWN)  # fmt: skip  # noqa: E501
    own, less = trained[0] - float(text.step_time), frozen[0] - float(text.step_time)
    assert 0.2 < less / own < 0.45  # one pass of three, and no update
    assert frozen[1].shares[0].memory < trained[1].shares[0].memory


def test_unequal_images_take_longer_than_equal_ones() -> None:
    fields = {"images": 1, "tp": 1, "pp": 2, "global_batch": 32, "image_tiles": 12}
    for gpus, longer in ((16, True), (2, False)):  # eight replicas, and one
        alike = step(**fields, gpus=gpus)[0]
        assert (step(**fields, gpus=gpus, image_samples="both")[0] > alike) == longer


@pytest.mark.parametrize(
    ("model", "fields", "message"),
    [
        (PLAIN, {"images": 1}, "has no second tower"),
        (SEES, {"images": 20}, "more than seq_len"),
        (SEES, {"images": 1, "first_layers": 4}, "first_layers is of text alone"),
    ],
)
def test_what_cannot_be_is_said(model: Any, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        complete(model, **fields)


SERVED = {"system": "dgx-h100", "tp": 1, "input_len": 512, "output_len": 64, "concurrency": 8}


def plan(model: Any = SEES, **fields: Any) -> ServingPlan:
    spec = parse(ServingPlanSpec, {**SERVED, **fields}, "test")
    return complete_serving(spec, KNOWN.run, model=model).plan


def served(model: Any = SEES, **fields: Any) -> InferencePrediction:
    return predict_inference(model, catalog.system("dgx-h100"), plan(model, **fields), KNOWN)


def test_no_images_are_served_as_text() -> None:
    ours, theirs = served(images=0), served(PLAIN)
    assert float(ours.latencies.ttft) == float(theirs.latencies.ttft)
    assert float(ours.memory.total) == float(theirs.memory.total)


def test_images_lengthen_the_prompt_and_are_encoded() -> None:
    """Two tiles are 512 more tokens; decoding is that of a text as long, reading takes longer."""
    seen, text = served(images=2), served(PLAIN, input_len=1024)
    assert float(seen.plan.input_len) == 1024.0
    assert float(seen.decoding.compute) == float(text.decoding.compute)
    assert float(seen.prompts.compute) > float(text.prompts.compute)
    more = float(seen.memory.classes["weights"]) - float(text.memory.classes["weights"])
    assert more == pytest.approx(2.0 * tower_parameters(TOWER, PLAIN.hidden))


def test_encoding_takes_as_long_as_its_arithmetic_asks() -> None:
    """Never faster than the peak, no slower than a quarter of it for many tiles."""
    seen = served(images=32, concurrency=1)
    text = served(PLAIN, input_len=512 + 32 * 256, concurrency=1)
    flop = 32 * (24 * (24 * 1024**2 * 1025 + 4 * 1025**2 * 1024))
    spent = float(seen.prompts.compute - text.prompts.compute)
    assert flop / 989e12 < spent < 4.0 * flop / 989e12


def test_a_batch_of_requests_is_the_requests_one_by_one() -> None:
    both = replace(plan(images=2), tiles=np.array([2.0, 0.0]), input_len=np.array([1024.0, 512.0]))
    found = predict_inference(SEES, catalog.system("dgx-h100"), both, KNOWN)
    one, other = served(images=2), served(images=0)
    assert float(found.latencies.ttft[0]) == pytest.approx(float(one.latencies.ttft), rel=1e-12)
    assert float(found.latencies.ttft[1]) == pytest.approx(float(other.latencies.ttft), rel=1e-12)


def test_terms_that_no_software_slows_are_shown_as_long_as_they_take() -> None:
    """Beside a frozen tower the optimizer updates what it updates without one, and attention and
    hosts take as long: the framework's factor leaves them, whoever deals layers out."""
    alone = {"pp": 1, "tp": 1, "recompute": "none", "sharding": "fsdp", "micro_batch": 1}
    found, _ = dealt_step(complete(images=1, tower="frozen", **alone), KNOWN)
    one = complete(PLAIN, **alone)
    plain = predict(one.model, one.cluster, one.plan, KNOWN)
    assert float(plain.factor) > 1.0
    for name in ("optimizer", "backward", "dp_communication", "host"):
        assert found.breakdown[name] == pytest.approx(float(plain.breakdown[name])), name
    assert sum(map(float, found.breakdown.values())) == pytest.approx(float(found.step_time))


def test_ranks_that_divide_weights_divide_a_frozen_towers() -> None:
    plans = [
        complete(images=1, tower="frozen", tp=1, pp=1, gpus=8, sharding=own, weight_bytes=2)
        for own in ("zero1", "fsdp")
    ]
    whole, part = (
        towers.tower_layer(SEES, one.cluster, one.plan, KNOWN, one.seen).state for one in plans
    )
    assert whole == pytest.approx(8.0 * part)
