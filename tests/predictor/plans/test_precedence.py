"""What waits for what is what the schedule plays."""

from __future__ import annotations

import numpy as np
import pytest

from predictor.plans import SCHEDULES, precedence, timeline


@pytest.mark.parametrize("hop", [(0.0, 0.0), (0.3, 0.1)])
@pytest.mark.parametrize("name", SCHEDULES)
def test_the_longest_path_is_the_time_of_the_schedule(name: str, hop: tuple[float, float]) -> None:
    """Any stages, any links, event by event."""
    draw = np.random.default_rng(7)
    several = {"v": (2,), "both": (1,)}.get(SCHEDULES[name].fold, (1, 2))
    for vpp in several if SCHEDULES[name].chunks else (1,):
        for pp, m in ((2, 4), (4, 8)):
            passes = [draw.uniform(0.5, 2.0, pp).tolist() for _ in range(3)]
            own = precedence(name, pp, m, vpp)
            ends = own.ends(own.durations(passes, hop[0]), hop[1])
            assert ends.max() == pytest.approx(timeline(name, *passes, m, vpp, *hop)[-1].end)
            assert (own.before < own.after).all()


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_transfer_keeps_the_link_between_its_stages(name: str) -> None:
    """Either way the same: what makes it and what waits for it are the link's two stages."""
    fold = SCHEDULES[name].fold
    own = precedence(name, 4, 8, 2 if fold == "v" else 1)
    met: dict[int, set[int]] = {at: set() for at in np.flatnonzero(own.link >= 0).tolist()}
    for before, after in zip(own.before.tolist(), own.after.tolist(), strict=True):
        for transfer, piece in ((before, after), (after, before)):
            if transfer in met and own.stage[piece] >= 0:
                met[transfer].add(int(own.stage[piece]))
    assert met
    assert all(found == {own.link[at], own.link[at] + 1} for at, found in met.items())
