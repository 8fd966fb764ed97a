"""Requests with what connects them: turns of a session, prompts that begin alike, adapters."""

from __future__ import annotations

from dataclasses import field

import numpy as np

from predictor.arrays import Array
from predictor.catalog.traces import Piece, Trace
from predictor.records import dataclass


@dataclass(frozen=True, slots=True, eq=False)
class Workload:
    """Requests, in the order in which those that begin are sent.

    input_len, output_len   tokens of each, what came before in its session with them
    begins    requests that follow none
    arrival   of those [s], rising; None: clients send them one after the other
    next      the request that follows each in its session; -1: none
    pieces    what each prompt begins with, as `prefixes` takes it
    adapter   of each; -1: none
    """

    input_len: Array
    output_len: Array
    begins: list[int]
    arrival: Array | None
    next: list[int]
    pieces: list[tuple[Piece, ...]] = field(default_factory=list)
    adapter: list[int] = field(default_factory=list)

    @property
    def count(self) -> int:
        """Requests in all."""
        return len(self.input_len)


def sessions(
    input_len: Array,
    output_len: Array,
    arrival: Array | None,
    turns: int = 1,
    shared: float = 0.0,
) -> Workload:
    """Sessions of so many turns each, out of the tokens that every turn adds.

    input_len, output_len   of every turn, those of one session after the other
    arrival   of the sessions [s]
    shared    tokens with which all prompts begin (a system prompt), within those of the first turn

    The prompt of a turn is all that was said before, and what is asked now.
    """
    count = len(input_len) // turns * turns
    asked, said = input_len[:count].reshape(-1, turns), output_len[:count].reshape(-1, turns)
    before = np.cumsum(asked + said, axis=1) - asked - said
    prompts = (asked + before).ravel()
    begins = list(range(0, count, turns))
    follows = [one + 1 if (one + 1) % turns else -1 for one in range(count)]
    return Workload(
        input_len=prompts,
        output_len=said.ravel(),
        begins=begins,
        arrival=arrival,
        next=follows,
        pieces=_pieces(asked, said, shared),
    )


def _pieces(asked: Array, said: Array, shared: float) -> list[tuple[Piece, ...]]:
    """Names of the parts of every prompt: the shared beginning, then what each turn added."""
    found: list[tuple[Piece, ...]] = []
    for session, (questions, answers) in enumerate(zip(asked, said, strict=True)):
        head = max(min(shared, float(questions[0]) - 1.0), 0.0)
        chain: list[Piece] = [("shared", head)] if head else []
        for turn, (question, answer) in enumerate(zip(questions, answers, strict=True)):
            own = float(question) - (0.0 if turn else head)
            chain = [*chain, ((session, turn, "asked"), own)]
            found.append(tuple(chain))
            chain = [*chain, ((session, turn, "said"), float(answer))]
    return found


def of_trace(trace: Trace) -> Workload:
    """Requests of a trace."""
    count = len(trace.input_len)
    return Workload(
        input_len=trace.input_len,
        output_len=trace.output_len,
        begins=list(range(count)),
        arrival=trace.arrival,
        next=[-1] * count,
        pieces=list(trace.pieces) or [()] * count,
    )


def with_adapters(adapters: int, count: int, seed: int = 0) -> list[int]:
    """Which of so many adapters each request asks for, all alike often."""
    return [int(one) for one in np.random.default_rng(seed).integers(0, adapters, count)]
