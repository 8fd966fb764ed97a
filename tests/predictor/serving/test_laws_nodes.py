"""What is not stated of clients is not there; values between nodes; kernels of captured graphs."""

from __future__ import annotations

import numpy as np
import pytest

from predictor.serving.apart_capacities import _between
from predictor.serving.calls import _either
from predictor.serving.clients import Client


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
