"""How documents are packed and divided, as a dimension of a search: a column of the plans that says
which of `PACKINGS` and of `DIVISIONS` one has, and the fields of a plan that follow from it.
"""

from __future__ import annotations

import itertools
from typing import Any

from predictor.catalog import Given, Range
from predictor.errors import InputError
from predictor.plans import CP_KINDS, DIVISIONS, PACKINGS
from predictor.search.axes import Axis, SearchBasis
from predictor.variation import PACKED_FIELDS, PACKING_KEYS, packed_fields

PACKED = "packed"
"""The column: the place of a packing and a division among all pairs of them."""

PAIRS = tuple(itertools.product(PACKINGS, DIVISIONS))
MASKED = ("fixed", "balanced")
"""Packings in which documents attend to themselves alone, so that it matters what is divided."""

WHOLE = ("ulysses",)
"""Ways in which ranks that divide a sequence attend over all of it, each with heads of its own."""


def packing_of(code: float) -> dict[str, str]:
    """Packing and division of a plan by its column."""
    packing, division = PAIRS[int(code)]
    return {"packing": packing, "cp_sharding": division}


def document_axes(given: Given) -> list[Axis]:
    """What stated documents make of the sequences of each layout, for every packing and division
    that is stated.

    Raises InputError where there are several corpora, something else is stated without any, or
    padded sequences, which hold fewer tokens, are to be compared with others by their step.
    """
    stated = {name: given[name] for name in PACKING_KEYS if name in given}
    if not stated:
        return []
    corpora = stated.get("documents")
    if corpora is None:
        raise InputError(f"{next(iter(stated))} needs --set documents=wlb or another")
    if isinstance(corpora, Range) or len(corpora) > 1:
        raise InputError("documents takes one value in a search")
    packings = tuple(stated.get("packing", PACKINGS[:1]))
    if len(packings) > 1 and "padded" in packings:
        raise InputError("padded sequences hold fewer tokens: search packing=padded by itself")
    parted = tuple(kind for kind in CP_KINDS if kind not in WHOLE)
    axes = [_axes(stated, kinds, kinds == WHOLE) for kinds in (parted, WHOLE)]
    return [axis for own in axes for axis in own]


def _axes(stated: dict[str, Any], kinds: tuple[str, ...], whole: bool) -> list[Axis]:
    """Those axes of plans whose ranks attend by one of some kinds.

    whole   over whole sequences, so that no division of them matters
    """
    packings = tuple(stated.get("packing", PACKINGS[:1]))
    divisions = tuple(stated.get("cp_sharding", DIVISIONS[:1]))
    when = "cp_kind", kinds

    def pairs(at: SearchBasis, cp: float) -> list[float]:
        """Division matters where ranks divide documents that are masked."""
        found = []
        for packing in packings:
            several = cp > 1 and not whole and packing in MASKED
            for division in divisions if several else divisions[:1]:
                found.append(float(PAIRS.index((packing, division))))
        return found

    def axis(field: str) -> Axis:
        def values(
            at: SearchBasis, code: float, seq_len: float, micro_batch: float, cp: float
        ) -> list[float]:
            own: dict[str, Any] = {"documents": stated["documents"][0], **packing_of(code)}
            return [packed_fields(own, seq_len, micro_batch, cp, whole)[field]]

        return Axis(field, (PACKED, "seq_len", "micro_batch", "cp"), values, when)

    return [Axis(PACKED, ("cp",), pairs, when), *(axis(field) for field in PACKED_FIELDS)]
