"""Regenerates the tables of `docs/accuracy/index.md`, and the example and five rows of accuracy of
the README, between their markers.

    python tools/scoreboard.py                    # everything; refits, an hour
    python tools/scoreboard.py training serving   # these parts of it, twenty minutes each
    python tools/scoreboard.py headline           # the README alone, from the tables as they stand

The parameters of a run, and the intervals, are refitted without each source before it is scored, so
that every row is outside the fit.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import reckon
from calibration.checks.ablation import tables as ablation_tables
from calibration.checks.asked import power_table_of, uneven_lines
from calibration.checks.baseline import constant_mfu_by_source
from calibration.checks.fleets import fleet_lines
from calibration.checks.kernels import FOLDS, heldout_section, summary
from calibration.checks.plans import plan_lines
from calibration.checks.serving_baseline import beaten, constant_by_source
from calibration.runs.fit import default_run, read_points
from predictor import catalog
from predictor.files import write_text

ROOT = Path(__file__).resolve().parent.parent
EXAMPLE = (
    "predict train --model llama3-70b --system dgx-h100 --gpus 1024 --tp 8 --pp 4 "
    "--global-batch 1024 --seq-len 8192 --tokens 15e12"
).split()


VARIED = 8
"""Rows of each source of which the ablation varies what is open."""

PAGE = ROOT / "docs" / "accuracy" / "index.md"
README = ROOT / "README.md"
POINTS = ROOT / "data" / "reference" / "training.csv"
SHARED = ROOT.parent / "shared"
SERVED = ("reference/inference.csv", "bulk/inference/serving_runs.csv.gz")

HEADLINE: tuple[tuple[str, str, str, int, int | None], ...] = (
    ("scoreboard", "**all**", "training steps, each source left out: rows", 2, 5),
    ("serving", "time per token", "serving, time per token, mean over sources left out", 4, 5),
    ("serving", "largest throughput", "serving, largest throughput, the same", 4, 5),
    ("kernels", "products bf16", "matrix products in bf16, unseen shapes", 2, None),
)
"""Rows of the README: table of the page, its row, what it is, columns of error and of coverage."""


def headline(page: str) -> str:
    """Rows of the page's tables, and the mean over sources of training."""
    lines = ["| what | mean absolute error | inside the 80 % interval |", "|---|---:|---:|"]
    for marker, name, what, error, coverage in HEADLINE:
        _, _, rest = page.partition(f"<!-- {marker} -->")
        rows = [
            [cell.strip() for cell in line.strip("|").split("|")]
            for line in rest.partition(f"<!-- /{marker} -->")[0].splitlines()
            if line.startswith("|")
        ]
        own = next(row for row in rows if name in (row[0], " ".join(row[:2])))
        inside = "" if coverage is None else own[coverage]
        lines.append(f"| {what} | {own[error]} | {inside} |")
    mean = re.search(r"Mean over the \d+ sources[^%]*? (\d+\.\d+%)", page)
    if mean is not None:
        what = "training steps, each source left out: mean over sources"
        lines.insert(3, f"| {what} | {mean[1]} | |")
    return "\n".join(lines)


def write_readme() -> None:
    """The README's example and rows."""
    text = put(README.read_text(encoding="utf-8"), "example", example())
    write_text(README, put(text, "headline", headline(PAGE.read_text(encoding="utf-8"))))


def example() -> str:
    """What the README's example prints, indented, without its assumptions."""
    done = subprocess.run(
        [sys.executable, "-m", "reckon", *EXAMPLE],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    told = done.stdout.partition("\nlongest operators")[0].rstrip().splitlines()
    lines = [line for text in told for line in textwrap.wrap(text, 104) or [""]]
    return "\n".join(f"    {line}".rstrip() for line in lines)


def put(text: str, marker: str, content: str) -> str:
    """Replace what stands between two markers."""
    begin, end = f"<!-- {marker} -->", f"<!-- /{marker} -->"
    before, rest = text.split(begin)
    _, after = rest.split(end)
    return f"{before}{begin}\n{content}\n{end}{after}"


LEAST_ROWS = 5
"""Sources with fewer rows do not count in the mean over sources that is compared."""


def over_sources(groups: list[dict]) -> tuple[list[dict], float]:
    """Sources of at least `LEAST_ROWS` rows, and the mean of their errors."""
    large = [group for group in groups if group["n"] >= LEAST_ROWS]
    return large, sum(group["mape"] for group in large) / len(large)


def table(result: dict, baseline: dict[str, float]) -> str:
    def of(source: str) -> str:
        return f"{baseline[source]:.1%}" if source in baseline else ""

    lines = [
        "| source | rows | MAPE | median | bias | inside the 80 % interval | constant MFU |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    lines += [
        f"| {g['source']} | {g['n']} | {g['mape']:.1%} | {g['median_ape']:.1%} | "
        f"{g['bias']:+.2f} | {g['coverage']:.0%} | {of(g['source'])} |"
        for g in result["groups"]
    ]
    skipped = len(result["skipped"])
    lines.append(
        f"| **all** | {result['n_predicted']} | {result['mape']:.1%} | "
        f"{result['median_ape']:.1%} | {result['bias']:+.2f} | "
        f"{result['interval_coverage']:.0%} | |"
    )
    large, ours = over_sources(result["groups"])
    known = [baseline[g["source"]] for g in large if g["source"] in baseline]
    yardstick = sum(known) / len(known)
    lines += [
        "",
        f"Mean over the {len(large)} sources with at least {LEAST_ROWS} rows {ours:.1%}, where one "
        f"MFU per accelerator and precision, fitted to the other sources, errs by {yardstick:.1%}; "
        "median width of the interval (high/low) "
        f"{result['median_width']:.2f}; {skipped} of {result['n_points']} rows are not predicted "
        "yet, each with its reason in the JSON.",
    ]
    if sure := result.get("without_doubtful"):
        without, theirs = over_sources(sure)
        fewer = result["n_predicted"] - sum(g["n"] for g in sure)
        lines += [
            "",
            f"{fewer} of the rows are marked doubtful: not of the machine that they name, as far "
            "as anybody can know. No fit learns from them; without them the mean is "
            f"{theirs:.1%}, over {len(without)} sources.",
        ]
    return "\n".join(lines)


KERNELS = {
    "gemm": "products",
    "bmm": "batched products",
    "moe_gemm": "experts",
    "attention_prefill": "attention, prefill",
    "attention_prefill.mla": "latent attention, prefill",
    "attention_decode": "attention, decode",
    "attention_decode.kv8": "attention, decode, 8-bit cache",
    "attention_decode.mla": "latent attention, decode",
    "attention_decode.mla_kv8": "latent attention, decode, 8-bit cache",
    "elementwise": "elementwise",
    "norm": "norm",
    "softmax": "softmax",
    "loss": "loss",
}


def kernel_table(folder: Path) -> str:
    """Held-out errors of the kernel models by operator and data type."""
    found = summary(folder).set_index(["kind", "dtype", "fold"]).sort_index()
    lines = [
        "| kernel | type | unseen shapes | accelerator left out | worst left out "
        "| library left out |",
        "|---|---|---:|---:|---|---:|",
    ]
    for kind, label in KERNELS.items():
        for dtype in found.loc[kind].index.get_level_values("dtype").unique():
            own = found.loc[kind, dtype]
            cells = [
                label,
                "any" if dtype == "*" else dtype,
                f"{own.loc[FOLDS['kernels'], 'mape']:.1%}",
            ]
            if FOLDS["accelerator_left_out"] in own.index:
                left = own.loc[FOLDS["accelerator_left_out"]]
                cells += [f"{left['mape']:.1%}", f"{left['worst']} {left['most']:.0%}"]
            else:
                cells += ["", ""]
            other = FOLDS["library_left_out"]
            cells.append(f"{own.loc[other, 'mape']:.1%}" if other in own.index else "")
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def family_table(folder: Path) -> str:
    """Held-out errors of single operators of a training step, a row per operator."""
    found = heldout_section(folder, "families")
    rows: dict[str, dict[str, str]] = {}
    for name, figures in found.items():
        place, kind, variant = name.split("/")
        label = kind if variant in kind else f"{kind} {variant}"
        rows.setdefault(label, {})[place] = f"{figures['mape']:.1%}"
    places = sorted({place for row in rows.values() for place in row})
    lines = ["| operator | " + " | ".join(places) + " |", "|---|" + "---:|" * len(places)]
    for label, row in sorted(rows.items()):
        lines.append(f"| {label} | " + " | ".join(row.get(p, "") for p in places) + " |")
    return "\n".join(lines)


SERVING = {
    "tpot": "time per token",
    "static e2e": "static batch, end to end",
    "prefill or batch-1 ttft": "prompts alone, first token of static batches",
    "ttft under concurrency": "first token under concurrency",
    "max throughput": "largest throughput",
}


def serving_table(result: dict, constants: dict[str, dict[str, float]]) -> str:
    """Held-out errors of serving by what was measured, beside those of one constant per engine and
    metric over a roofline (`serving_baseline.constant_by_source`)."""
    lines = [
        "| metric | rows | MAPE | median | mean over sources | inside the 80 % interval, rows | "
        "mean over sources | one constant, mean over sources | sources better than it |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for key, label in SERVING.items():
        own, constant = result["inference"][key], constants[key]
        mine = {name: figures["mape"] for name, figures in own["by_source"].items()}
        better = beaten(mine, constant)
        cells = (own["mape"], own["median_ape"], own["macro_mape"])
        shown = " | ".join(f"{value:.1%}" for value in cells)
        inside = [figures["coverage"] for figures in own["by_source"].values()]
        told = (own["coverage"], sum(inside) / len(inside))
        mean = sum(constant[name] for name in mine) / len(mine)
        lines.append(
            f"| {label} | {own['n']} | {shown} | {told[0]:.0%} | {told[1]:.0%} | {mean:.1%} | "
            f"{better.sum()} of {better.size} |"
        )
    apart = []
    for key, label in SERVING.items():
        whole = result["inference"][key]["with_flagged"]
        if whole["n"] > result["inference"][key]["n"]:
            apart.append(f"{label} {whole['mape']:.1%} of {whole['n']:,}")
    told = f"{result['n_predicted']:,} of {result['n_points']:,} rows are predicted."
    if apart:
        told += (
            " Rows that their source flags, or that scripts say are not of what they name, stand"
            f" apart; with them, rows alike: {', '.join(apart)}."
        )
    lines += ["", told]
    return "\n".join(lines)


def kept(result: dict, name: str, folder: Path | None) -> dict:
    """The result, kept as `folder`/`name`.json where a folder is given."""
    if folder is not None:
        write_text(folder / f"{name}.json", json.dumps(result, default=float))
    return result


def training(text: str, folder: Path | None) -> str:
    """Training runs, every source left out."""
    result = kept(reckon.validate(POINTS, "default", folds="source"), "training", folder)
    scores = table(result, constant_mfu_by_source(read_points([POINTS], default_run())))
    print(scores)
    return put(text, "scoreboard", scores)


def ablation(text: str, folder: Path | None) -> str:
    """What facts, intervals and distributions are worth."""
    return put(
        text, "ablation", ablation_tables(POINTS, "default", catalog.load("default"), VARIED)
    )


def kernels(text: str, folder: Path | None) -> str:
    """Kernels left out, as the calibration's own folds say."""
    text = put(text, "kernels", kernel_table(catalog.calibration_dir("kernels-only")))
    return put(text, "families", family_table(catalog.calibration_dir("kernels-only")))


def power(text: str, folder: Path | None) -> str:
    """Power and energy, constants of models and accelerators left out."""
    return put(text, "power", "\n".join(power_table_of(SHARED, catalog.load("default"))))


def uneven(text: str, folder: Path | None) -> str:
    """Slow links, documents, uneven experts."""
    return put(text, "uneven", "\n".join(uneven_lines(SHARED, catalog.load("default"))))


def plans(text: str, folder: Path | None) -> str:
    """Layouts chosen among those that were measured."""
    return put(text, "plans", "\n".join(plan_lines(SHARED, catalog.load("kernels-only"))))


def serving(text: str, folder: Path | None) -> str:
    """Served runs, every source left out, and the fleets that would be chosen by them."""
    served = [SHARED / name for name in SERVED]
    result = kept(reckon.validate(served, "default", folds="source"), "serving", folder)
    text = put(text, "serving", serving_table(result, constant_by_source(served)))
    told = {p["point_id"]: p["predicted"] for p in result["points"] if p["metric"] == "tpot_s"}
    return put(text, "fleets", "\n".join(fleet_lines(served, told)))


HERE = {"training": training, "ablation": ablation, "kernels": kernels}
"""Parts of the page that need nothing but the project."""
THERE = {"power": power, "uneven": uneven, "plans": plans, "serving": serving}
"""Parts that read the shared tables."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parts = HERE | THERE
    shown = ", ".join(f"{name} ({made.__doc__})" for name, made in parts.items())
    parser.add_argument(
        "parts", nargs="*", choices=[[], *parts, "headline"], help=f"{shown}, headline"
    )
    parser.add_argument("--results", type=Path, help="folder that keeps the scored rows as JSON")
    asked = parser.parse_args()
    if asked.parts:
        chosen = [name for name in asked.parts if name in parts]
    else:
        chosen = [*HERE, *(THERE if SHARED.is_dir() else ())]
    for name in chosen:
        text = parts[name](PAGE.read_text(encoding="utf-8"), asked.results)
        write_text(PAGE, text)
    write_readme()


if __name__ == "__main__":
    main()
