"""Counts of dense feed-forward blocks, of one width or of several."""

from __future__ import annotations

from predictor.errors import InputError


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
    norm: str
    bias: bool
    parallel: str

    @property
    def norm_parameters(self) -> int:
        """Parameters of one norm."""
        return self.hidden * (2 if self.norm == "layernorm" else 1)

    @property
    def ffn_in_width(self) -> int:
        """Output width of the first feed-forward projection (gate and up together)."""
        return self.ffn_hidden * (2 if self.gated else 1)

    @property
    def dense_ffn_matrix(self) -> int:
        """Weights of one dense feed-forward block, of those that borrow nothing."""
        return self.hidden * (self.ffn_in_width + self.ffn_hidden)

    @property
    def ffn_vectors(self) -> tuple[int, int]:
        """Norm and bias parameters of a dense feed-forward block: (split by TP, whole on every
        rank)."""
        norm = 0 if self.parallel == "shared_norm" else self.norm_parameters
        if self.bias:
            return self.ffn_in_width, norm + self.hidden
        return 0, norm
