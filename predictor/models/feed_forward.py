"""Counts of dense feed-forward blocks, of one width or of several."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, cast

from predictor.errors import InputError

if TYPE_CHECKING:
    from predictor.models.model import Model


def widths(text: str) -> tuple[tuple[int, int], ...]:
    """How many blocks there are of which inner width, of a text as '49 x 28672, 6 x 14336'.

    Raises InputError where it is no such text.
    """
    try:
        pairs = [one.split("x") for one in text.split(",") if one.strip()]
        found = tuple((int(count), int(width)) for count, width in pairs)
    except ValueError:
        found = ()
    if not found or any(count < 1 or width < 1 for count, width in found):
        raise InputError(f"ffn_widths must be as '49 x 28672, 6 x 14336', got {text!r}")
    return found


class FeedForward:
    """The part of a model that its dense feed-forward blocks are: fields as `Model` has them."""

    __slots__ = ()

    hidden: int
    ffn_hidden: int
    gated: bool
    bias: bool
    parallel: str
    borrowing_layers: int
    borrowing_ffn_hidden: int
    ffn_widths: str

    @property
    def ffn_in_width(self) -> int:
        """Output width of the first feed-forward projection (gate and up together)."""
        return self.ffn_hidden * (2 if self.gated else 1)

    @property
    def dense_ffn_matrix(self) -> int:
        """Weights of one dense feed-forward block, of those that borrow nothing."""
        return self.hidden * (self.ffn_in_width + self.ffn_hidden)

    @property
    def dense_kinds(self) -> tuple[tuple[int, Model], ...]:
        """Kinds of dense feed-forward blocks: how many, and a model all of which are that kind."""
        model = cast("Model", self)
        dense, wide = model.ffn_blocks - model.moe_layers, self.borrowing_layers
        if self.ffn_widths:
            return _of_widths(model)
        if not self.borrowing_ffn_hidden or not wide:
            return ((dense, model),)
        return ((dense - wide, model), (wide, _wide(model)))

    @property
    def dense_widths(self) -> tuple[int, ...]:
        """Inner widths of them, the widest first; none without any."""
        kinds = [one.ffn_hidden for blocks, one in self.dense_kinds if blocks]
        return tuple(sorted(set(kinds), reverse=True))

    @property
    def ffn_vectors(self) -> tuple[int, int]:
        """The same of a dense feed-forward block."""
        norm = 0 if self.parallel == "shared_norm" else cast("Model", self).norm_parameters
        if self.bias:
            return self.ffn_in_width, norm + self.hidden
        return 0, norm


@lru_cache(maxsize=256)
def _wide(model: Model) -> Model:
    """The feed-forward blocks of a model's borrowing layers."""
    return replace(model, ffn_hidden=model.borrowing_ffn_hidden, borrowing_ffn_hidden=0)


@lru_cache(maxsize=256)
def _of_widths(model: Model) -> tuple[tuple[int, Model], ...]:
    """As `FeedForward.dense_kinds`, of a model that states widths."""
    return tuple(
        (count, replace(model, ffn_hidden=width, ffn_widths=""))
        for count, width in widths(model.ffn_widths)
    )
