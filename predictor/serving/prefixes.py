"""Prefixes of prompts that are cached already: on the device, in the host's memory, on drives.

A prompt is a chain of pieces (turns of a session, blocks of a trace), each of which others may
begin with too. As many leading pieces as are known anywhere need not be read again; those that are
not on the device are loaded from where they are. What was used longest ago goes down a tier when a
tier is full, and is lost behind the last (vLLM's prefix cache, SGLang's radix cache; LMCache and
Mooncake for the tiers: Qin et al. 2024).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from predictor.catalog.traces import Piece
from predictor.records import dataclass


@dataclass(frozen=True, slots=True)
class CacheTier:
    """Where caches lie beside the device: tokens that there is room for, and time of loading one
    [s]."""

    room: float
    load: float


class Prefixes:
    """What is cached of earlier prompts and answers.

    held      tokens found so far, of all that were asked for (`asked`)
    """

    __slots__ = ("_levels", "_tiers", "_used", "asked", "held")

    def __init__(self, tiers: Sequence[CacheTier] = ()) -> None:
        self._tiers = [CacheTier(0.0, 0.0), *tiers]
        self._levels: list[OrderedDict[object, float]] = [OrderedDict() for _ in self._tiers]
        self._used = [0.0] * len(self._tiers)
        self.asked = self.held = 0.0

    def known(self, pieces: Iterable[Piece]) -> float:
        """Tokens of leading pieces that are cached somewhere."""
        found = 0.0
        for key, tokens in pieces:
            if not any(key in level for level in self._levels):
                break
            found += tokens
        return found

    def take(self, pieces: Iterable[Piece], prompt: float) -> tuple[float, float]:
        """Tokens of a prompt that need not be read, and the time for which they are loaded [s].
        At least the last token of the prompt is read."""
        found = load = 0.0
        for key, tokens in pieces:
            level = next((i for i, own in enumerate(self._levels) if key in own), None)
            if level is None:
                break
            found += tokens
            load += self._tiers[level].load * tokens
            self._move(level, key)
        found = min(found, prompt - 1.0)
        self.asked += prompt
        self.held += found
        return found, load

    def put(self, pieces: Iterable[Piece]) -> None:
        """These are on the device now."""
        for key, tokens in pieces:
            for level, own in enumerate(self._levels):
                if key in own:
                    self._used[level] -= own.pop(key)
            self._levels[0][key] = tokens
            self._used[0] += tokens

    def settle(self, room: float) -> None:
        """Keep so many tokens on the device; what is too much goes down, oldest first."""
        for level, own in enumerate(self._levels):
            most = room if level == 0 else self._tiers[level].room
            while own and self._used[level] > most:
                key, tokens = own.popitem(last=False)
                self._used[level] -= tokens
                if level + 1 < len(self._levels):
                    self._levels[level + 1][key] = tokens
                    self._used[level + 1] += tokens

    def _move(self, level: int, key: object) -> None:
        """A piece that is used comes to the device, as its newest."""
        tokens = self._levels[level].pop(key)
        self._used[level] -= tokens
        self._levels[0][key] = tokens
        self._used[0] += tokens
