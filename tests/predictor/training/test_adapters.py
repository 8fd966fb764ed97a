"""Adapters that carry a node's traffic: fewer are slower in proportion, and only between nodes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from predictor import catalog
from predictor.catalog.artifacts import load
from predictor.hardware import adapters_of
from predictor.plans.training import TrainingPlan
from predictor.timing import Span
from predictor.training.exchange import EVERYONE, Network
from predictor.training.prediction import predict

Make = Callable[..., TrainingPlan]
NONE = load("none")
DGX = catalog.system("dgx-h100")
MODEL = catalog.model("llama3-8b")


def place(made: TrainingPlan) -> Span:
    return Network.of(made, DGX, NONE).place(EVERYONE)


def test_rates_between_nodes_are_those_of_the_adapters_that_are_used(plan: Make) -> None:
    for dp in (16.0, 64.0):
        made = {name: plan(tp=1.0, pp=1.0, dp=dp, adapters=name) for name in (1.0, 2.0, 8.0, 32.0)}
        usual = place(plan(tp=1.0, pp=1.0, dp=dp))
        for count, share in ((1.0, 1 / 8), (2.0, 1 / 4), (8.0, 1.0), (32.0, 1.0)):
            found = place(made[count])
            assert float(found.ring) == pytest.approx(float(usual.ring) * share, rel=1e-12)
            assert float(found.own) == pytest.approx(float(usual.own) * share, rel=1e-12)


@pytest.mark.parametrize(
    ("link", "each", "node", "count"),
    [
        ("infiniband-ndr", 50e9, 8, 8),
        ("infiniband-edr", 6.25e9, 8, 4),  # DGX-1V
        ("efa", 1.5625e9, 8, 1),  # p3dn: one of 100 Gb/s for eight
        ("efa1", 6.25e9, 8, 4),  # p4d
        ("efa2", 50e9, 8, 8),  # p5 has 32: no more are told apart than accelerators
        ("ethernet", 0.2e9, 4, 1),
    ],
)
def test_adapters_of_a_node_are_what_its_traffic_takes(
    link: str, each: float, node: int, count: int
) -> None:
    assert adapters_of(link, each * node, node) == count


def test_one_adapter_of_one_is_all_of_them(plan: Make) -> None:
    """On p3dn nothing is lost by a plan that uses one; on p4d three of four are."""
    made = {n: plan(tp=1.0, pp=1.0, dp=32.0, adapters=n) for n in (1.0, np.nan)}
    for name, share in (("aws-p3dn.24xlarge", 1.0), ("aws-p4d.24xlarge", 0.25)):
        cluster = catalog.system(name)
        one, all_ = (Network.of(made[n], cluster, NONE).place(EVERYONE).ring for n in made)
        assert float(one) == pytest.approx(share * float(all_))


def test_inside_a_node_they_change_nothing(plan: Make) -> None:
    one, all_ = (plan(tp=8.0, pp=1.0, dp=1.0, adapters=count) for count in (1.0, np.nan))
    assert float(place(one).ring) == float(place(all_).ring)
    times = [float(predict(MODEL, DGX, made, NONE).step_time) for made in (one, all_)]
    assert times[0] == times[1]


def test_a_batch_of_them_is_each_of_them(plan: Make) -> None:
    counts = np.array([1.0, 3.0, np.nan])
    batch = predict(MODEL, DGX, plan(tp=1.0, pp=1.0, dp=32.0, adapters=counts), NONE).step_time
    for count, time in zip(counts, batch, strict=True):
        alone = plan(tp=1.0, pp=1.0, dp=32.0, adapters=float(count))
        assert float(predict(MODEL, DGX, alone, NONE).step_time) == pytest.approx(time, rel=1e-12)
    assert batch[0] > batch[1] > batch[2]


def test_a_group_counts_the_nodes_it_spans_and_one_inside_a_node(plan: Make) -> None:
    for dp, nodes in ((8.0, 1.0), (32.0, 4.0), (64.0, 8.0)):
        network = Network.of(plan(tp=1.0, pp=1.0, dp=dp), DGX, NONE)
        where = network.place(EVERYONE)
        assert float(network._domains(where, where)) == nodes
