"""Launching, bulk-synchronous waiting, data locality: laws and what tiles do."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import reckon
from predictor.catalog import load
from predictor.errors import InputError
from predictor.timing import BULK, TAXES, RunParameters, Taxes, taxes_of, tiled
from predictor.training import taxes
from predictor.training.exchange import Exchange, Slot
from predictor.training.layer import LayerParts, LayerTimes
from predictor.training.taxes import _overlapped

Cli = Callable[..., tuple[int, str, str]]


@cache
def predicted(**more: Any) -> Any:
    plan = {"tp": 8, "pp": 2, "gpus": 64, "global_batch": 64, "seq_len": 4096, **more}
    return reckon.predict_train("llama3-70b", "dgx-h100", plan, "kernels-only")


@cache
def of_training(tiles: float = 8.0, **more: Any) -> Taxes:
    found = predicted(**more)
    request = found.request
    own = taxes(request.model, request.cluster, request.plan, found.batch.calibration, tiles)
    assert own.total == pytest.approx(found.step_time.value, rel=1e-12)
    return own


def test_tiles_by_hand() -> None:
    """3 s and 2 s: one after the other 5, in two tiles 3 + 1, in very many 3."""
    assert [float(tiled(3.0, 2.0, n)) for n in (1, 2, 1e9)] == pytest.approx([5.0, 4.0, 3.0])
    assert np.all(np.diff([float(tiled(1.0, 5.0, n)) for n in (1, 2, 4, 8)]) < 0)
    with pytest.raises(InputError, match="one tile"):
        tiled(1.0, 1.0, 0.5)


@pytest.mark.parametrize("more", [{}, {"sequence_parallel": False}, {"tp": 1, "pp": 4}])
def test_taxes_of_training_are_shares_of_the_step(more: dict[str, Any]) -> None:
    own = of_training(**more)
    assert set(own.alone) == set(TAXES)
    assert all(value >= 0.0 for value in own.alone.values())
    assert max(own.alone.values()) <= own.together + 1e-12 < own.total
    assert sum(own.alone.values()) <= own.total
    assert own.together == pytest.approx(sum(own.alone.values()) + own.interaction)


def test_one_tile_is_as_it_runs_now_and_more_never_wait_longer() -> None:
    bulk = [of_training(tiles).alone[BULK] for tiles in (1.0, 2.0, 8.0, 1e6)]
    assert bulk[0] == pytest.approx(0.0, abs=1e-12)
    assert bulk == sorted(bulk)
    assert bulk[-1] > 0.0
    alone = of_training(tp=1, pp=8)
    assert alone.alone[BULK] == pytest.approx(0.0, abs=1e-12), "one rank waits for no collective"


def test_collectives_that_hide_already_gain_nothing_from_one_tile() -> None:
    """In one piece they run behind the product; in eight at least as well hidden as now."""
    hidden = {"tp_overlap": True, "sequence_parallel": True}
    assert of_training(1.0, **hidden).alone[BULK] == pytest.approx(0.0, abs=1e-12)
    assert of_training(8.0, **hidden).alone[BULK] >= 0.0
    assert of_training(1e9, **hidden).alone[BULK] <= of_training(1e9).alone[BULK] + 1e-12


@pytest.mark.parametrize("contention", [1.0, 1.5, 2.0])
@pytest.mark.parametrize("overlap", [0.0, 0.1, 1.0])
def test_a_collective_beside_its_product_by_hand(contention: float, overlap: float) -> None:
    """4 s beside a product of 5 that takes twice as long in a step. As it runs now: what sticks out
    of the share of it that hides, and what slows the product while it does. In tiles: one tile of
    it behind the rest. What must be gathered whole before a product stays as it is."""
    value = np.asarray
    link = Exchange(
        value(4.0), value(5.0), value(1.0), value(1.0), value(0.1), value(0.0), value(0.0)
    )
    run = RunParameters(overlap={"tp": overlap}, factors={"gemm": 2.0}, contention=contention)
    known = replace(load("none"), run=run)

    def shown(tiles: float, behind: str, other: str) -> float:
        slots = (Slot("tp", "gather", "a", name) for name in (behind, other))
        times = (LayerTimes(*({},) * 6, {(slot, 0): link}, {}) for slot in slots)
        own, beside = (LayerParts(None, None, one) for one in times)  # type: ignore[arg-type]
        ((slot, found),) = _overlapped(own, beside, known, tiles).times.inside.items()
        assert slot == (Slot("tp", "gather", "a", ""), 0)
        assert float(found.window) == 0.0
        return float(found.time)

    hidden = min(4.0, overlap * 10.0)
    now = 4.0 - hidden + (contention - 1.0) * hidden
    assert shown(1.0, "gemm", "gemm") == pytest.approx(now)
    assert shown(8.0, "gemm", "gemm") == pytest.approx(min(now, 0.5))
    assert shown(8.0, "", "gemm") == pytest.approx(0.5)
    assert shown(8.0, "", "") == pytest.approx(4.0)


def test_what_two_taxes_share_is_their_interaction() -> None:
    """Of 10 s, each of two saves the same 4: together 4, so they overlap by 4."""
    own = taxes_of(lambda without: 10.0 - (4.0 if without & set(TAXES[:2]) else 0.0))
    assert own.together == 4.0
    assert own.interaction == -4.0


def test_gathered_products_and_decoding_gain_what_the_paper_says(cli: Cli, tmp_path: Path) -> None:
    """arXiv 2511.02168 gains 10 to 20 % on a gathered product and on flash decoding; a whole pass
    that decodes on eight ranks has both in it, so that waiting is of that size, and no more than
    twice that."""
    out = tmp_path / "out.json"
    status, text, _ = cli(
        "predict", "infer", "--model", "llama3-70b", "--system", "dgx-h100", "--tp", "8",
        "--batch", "64", "--input-len", "1024", "--output-len", "256", "--explain",
        "--json", str(out),
    )  # fmt: skip
    assert status == 0
    assert "all three together" in text
    found = json.loads(out.read_text())["explain"]["taxes"]
    assert 0.05 < found["shares"][BULK] < 0.4
    assert found["together_s"] < found["total_s"]
