"""What of a token is there at a time, and what an engine may take of a device, by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from predictor.memory.serving import _usable, _widest
from tests.predictor.dense import dense
from tests.predictor.serving.counted import plan

DENSE = dense(layers=6, hidden=512, heads=8, kv_heads=8, head_dim=64, ffn_hidden=2048, vocab=100)


@pytest.mark.parametrize("tp", [1.0, 4.0])
def test_a_dense_layers_widest_moment(tp: float) -> None:
    """Residual and norm beside both sides of the first product and the activation; or beside the
    activation and what the second product puts out, where there is no gate."""
    gate, inner = 2 * 2048 / tp, 2048 / tp
    assert float(_widest(DENSE, tp)) == max(2 * 512 + gate + inner, 3 * 512 + inner)
    plain = replace(DENSE, gated=False)
    assert float(_widest(plain, tp)) == max(2 * 512 + inner + inner, 3 * 512 + inner)


def test_a_mixtures_widest_moment_is_all_its_tokens_copies() -> None:
    """Four of the stream, and of each of top_k experts twice the way there and back and three of
    its inner width, shared among ranks."""
    mixed = replace(DENSE, num_experts=8, top_k=2, expert_ffn_hidden=300)
    whole = 2 * (2 * 512 + 3 * 300)
    for tp in (1.0, 2.0):
        assert float(_widest(mixed, tp)) == 4 * 512 + 2 * whole / tp
    both = replace(mixed, dense_layers=2)
    assert float(_widest(both, 8.0)) == max(
        4 * 512 + 2 * whole / 8, 2 * 512 + 3 * 2048 / 8, 3 * 512 + 2048 / 8
    )


def test_pools_are_of_the_device_of_what_is_free_or_beside_what_is_static() -> None:
    """Nine tenths of 100: of all; of what 30 leave, beside them; of weights of 20 and the cache,
    beside 10 of other things, and no more than there is."""
    shares = {"total": 90.0, "free": 90.0 + 0.1 * 30.0, "static": 90.0 + 30.0 - 20.0}
    for pool, room in shares.items():
        own = plan(pool=pool, memory_fraction=0.9)
        assert float(_usable(own, 100.0, 30.0, 20.0)) == pytest.approx(room)
    full = plan(pool="free", memory_fraction=0.5)
    assert float(_usable(full, 100.0, 400.0, 20.0)) == pytest.approx(100.0)
    static = plan(pool="static", memory_fraction=0.9)
    assert float(_usable(static, 100.0, 60.0, 20.0)) == pytest.approx(100.0)
    assert float(_usable(static, 100.0, 25.0, 20.0)) == pytest.approx(95.0)
