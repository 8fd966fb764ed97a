"""Each law of a training plan on either side of its boundary, and what its message says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from predictor.errors import InputError
from predictor.models.model import Model
from predictor.plans.rules import (
    POSITIVE,
    Rule,
    any_broken,
    check,
    enforce,
    feasible,
    near_divisors,
    near_multiples,
    not_multiple,
)
from predictor.plans.training import TrainingPlan
from tests.predictor.dense import dense

DENSE = dense(heads=24, kv_heads=6, ffn_hidden=3840, hidden=512)
MIXED = replace(
    DENSE, num_experts=20, top_k=2, expert_ffn_hidden=96, shared_experts=2, dense_layers=1,
    shared_expert_ffn_hidden=480,
)  # fmt: skip
HYBRID = replace(DENSE, attention_layers=2, mamba_layers=4, mamba_heads=12, mamba_head_dim=8,
                 mamba_state=4, mamba_groups=4)  # fmt: skip
RULE = replace(DENSE, delta_layers=6, delta_key_heads=4, delta_value_heads=8, delta_key_dim=8,
               delta_value_dim=8)  # fmt: skip


def plan(**fields: Any) -> TrainingPlan:
    given = {"tp": 1.0, "pp": 1.0, "dp": 1.0, "micro_batch": 1.0, "global_batch": 48.0,
             "seq_len": 4096.0}  # fmt: skip
    return TrainingPlan(**{**given, **fields})


@pytest.mark.parametrize("name", POSITIVE)
@pytest.mark.parametrize("value", [0.5, 1.5, -1.0])
def test_sizes_are_whole_numbers_from_one_on(name: str, value: float) -> None:
    words = rf"^{name} {value:g} must be a whole number of at least 1$"
    with pytest.raises(InputError, match=words):
        check(plan(**{name: value}), MIXED)
    check(plan(), MIXED)


CASES = [
    # The heads, and the nearest numbers that divide them.
    (DENSE, {"tp": 8.0, "global_batch": 8.0}, "tp 8 neither divides the 6 key/value heads of"),
    (DENSE, {"tp": 6.0}, None),
    (DENSE, {"tp": 24.0}, None),
    (DENSE, {"tp": 3.0}, None),
    (DENSE, {"tp": 5.0}, "tp 5 does not divide the 24 attention heads of dense; nearest 4 and 6"),
    (DENSE, {"tp": 48.0}, "tp 48 does not divide the 24 attention heads of dense; nearest 24"),
    # Widths.
    (replace(DENSE, ffn_hidden=3841), {"tp": 2.0},
     "tp 2 does not divide the feed-forward width 3841 of dense; nearest 1 and 23"),
    (replace(DENSE, borrowing_ffn_hidden=3841, borrowing_layers=2), {"tp": 2.0},
     "tp 2 does not divide the feed-forward width 3841"),
    (replace(MIXED, shared_expert_ffn_hidden=481, shared_experts=1), {"tp": 2.0},
     "tp 2 does not divide the shared experts' width 481 of dense; nearest 1 and 13"),
    (replace(DENSE, shared_expert_ffn_hidden=481, shared_experts=1), {"tp": 2.0}, None),
    (HYBRID, {"tp": 6.0}, "tp 6 does not divide the state-space groups 4 of dense; nearest 4"),
    (replace(HYBRID, mamba_heads=13), {"tp": 2.0},
     "tp 2 does not divide the state-space heads 13 of dense; nearest 1 and 13"),
    (HYBRID, {"cp": 2.0}, None),
    (replace(HYBRID, shared_blocks=1), {"pp": 2.0}, "pp 2 would divide layers of dense that share"),
    (replace(HYBRID, shared_blocks=1), {}, None),
    (replace(HYBRID, attention_layers=0), {"cp": 2.0}, "cp 2 would pass states of dense from rank"),
    (replace(HYBRID, mamba_rank=2, mamba_groups=0), {"cp": 2.0}, "cp 2 would pass states of dense"),
    (replace(HYBRID, mamba_rank=2, mamba_groups=0), {"cp": 1.0, "tp": 6.0}, None),
    (RULE, {"tp": 6.0}, "tp 6 does not divide the delta rule's key heads 4 of dense; nearest 4"),
    # Stages.
    (DENSE, {"pp": 14.0, "global_batch": 14.0}, None),
    (DENSE, {"pp": 15.0, "global_batch": 15.0},
     "pp 15 x vpp 1 is more stages than dense has layers (12)"),
    (DENSE, {"pp": 2.0, "vpp": 7.0}, None),
    (DENSE, {"pp": 2.0, "vpp": 8.0}, "pp 2 x vpp 8 is more stages than dense has layers (12)"),
    (DENSE, {"vpp": 2.0}, "vpp 2 needs pp of at least 2"),
    (DENSE, {"vpp": 2.0, "pp": 2.0}, None),
    # Batches and sequences.
    (DENSE, {"dp": 5.0, "micro_batch": 2.0},
     "global batch 48 is not a multiple of dp 5 x micro-batch 2; nearest 40 and 50"),
    (DENSE, {"dp": 32.0, "micro_batch": 2.0}, "nearest 64"),
    (DENSE, {"cp": 3.0}, "cp 3 does not divide the sequence length 4096"),
    (DENSE, {"cp": 4.0}, None),
    # Schedules.
    (DENSE, {"schedule": "gpipe", "pp": 2.0, "vpp": 2.0},
     "vpp 2 cannot be with schedule gpipe: its devices hold one stage"),
    (DENSE, {"schedule": "zb-h1", "pp": 2.0, "vpp": 2.0}, "its devices hold one stage"),
    (DENSE, {"schedule": "zb-v", "pp": 2.0, "vpp": 3.0},
     "vpp 3 cannot be with schedule zb-v: its devices hold two stages each"),
    (DENSE, {"schedule": "zb-v", "pp": 2.0, "vpp": 2.0}, None),
    (DENSE, {"schedule": "zb-v", "pp": 4.0, "vpp": 2.0, "global_batch": 8.0}, None),
    (DENSE, {"schedule": "zb-v", "pp": 4.0, "vpp": 2.0, "global_batch": 7.0},
     "schedule zb-v needs 2 micro-batches per stage: global batch 7 over dp 1 x micro-batch 1 is "
     "too small for pp 4"),
    (DENSE, {"schedule": "1f1b", "pp": 4.0, "global_batch": 1.0}, None),
    (DENSE, {"schedule": "dualpipe", "pp": 4.0, "global_batch": 8.0}, None),
    (DENSE, {"schedule": "dualpipe", "pp": 3.0, "global_batch": 8.0},
     "schedule dualpipe runs from both ends: pp 3 and the micro-batches, global batch 8 over dp 1 "
     "x micro-batch 1, must be even"),
    (DENSE, {"schedule": "dualpipe", "pp": 4.0, "global_batch": 9.0}, "must be even"),
    (DENSE, {"schedule": "1f1b", "pp": 3.0, "global_batch": 9.0}, None),
    # Stated layers of stages.
    (DENSE, {"pp": 4.0, "first_layers": 2.0, "last_layers": 2.0}, None),
    (DENSE, {"pp": 2.0, "first_layers": 5.0}, None),
    (DENSE, {"pp": 2.0, "first_layers": 5.0, "last_layers": 7.0}, None),
    (DENSE, {"pp": 2.0, "first_layers": 5.0, "last_layers": 6.0}, "do not leave a layer for each"),
    (DENSE, {"pp": 4.0, "first_layers": 9.0}, None),
    (DENSE, {"pp": 4.0, "first_layers": 10.0},
     "first_layers 10 and last_layers unstated do not leave a layer for each other of the 4 stages "
     "of dense's 12 layers"),
    (DENSE, {"pp": 4.0, "last_layers": 10.0}, "do not leave a layer for each other"),
    (DENSE, {"pp": 4.0, "first_layers": 0.0}, "first_layers 0 must be a whole number"),
    (DENSE, {"pp": 4.0, "last_layers": 1.5}, "last_layers 1.5 must be a whole number"),
    (DENSE, {"pp": 4.0, "first_layers": 1.0}, None),
    (DENSE, {"first_layers": 12.0}, "at least 1, with pp of at least 2"),
    (DENSE, {"pp": 4.0, "first_layers": 2.0, "split": "cost"},
     "first_layers 2 and last_layers unstated cannot be with split cost"),
    (DENSE, {"pp": 4.0, "split": "cost"}, None),
    # Experts.
    (DENSE, {"ep": 2.0, "dp": 2.0}, "ep 2 needs a mixture of experts; dense is dense"),
    (DENSE, {"etp": 2.0, "tp": 2.0}, "etp 2 needs a mixture of experts; dense is dense"),
    (MIXED, {"ep": 3.0, "dp": 3.0}, "ep 3 does not divide the 20 experts"),
    (MIXED, {"ep": 4.0, "dp": 4.0}, None),
    (MIXED, {"etp": 5.0, "tp": 1.0, "dp": 1.0}, "etp 5 does not divide the width 96"),
    (MIXED, {"ep": 4.0, "etp": 2.0, "tp": 2.0, "dp": 2.0},
     "ep 4 x etp 2 does not divide the ranks of a stage, tp 2 x cp 1 x dp 2"),
    (MIXED, {"ep": 4.0, "etp": 1.0, "tp": 2.0, "dp": 1.0, "cp": 2.0}, None),
]  # fmt: skip


@pytest.mark.parametrize(("model", "fields", "words"), CASES)
def test_a_law_on_either_side(model: Model, fields: dict[str, Any], words: str | None) -> None:
    one = plan(**fields)
    assert bool(feasible(one, model)) is (words is None)
    if words is None:
        check(one, model)
        return
    with pytest.raises(InputError) as caught:
        check(one, model)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_first_plan_of_a_batch_that_breaks_a_law_is_named() -> None:
    tp = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 7.0]])
    many = plan(tp=tp)
    assert feasible(many, DENSE).tolist() == [[True, True, True], [False, False, False]]
    with pytest.raises(InputError, match=r"^tp 5 does not divide the 24"):
        check(many, DENSE)
    rule = Rule(np.array([False, True]), "{tp} is odd", ("tp",))
    with pytest.raises(InputError, match=r"^tp 9 is odd$"):
        enforce([rule], plan(tp=np.array([8.0, 9.0])))
    none = Rule(np.asarray(False), "", ("tp",))
    assert any_broken([none, rule], (2,)).tolist() == [False, True]
    enforce([none], plan())


def test_numbers_that_divide_and_multiples() -> None:
    assert not_multiple(np.array([6.0, 7.0, 0.0, 2.0**52 + 1]), 3.0).tolist() == [
        False, True, False, (2**52 + 1) % 3 != 0
    ]  # fmt: skip
    assert not not_multiple(5.0, 0.0), "nothing is divided by nought"
    assert near_divisors(12.0)(5.0) == "4 and 6"
    assert near_divisors(12.0)(1.0) == "2"
    assert near_divisors(12.0)(12.0) == "6"
    assert near_divisors(8192.0)(5000.0) == "4096", "those up to 4,096 are looked at"
    assert near_multiples(10.0, 4.0) == "8 and 12"
    assert near_multiples(3.0, 2.0, 2.0) == "4"
    assert near_multiples(3.0, 0.5) == near_multiples(np.inf, 2.0) == ""
    assert near_multiples(3.0, 1.0) == "3 and 4"
