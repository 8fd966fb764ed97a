"""What the terminal shows: short tables with units, a memory bar, a time breakdown."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from math import isnan
from typing import Any

from predictor.catalog import DESCRIBED, NAMED, STORED, Assumption
from predictor.models import Model
from predictor.plans import SHARDINGS
from predictor.training import Share
from predictor.units import GB, GIB
from reckon.verbs.figures import Interval
from reckon.verbs.results import Prediction
from reckon.verbs.training import Sweep

BAR = 40
"""Letters of the longest bar."""

WIDE = 100
"""Letters of a line of text, at most."""

TERM_NAMES = {
    "forward": "forward",
    "backward": "backward",
    "recompute": "recomputation",
    "tp_communication": "tensor-parallel comm.",
    "cp_communication": "context-parallel comm.",
    "ep_communication": "expert-parallel comm.",
    "pp_communication": "pipeline transfers",
    "offload": "copies to the host",
    "host": "host (launch-bound)",
    "bubble": "pipeline bubble",
    "dp_communication": "data-parallel comm.",
    "optimizer": "optimizer",
    "framework": "framework factor",
    "data_loading": "waiting for data",
}


def strong(text: str, color: str = "1") -> str:
    """Bold (or another ANSI style) on a terminal, plain elsewhere."""
    return f"\x1b[{color}m{text}\x1b[0m" if sys.stdout.isatty() else text


def seconds(value: float) -> str:
    """A time with three significant digits and a fitting unit."""
    if value >= 600:
        hours = float(f"{value / 3600:.3g}")
        told = f"{hours:,.0f}" if 1000 <= hours < 1e12 else f"{hours:.3g}"
        return f"{told} h" if value >= 7200 else f"{value / 60:.3g} min"
    for unit, scale in (("s", 1.0), ("ms", 1e-3)):
        if abs(value) >= scale:
            return f"{value / scale:.3g} {unit}" if value < 1000 else f"{value:.0f} s"
    return f"{value / 1e-6:.3g} us"


def four(value: float) -> str:
    """Four significant digits: 9.000, 12.46, 4,511, 54,260."""
    if 1000 <= abs(value) < 1e12:
        return f"{float(f'{value:.4g}'):,.0f}"
    return f"{value:#.4g}".rstrip(".")


def numbered(count: int | float, thing: str) -> str:
    """So many things: '1 row', '2 rows'."""
    return f"{count:g} {thing}{'' if count == 1 else 's'}"


def wrapped(text: str, indent: int) -> list[str]:
    """Lines of at most `WIDE` letters, each behind so many blanks."""
    return textwrap.wrap(text, WIDE, initial_indent=" " * indent, subsequent_indent=" " * indent,
                         break_long_words=False, break_on_hyphens=False)  # fmt: skip


def with_time(interval: Interval) -> str:
    """A time with its interval in brackets, in milliseconds below ten seconds."""
    short = interval.value < 10.0
    return with_interval(interval.scaled(1e3 if short else 1.0), "ms" if short else "s")


def with_interval(interval: Interval, unit: str) -> str:
    """A value with its interval in brackets."""
    return f"{four(interval.value)} {unit}  ({four(interval.low)} to {four(interval.high)})"


def bar(share: float, width: int = BAR) -> str:
    """A bar of blocks; over-full bars end with '!'."""
    filled = round(min(share, 1.0) * width)
    return "█" * filled + "·" * (width - filled) + ("!" if share > 1 else "")


def grid(columns: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """A plain table: the first `left` columns flush left, the others right."""
    table = [list(columns), *([str(cell) for cell in row] for row in rows)]
    widths = [max(len(row[i]) for row in table) for i in range(len(columns))]
    lines = [
        "  ".join(
            cell.ljust(width) if i < left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in table
    ]
    if any(columns):
        lines[0] = strong(lines[0])
    else:
        del lines[0]
    return "\n".join(lines)


def _show_shortfalls(result: Prediction) -> None:
    """What a plan needs beyond the host's and the device's memory."""
    if result.host_memory > result.host_capacity:
        print(
            f"{strong('does not fit', '1;31')} the host: it would keep "
            f"{result.host_memory / GIB:.1f} GiB for each accelerator and has "
            f"{result.host_capacity / GIB:.1f} GiB, "
            f"{(result.host_memory - result.host_capacity) / GIB:.1f} GiB too little; offload "
            "less, or to drives (offload_to=nvme)"
        )
    if result.peak_memory > result.capacity:
        over = (result.peak_memory - result.capacity) / GIB
        print(
            f"{strong('does not fit', '1;31')}: needs {result.peak_memory / GIB:.1f} GiB of "
            f"{result.capacity / GIB:.1f} GiB, {over:.1f} GiB too much; "
            f"{_remedies(result.inputs())} would help"
        )


def _remedies(inputs: Mapping[str, Any]) -> str:
    """What of a plan would make it smaller and is not done yet."""
    ranks = inputs["tp"] * inputs["pp"] * inputs["cp"]
    found = [("more tp or pp", inputs["gpus"] > 1 and inputs["dp"] > 1)]
    found += [("more GPUs", inputs["gpus"] <= ranks)]
    found += [("a smaller micro-batch", inputs["micro_batch"] > 1)]
    whole = inputs["recompute"] == "full" and inputs["recompute_share"] >= 1
    found += [("more recomputation", not whole)]
    sharded = SHARDINGS[inputs["sharding"]].weights and inputs["sharding"] != "hsdp"
    found += [("more sharding", inputs["dp"] > 1 and not sharded)]
    found += [("training adapters alone (trained=lora)", inputs["trained"] == "all")]
    *first, last = [name for name, helps in found if helps] or ["a smaller model"]
    return f"{', '.join(first)} or {last}" if first else last


def _show_memory(result: Prediction) -> None:
    """Memory of the fullest stage against what there is, and what fills it."""
    share = result.peak_memory / result.capacity
    if result.host_memory > 0:
        print(f"host        keeps {result.host_memory / GIB:.1f} GiB for each accelerator")
    print(
        f"memory      {bar(share, 20)}  {result.peak_memory / GIB:.1f} of "
        f"{result.capacity / GIB:.1f} GiB, out of memory with probability {result.p_oom:.0%}"
    )
    fullest = max(result.memory_stages, key=lambda stage: float(stage["total"]))
    parts = sorted(
        ((float(v) * GB / GIB, k) for k, v in fullest.items() if k not in ("stage", "total")),
        reverse=True,
    )
    held = ", ".join(f"{name} {size:.1f}" for size, name in parts if size >= 0.05)
    print("\n".join(wrapped(f"{fullest['stage']} stage, GiB: {held}", 12)) + "\n")


BEYOND = (
    "MFU beyond 100%: that convention counts keys behind masks and outside windows, which no "
    "kernel computes"
)
"""What is said of a utilisation that no device reaches."""


def _term(name: str, result: Prediction) -> str:
    """A term's name; one device exchanges nothing with replicas, and casts what others gather."""
    alone = name == "dp_communication" and result.gpus == 1
    return "casts of weights" if alone else TERM_NAMES[name]


def _counted(mfu: Mapping[str, float]) -> str:
    """Utilisation of the causal half, and of what attends alone where that is less."""
    causal, seen = mfu["megatron_causal"], mfu["attended"]
    windows = f", {seen:.1%} in windows" if seen < 0.999 * causal else ""
    return f"{causal:.1%} causal{windows}"


def show_prediction(result: Prediction, top: int = 6) -> None:
    """Print one prediction, with its `top` longest operators."""
    inputs = result.inputs()
    plan = " ".join(
        f"{name} {inputs[name]:g}"
        for name in ("tp", "pp", "vpp", "cp", "ep", "dp")
        if inputs[name] > 1
    )
    print(
        f"{strong(inputs['model'])} on {_machines(result)}, {plan or 'one rank'}, "
        f"{inputs['precision']}, recompute {inputs['recompute']}, {inputs['sharding']}"
    )
    _show_shortfalls(result)
    level = result.batch.calibration.interval_level
    mfu = result.mfu()
    per_gpu = result.tokens_per_s / result.gpus
    rows = [
        ["step time", with_interval(result.step_time, "s"), f"{level:.0%} interval"],
        ["throughput", f"{result.tokens_per_s:,.0f} tokens/s", f"{per_gpu:,.0f} per GPU"],
        ["MFU", f"{mfu['megatron']:.1%} full attention", _counted(mfu)],
    ]
    rows += [*_variation_rows(result), *_run_rows(result)]
    print(grid(["", "", ""], rows, left=3))
    if mfu["megatron"] > 1.0:
        print(BEYOND)
    _show_memory(result)
    total = result.step_time.value
    terms = [
        [_term(name, result), seconds(value), f"{value / total:.1%}", bar(value / total, 20)]
        for name, value in result.breakdown.items()
        if abs(value) > 1e-9 * total
    ]
    print(grid(["time", "", "share", ""], terms), end="\n\n")
    if result.dealt is not None:
        print(_dealt(result), end="\n\n")
    longest = [
        [report.name, report.phase, seconds(report.time_s), report.bound, report.pedigree]
        for report in result.operators[:top]
    ]
    if longest:
        print(grid(["longest operators", "phase", "per step", "bound", "known"], longest, 2))
    show_assumed(result.request.assumed)
    show_reach(result.request.model, float(result.request.plan.seq_len))
    show_idle(result.request.idle)


def show_reach(model: Model, tokens: float) -> None:
    """That a sequence is longer than the model's own positions reach."""
    if 0 < model.max_context < tokens:
        told = f"{tokens:,.0f} tokens: {model.name} is known for {model.max_context:,}"
        print(strong(f"{told}; its positions have to be stretched", "2"))


def show_idle(idle: Sequence[str]) -> None:
    """What was stated and changes nothing."""
    if idle:
        print(strong(f"no effect here: {', '.join(idle)}", "2"))


TOLD = (STORED, NAMED, DESCRIBED, "the system's name", "accelerators that")
"""How rules begin that are told whole: what files and names say."""


def show_assumed(assumed: Sequence[Assumption]) -> None:
    """What was filled in; with its rule where that is a file of the model's own, or a name."""
    if not assumed:
        return
    filled = ", ".join(f"{a.field}={short(a.value)}" for a in assumed)
    wide = min(shutil.get_terminal_size((WIDE, 24)).columns, WIDE)
    lines = textwrap.wrap(f"assumed: {filled}", wide, break_long_words=False,
                          break_on_hyphens=False)  # fmt: skip
    print("\n" + "\n".join(strong(line, "2") for line in lines))
    for one in assumed:
        if one.rule.startswith(TOLD):
            print(strong(f"{one.field} {one.value}: {one.rule}", "2"))


def _machines(result: Prediction) -> str:
    """Accelerators and their systems."""
    if result.dealt is not None:
        return f"{result.gpus} accelerators of {result.batch.cluster.name}"
    inputs = result.inputs()
    return f"{result.gpus} x {inputs['accelerator']} ({inputs['system']})"


def _dealt(result: Prediction) -> str:
    """What the stages or replicas of several systems are dealt, and what binds."""
    dealt, step = result.dealt, result.step_time.value
    assert dealt is not None
    staged = dealt.by == "stage"

    def dealing(one: Share) -> int:
        return one.layers if staged else one.micro_batches

    rows = [
        [
            f"{number}" if staged else f"{one.many} x",
            f"{one.accelerator} ({one.system})",
            f"{one.tower} + {one.layers}" if dealt.towers else f"{dealing(one)}",
            seconds(one.time),
            f"{one.time / step:.0%}",
            f"{one.memory / GIB:.1f} of {one.capacity / GIB:.0f}",
            *([] if isnan(one.again) else [f"{one.again:.0%}"]),
        ]
        for number, one in enumerate(dealt.shares)
    ]
    what = "layers" if staged else "micro-batches"
    what = "tower + layers" if dealt.towers else what
    names = [dealt.by, "accelerator", what, "works", "of the step", "GiB", "again"]
    table = grid(names[: len(rows[0])], rows, 2)
    one = dealt.shares[dealt.slowest]
    name = f"stage {dealt.slowest}" if staged else "those"
    even = "dealt evenly" if isnan(one.again) else "computed again alike and dealt evenly"
    gain = f"; {even} {seconds(dealt.even)} ({dealt.even / step - 1.0:+.1%})"
    terms = result.breakdown
    if result.request.plan.split == "heat":
        gain += f", as if no place were hot {dealt.cool / step - 1.0:+.1%}"
    if terms["pp_communication"] > 0.5 * step:
        return f"{table}\nbinds: links between stages{gain}"
    if terms["dp_communication"] > 0.5 * step:
        return f"{table}\nbinds: links between replicas{gain}"
    if dealt.towers:
        gain += f"; the second tower is {dealt.towers:.0%} of the work"
    return f"{table}\nbinds: {name} on {one.accelerator}, {TERM_NAMES[one.binds]}{gain}"


def _run_rows(result: Prediction) -> list[list[str]]:
    """The run for a token budget: by itself, and with interruptions and checkpoints."""
    days, calendar, run = result.training_days(), result.effective_days(), result.run()
    if days is None or calendar is None or run is None:
        return []
    saved = run["checkpoint"]["interval_s"]
    hours = run["effective_gpu_hours"]["value"]
    rows = [
        ["training", with_interval(days, "days"), f"{run['gpu_hours']['value']:,.0f} GPU-hours"],
        ["calendar", with_interval(calendar, "days"), f"{hours:,.0f} GPU-hours"],
        [
            "goodput",
            f"{run['goodput']['value']:.1%}, interrupted every {seconds(run['mtbf_hours'] * 3600)}",
            f"checkpoint every {seconds(saved)}",
        ],
    ]
    fleet = run.get("fleet")
    if fleet:
        rows.append(
            [
                "fleet",
                f"{fleet['effective_share']['value']:.1%} of the whole job's rate, enough nodes "
                f"{fleet['enough_nodes']:.1%} of the time",
                f"99 %: {fleet['spares_for_99_percent']} spares",
            ]
        )
    if run["cost"]:
        cost, unit = Interval(**run["cost"]), ""
        if cost.value >= 1e6:
            cost, unit = cost.scaled(1e-6), "million"
        told = (
            with_interval(cost, unit).replace("  (", " (")
            if not unit
            else with_interval(cost, unit)
        )
        rows.append(["price", told, f"{result.request.price:.4g} per hour"])
    return rows


def _variation_rows(result: Prediction) -> list[list[str]]:
    """What a step and a run will take on machines that vary, where that was asked."""
    found = result.variation
    if found is None:
        return []
    step, run, waits = (found[name] for name in ("step_time_s", "run", "waiting_s"))
    parts = ", ".join(f"{name} {seconds(waits[name])}" for name in ("ranks", "stages", "replicas"))
    return [
        [
            "will take",
            f"P50 {four(step['p50'])}, P95 {four(step['p95'])}, P99 {four(step['p99'])} s",
            f"machines: {found['profile']}",
        ],
        [
            "on average",
            f"{four(run['mean_step_time_s'])} s, P95 of runs {four(run['p95_s'])} s",
            f"{run['steps']:,.0f} steps",
        ],
        ["waits for", parts, f"{seconds(waits['in_calibration'])} of it in every step above"],
    ]


def _longer(share: float) -> str:
    """By how much more a step takes, in per cent; beyond ten times as long, as so many times."""
    return f"{share:.1%}" if share < 9.0 else f"{1.0 + share:.3g} times"


def show_faults(found: dict[str, Any]) -> None:
    """Print what slow and failed parts cost."""
    rows = []
    for one in found["faults"]:
        alone = one["loss_by_dimension"].items()
        where = ", ".join(f"{k} {_longer(v)}" for k, v in alone if v > 5e-4)
        ends = [_longer(one[name]) for name in ("loss_packed", "loss_random", "loss_spread")]
        rows.append(
            [
                one["fault"],
                *(["the job stops", "", ""] if one["stops"] else ends),
                where or "hidden",
            ]
        )
    print()
    print(grid(["slow or failed", "packed", "at random", "spread", "of that, alone"], rows, 1))


def show_lots(lots: dict[str, float]) -> None:
    """Print closed forms of variation beside what lots say."""
    rows = [
        [name.replace("_", " "), f"{lots[name]:.4f}", f"{lots[f'{name}_drawn']:.4f}"]
        for name in ("waiting_share", "p95_over_p50", "p99_over_p50")
    ]
    print()
    print(grid(["variation", "closed form", f"{lots['draws']:.0f} draws"], rows))


def short(value: Any) -> str:
    """A number without needless digits, other values as they are."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def power_cells(predictions: Sequence[Any]) -> tuple[list[str], list[list[str]]]:
    """Columns of what predictions draw, and their cells; none where nothing is stated of power."""
    if not any(one.request.conditions.stated for one in predictions):
        return [], [[] for _ in predictions]
    cells = []
    for one in predictions:
        drawn = one.power
        told = drawn and (f"{drawn.mean:.0f}", four(drawn.energy / drawn.counts["token"]))
        cells.append(list(told or ("", "")))
    return ["W", "J/token"], cells


def show_sweep(found: Sweep[Prediction]) -> None:
    """Print a sweep, one row per combination."""
    names = found.varying
    rows = []
    more, drawn = power_cells(found.predictions)
    for result, stated, watts in zip(found.predictions, found.stated, drawn, strict=True):
        inputs = {**stated, **result.inputs()}
        rows.append(
            [
                *(short(inputs.get(name, "")) for name in names),
                four(result.step_time.value),
                f"{four(result.step_time.low)}..{four(result.step_time.high)}",
                f"{result.tokens_per_s / result.gpus:,.0f}",
                f"{result.mfu()['megatron']:.1%}",
                *watts,
                f"{result.peak_memory / GIB:.1f}" + (" " if result.fits else "!"),
            ]
        )
    columns = [*names, "step s", "interval", "tokens/s/GPU", "MFU", *more, "peak GiB"]
    print(grid(columns, rows, left=len(names)))
    if any(not result.fits for result in found.predictions):
        print("! does not fit")
    if any(result.mfu()["megatron"] > 1.0 for result in found.predictions):
        print(BEYOND)
    for combination, reason in found.refused:
        named = ", ".join(f"{k}={v}" for k, v in combination.items())
        print(f"{named}: {reason}")
