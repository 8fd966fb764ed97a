"""What a request asks of a model, and what of the model answers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from predictor import catalog
from predictor.catalog import ServingPlanSpec, parse
from predictor.catalog.filling import Filler
from predictor.errors import InputError
from predictor.models.tower import Tower
from predictor.serving import completion, simulation
from predictor.serving.clients import Client
from predictor.serving.completion import _seeing
from predictor.serving.fitting import Draft, layouts
from predictor.serving.images import take_images
from predictor.serving.pass_times import decode_time
from predictor.serving.prefixes import CacheTier, Prefixes
from predictor.timing import RunParameters
from predictor.work.serving import prompts
from tests.predictor.dense import dense
from tests.predictor.serving.counted import OWN, plan, work

DENSE = dense(layers=6)
WINDOWED = replace(DENSE, sliding_window=4096, sliding_pattern="every 3rd layer full")


def test_only_windows_that_are_not_set_let_a_model_see_everything() -> None:
    assert _seeing(WINDOWED, "model") is WINDOWED
    assert _seeing(WINDOWED, "unset") == replace(WINDOWED, sliding_window=0)
    for windows in ("model", "unset"):
        assert _seeing(DENSE, windows) is DENSE, "has none"


def test_heads_of_windowed_layers_do_not_see_further() -> None:
    two = replace(WINDOWED, window_heads=4, window_head_dim=256)
    with pytest.raises(InputError, match="heads of their own"):
        _seeing(two, "unset")
    assert _seeing(two, "model") is two


@pytest.mark.parametrize(("tiles", "more"), [({}, 3 * 256), ({"image_tiles": 4}, 3 * 4 * 256)])
def test_images_add_their_tiles_tokens_to_the_prompt(tiles: dict, more: int) -> None:
    """Of InternVL's 256 each; a request without images is as it was."""
    tower = Tower("vision", 2, 64, 4, 256, patches=1024, tokens=256, patch_width=588, merged=4)
    filler = Filler({"input_len": 100, "images": 3, **tiles})
    take_images(filler, replace(DENSE, tower=tower))
    assert filler.values == {"input_len": 100 + more, "tiles": more / 256}
    assert [one.value for one in filler.assumed] == [100 + more]
    none = Filler({"input_len": 100, **tiles})
    take_images(none, DENSE)
    assert none.values == {"input_len": 100}
    with pytest.raises(InputError, match="no second tower"):
        take_images(Filler({"input_len": 100, "images": 1}), DENSE)


@pytest.mark.parametrize("workers", [0.0, 1.0, 2.0])
@pytest.mark.parametrize("rate", [None, 6.0])
def test_workers_read_the_prompts_of_all_replicas(
    workers: float, rate: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of three, one is followed; where they read their own, it gets a third of what arrives."""
    seen: dict[str, Any] = {}

    def served(name: str, given: np.ndarray, came: Any) -> str:
        seen.update(count=len(given), came=came)
        return name

    monkeypatch.setattr(simulation, "pass_table", lambda *given: "table")
    monkeypatch.setattr(simulation, "read_table", lambda *given: "reading")
    monkeypatch.setattr(simulation, "arrivals", lambda rate, count, bursts: (rate, count))
    monkeypatch.setattr(simulation, "serve", lambda t, g, m, came, c: served("own", g, came))
    monkeypatch.setattr(
        simulation, "serve_apart", lambda r, t, g, m, came, c: served("apart", g, came)
    )
    one: Any = (DENSE, None, plan(dp=3.0, prefill_workers=workers), None, 10, Client(), rate, 4)
    assert simulation.one_by_one(*one) == ("apart" if workers else "own")
    every = 30 if workers and rate else 10
    assert seen["count"] == every
    assert seen["came"] == (None if rate is None else (6.0 if workers else 2.0, every))


def test_a_static_batch_answers_no_clients() -> None:
    inside = float(decode_time(work(static=1.0, streamed=1.0), OWN))
    assert inside == float(decode_time(work(static=1.0), OWN))
    assert inside < float(decode_time(work(streamed=1.0), OWN))


def test_leading_pieces_are_known_up_to_the_first_that_is_not() -> None:
    """All of what is asked for is counted; the last token of a prompt is always read; pieces come
    from a lower tier in the time of each of their tokens."""
    cached = Prefixes([CacheTier(100.0, 2e-3)])
    pieces = [("a", 10.0), ("b", 20.0), ("c", 5.0)]
    assert cached.known(pieces) == 0.0
    assert cached.take(pieces, 36.0) == (0.0, 0.0)
    cached.put(pieces[:2])
    assert cached.known(pieces) == 30.0
    assert cached.known(pieces[1:]) == 20.0
    assert cached.known(pieces[2:] + pieces) == 0.0
    assert cached.take(pieces, 36.0) == (30.0, 0.0)
    cached.settle(20.0)  # the oldest goes down
    assert cached.take(pieces, 30.0) == (29.0, pytest.approx(10 * 2e-3))
    assert (cached.asked, cached.held) == (36.0 + 36.0 + 30.0, 30.0 + 29.0)
    cached.settle(0.0)
    assert cached.take(pieces[:1], 11.0) == (10.0, pytest.approx(10 * 2e-3))


@pytest.mark.parametrize("experts", ["buffers", "other"])
@pytest.mark.parametrize("weights", ["fp8_block", "fp8", "bf16"])
def test_only_scales_by_block_are_multiplied_over_buffers(experts: str, weights: str) -> None:
    own = plan(narrow_experts=experts, weights=weights)
    assert own.in_buffers == (experts == "buffers" and weights == "fp8_block")


@pytest.mark.parametrize(("part", "hidden"), [(20.0, 10.0), (100.0, 50.0), (np.inf, 50.0)])
def test_a_query_misses_half_of_what_comes_with_it_in_its_pass(part: float, hidden: float) -> None:
    """On average, of those in its part of the prompt; none where all see all."""
    assert float(prompts(DENSE, 1.0, 100.0, part=part).hidden) == hidden
    everything = prompts(replace(DENSE, causal=False), 1.0, 100.0, 30.0, part)
    assert (everything.hidden, everything.seen) == (0.0, 130.0)


ALIKE = {"batch": 8, "serving": True, "variation": 0.0, "batching": "apart", "output_len": 100}


@pytest.mark.parametrize(
    ("changes", "share"),
    [
        ({}, 1.0),
        ({"batch": 2}, 1.0),
        ({"batch": 1}, 0.1),  # there is nobody to send with
        ({"batch": np.inf}, 0.1),
        ({"variation": 0.01}, 0.1),
        ({"lengths": "exponential"}, 0.1),
        ({"batching": "mixed"}, 0.1),
        ({"batching": "waiting"}, 1.0),
        ({"variation": 0.1, "output_len": 4}, 1.0),  # tokens are whole
        ({"variation": 0.1, "output_len": 6}, 0.1),
        ({"serving": False}, 0.1),
        ({"variation": 0.5, "rounds": 4}, 0.25),
        ({"variation": 0.5, "rounds": 0.5}, 1.0),
    ],
)
def test_clients_of_alike_requests_send_together_and_others_once(
    changes: dict[str, Any], share: float
) -> None:
    """The first of the ten, or so many, requests that each sends meets all the others'."""
    found = completion._together({**ALIKE, **changes})
    assert (found.field, found.value) == ("synchrony", pytest.approx(share))


@pytest.mark.parametrize("ep", [2, 4, 8, 16])
def test_experts_are_divided_among_the_ranks_of_a_stage_where_any_layout_lets_them(ep: int) -> None:
    """Of 16 accelerators, as many stages as the experts' ranks leave."""
    mixed = replace(DENSE, heads=16, num_experts=64, top_k=2, expert_ffn_hidden=64)
    draft = Draft(mixed, catalog.system("dgx-h100"), {"gpus": 16, "ep": ep, "tp": 1})
    assert set(layouts(draft)) == {(1, pp) for pp in (1, 2, 4, 8, 16) if 16 // pp % ep == 0}
    # None has 32 ranks: each is left to the law that says so.
    wide = Draft(mixed, draft.cluster, {**draft.values, "ep": 32})
    assert len(layouts(wide)) == 5


def test_a_static_batch_may_ask_for_adapters_but_not_for_sessions() -> None:
    """Its passes have them as any do; what clients do between requests needs such."""
    stated = {"model": "llama3-8b", "accelerator": "H100-SXM5-80GB", "tp": 1, "batch": 8,
              "input_len": 100, "output_len": 10}  # fmt: skip
    run = RunParameters()

    def asked(**more: object) -> int:
        spec = parse(ServingPlanSpec, {**stated, **more}, "test")
        return completion.complete_serving(spec, run).simulate

    assert asked(adapters=4, adapter_slots=2) == 0
    for more in ({"turns": 3}, {"adapters": 4, "think_s": 1.0}, {"shared_prefix": 20}):
        with pytest.raises(
            InputError, match="stated of clients, sessions, promises or replicas needs"
        ):
            asked(**more)
    with pytest.raises(InputError, match="--simulate needs"):
        asked(simulate=10)
    del stated["batch"]
    assert asked(concurrency=4, adapters=4) > 0
