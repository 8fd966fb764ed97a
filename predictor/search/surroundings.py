"""What lies around the layers of the plans of a search, timed once for all blocks whose plans
differ only inside their layers: the blocks are many and small, what lies around is much the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from predictor.arrays import Index, distinct_rows, join
from predictor.hardware import Cluster
from predictor.models import Model
from predictor.plans import CATEGORY_FIELDS, NUMERIC_FIELDS
from predictor.records import replace
from predictor.search.ranking import Surroundings
from predictor.search.space import APART, PLACE, Block, as_float
from predictor.timing import Calibration
from predictor.training import LAYERED, Frame, frame, is_apart

INSIDE = (*APART, "recompute_share")
"""Numbers of a plan that change nothing around its layers: accelerators follow from the others."""

MOST = 10_000
"""Distinct plans of a set of categories whose surroundings are kept: some 15 MB of arrays. Blocks
with more are large enough to be timed by themselves."""


def surroundings(
    model: Model,
    cluster: Cluster,
    calibration: Calibration,
    blocks: Sequence[Block],
    rows: Sequence[Index],
) -> dict[int, Surroundings]:
    """Time what lies around the layers of some plans of every block.

    rows   of each block

    Returns it by the number of the block; nothing for blocks without rows, and for those of more
    than `MOST` plans.
    """
    alike: dict[tuple[Any, ...], list[int]] = {}
    for number, block in enumerate(blocks):
        if rows[number].size:
            alike.setdefault(_key(block), []).append(number)
    found: dict[int, Surroundings] = {}
    for numbers in alike.values():
        first = blocks[numbers[0]]
        inside = INSIDE if _apart(first) else APART
        grids = {id(blocks[at].grid): blocks[at].grid for at in numbers}
        used = {
            key: _used([(blocks[at], rows[at]) for at in numbers if id(blocks[at].grid) == key])
            for key in grids
        }
        columns: dict[str, Any] = {
            name: np.concatenate([as_float(own[name][used[key]]) for key, own in grids.items()])
            for name in first.grid
            if name not in inside
        }
        kept, place = distinct_rows(list(columns.values()))
        if len(kept) > MOST:
            continue
        plan = replace(first.fixed, **{name: column[kept] for name, column in columns.items()})
        around = frame(model, cluster, plan, calibration)
        ends = np.cumsum([own.size for own in used.values()])
        inner: dict[int, Index] = {}
        for key, own in zip(grids, np.split(place, ends[:-1]), strict=True):
            inner[key] = np.zeros(len(grids[key]["tp"]), dtype=PLACE)
            inner[key][used[key]] = own
        for at in numbers:
            found[at] = Surroundings(around, inner[id(blocks[at].grid)], blocks[at].place)
    return _joined(blocks, found)


def _used(pieces: Sequence[tuple[Block, Index]]) -> Index:
    """Rows of a grid that some rows of blocks are, each once."""
    mask = np.zeros(len(pieces[0][0].grid["tp"]), dtype=bool)
    for block, rows in pieces:
        mask[block.place[rows]] = True
    return np.flatnonzero(mask)


def _joined(blocks: Sequence[Block], found: Mapping[int, Surroundings]) -> dict[int, Surroundings]:
    """The same, with all that is around the plans of one pool laid out in one row."""
    pools: dict[Any, dict[int, Frame]] = {}
    for number, one in found.items():
        pools.setdefault(blocks[number].pool, {})[id(one.frame)] = one.frame
    rows: dict[Any, Frame] = {}
    starts: dict[int, int] = {}
    for pool, frames in pools.items():
        sizes = [frame.m.shape[0] for frame in frames.values()]
        rows[pool] = join(list(frames.values()), sizes)
        starts |= zip(frames, np.cumsum([0, *sizes]).tolist(), strict=False)
    moved: dict[int, Index] = {}
    for one in found.values():
        if id(one.inner) not in moved:
            moved[id(one.inner)] = (one.inner + starts[id(one.frame)]).astype(PLACE)
    return {
        number: Surroundings(rows[blocks[number].pool], moved[id(one.inner)], one.place)
        for number, one in found.items()
    }


def _apart(block: Block) -> bool:
    kept = block.grid.get("offload_activations", block.fixed.offload_activations)
    return is_apart(replace(block.fixed, offload_activations=kept))


def _key(block: Block) -> tuple[Any, ...]:
    """What blocks have in common that differ only inside their layers."""
    apart = _apart(block)
    categories = (name for name in CATEGORY_FIELDS if not (apart and name in LAYERED))
    numbers = (name for name in NUMERIC_FIELDS if not (apart and name in INSIDE))
    return (
        *(getattr(block.fixed, name) for name in categories),
        *(name if name in block.grid else repr(getattr(block.fixed, name)) for name in numbers),
    )
