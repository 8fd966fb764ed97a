"""What is not stated of clients is not there; values between nodes; kernels of captured graphs."""

from __future__ import annotations

import math

import numpy as np
import pytest

from predictor.serving.apart_capacities import _between
from predictor.serving.calls import _either
from predictor.serving.clients import Client
from predictor.serving.events import serve
from predictor.serving.tables import pass_table
from tests.predictor.serving.counted import plan
from tests.predictor.serving.test_laws_serving import CLUSTER, PLAIN, SMALL


def test_a_client_neither_thinks_nor_warms_up_unless_told() -> None:
    assert (Client().think, Client().warmup, Client().burstiness) == (0.0, 0, 1.0)


def test_values_between_nodes_are_on_the_line_through_them() -> None:
    rows = np.array([[0.0, 2.0, 4.0, 6.0], [1.0, 0.0, -1.0, -2.0]])
    place = np.array([[0.0, 0.25, 1.5, 3.0]] * 2)
    assert _between(rows, place) == pytest.approx(np.stack([2.0 * place[0], 1.0 - place[1]]))


def test_a_captured_call_is_the_one_within_and_a_batch_has_each_its_own() -> None:
    def within() -> tuple[np.ndarray, np.ndarray]:
        return np.array(1.0), np.array(0.1)

    def outside() -> tuple[np.ndarray, np.ndarray]:
        return np.array(2.0), np.array(0.2)

    assert _either(within, outside, 1.0) == within()
    assert _either(within, outside, 0.0) == outside()
    time, sigma = _either(within, outside, np.array([1.0, 0.0]))
    assert time.tolist() == [1.0, 2.0]
    assert sigma.tolist() == [0.1, 0.2]


@pytest.mark.parametrize(
    ("most", "chunk", "dp"), [(1.0, 512.0, 3.0), (24.0, 512.0, 1.0), (24.0, 1.0, 3.0)]
)
def test_nodes_of_tables_reach_from_the_least_to_the_most(
    most: float, chunk: float, dp: float
) -> None:
    """One request to all, in each doubling four more; a context of one token to that of the longest
    request and the token that it makes, nine in equal steps; prompts of 16 tokens to the longest,
    beyond a pass in whole ones, parts of passes of one token to a full one: each nine by one ratio,
    and those about the mean."""
    own = plan(input_len=200.0, output_len=64.0, dp=dp, max_batch=most, batch=np.inf, chunk=chunk)
    table = pass_table(SMALL, CLUSTER, own, PLAIN, (900.0, 100.0))
    quarters = {round(2.0 ** (k / 4)) for k in range(100)}
    assert set(table.running) == {n for n in quarters if n < most} | {most}
    assert table.contexts == pytest.approx([1.0 + k * 125.0 for k in range(9)])
    ratio = (900.0 / 16.0) ** (1.0 / 8.0)
    near = {180.0, 190.0, 200.0, 210.0, 220.0}
    wanted = {float(round(16.0 * ratio**k)) for k in range(9)} | near
    # Beyond a pass whole ones, of which parts of prompts are.
    filled = {one if one <= chunk else chunk * math.ceil(one / chunk) for one in wanted} | {chunk}
    assert set(table.lengths) == filled
    full = max(chunk, 2.0)
    parts = {float(round(full ** (k / 8))) for k in range(9)}
    assert set(table.tokens) == parts | {min(200.0, full), min(400.0, full)}
    assert [len(one) for one in (table.decode, table.beside)] == [len(table.running)] * 2
    # Whole requests of the mean length, as many as one replica has room for.
    assert table.pool % 264.0 == 0.0
    assert table.pool == pytest.approx(
        pass_table(SMALL, CLUSTER, plan(input_len=200.0, output_len=64.0), PLAIN).pool, rel=0.01
    )


def test_tables_of_short_prompts_reach_thirty_two_tokens() -> None:
    table = pass_table(SMALL, CLUSTER, plan(input_len=4.0, output_len=8.0), PLAIN, (5.0, 9.0))
    assert (table.lengths[0], table.lengths[-1]) == (16.0, 32.0)
    near = pass_table(SMALL, CLUSTER, plan(input_len=20.0, output_len=8.0), PLAIN, (30.0, 9.0))
    assert {18.0, 19.0, 20.0, 21.0, 22.0} < set(near.lengths)


@pytest.mark.parametrize("most", [1.0, 2.0, 3.0])
def test_an_engine_has_no_more_requests_at_a_time_than_it_may(most: float) -> None:
    """Six clients come at once: one who comes after so many others finds one of them gone."""
    own = plan(batch=np.inf, max_batch=most, input_len=200.0, output_len=30.0)
    table = pass_table(SMALL, CLUSTER, own, PLAIN)
    found = serve(table, np.full(6, 200.0), np.full(6, 30.0), clients=6)
    first, last = np.sort(found.first), np.sort(found.last)
    assert np.all(first[int(most) :] > last[: -int(most)])
    running = [np.sum((found.first <= at) & (at < found.last)) for at in found.first]
    assert max(running) == most
