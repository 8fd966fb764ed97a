"""Requests one by one under a limit of power, and what each of their passes draws: every pass takes
as much longer as its own kernels, counted for as many sequences and prompts as it has, do."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from predictor.catalog import power_setting
from predictor.power import (
    Activity,
    Conditions,
    PowerConstants,
    Powered,
    demand,
    operating,
)
from predictor.serving.clients import arrivals, spread_lengths
from predictor.serving.events import EngineRun, Part, Served
from predictor.serving.pass_works import PassWork, decode_work, mixed_work
from predictor.serving.prediction import InferencePrediction
from predictor.serving.tables import Lookup, pass_table


@dataclass
class Board:
    """Passes of one accelerator under conditions, at the temperatures that these leave it at.

    under, free   what the closed form draws under the conditions, and without them
    """

    found: InferencePrediction
    conditions: Conditions
    under: Powered
    free: Powered
    known: dict[Any, tuple[float, float]] = field(default_factory=dict)

    def at(self, sequences: int, prompts: float, time: float) -> tuple[float, float]:
        """How much longer such a pass takes, and its power [W]; `time` without conditions [s]."""
        key = (sequences, round(prompts, 2), round(200.0 * np.log(time)))
        if key not in self.known:
            self.known[key] = self._worked_out(sequences, prompts, time)
        return self.known[key]

    def idle(self) -> float:
        """Power between passes [W]."""
        return self._state(Activity(1.0), self.conditions, self.under)[1]

    def _worked_out(self, sequences: int, prompts: float, time: float) -> tuple[float, float]:
        work: PassWork
        if prompts:
            work = mixed_work(self.found, np.asarray(prompts), np.asarray(float(sequences)))
        else:
            work = decode_work(self.found, float(sequences))
        rows = sequences + prompts * float(self.found.plan.new_tokens)
        own = Activity(time, flop=work.flop, bytes=work.bytes, widened=work.widened, rows=rows,
                       thin=0.0 if prompts else 1.0, core=work.core)  # fmt: skip
        held, power = self._state(own, self.conditions, self.under)
        if not self.conditions.slows:
            return 1.0, power
        return held / self._state(own, Conditions(), self.free)[0], power

    @cached_property
    def constants(self) -> PowerConstants:
        """Of the accelerator's power."""
        return power_setting(self.found.cluster, Conditions(), self.found.calibration.power)[0]

    def _state(self, own: Activity, given: Conditions, under: Powered) -> tuple[float, float]:
        """How much longer work takes than at the reference, and its power: of positions of a node
        the slowest, and the mean, each with one accelerator that waits for no other."""
        constants = self.constants
        limit = constants.limit if given.limit is None else given.limit
        warm = np.asarray(under.temperature).reshape(-1)
        state = operating(demand(own, constants), constants, limit, 1.0, warm, limit)
        return float(np.max(state.slower)), float(np.mean(state.power))


class _Slower:
    """Times of passes that decode, under conditions."""

    def __init__(self, usual: Lookup, board: Board) -> None:
        self._usual, self._board = usual, board

    def at(self, row: int, column: float) -> float:
        time = self._usual.at(row, column)
        return time * self._board.at(row, 0.0, time)[0]


class Timeline(EngineRun):
    """An engine under conditions, with its passes: beginning, time [s], power [W], prompts."""

    __slots__ = ("board", "logged", "prompts", "usual")

    def under(self, board: Board) -> Timeline:
        """The same under conditions, to be run."""
        self.board, self.usual, self.prompts = board, self.decode, 0.0
        self.decode = _Slower(self.usual, board)  # type: ignore[assignment]
        self.logged: list[tuple[float, float, float, float]] = []
        return self

    def take_up(self) -> Part:
        before = sum(left for _, left, _ in self.reading)
        part = super().take_up()
        tokens = before - sum(left for _, left, _ in self.reading)
        self.prompts = tokens / float(self.table.plan.new_tokens)
        return part

    def make(self, part: Part, spent: float) -> None:
        many = part[0]
        time = part[2] + (self.usual.at(many, self.cached / many) if many else 0.0)
        slower, power = self.board.at(many, self.prompts, time)
        self.logged.append((self.now, time * slower, power, self.prompts))
        super().make(part, time * slower)

    def leapt(self, leap: int, each: float) -> None:
        many = len(self.live)
        time = self.usual.at(many, self.cached / many + 0.5 * leap)
        self.logged.append((self.now, leap * each, self.board.at(many, 0.0, time)[1], 0.0))
        super().leapt(leap, each)


@dataclass
class Played:
    """Requests of a timeline after the first ones, and what is drawn meanwhile [W]."""

    served: Served
    times: np.ndarray
    joules: np.ndarray
    idle: float

    @property
    def mean(self) -> float:
        """Of the whole time [W]."""
        span = self.times[-1] - self.times[0]
        return float((self.joules[-1] - self.joules[0]) / span) + self.idle

    @property
    def busy(self) -> float:
        """Share of the time in which a pass runs."""
        lasts = np.diff(self.times)[::2].sum()
        return float(lasts / (self.times[-1] - self.times[0]))

    def windows(self, length: float) -> np.ndarray:
        """Mean power of windows that begin with a pass, or end with one [W]."""
        begins = np.concatenate([self.times[::2], self.times[1::2] - length])
        begins = begins[(begins > self.times[0]) & (begins + length < self.times[-1])]
        ends, starts = (np.interp(at, self.times, self.joules) for at in (begins + length, begins))
        return np.asarray((ends - starts) / length + self.idle)


def sent(board: Board, count: int, came: list[float] | None, clients: int) -> Timeline:
    """An engine before requests that arrive by themselves, or are sent by so many clients."""
    found = board.found
    plan = found.plan
    given, made = (
        spread_lengths(float(mean), count, 0.1, seed)
        for seed, mean in ((1, plan.input_len), (2, plan.output_len))
    )
    table = pass_table(found.model, found.cluster, plan, found.calibration,
                       (float(given.max()), float(made.max())))  # fmt: skip
    return Timeline(table, given.tolist(), made.tolist(), came, clients).under(board)


def played(board: Board, rate: float, count: int, warm: int = 300) -> Played:
    """Requests that arrive at a rate [1/s] at one engine, all but the first and last of them."""
    came = arrivals(rate, count, 1.0)
    run = sent(board, count, came.tolist(), 0)
    run.run()
    idle = board.idle()
    passes = np.array([one for one in run.logged if came[warm] <= one[0] <= came[-1]])
    begin, lasts, power, _ = passes.T
    times = np.stack([begin, begin + lasts], axis=1).ravel()
    joules = np.cumsum(lasts * (power - idle))
    whole = np.stack([joules - lasts * (power - idle), joules], axis=1).ravel()
    return Played(run.served(1).after(warm, 30), times, whole, idle)


def followed_up(board: Board, clients: int, count: int) -> Served:
    """Requests of so many clients, each of whom sends the next when the last is answered."""
    run = sent(board, count, None, clients)
    run.run()
    return run.served(1)
