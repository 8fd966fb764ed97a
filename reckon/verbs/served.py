"""A prediction of serving as a user sees it: one plan, plain numbers, JSON and data frames."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from predictor.plans import SERVING_CATEGORIES, SERVING_NUMBERS
from predictor.records import dataclass
from predictor.serving import (
    FleetServed,
    InferencePrediction,
    Line,
    Mixture,
    Served,
    ServingRequest,
    decoding_taxes,
    sending_time,
)
from predictor.timing import Taxes
from predictor.units import GB
from reckon.verbs.figures import Interval, of_calibration, of_request, picked, plain
from reckon.verbs.powering import Drawn, PowerResult

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True)
class Instead:
    """Requests that were served one by one, of those that count, in place of closed forms, and in
    what the load is outside the bounds of these."""

    requests: int
    because: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class ServingResult:
    """The prediction for one request; `index` is its place in the batch it was computed in.

    served      requests one by one, where that was asked for
    most        requests per second beyond which the queue grows without end, where a rate was given
    saturated   whether the rate is beyond that
    fleet       what became of the fleet that served them, where there is one
    mixture     predictions of all releases that the engine may be, where that was asked for
    powered     what serving draws, where that is known
    instead     why requests one by one say how late a rate is served; None: closed forms do
    """

    request: ServingRequest
    batch: InferencePrediction
    index: int | None = None
    served: Served | None = None
    most: float | None = None
    saturated: bool = False
    fleet: FleetServed | None = None
    mixture: Mixture | None = None
    powered: Drawn[Any] | None = None
    instead: Instead | None = None

    def __repr__(self) -> str:
        where = f"{self.gpus} accelerators of {self.batch.cluster.name}"
        told = f"first token {self.ttft} s, others {self.tpot} s"
        fits = "fits" if self.fits else "does not fit"
        return f"<ServingResult of {self.batch.model.name} on {where}: {told}, {fits}>"

    def _at(self, values: Any) -> float:
        return picked(values, self.index)

    def _interval(self, metric: str, value: Any) -> Interval:
        low, high = self.batch.interval(metric, value)
        return Interval(self._at(value), self._at(low), self._at(high))

    def taxes(self) -> Taxes:
        """Launching, bulk-synchronous waiting and data locality of a pass that decodes."""
        request = self.request
        return decoding_taxes(request.model, request.cluster, request.plan, self.batch.calibration)

    @property
    def power(self) -> PowerResult | None:
        """What a second of serving draws; None where the accelerator's power is unknown."""
        under = None if self.powered is None else self.powered.found
        if under is None:
            return None
        tokens = self._at(self.batch.output_tokens_per_s)
        return PowerResult(
            under=under,
            cluster=self.batch.cluster,
            conditions=self.request.conditions,
            gpus=self.gpus,
            seconds=1.0,
            counts={"token": tokens, "request": self.requests_per_s},
            index=self.index,
        )

    @property
    def run_energy(self) -> dict[str, float] | None:
        """Energy of a day, its price and CO2e, where a price or an intensity was stated."""
        tariff, power = self.request.conditions.tariff, self.power
        asked = tariff.price is not None or tariff.carbon is not None
        return power.costs(86400.0) if power is not None and asked else None

    @property
    def ttft(self) -> Interval:
        """Seconds from a request to its first token."""
        return self._interval("ttft", self.batch.latencies.ttft)

    @property
    def tpot(self) -> Interval:
        """Mean seconds per output token after the first."""
        return self._interval("tpot", self.batch.latencies.tpot)

    @property
    def e2e(self) -> Interval:
        """Seconds from a request to its last token."""
        return self._interval("e2e", self.batch.latencies.e2e)

    @property
    def output_tokens_per_s(self) -> Interval:
        """Generated tokens per second of the whole engine."""
        return self._interval("throughput", self.batch.output_tokens_per_s)

    @property
    def requests_per_s(self) -> float:
        """Requests per second of the whole engine."""
        return self._at(self.batch.requests_per_s)

    @property
    def gpus(self) -> int:
        """Accelerators in all."""
        return int(self._at(self.batch.plan.gpus))

    @property
    def running(self) -> float:
        """Sequences that are decoded at a time, of all replicas."""
        return self._at(self.batch.work.running * self.batch.plan.dp)

    @property
    def breakdown(self) -> dict[str, float]:
        """Seconds of the end-to-end latency by term; they add up to it."""
        return {term: self._at(value) for term, value in self.batch.breakdown.items()}

    @property
    def sending(self) -> float | None:
        """Seconds for which a prompt's cache is on its way to the engine that decodes, most of them
        while the prompt is read; None where the engine reads it."""
        batch = self.batch
        if not self._reads_apart:
            return None
        return self._at(sending_time(batch.model, batch.plan, batch.cluster))

    @property
    def memory(self) -> dict[str, Any]:
        """Gigabytes on the fullest device by class, and how many sequences of full length fit."""
        memory = self.batch.memory
        return {
            "capacity_gb": self._at(memory.capacity) / GB,
            "total_gb": self._at(memory.total) / GB,
            "fits": self.fits,
            "shortfall_gb": self._at(memory.shortfall) / GB,
            "classes": {name: self._at(value) / GB for name, value in memory.classes.items()},
            "cache_per_sequence_gb": self._at(memory.per_sequence) / GB,
            "largest_batch": int(self._at(memory.sequences)),
            **self._reader(),
        }

    def _reader(self) -> dict[str, Any]:
        """Gigabytes on a device that reads prompts and nothing else, where there are such."""
        reader = self.batch.reader
        if reader is None or not self._reads_apart:
            return {}
        return {
            "prefill_worker_gb": self._at(reader.total) / GB,
            "prefill_worker_shortfall_gb": self._at(reader.shortfall) / GB,
        }

    @property
    def peak_memory(self) -> float:
        """Bytes of the fullest device."""
        return self._at(self.batch.memory.total)

    @property
    def fits(self) -> bool:
        """Whether weights, cache, activations and runtime fit what the engine may take."""
        reader = self.batch.reader
        return self._at(self.batch.memory.fits) > 0 and (
            reader is None or not self._reads_apart or self._at(reader.fits) > 0
        )

    @property
    def _reads_apart(self) -> bool:
        return self._at(self.batch.plan.prefill_workers) > 0

    @property
    def operators(self) -> list[tuple[str, Line]]:
        """Operators of the passes over the prompts ('prefill') and of one mean pass that decodes
        ('decode'), longest first; empty for one plan of many."""
        found = [("prefill", line) for line in self.batch.prompts.lines]
        found += [("decode", line) for line in self.batch.decoding.lines]
        return sorted(found, key=lambda pair: -float(pair[1].time))

    def inputs(self) -> dict[str, Any]:
        """Model, cluster and the complete plan."""
        plan, cluster = self.request.plan, self.batch.cluster
        numbers = {name: self._at(getattr(plan, name)) for name in SERVING_NUMBERS}
        return {
            "model": self.batch.model.name,
            "system": cluster.name,
            "accelerator": cluster.accelerator.name,
            **({} if cluster.prefill is None else {"prefill_system": cluster.prefill.name}),
            "gpus": self.gpus,
            **{name: value if np.isfinite(value) else None for name, value in numbers.items()},
            **{name: getattr(plan, name) for name in SERVING_CATEGORIES},
            "rate": self.request.rate,
        }

    def _in_doubt(self) -> dict[str, Any] | None:
        """The mixture of all releases that the engine may be."""
        found = self.mixture
        if found is None:
            return None
        return {
            "releases": list(found.releases),
            **{
                f"{metric}_s": {"value": value, "low": low, "high": high}
                for metric, (value, low, high) in found.values.items()
            },
            "state": [
                {"field": one.field, "values": [plain(v) for v in one.values], "moves": one.moves}
                for one in found.doubts
            ],
        }

    def _promise(self) -> dict[str, float]:
        """Share of the requests that meet what was promised, if anything was, and their rate."""
        around, served = self.request.around, self.served
        if served is None or not (np.isfinite(around.ttft) or np.isfinite(around.tpot)):
            return {}
        share = served.attained(around.ttft, around.tpot)
        ranks = round(float(self.request.plan.dp))  # one of them was followed
        return {"attained": share, "goodput_requests_per_s": share * served.requests_per_s * ranks}

    def _fleet(self) -> dict[str, float]:
        """Replicas, their time and what was cached."""
        if self.fleet is None:
            return {}
        return {
            "cached_share": self.fleet.cached,
            "most_replicas": self.fleet.replicas,
            "replica_hours": self.fleet.seconds / 3600.0,
        }

    def _rate(self) -> dict[str, Any] | None:
        """The most that can be served, and who says how late a rate is."""
        if self.most is None:
            return None
        found: dict[str, Any] = {"most_requests_per_s": self.most, "saturated": self.saturated}
        if self.instead is None:
            return {**found, "answered_by": "closed forms"}
        return {
            **found,
            "answered_by": "requests one by one",
            "requests": self.instead.requests,
            "because": list(self.instead.because),
        }

    def to_dict(self) -> dict[str, Any]:
        """The whole result as `--json` writes it; every key carries its unit."""
        latencies = self.batch.latencies
        return {
            **of_request("inference", self.inputs(), self.request),
            "ttft_s": self.ttft.to_dict(),
            "tpot_s": self.tpot.to_dict(),
            "e2e_s": self.e2e.to_dict(),
            "output_tokens_per_s": self.output_tokens_per_s.to_dict(),
            "output_tokens_per_s_per_gpu": self.output_tokens_per_s.value / self.gpus,
            "total_tokens_per_s": self._at(self.batch.total_tokens_per_s),
            "requests_per_s": self.requests_per_s,
            "rate": self._rate(),
            "simulated": None
            if self.served is None
            else {
                "requests": len(self.served.arrival),
                "requests_per_s": self.served.requests_per_s,
                "preempted": self.served.preempted,
                **{f"{name}_s": own for name, own in self.served.summary().items()},
                **self._promise(),
                **self._fleet(),
            },
            "in_doubt": self._in_doubt(),
            "queue_s": self._at(latencies.queue),
            "decode_pass_s": self._at(latencies.step),
            "running": self.running,
            "breakdown_s": self.breakdown,
            **({} if self.sending is None else {"cache_sending_s": self.sending}),
            "memory": self.memory,
            "power": None if self.power is None else self.power.to_dict(),
            "operators": [
                {
                    "phase": phase,
                    "name": line.name,
                    "op": line.op,
                    "count": line.count,
                    "time_s": float(line.time),
                    "bound": line.bound,
                    "compute_over_memory": line.intensity,
                    "pedigree": line.pedigree,
                }
                for phase, line in self.operators
            ],
            "calibration": of_calibration(self.batch.calibration),
        }

    def to_frame(self) -> pd.DataFrame:
        """One row: inputs, latencies with intervals, throughput, memory, breakdown."""
        import pandas as pd

        row = dict(self.inputs())
        for name in ("ttft", "tpot", "e2e"):
            found: Interval = getattr(self, name)
            row |= {
                f"{name}_s": found.value,
                f"{name}_low_s": found.low,
                f"{name}_high_s": found.high,
            }
        row["output_tokens_per_s"] = self.output_tokens_per_s.value
        row["requests_per_s"] = self.requests_per_s
        row["memory_gb"] = self.memory["total_gb"]
        row["fits"] = self.fits
        return pd.DataFrame([{**row, **{f"{k}_s": v for k, v in self.breakdown.items()}}])
