"""One rank of PyTorch's ring beside what it took on an H200 whose collectives moved nothing: of the
merges the stretch was read off these, blocks and counts were not."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from predictor import catalog
from predictor.catalog.artifacts import load
from predictor.plans import TrainingPlan
from predictor.timing import training_times
from predictor.work import step_operators

MACHINE = catalog.accelerator("H200-SXM-141GB")
TABLE = pd.read_csv(catalog.data_dir() / "measurements" / "h200-sxm-5" / "rings.csv")
RANKS = np.array([2.0, 4.0, 8.0])


def took(what: str, tokens: int) -> np.ndarray:
    """Milliseconds of the last of 2, 4 and 8 ranks."""
    of = TABLE[(TABLE["what"] == what) & (TABLE["tokens"] == tokens) & (TABLE["kv_heads"] == 32)]
    last = of[of["rank"] == of["cp"] - 1].sort_values("cp")
    assert last["cp"].tolist() == RANKS.tolist()
    return last["least_ms"].to_numpy()


@pytest.mark.parametrize("tokens", [4096, 8192, 16384, 32768])
def test_a_rank_takes_what_it_took(tokens: int) -> None:
    """Blocks and merges of a layer, operator by operator, with keys for every query head."""
    made = TrainingPlan(
        tp=1.0, pp=1.0, cp=RANKS, dp=1.0, micro_batch=1.0, global_batch=1.0, seq_len=tokens * RANKS,
        attention="flash2", cp_kind="allgather", merges_apart=True, keys_repeated=True, fused=False,
    )  # fmt: skip
    names = {"fwd": ("attention", "attention.later", "attention.merge")}
    names["bwd"] = tuple(f"{name}.bwd" for name in names["fwd"])
    found = step_operators(catalog.model("llama3-8b"), made)
    for phase, own in names.items():
        listed = [one for one in found if one.name in own]
        assert len(listed) == 3
        timing = training_times(listed, MACHINE, load("default"), made.shape, 0.0, True)
        pairs = zip(timing.time, listed, strict=True)
        whole = sum(np.asarray(time) * one.count for time, one in pairs)
        ratio = 1e3 * whole / took(f"balanced_all_gather_{phase}", tokens)
        assert np.all((ratio > 0.93) & (ratio < 1.1)), (phase, ratio)


def test_undivided_sequences_would_take_nearly_twice_as_long() -> None:
    """Whole blocks for the last rank where a sequence is cut in order: what dividing it evenly for
    the mask, which PyTorch does unless told otherwise, saves."""
    for tokens in (8192, 32768):
        of = TABLE[(TABLE["tokens"] == tokens) & (TABLE["cp"] == 8) & (TABLE["rank"] == 7)]
        times = of.set_index("what")["least_ms"]
        for phase in ("fwd", "bwd"):
            more = times[f"unbalanced_all_gather_{phase}"] / times[f"balanced_all_gather_{phase}"]
            assert 1.6 < more < 15 / 8
