"""Passes of engines whose tokens go to their experts in parts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from predictor import catalog
from predictor.catalog import load
from predictor.serving.parts import Line
from predictor.serving.passes import Pass, body
from predictor.serving.whole_passes import _lines, prompt_pass
from reckon import predict_infer
from tests.predictor.serving.counted import plan

MIXTURE, PLAIN = catalog.model("qwen3-30b-a3b"), catalog.model("llama3-8b")
DGX, KNOWN = catalog.system("dgx-h100"), load("kernels-only")


def made(model: Any, chunks: Any, tokens: float, sustained: bool) -> Pass:
    sizes = {"tp": 1.0, "dp": 8.0, "ep": 8.0} if model.is_moe else {"tp": 8.0}
    own = plan(**sizes, expert_chunks=chunks)
    return body(
        model, DGX, own, np.asarray(tokens), np.asarray(8.0), KNOWN, captured=0.0,
        sustained=sustained,
    )  # fmt: skip


def test_of_prompts_in_parts_at_least_the_first_parts_way_shows() -> None:
    """And no more than all of it where it hides behind experts; what computes is as ever."""
    whole = made(MIXTURE, 1.0, 8192.0, True)
    travel = float(whole.terms["ep_communication"])
    for chunks in (2.0, 4.0):
        own = made(MIXTURE, chunks, 8192.0, True)
        assert 0.9 * travel / chunks < float(own.terms["ep_communication"]) < travel
        for name, value in own.terms.items():
            if name != "ep_communication":
                assert float(value) == pytest.approx(float(whole.terms[name]))
    both = made(MIXTURE, np.array([1.0, 4.0]), 8192.0, True).terms["ep_communication"]
    assert both.tolist() == pytest.approx([travel, float(own.terms["ep_communication"])])


def test_passes_that_decode_are_not_cut() -> None:
    one, four = (made(MIXTURE, chunks, 64.0, False).terms for chunks in (1.0, 4.0))
    assert {name: float(value) for name, value in four.items()} == pytest.approx(
        {name: float(value) for name, value in one.items()}
    )


def test_what_has_no_experts_has_no_parts() -> None:
    one, four = (made(PLAIN, chunks, 8192.0, True).terms for chunks in (1.0, 4.0))
    assert {name: float(value) for name, value in four.items()} == pytest.approx(
        {name: float(value) for name, value in one.items()}
    )


@pytest.mark.parametrize(("prompts", "rows"), [(1.0, 1.0), (0.5, 1.0), (4.0, 2.0)])
def test_each_pass_over_prompts_makes_logits_of_those_that_end_in_it(
    prompts: float, rows: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two prompts to a pass, or one in several passes, each of which draws a token."""
    own = plan(input_len=1000.0, chunk=2000.0 if prompts > 0.5 else 300.0)
    made: list[float] = []

    def counted(*given: Any, **more: Any) -> Pass:
        made.append(float(given[4]))
        return body(*given, **more)

    monkeypatch.setattr("predictor.serving.whole_passes.body", counted)
    prompt_pass(PLAIN, DGX, own, max(prompts, 1.0), KNOWN)
    assert made == [rows] * len(made)


def test_a_rest_of_few_tokens_may_lack_kernels_of_full_passes() -> None:
    """ggml converts around products of many rows: lines of one name are added up, in the order of
    full passes, and what one of both lacks is the other's (a rest of 40 tokens of passes of 512 was
    an error)."""

    def line(name: str, count: float) -> Line:
        return Line(name, "gemm", count, np.asarray(count / 10), "memory", 1.0, "measured")

    full = [line("norm", 4), line("up", 4), line("up.convert", 4), line("up", 2)]
    rest = [line("norm", 1), line("up", 1), line("up", 3), line("tail", 1)]
    found = [(one.name, one.count) for one in _lines(full, rest)]
    assert found == [("norm", 5), ("up", 5), ("up.convert", 4), ("up", 5), ("tail", 1)]
    assert float(sum(one.time for one in _lines(full, rest))) == pytest.approx(2.0)
    stated = {"framework": "llama.cpp", "era": "2024-05", "precision": "q4_k", "tp": 1, "batch": 1,
              "input_len": 552, "output_len": 2}  # fmt: skip
    assert predict_infer("llama3.2-1b", "RTX-4090-24GB", stated).fits
