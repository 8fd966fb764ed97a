"""Tables that requests are served by one by one hold what closed forms are made of: both ask the
same of a plan."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from predictor.errors import InputError
from predictor.models import Tower
from predictor.serving.latency import beside, full_share
from predictor.serving.pass_times import decode_time, prompt_time
from predictor.serving.prediction import InferencePrediction, predict_inference
from predictor.serving.tables import PassTable, pass_table
from tests.predictor.serving.counted import plan
from tests.predictor.serving.test_laws_serving import CLUSTER, PLAIN, SMALL

KINDS: dict[str, dict[str, object]] = {
    "plain": {},
    "divided": {"tp": 4.0},
    "replicated": {"dp": 2.0, "batch": 24.0},
    "alone": {"batch": 1.0},
    "long": {"input_len": 800.0},
    "ahead": {"framework": "vllm", "pp": 2.0, "scheduling": "overlapped"},
    "apart": {"framework": "sglang", "batching": "apart"},
    "adapted": {"dp": 2.0, "batch": 24.0, "adapters": 8.0, "adapter_rank": 16.0},
    "drafted": {"drafted": 2.0, "acceptance": 0.5, "draft_cost": 0.1},
}


@cache
def both(**fields: object) -> tuple[PassTable, InferencePrediction]:
    own = plan(**{"input_len": 200.0, "output_len": 64.0, "batch": 12.0, "chunk": 512.0, **fields})
    table = pass_table(SMALL, CLUSTER, own, PLAIN, (900.0, 100.0))
    return table, predict_inference(SMALL, CLUSTER, own, PLAIN)


@pytest.mark.parametrize("kind", KINDS)
def test_a_table_holds_what_closed_forms_are_made_of(kind: str) -> None:
    """A token of all that run, at the mean context; a prompt's share of a full pass, and by itself
    where prompts have passes of their own; what one adds to a pass that decodes, its attention with
    it as far as that does not hide."""
    table, found = both(**KINDS[kind])
    work, own, running = found.work, found.parameters, int(found.work.running)
    length, tokens = float(found.plan.input_len), float(found.plan.tokens_per_pass)
    decode, adds = table.lookups()
    step = float(decode_time(work, own))
    assert decode.at(running, length + 32.0) * tokens == pytest.approx(step, rel=1e-3)
    share = float(full_share(work, own))
    if kind == "long":  # whole passes of 512 tokens, of which 800 are not a multiple
        assert length / 1024.0 * share < table.prompts(length, False) < share
    else:
        assert table.prompts(length, False) == pytest.approx(share)
    if kind == "apart":
        single = float(prompt_time(work, own, single=True))
        assert table.prompts(length, True) == pytest.approx(single)
    elif kind not in ("drafted", "long"):  # of several passes each has its own token
        core = max(table.cores(length) - table.hiding().at(running, length), 0.0)
        added = own.mixing * (adds.at(running, length) + core)
        assert added == pytest.approx(float(beside(work, own)), rel=1e-3)
        assert added > 0.0


def test_a_table_of_prompts_is_of_their_new_tokens() -> None:
    """Half of 400 tokens, of which the other half is cached, are 200."""
    half, whole = both(input_len=400.0, cached=0.5)[0], both()[0]
    for alone in (False, True):
        assert half.prompts(200.0, alone) == pytest.approx(whole.prompts(200.0, alone))
    assert half.cores(200.0) == pytest.approx(whole.cores(200.0))


def test_attention_within_a_prompt_is_part_of_it_that_stages_share() -> None:
    table, staged = both()[0], both(**KINDS["ahead"])[0]
    for length in (16.0, 200.0, 900.0):
        assert 0.0 < table.cores(length) < table.prompts(length, True)
    assert staged.cores(200.0) == pytest.approx(0.5 * table.cores(200.0))


def test_attention_within_the_shortest_prompts_falls_with_their_length() -> None:
    """Below the shortest that the table holds, in proportion to it, without a step there."""
    table, _ = both()
    shortest = table.lengths[0]
    assert table.cores(shortest) == pytest.approx(table.core[0])
    for share in (0.5, 0.25):
        assert table.cores(share * shortest) == pytest.approx(share * table.core[0])


def test_a_draft_is_no_part_of_what_prompts_add_to_a_pass() -> None:
    """However long guessing takes, a pass with a prompt beside takes as much longer."""
    fields = KINDS["drafted"]
    cheap, dear = (both(**{**fields, "draft_cost": cost})[0] for cost in (0.0, 0.1))
    assert cheap.beside == dear.beside
    assert cheap.decode[0][0] < dear.decode[0][0]


def test_parts_of_a_prompt_have_their_part_of_its_images() -> None:
    """As a prompt of as many tokens and images has by itself."""
    tower = Tower("vision", 2, 64, 4, 256, patches=1024, tokens=256, patch_width=588, merged=4)
    model = replace(SMALL, tower=tower)
    own = plan(input_len=200.0, output_len=64.0, chunk=512.0, tiles=4.0)
    whole = pass_table(model, CLUSTER, own, PLAIN)
    length = whole.lengths[3]
    less = replace(own, input_len=length, tiles=4.0 * length / 200.0)
    part = pass_table(model, CLUSTER, less, PLAIN)
    assert whole.prompts(length, True) == pytest.approx(part.prompts(length, True))
    blind = pass_table(model, CLUSTER, replace(own, tiles=0.0), PLAIN)
    assert whole.prompts(length, True) > blind.prompts(length, True)


def test_a_request_that_just_fits_is_served() -> None:
    own = plan(input_len=200.0, output_len=64.0)
    pool = pass_table(SMALL, CLUSTER, own, PLAIN).pool
    pass_table(SMALL, CLUSTER, own, PLAIN, (pool - 50.0, 50.0))
    with pytest.raises(InputError, match="less than one request"):
        pass_table(SMALL, CLUSTER, own, PLAIN, (pool - 50.0, 51.0))
