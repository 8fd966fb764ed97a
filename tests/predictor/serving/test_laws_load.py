"""How many requests are in an engine at a time, by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from predictor.serving.latency import _ahead
from predictor.serving.prediction import _decoding, _load
from tests.predictor.serving.counted import plan

MEMORY: Any = SimpleNamespace(sequences=40.0, admitted=60.0, entered=90.0)
"""Of both replicas: whole requests, those that are let in, and those whose prompts are."""

TWO = {"batch": 64.0, "dp": 2.0, "batching": "apart", "max_batch": 512.0}


@pytest.mark.parametrize(
    ("fields", "clients", "running"),
    [
        ({"admission": "whole"}, 32, 20),
        ({"admission": "blocks"}, 32, 30),
        ({"admission": "whole", "max_batch": 16.0}, 32, 16),
        ({"admission": "whole", "max_batch": 16.0, "serving": 0.0}, 32, 20),
        ({"admission": "blocks", "batch": 8.0}, 4, 4),
        ({"admission": "blocks", "batch": np.inf}, np.inf, 30),
        ({"admission": "blocks", "batch": np.inf, "max_batch": 7.0}, np.inf, 7),
        ({"admission": "blocks", "batch": np.inf, "max_batch": 7.0, "serving": 0.0}, np.inf, 7),
    ],
)
def test_as_many_run_as_memory_and_limits_let_in(
    fields: dict[str, Any], clients: float, running: float
) -> None:
    """A batch that starts together has no limit but the memory."""
    found = _load(plan(**{**TWO, **fields}), MEMORY)
    assert (float(found.clients), float(found.running)) == (clients, running)
    assert float(found.static) == float(fields.get("serving", 1.0) == 0.0)
    entered = 45.0 if fields["admission"] != "whole" else 20.0
    assert float(found.started) == min(clients, max(running, entered))


def test_where_nothing_fits_time_is_that_of_more_memory() -> None:
    """Less than one whole request for each replica."""
    little: Any = SimpleNamespace(sequences=1.5, admitted=1.5, entered=1.5)
    assert float(_load(plan(**TWO), little).running) == 32.0
    just: Any = SimpleNamespace(sequences=2.0, admitted=2.0, entered=2.0)
    assert float(_load(plan(**TWO), just).running) == 1.0


def test_stages_share_what_runs_and_one_request_is_one_micro_batch() -> None:
    for stages, batch, batches in ((4.0, 64.0, 4.0), (4.0, 4.0, 2.0), (1.0, 64.0, 1.0)):
        found = _load(plan(**{**TWO, "pp": stages, "batch": batch}), MEMORY)
        assert float(found.batches) == batches
        assert float(found.sequences) == float(found.running) / batches


def test_where_prompts_ride_along_no_more_decode_than_passes_have_begun() -> None:
    """Of 300 new tokens each, in passes of 600: two begin in a pass and leave after nine."""
    own = {**TWO, "batching": "mixed", "input_len": 300.0, "output_len": 10.0, "chunk": 600.0}
    assert float(_decoding(plan(**own))) == pytest.approx(2 * 9)
    assert float(_load(plan(**own), MEMORY).sequences) == pytest.approx(18.0)
    assert float(_decoding(plan(**{**own, "output_len": 1.0}))) == pytest.approx(2.0)
    assert float(_decoding(plan(**{**own, "chunk": 10.0}))) == 1.0
    assert float(_load(plan(**{**own, "serving": 0.0}), MEMORY).sequences) > 18.0
    assert np.isinf(_decoding(plan(**{**own, "batching": "apart"})))
    assert np.isinf(_decoding(plan(**{**own, "prefill_workers": 1.0})))


def test_fewer_clients_than_replicas_are_whole_requests() -> None:
    """A mean prompt of a burst of less than one is that one; of three, read one after the other
    behind the first, (1 + 3 + 3) / 3 have been read."""
    work: Any = SimpleNamespace(chunk=600.0, new_tokens=600.0)
    assert [float(_ahead(work, np.asarray(many))) for many in (0.125, 1.0, 3.0)] == [
        1.0, 1.0, pytest.approx((1 + 2 * (1 + 0.5 * 3)) / 3),
    ]  # fmt: skip
