"""Tiles of images: convolutions against Monte Carlo and by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from predictor.errors import InputError
from predictor.variation.images import Tiles, busiest_replica, sums, tiles_of


@pytest.mark.parametrize(("replicas", "ratio"), [(8, 1.264), (16, 1.294), (64, 1.302)])
def test_the_slowest_of_replicas_is_that_of_monte_carlo(replicas: int, ratio: float) -> None:
    """Batches of 4 of ai2d and chartqa pooled (METHOD_UNEVEN, section 3, Monte Carlo)."""
    assert busiest_replica(tiles_of("both"), 4, replicas) == pytest.approx(ratio, abs=0.003)


def test_waste_is_omnibals_ratio() -> None:
    """Share of the replicas' time in which they wait for the one with most (DistRatio: Yao et al.
    2024, arXiv 2407.20761, eq. 1)."""
    for replicas, ratio in ((8, 0.208), (16, 0.227), (64, 0.232)):
        assert 1.0 - 1.0 / busiest_replica(tiles_of("both"), 4, replicas) == pytest.approx(
            ratio, abs=0.003
        )


def test_means_are_those_of_the_data_sets() -> None:
    assert tiles_of("ai2d").mean == pytest.approx(2.49, abs=0.005)
    assert tiles_of("chartqa").mean == pytest.approx(4.75, abs=0.005)


def test_sums_by_hand() -> None:
    """One or three tiles, as likely: of two samples 2, 4, 4 or 6."""
    found = sums(Tiles((0.0, 0.5, 0.0, 0.5)), 2)
    assert found == pytest.approx([0, 0, 0.25, 0, 0.5, 0, 0.25], abs=1e-12)
    # The larger of two such: 6 unless both are below (7/16), 2 if both are (1/16), else 4.
    expected = (6 * 7 / 16 + 2 * 1 / 16 + 4 * 8 / 16) / 4.0
    assert busiest_replica(Tiles((0.0, 0.5, 0.0, 0.5)), 2, 2) == pytest.approx(expected)


def test_equal_images_make_nobody_wait() -> None:
    assert busiest_replica(Tiles((0.0, 0.0, 1.0)), 16, 64) == 1.0
    assert busiest_replica(Tiles((0.0, 0.0, 1.0)), 16, 64) == 1.0


def test_larger_batches_even_out() -> None:
    found = [busiest_replica(tiles_of("ai2d"), n, 16) for n in (1, 4, 64, 1024)]
    assert np.all(np.diff(found) < 0)
    assert found[-1] < 1.05


def test_a_file_and_what_is_none(tmp_path: Path) -> None:
    own = tmp_path / "own.csv"
    own.write_text("tiles,samples\n1,1\n3,1\n")
    assert tiles_of(str(own)).mean == 2.0
    own.write_text("tiles,samples\n0,0.25\n2,0.75\n")  # shares, and samples without an image
    assert tiles_of(str(own)).mean == 1.5
    for nothing in ("-1,1", "1,0"):
        own.write_text(f"tiles,samples\n{nothing}\n")
        with pytest.raises(InputError, match="columns tiles and samples"):
            tiles_of(str(own))
    own.write_text("tiles\n1\n")
    with pytest.raises(InputError, match="columns tiles and samples"):
        tiles_of(str(own))
    with pytest.raises(InputError, match="neither a file nor one of ai2d, both, chartqa"):
        tiles_of("coco")
