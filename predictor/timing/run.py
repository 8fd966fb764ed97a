"""Parameters of a whole run of training: what no kernel and no link has by itself."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

from predictor.records import dataclass


@dataclass(frozen=True, slots=True)
class RunParameters:
    """Parameters of a whole run; each has a source in `sources`.

    host_per_kernel   host time to launch one kernel, eager [s]
    overlap           share of the window behind which communication can hide, by kind
    contention        slowdown of computation while a collective runs beside it
    context           bytes that framework and libraries take
    engine            the same of a serving engine, with its captured graphs: vLLM's memory profile
                      on A100 and H100 has 1 to 2 GB; trainers keep more rings of NCCL
    fragmentation     share of the peak that the allocator loses
    memory_sigma      log-standard-deviation of peak memory
    sigma             log-standard-deviation of a run that no operator explains
    sigma_moe         the same where the model is a mixture of experts
    spreads           framework -> both, where its runs have their own
    sigma_plan        the part of it that is particular to one plan, which plans of one model on
                      one machine do not share
    sigma_unnamed     what a run adds to its spread of which nobody says with which framework it ran
    sigma_untimed     what a run adds whose model has attention that nobody timed (`Model.untimed`)
    factors           time factor by 'framework/era' (neutral: 1)
    habits            fields of a plan as one's own runs show them, where a plan leaves them open
    usual             field -> what the rules of completion said of those runs: plans of which they
                      say something else take no habit
    jitter            accelerator -> log-standard-deviation between ranks of a stretch of work,
                      however long, and of what is drawn anew, of a second's [s^0.5]; of machines
                      whose ranks were timed together
    sold              architecture -> month of its first sale, of those whose libraries are slower
                      for years (`training.youth`)
    """

    host_per_kernel: float = 6e-6
    overlap: Mapping[str, float] = field(default_factory=dict)
    contention: float = 1.0
    context: float = 2e9
    engine: float = 2e9
    fragmentation: float = 0.05
    memory_sigma: float = 0.1
    sigma: float = 0.1
    sigma_moe: float = 0.1
    spreads: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    sigma_plan: float = 0.03
    sigma_unnamed: float = 0.0
    sigma_untimed: float = 0.0
    factors: Mapping[str, float] = field(default_factory=dict)
    habits: Mapping[str, Any] = field(default_factory=dict)
    usual: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    jitter: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    sold: Mapping[str, str] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)

    def spread(
        self, moe: bool, framework: str = "", named: bool = True, untimed: bool = False
    ) -> float:
        """Log-standard-deviation of a run of a dense model, or of a mixture of experts.

        named    whether somebody says its framework
        untimed  whether its model has attention that nobody timed
        """
        dense, mixture = self.spreads.get(framework, (self.sigma, self.sigma_moe))
        own = mixture if moe else dense
        own = own if named else math.hypot(own, self.sigma_unnamed)
        return math.hypot(own, self.sigma_untimed) if untimed else own
