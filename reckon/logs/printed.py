"""What programs print when they are done, in the text of a terminal: reports of clients that load
an engine, and the summary of HuggingFace's trainer, as a mapping and as lines of its own.

Sources of the forms (read November 2026): vllm-project/vllm `vllm/benchmarks/serve.py` and
sgl-project/sglang `bench_serving.py` (what they print, and the `Namespace(...)` of their arguments
before it), huggingface/transformers `trainer.py`, `trainer_pt_utils.py` (`metrics_format`,
`log_metrics`: '***** train metrics *****') and tqdm's progress bars, all as public logs have them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from reckon.logs.bars import BAR, gone_of
from reckon.logs.benches import Bench, number, read_report
from reckon.logs.trackers import ROUNDED, ended

BEGINS, FIRST = "Serving Benchmark Result", "Successful requests:"
"""What stands above a report, and its first line where that was not copied."""

LABELS: dict[str, str] = {
    "backend": "backend",
    "successful requests": "completed",
    "maximum request concurrency": "max_concurrency",
    "max request concurrency": "max_concurrency",
    "max reqeuest concurrency": "max_concurrency",
    "request rate configured (rps)": "request_rate",
    "traffic request rate": "request_rate",
    "total input tokens": "total_input_tokens",
    "total generated tokens": "total_output_tokens",
    "total generated tokens (retokenized)": "total_output_tokens_retokenized",
    "request throughput (req/s)": "request_throughput",
    "output token throughput (tok/s)": "output_throughput",
    **{
        f"{how} {name} (ms)": f"{how}_{key}_ms"
        for how in ("mean", "median")
        for name, key in (("ttft", "ttft"), ("tpot", "tpot"), ("itl", "itl"), ("e2el", "e2el"),
                          ("e2e latency", "e2e_latency"))
    },
}  # fmt: skip
"""Labels of a report's lines, small, and the keys of the same in result files (one label is spelled
so in SGLang)."""

ASKED = ("model", "backend", "max_concurrency", "request_rate", "random_input_len",
         "random_output_len")  # fmt: skip
ARGUMENT = re.compile(r"(\w+)=(?:'([^']*)'|([^,()]*))")
"""Arguments of a client that say what its report does not."""

SUMMARY = re.compile(r"'(train_\w+)': '?([-+.\deE]+)'?")
"""A summary's figures."""

METRIC = re.compile(r"(?:^|\s)(train_\w+)\s+=\s+(\S.*?)\s*$")
"""A line of the block of metrics: '  train_runtime            = 0:08:59.74'."""

APART = 0.5
"""Log of the bar's pace over the summary's from which on they are of different steps."""


@dataclass(slots=True)
class Printed:
    """Reads the lines of a terminal as they come."""

    _reports: list[dict[str, Any]] = field(default_factory=list)
    _open: dict[str, Any] | None = None
    _asked: dict[str, Any] = field(default_factory=dict)
    _summary: dict[str, float] = field(default_factory=dict)
    _bars: dict[int, int] = field(default_factory=dict)

    def feed(self, line: str) -> None:
        """One more line."""
        if BEGINS in line:
            self._begin()
        elif "Namespace(" in line:
            self._asked = _arguments(line)
        elif "'train_runtime'" in line:
            self._summary = {name: float(value) for name, value in SUMMARY.findall(line)
                             if math.isfinite(number(value) or math.nan)}  # fmt: skip
        elif "%" in line and (bar := BAR.match(line)):
            self._bars[int(bar[2])] = max(int(bar[1]), self._bars.get(int(bar[2]), 0))
        elif "train_" in line and (metric := METRIC.search(line)):
            self._metric(metric[1], metric[2])
        elif ":" in line and (FIRST in line or self._open is not None):
            if FIRST in line and (self._open is None or "completed" in self._open):
                self._begin()
            self._take(line)

    def _metric(self, name: str, text: str) -> None:
        """A line of the block of metrics; the mapping that was printed before it is more exact."""
        figure = gone_of(text) if name == "train_runtime" else number(text.replace(",", ""))
        if figure is not None and math.isfinite(figure):
            self._summary.setdefault(name, figure)

    def _begin(self) -> None:
        self._open = dict(self._asked)
        self._reports.append(self._open)

    def _take(self, line: str) -> None:
        """A line of a report: a label and its value; others say nothing."""
        label, _, value = line.rpartition(":")
        key = LABELS.get(label.strip().strip("|").strip().lower())
        if key is None or self._open is None:
            return
        text = value.strip().strip("|").strip()
        figure = number(text.replace(",", ""))
        if key == "backend":
            self._open[key] = text
        elif figure is not None:
            self._open[key] = figure

    def reports(self) -> list[Bench]:
        """Reports that were printed."""
        return [found for one in self._reports if (found := read_report(one)) is not None]

    def trainer(self, pace: float = math.nan) -> Mapping[str, Any] | None:
        """The trainer's summary as its state keeps it; None where none was printed, or where it
        goes another way than its bar did: of a run that was resumed it tells all steps beside the
        time of the last.

        pace   seconds of a step by the bar; NaN where there is none
        """
        runtime = self._summary.get("train_runtime", 0.0)
        rate = self._summary.get("train_steps_per_second", 0.0)
        near = [
            (done, total) for total, done in self._bars.items()
            if runtime > 0 and abs(done / runtime - rate) <= ROUNDED
        ]  # fmt: skip
        steps, planned = max(near, default=(0, 0))
        count = steps or round(runtime * rate)
        if runtime > 0 and count and abs(math.log(pace * count / runtime)) > APART:
            return None
        return ended(self._summary, steps, planned)


def _arguments(line: str) -> dict[str, Any]:
    """Arguments of `ASKED` in a `Namespace(...)`."""
    found = {name: text or plain.strip() for name, text, plain in ARGUMENT.findall(line)}
    return {name: found[name] for name in ASKED if found.get(name) not in (None, "", "None")}
