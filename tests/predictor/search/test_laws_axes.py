"""Values that a search tries, against all that there are."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictor import catalog
from predictor.models.model import Model
from predictor.plans.rules import Rule
from predictor.plans.training import TrainingPlan
from predictor.search.axes import AXES, SearchBasis, gpu_counts
from predictor.search.conflict import Conflict
from tests.predictor.dense import dense

SMALL = dense()
MIXED = dense(name="mixed", num_experts=12, top_k=2, expert_ffn_hidden=256)
DGX = catalog.system("dgx-h100")
TRIED = {axis.field: axis.values for axis in AXES}


def at(model: Model) -> SearchBasis:
    return SearchBasis(model, DGX, {}, TrainingPlan(1.0, 1.0, 1.0, 1.0, 1.0, 4096.0))


def dividing(number: int) -> list[float]:
    return [float(d) for d in range(1, number + 1) if number % d == 0]


@given(st.integers(1, 4096))
def test_micro_batches_are_all_that_divide_a_replicas_batch(batch: int) -> None:
    assert TRIED["micro_batch"](at(SMALL), 4.0 * batch, 4.0) == dividing(batch)


def test_sequences_are_parallel_or_not_as_soon_as_two_ranks_share_them() -> None:
    tried = TRIED["sequence_parallel"]
    assert tried(at(SMALL), 1.0) == [0.0]
    assert tried(at(SMALL), 2.0) == tried(at(SMALL), 8.0) == [0.0, 1.0]


@pytest.mark.parametrize("gpus", [1, 2, 6, 16, 48])
def test_ranks_divide_what_they_share(gpus: int) -> None:
    """Heads among tensor-parallel ranks; layers among stages, the fullest with a quarter more than
    the mean at most; what is left are replicas."""
    tp = TRIED["tp"](at(SMALL), float(gpus), 1.0)
    assert tp == [d for d in dividing(gpus) if 8 % d == 0]
    pp = TRIED["pp"](at(SMALL), float(gpus), 1.0, 1.0)
    assert pp == [d for d in dividing(gpus) if np.ceil(12 / d) <= 1.25 * 12 / d]
    for one in tp:
        assert TRIED["dp"](at(SMALL), float(gpus), 1.0, one, 1.0) == [gpus / one]


@pytest.mark.parametrize("length", [4096, 32768, 131072])
def test_ranks_of_a_sequence_keep_two_equal_pieces_each(length: int) -> None:
    """Of a causal sequence each has a piece from either end; 2,048 tokens at least."""
    found = TRIED["cp"](at(SMALL), 64.0, float(length))
    assert found == [d for d in dividing(64) if length % (2 * d) == 0 and length / d >= 2048]


@pytest.mark.parametrize("pp", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("batch", [8, 12, 28])
def test_virtual_stages_divide_the_layers_where_groups_are_full(pp: int, batch: int) -> None:
    """Layers alone, or with two or three ends that count as such."""
    found = TRIED["vpp"](at(SMALL), float(pp), 2.0 * batch, 2.0, 1.0)
    most = 12 // pp
    possible = [
        float(v) for v in range(2, most + 1) if any((12 + e) % (pp * v) == 0 for e in (0, 2, 3))
    ]
    assert found == [1.0, *(possible if pp > 1 and batch % pp == 0 else [])]


def test_experts_are_divided_among_the_ranks_of_a_stage() -> None:
    ep = TRIED["ep"](at(MIXED), 2.0, 1.0, 8.0)
    assert ep == [d for d in dividing(12) if 16 % d == 0]
    assert TRIED["ep"](at(SMALL), 2.0, 1.0, 8.0) == [1.0]
    etp = TRIED["etp"]
    assert etp(at(MIXED), 2.0, 1.0, 8.0, 4.0) == [1.0, 2.0]
    assert etp(at(MIXED), 1.0, 1.0, 8.0, 4.0) == [1.0]
    assert etp(at(MIXED), 2.0, 1.0, 2.0, 4.0) == [1.0]
    assert etp(at(SMALL), 2.0, 1.0, 8.0, 1.0) == [1.0]


def test_shards_fill_a_node_at_least_and_are_less_than_all() -> None:
    """Eight accelerators to a node."""
    assert TRIED["dp_shard"](at(SMALL), 1.0, 1.0, 32.0) == [8.0, 16.0]
    assert TRIED["dp_shard"](at(SMALL), 4.0, 1.0, 16.0) == [2.0, 4.0, 8.0]
    assert TRIED["dp_shard"](at(SMALL), 1.0, 2.0, 16.0) == [4.0, 8.0]
    assert TRIED["dp_shard"](at(SMALL), 1.0, 1.0, 8.0) == [8.0]


def test_numbers_of_accelerators_double_or_grow_by_half() -> None:
    assert gpu_counts(8, 64, 8) == [8, 16, 24, 32, 48, 64]
    assert gpu_counts(4, 20, 8) == [4, 8, 16, 20]
    assert gpu_counts(8, 32, 8, 8) == [8, 16, 24, 32]
    assert gpu_counts(1, 1, 8) == [1]
    shares = TRIED["recompute_share"](at(SMALL))
    assert shares == sorted(shares)
    assert 0 < shares[0] < shares[-1] == 1


def test_of_two_broken_laws_that_of_whole_numbers_is_named() -> None:
    """A data-parallel size of 2.5 only follows from an odd tensor-parallel one."""
    found = Conflict()
    broken = np.array([True])
    plan = TrainingPlan(
        tp=np.array([3.0]), pp=1.0, dp=2.5, micro_batch=1.0, global_batch=8.0, seq_len=8.0
    )
    odd, half = Rule(broken, "tp {tp} is odd", ("tp",)), Rule(broken, "dp {dp} is half", ("dp",))
    found.note([odd, half], plan)
    assert found.message() == "no plan is possible: tp 3 is odd"
