"""What serving engines add to the device's time: parameters by engine and era.

They are few and physical: launches, work on the host per pass, per sequence and per request, and
factors on kernels and collectives. `calibration/serving/` fits them to published runs, every
engine drawn towards all engines' mean; a calibration carries them (`Calibration.serving`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import field, fields, replace

import numpy as np

from predictor.arrays import Array, Numeric
from predictor.records import dataclass
from predictor.timing.benchmarks import Benchmarks

UNFITTED_SIGMA = 0.3
"""Spread of runs where nothing is fitted: engines of one time differ by a third and more."""

EARLY_SPREADS = ("ttft.serving", "ttft.serving.used", "ttft.serving.queued")
LATE_SPREADS = ("ttft.late", "ttft.late.used", "ttft.late.queued")
"""Names of the spreads of first tokens under load, without load, by the share of the time in which
prompts are read, and by the share of it that is a wait for room: of those that come sooner than
predicted, and later."""

UNNAMED_SPREAD, UNNAMED_SIGMA = "unnamed", 0.3
"""Name of what a run adds to its spread of which nobody says the engine, and how much that is
unless fitted: of the published rows of 20 sources with their engine hidden, every source left out,
65 % lay inside without it and 79 % with it."""

UNSAID_SPREAD, UNSAID_SIGMA = "unsaid", 0.27
"""Name of what a run adds to its spread of which nobody says in what its weights are, nor the
checkpoint's maker, and how much that is unless fitted: of 161 published rows of 19 sources with it
hidden, every source left out, 70 % lay inside without it and 80 % with it."""

ADDED = {UNNAMED_SPREAD: UNNAMED_SIGMA, UNSAID_SPREAD: UNSAID_SIGMA}
"""What is not said of a run, and what that adds to its spread unless fitted."""

KERNELS_SHARE = "kernels"
"""How names begin of the share of the kernels' own spread that stands beside that of runs, 0..1, by
metric; all of it unless fitted. Families of kernels err by themselves, and the fit of an engine
makes up for some of it: added whole, it hides how far runs lie off where kernels are known well."""


@dataclass(frozen=True, slots=True, eq=False)
class EngineParameters:
    """Parameters of one engine in one era, or of all ('neutral'); arrays while they are fitted.

    decode         factor on the kernels of passes that decode
    prefill        factor on the kernels of passes over prompts
    communication  factor on collectives
    gap            between the kernels of a captured graph, beyond what their latencies hold [s]
    launch         host time of a kernel that is launched by itself [s]: 4 to 10 us for PyTorch's
                   launch alone, and eager code launches two or three for one of the work list
    step           host time of a pass: scheduling, sampling, copying back [s]
    sequence       host time of a running sequence in a pass [s]
    request        host time of a request before its first token: network, tokens, queues [s]
    mixing         share of a prompt's pass by which it delays the decoding of others
    burst          new tokens of prompts that arrive together at most, being as synchronous as
                   clients that all started at once stay
    """

    decode: Numeric = 1.0
    prefill: Numeric = 1.0
    communication: Numeric = 1.0
    gap: Numeric = 0.5e-6
    launch: Numeric = 15e-6
    step: Numeric = 0.5e-3
    sequence: Numeric = 10e-6
    request: Numeric = 5e-3
    mixing: Numeric = 1.0
    burst: Numeric = 1e5


ENGINE_FIELDS = tuple(one.name for one in fields(EngineParameters))
"""Names of the parameters of an engine."""


@dataclass(frozen=True, slots=True)
class ServingParameters:
    """Parameters of every engine, 'ENGINE' or 'ENGINE until YYYY-MM'; spreads by metric, log
    standard deviations of what no operator explains.

    points   ids of the published rows that they were fitted on
    origin   where they come from, in words
    own      what is left of one's own benchmarks; None without any
    """

    engines: Mapping[str, EngineParameters] = field(default_factory=dict)
    sigma: Mapping[str, float] = field(default_factory=dict)
    points: frozenset[str] = frozenset()
    origin: str = "documented defaults"
    own: Benchmarks | None = None

    def of(self, framework: str, era: str) -> EngineParameters:
        """Parameters of an engine in an era, else of the engine, else of all."""
        own = [name for name in self.engines if name.partition(" until ")[0] == framework]
        dated = sorted(name for name in own if " until " in name)
        if era != "neutral":
            for name in dated:
                if era <= name.partition(" until ")[2]:
                    return self.engines[name]
        for name in (framework, "neutral"):
            if name in self.engines:
                return self.engines[name]
        return EngineParameters()

    def spread(self, metric: str, kind: str) -> float:
        """Log-standard-deviation of a metric ('ttft', 'tpot', 'e2e', 'throughput') in runs of a
        kind: 'prefill', 'static', 'serving' (at a concurrency), 'saturated' or 'open'."""
        for name in (f"{metric}.{kind}", metric, "all"):
            if name in self.sigma:
                return self.sigma[name]
        return UNFITTED_SIGMA

    def kernels(self, metric: str, operators: Array) -> Array:
        """The part of the kernels' own spread that stands beside that of runs in a metric ('ttft',
        'tpot', 'e2e', 'throughput'): a share, 0..1, of what was measured on the accelerator itself,
        and all of what was carried over from others, which runs hardly tell of.

        operators   both, (2, plans)
        """
        share = self.sigma.get(f"{KERNELS_SHARE}.{metric}", 1.0)
        return np.asarray(np.hypot(share * operators[0], operators[1]))

    def first_token(self, loads: Sequence[Numeric] | Array, late: bool) -> Array:
        """Log-standard-deviation of a first token under load that comes sooner than predicted, or
        `late`: (a² + (b u)² + (c w)²)^½, since what waits is known less than what reads a prompt.
        That of the class alone where benchmarks of one's own say how far they lie off, or nothing
        is fitted.

        loads   u, the share of the time in which prompts are read, and w, that of the first token
                which is a wait for room
        """
        names = LATE_SPREADS if late else EARLY_SPREADS
        found: Numeric = self.sigma.get(names[0], self.spread("ttft", "serving"))
        for name, share in zip(names[1:], loads, strict=True):
            found = np.hypot(found, self.sigma.get(name, 0.0) * np.clip(share, 0.0, 1.0))
        return np.asarray(found)

    def told(self, named: bool) -> ServingParameters:
        """Of an engine that is named, or of one that nobody names."""
        return self if named else self.unnamed()

    def unnamed(self) -> ServingParameters:
        """The same of an engine that nobody names: every spread with what that adds
        (`UNNAMED_SPREAD`); as they are where none is fitted, since that of all engines holds
        theirs."""
        return self.wider(UNNAMED_SPREAD)

    def unsaid(self) -> ServingParameters:
        """The same of weights of which nobody says the data type (`UNSAID_SPREAD`)."""
        return self.wider(UNSAID_SPREAD)

    def wider(self, name: str) -> ServingParameters:
        """The same with every spread widened by what is not said, of `ADDED`; as they are where
        none is fitted."""
        more = self.sigma.get(name, ADDED[name])
        parts = (*ADDED, *EARLY_SPREADS[1:], *LATE_SPREADS[1:])
        wide = {
            name: own
            if name in parts or name.startswith(f"{KERNELS_SHARE}.")
            else math.hypot(own, more)
            for name, own in self.sigma.items()
        }
        return replace(self, sigma=wide)
