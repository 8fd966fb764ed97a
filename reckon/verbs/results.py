"""A prediction as a user sees it: one plan, plain numbers, JSON and data frames."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from predictor.errors import InputError
from predictor.memory import host_room
from predictor.models import CONVENTIONS
from predictor.plans import CATEGORY_FIELDS, NUMERIC_FIELDS, STAGES, Event
from predictor.records import dataclass
from predictor.timing import BOUNDS
from predictor.training import (
    Case,
    Dealt,
    Explanation,
    Goodput,
    Reserve,
    TrainingPrediction,
    TrainingRequest,
    Variation,
    checked_by_lots,
    explain,
    goodput,
    limited,
    losses,
    predict,
    sensitivity,
    served,
    told,
    vary,
)
from predictor.units import GB
from predictor.variation import NONE, Profile
from reckon.verbs.figures import Interval, of_calibration, of_request, picked
from reckon.verbs.pacing import Paced
from reckon.verbs.powering import Drawn, PowerResult, Supposed, supposed

if TYPE_CHECKING:
    import pandas as pd


DAY = 86400.0

STEPS = 1000
"""Of a run without a budget of tokens, where machines vary."""


@dataclass(frozen=True, slots=True)
class OperatorReport:
    """One operator of the slowest stage over a whole step."""

    name: str
    phase: str
    op: str
    count: float
    time_s: float
    bound: str
    pedigree: str


@dataclass(frozen=True, eq=False)
class Varied:
    """What varies of the plans of a batch on machines of a profile."""

    batch: TrainingPrediction
    profile: Profile

    @cached_property
    def whole(self) -> Variation:
        """Of all of them."""
        return vary(self.batch, self.profile)

    @cached_property
    def less(self) -> Mapping[str, Any]:
        """What each term takes off their P95."""
        return sensitivity(self.batch, self.profile)

    @classmethod
    def of(cls, batch: TrainingPrediction, profile: Profile) -> Varied | None:
        """None where nothing was asked."""
        return None if profile.name == NONE else cls(batch, profile)


@dataclass(frozen=True, slots=True, eq=False)
class Prediction:
    """The prediction for one request; `index` is its place in the batch it was computed in,
    `varied` what varies of that batch, if that was asked, `powered` what it draws, `dealt` what the
    stages or replicas of several systems do, `paced` clocks of the stages, where those were asked
    for."""

    request: TrainingRequest
    batch: TrainingPrediction
    index: int | None = None
    varied: Varied | None = None
    powered: Drawn[Any] | None = None
    dealt: Dealt | None = None
    paced: Paced | None = None

    def __repr__(self) -> str:
        what = f"{self.batch.model.name} on {self.gpus} accelerators of {self.batch.cluster.name}"
        told = f"step {self.step_time} s, {'fits' if self.fits else 'does not fit'}"
        return f"<Prediction of {what}: {told}>"

    def _at(self, values: Any) -> float:
        return picked(values, self.index)

    @property
    def power(self) -> PowerResult | None:
        """What the step draws, costs and heats; None where the accelerator's power is unknown."""
        under = None if self.powered is None else self.powered.found
        if self.paced is not None:
            under = self.paced.after
        if under is None:
            return None
        request, step = self.request, self._at(self.batch.step_time)
        samples = self._at(request.plan.global_batch)
        counts = {"sample": samples, "token": self._at(self.batch.tokens_per_step)}
        return PowerResult(
            under=under,
            cluster=self.batch.cluster,
            conditions=request.conditions,
            gpus=self.gpus,
            seconds=step,
            counts=counts,
            index=self.index,
        )

    def _power_dict(self) -> dict[str, Any] | None:
        """Power of a step, and energy of the run where a budget was given."""
        power = self.power
        if power is None:
            return None
        clocks = {} if self.paced is None else {"stage_clocks": self.paced.to_dict()}
        return {**power.to_dict(), **clocks, "run": self.run_energy}

    @property
    def supposed_limit(self) -> Supposed | None:
        """The limit of power that nobody stated, where a lower one would matter."""
        if self.powered is None or self.dealt is not None or self.paced is not None:
            return None
        cluster = self.batch.cluster
        return supposed(self.powered, self.index, limited, lambda of: of.step_time, cluster)

    @property
    def run_energy(self) -> dict[str, float] | None:
        """Energy, its price and CO2e of the run for the token budget; None without one."""
        days, power = self.effective_days(), self.power
        return None if days is None or power is None else power.costs(days.value * DAY)

    @property
    def step_time(self) -> Interval:
        """Seconds per optimizer step."""
        batch = self.batch
        return Interval(self._at(batch.step_time), self._at(batch.low), self._at(batch.high))

    @property
    def layer_time(self) -> float:
        """Seconds of one layer, forward and backward, for one micro-batch."""
        return self._at(self.batch.layer_time)

    @property
    def tokens_per_s(self) -> float:
        """Tokens per second of the whole cluster."""
        return self._at(self.batch.tokens_per_s)

    @property
    def gpus(self) -> int:
        """Accelerators in all."""
        return int(self._at(self.request.plan.gpus))

    @property
    def breakdown(self) -> dict[str, float]:
        """Seconds by term; they add up to the step time."""
        return {term: self._at(value) for term, value in self.batch.breakdown.items()}

    @property
    def hidden(self) -> dict[str, float]:
        """Seconds of communication that run behind computation, by kind; no part of the step."""
        return {kind: self._at(value) for kind, value in self.batch.hidden.items()}

    def mfu(self, hardware: bool = False) -> dict[str, float]:
        """Model (or hardware) FLOPs utilisation by published convention, 0..1."""
        return {name: self._at(self.batch.utilisation(name, hardware)) for name in CONVENTIONS}

    @property
    def capacity(self) -> float:
        """Memory of one device [bytes]."""
        return self._at(self.batch.cluster.accelerator.memory)

    @property
    def peak_memory(self) -> float:
        """Of the fullest stage [bytes]."""
        return self._at(self.batch.memory.peak)

    @property
    def host_memory(self) -> float:
        """What the host keeps for a device [bytes]."""
        return self._at(self.batch.memory.host)

    @property
    def host_capacity(self) -> float:
        """What the host may keep for a device [bytes]; inf where drives keep it."""
        return self._at(host_room(self.batch.cluster, self.batch.plan))

    @property
    def fits(self) -> bool:
        """Whether the peak stays below the capacity, and what the host keeps below its own."""
        return self.peak_memory <= self.capacity and self.host_memory <= self.host_capacity

    @property
    def p_oom(self) -> float:
        """Probability that the peak exceeds the capacity."""
        return self._at(self.batch.p_oom)

    @property
    def memory_stages(self) -> list[dict[str, Any]]:
        """Gigabytes by class for each kind of stage that the plan has."""
        memory = self.batch.memory
        found: list[dict[str, Any]] = []
        for position, stage in enumerate(STAGES):
            if not self._at(memory.present[position]):
                continue
            classes = {k: self._at(v[position]) / GB for k, v in memory.classes.items()}
            found.append({"stage": stage, **classes, "total": sum(classes.values())})
        return found

    def training_days(self) -> Interval | None:
        """Days to train on the token budget without interruption; None without a budget."""
        if self.request.tokens is None:
            return None
        steps = self.request.tokens / self._at(self.batch.tokens_per_step)
        return self.step_time.scaled(steps / DAY)

    def gpu_hours(self) -> Interval | None:
        """Device hours for the token budget; None without a budget."""
        days = self.training_days()
        return days.scaled(24.0 * self.gpus) if days else None

    def goodput(self) -> Goodput:
        """What failures and checkpoints make of a run."""
        batch = self.batch
        return goodput(
            batch.model, self.request.plan, self.request.reliability, batch.calibration.interval_q
        )

    def effective_days(self) -> Interval | None:
        """Days to train on the token budget, interruptions and checkpoints included; None without
        a budget. The interval joins that of the step and that of the fleet's reliability."""
        days, found = self.training_days(), self.goodput()
        if days is None:
            return None
        value = days.value / float(found.share)

        def reach(step: float, share: float) -> float:
            return math.hypot(math.log(step), math.log(share))

        more = reach(days.high / days.value, float(found.share / found.low))
        less = reach(days.value / days.low, float(found.high / found.share))
        return Interval(value, value * math.exp(-less), value * math.exp(more))

    def run(self) -> dict[str, Any] | None:
        """The run for the token budget as JSON writes it; None without a budget."""
        days, hours, calendar = self.training_days(), self.gpu_hours(), self.effective_days()
        if days is None or hours is None or calendar is None:
            return None
        found, price = self.goodput(), self.request.price
        billed = calendar.scaled(24.0 * self.gpus)
        return {
            "tokens": self.request.tokens,
            "days": days.to_dict(),
            "gpu_hours": hours.to_dict(),
            "goodput": {
                "value": float(found.share),
                "low": float(found.low),
                "high": float(found.high),
            },
            "effective_days": calendar.to_dict(),
            "effective_gpu_hours": billed.to_dict(),
            "mtbf_hours": float(found.mtbf) / 3600.0,
            "interruptions": calendar.value * DAY / float(found.mtbf),
            "checkpoint": {
                "size_gb": float(found.checkpoint) / GB,
                "write_s": float(found.write),
                "interval_s": float(found.interval),
            },
            "cost": billed.scaled(price).to_dict() if price is not None else None,
            **({} if self.request.fleet is None else {"fleet": self._fleet(self.request.fleet)}),
        }

    def _fleet(self, fleet: Reserve) -> dict[str, Any]:
        """What spares, preemption and shrinking make of the run, as JSON writes it."""
        request, batch = self.request, self.batch
        if self.index is not None:
            batch = predict(request.model, request.cluster, request.plan, batch.calibration)
        return served(batch, request.reliability, fleet).to_dict()

    @property
    def operators(self) -> list[OperatorReport]:
        """Operators of the slowest stage, longest first; none of several systems."""
        if self.dealt is not None:
            return []
        batch, timing = self.batch, self.batch.timing
        place = int(batch.unique if self.index is None else batch.unique[self.index])
        found = []
        for position, operator in enumerate(batch.operators):
            count = self._at(batch.executions[position])
            one = timing.time[position]
            bound = timing.bound[position]
            if count <= 0:
                continue
            found.append(
                OperatorReport(
                    operator.name,
                    operator.phase,
                    operator.op,
                    count,
                    count * float(one if not one.ndim else one[place]),
                    BOUNDS[int(bound if not bound.ndim else bound[place])],
                    timing.known(position, place),
                )
            )
        return sorted(found, key=lambda report: -report.time_s)

    def timeline(self) -> list[Event]:
        """The pipeline of one step event by event: device, direction, micro-batch, chunk, start and
        end [s], before the framework's factor."""
        batch, request = self.batch, self.request
        if self.dealt is not None:
            return self.dealt.timeline(request.plan)
        if self.index is not None:  # one of many; what is played is one
            batch = predict(request.model, request.cluster, request.plan, batch.calibration)
        return batch.timeline()

    @property
    def variation(self) -> dict[str, Any] | None:
        """What a step and a run will take on machines that vary, as JSON writes it; None where
        nothing was asked (`variation=none`)."""
        if self.varied is None:
            return None
        tokens, steps = self.request.tokens, float(STEPS)
        if tokens is not None:
            steps = max(tokens / self._at(self.batch.tokens_per_step), 1.0)
        return told(self.varied.whole, self.varied.less, steps, self.index)

    @property
    def faults(self) -> dict[str, Any] | None:
        """What slow and failed parts cost, as JSON writes it; None where none was named."""
        request = self.request
        if not request.faults:
            return None
        batch = self.batch
        case = Case.of(request.model, request.cluster, request.plan, batch.calibration)
        return losses(case, request.faults)

    def monte_carlo(self, draws: int) -> dict[str, float]:
        """The variation checked by so many drawn steps.

        Raises InputError where nothing was asked of variation, and for too large a plan.
        """
        request = self.request
        if self.varied is None:
            raise InputError("--monte-carlo checks --variation; give both")
        batch = predict(request.model, request.cluster, request.plan, self.batch.calibration)
        return checked_by_lots(vary(batch, request.variation), draws)

    def explain(self) -> Explanation:
        """Why the step takes as long as it does: terms, longest operators, what would help most,
        and what is known about each share of the time.

        Raises InputError where stages or replicas are on several systems.
        """
        if self.dealt is not None:
            raise InputError("--explain is of one kind of accelerator")
        return explain(self.request, self.batch.calibration)

    def inputs(self) -> dict[str, Any]:
        """Model, cluster and the complete plan."""
        plan, cluster = self.request.plan, self.batch.cluster
        numbers = {name: self._at(getattr(plan, name)) for name in NUMERIC_FIELDS}
        return {
            "model": self.batch.model.name,
            "system": cluster.name,
            "accelerator": cluster.accelerator.name,
            "accelerators_per_node": cluster.accelerators_per_node,
            "gpus": self.gpus,
            **{k: v for k, v in numbers.items() if not np.isnan(v)},
            **{name: getattr(plan, name) for name in CATEGORY_FIELDS},
            "tokens": self.request.tokens,
        }

    def to_dict(self) -> dict[str, Any]:
        """The whole result as `--json` writes it; every key carries its unit."""
        return {
            **of_request("training", self.inputs(), self.request),
            "step_time_s": self.step_time.to_dict(),
            "sigma": self._at(self.batch.sigma),
            "tokens_per_s": self.tokens_per_s,
            "tokens_per_s_per_gpu": self.tokens_per_s / self.gpus,
            "mfu": self.mfu(),
            "hfu": self.mfu(hardware=True),
            "breakdown_s": self.breakdown,
            "hidden_communication_s": self.hidden,
            "layer_time_s": self.layer_time,
            "memory": {
                "capacity_gb": self.capacity / GB,
                "peak_gb": self.peak_memory / GB,
                "fits": self.fits,
                "p_oom": self.p_oom,
                "host_gb": self.host_memory / GB,
                "host_capacity_gb": self.host_capacity / GB if self.host_memory > 0 else None,
                "stages": self.memory_stages,
            },
            "training": self.run(),
            "power": self._power_dict(),
            **({} if self.varied is None else {"variation": self.variation}),
            **({} if self.dealt is None else {"dealt": self.dealt.to_dict()}),
            **({"degraded": self.faults} if self.request.faults else {}),
            "operators": [
                {
                    "name": report.name,
                    "phase": report.phase,
                    "op": report.op,
                    "count": report.count,
                    "time_s": report.time_s,
                    "bound": report.bound,
                    "pedigree": report.pedigree,
                }
                for report in self.operators
            ],
            "calibration": of_calibration(self.batch.calibration),
        }

    def to_frame(self) -> pd.DataFrame:
        """One row: inputs, step time with interval, throughput, utilisation, memory, breakdown."""
        import pandas as pd

        content = self.to_dict()
        row = {
            **content["inputs"],
            "step_time_s": self.step_time.value,
            "step_time_low_s": self.step_time.low,
            "step_time_high_s": self.step_time.high,
            "tokens_per_s": self.tokens_per_s,
            **{f"mfu_{name}": value for name, value in content["mfu"].items()},
            "peak_memory_gb": self.peak_memory / GB,
            "fits": self.fits,
            **{f"{term}_s": value for term, value in self.breakdown.items()},
        }
        return pd.DataFrame([row])
