"""Counts of tables of n-grams: rows that are looked up by hashes of a token and those before it.

Each of `ngram_layers` layers has a table of its own (DeepSeek-V4.1, Engram): the rows that are
found, side by side, are projected to a key for each residual stream and to one value, which is
added to the streams as far as they match the keys. Where they are part of the embedding
(LongCat-Flash-Lite), what is found is projected to the model's width and added, once. Read off
deepseek_v41 of transformers (modular_deepseek_v41.py @ 0a2080b, 2026) and off
meituan-longcat/LongCat-Flash-Lite (configuration_longcat_ngram.py; Meituan 2026, arXiv 2601.21204).
"""

from __future__ import annotations


class Tables:
    """The part of a model that its tables of n-grams are: fields as `Model` has them."""

    __slots__ = ()

    hidden: int
    streams: int
    ngram_layers: int
    ngram_rows: int
    ngram_lookups: int
    ngram_width: int
    ngram_taps: int
    ngram_embedding: bool

    @property
    def ngram_parameters(self) -> int:
        """Weights of the tables of all layers."""
        return self.ngram_rows * self.ngram_width

    @property
    def ngram_found(self) -> int:
        """Columns that a token finds in the table of one layer."""
        return self.ngram_lookups * self.ngram_width

    @property
    def ngram_touched(self) -> int:
        """Weights of the tables that a token touches."""
        return self.ngram_layers * self.ngram_found

    @property
    def ngram_columns(self) -> int:
        """Columns that one layer makes of them: a key for each stream, and a value."""
        if self.ngram_embedding:
            return self.hidden
        return (max(self.streams, 1) + 1) * self.hidden

    @property
    def ngram_matrix(self) -> int:
        """Weights of that projection, which every tensor-parallel rank holds whole."""
        return self.ngram_found * self.ngram_columns

    @property
    def ngram_vectors(self) -> int:
        """Weights of a stream and of its key in one layer, for each of the streams; of a norm more
        and a convolution, where there is one."""
        if self.ngram_embedding:
            return 0
        more = 1 + self.ngram_taps if self.ngram_taps else 0
        return (2 + more) * max(self.streams, 1) * self.hidden
