"""The main job, end to end: profile this machine, calibrate, check, predict clusters.

    python tools/demo.py --out demo-out [--budget 110s]

Run by `make demo`. Everything it prints comes from the verbs that the command line has.
"""

from __future__ import annotations

import argparse
import os
import time
import warnings
from pathlib import Path
from typing import Any

import reckon
from reckon.verbs.checking import NAMES, check, errors
from reckon.verbs.results import Prediction
from reckon.verbs.training import predict_train
from reckon.views.measured import show_profile
from reckon.views.terminal import grid, show_prediction, strong

PUBLISHED = (
    ("selective", True, 13.75),
    ("full", False, 18.13),
)
"""GPT-3 175B on 64 A100: seconds per step, Korthikanti et al. 2022, table 5."""


QUIET = (DeprecationWarning, FutureWarning)
"""Kinds of warnings of libraries that say nothing to who runs the demo."""


def hush() -> None:
    """Leave those warnings out, in processes that are started too."""
    kinds = ",".join(f"ignore::{kind.__name__}" for kind in QUIET)
    os.environ.setdefault("PYTHONWARNINGS", kinds)
    for kind in QUIET:
        warnings.simplefilter("ignore", kind)


def title(number: int, text: str) -> None:
    print(f"\n{strong(f'{number}. {text}')}\n")


def gpt3(recompute: str, split: bool) -> Prediction:
    """The plan of the paper: TP 8, PP 8 interleaved three times, one pipeline."""
    found = predict_train(
        "gpt3-175b",
        "selene",
        {
            "gpus": 64, "tp": 8, "pp": 8, "vpp": 3, "global_batch": 64, "micro_batch": 1,
            "seq_len": 2048, "precision": "fp16", "recompute": recompute,
            "sequence_parallel": split, "framework": "megatron-lm", "era": "2022-05",
        },
        "kernels-only",
    )  # fmt: skip
    assert isinstance(found, Prediction)
    return found


def show_checks(result: list[dict[str, Any]]) -> None:
    rows = [
        [
            one["name"],
            f"{one['measured_s'] * 1e3:.1f}",
            f"{one['predicted_s'] * 1e3:.1f}",
            f"{one['predicted_s'] / one['measured_s'] - 1:+.1%}",
        ]
        for one in result
    ]
    print(grid(["step or pass", "measured ms", "predicted ms", "error"], rows))
    for kind, mean in errors(result).items():
        print(f"mean error, {NAMES[kind]}: {mean:.1%}")


def show_published() -> None:
    rows = []
    for recompute, split, published in PUBLISHED:
        step = gpt3(recompute, split).step_time
        rows.append(
            [
                f"{recompute} recomputation",
                f"{published:.2f}",
                f"{step.value:.2f}",
                f"{step.value / published - 1:+.1%}",
                f"{step.low:.2f} to {step.high:.2f}",
            ]
        )
    print(grid(["175B, Korthikanti et al.", "published s", "predicted s", "error", "80%"], rows))


def main() -> None:
    hush()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("demo-out"))
    parser.add_argument("--budget", default="110s")
    arguments = parser.parse_args()
    out, begin = arguments.out, time.perf_counter()
    ranks = 2 if (os.cpu_count() or 1) >= 2 else 1

    title(1, f"Profile this machine ({arguments.budget}, {ranks} ranks)")
    show_profile(reckon.profile(out / "profile", budget=arguments.budget, ranks=ranks))

    title(2, "Calibrate: efficiencies of this machine on top of the shipped calibration")
    summary = reckon.calibrate(out / "profile", out / "calibration")
    scored = [v for v in summary["heldout"].values() if v["points"] >= 10]
    print(
        f"{len(summary['heldout'])} kinds of kernels and collectives fitted to {summary['rows']} "
        f"rows; on shapes held out, the {len(scored)} kinds with ten points or more are within "
        f"{sum(v['median'] for v in scored) / len(scored):.0%} (mean of their median errors)"
    )

    title(3, "Check: steps and passes measured here, never fitted, against predictions")
    result = check(out / "profile", out / "calibration")
    show_checks(result)

    title(4, "Predict: GPT-3 175B on 64 A100, fitted to kernels only, against the published steps")
    show_published()

    title(5, "Predict: Llama-3 70B on 1,024 H100, a cluster that nobody has here")
    fields = {"gpus": 1024, "tp": 8, "pp": 4, "global_batch": 1024, "seq_len": 8192,
              "tokens": 15e12}  # fmt: skip
    llama = predict_train("llama3-70b", "dgx-h100", fields)
    assert isinstance(llama, Prediction)
    show_prediction(llama)

    from reckon.console.files import write_json

    write_json(str(out / "checks.json"), {"checks": result})
    write_json(str(out / "llama3-70b-1024-h100.json"), llama.to_dict())
    print(
        f"\nresults: {out}/profile (tables, device files), {out}/calibration, {out}/checks.json, "
        f"{out}/llama3-70b-1024-h100.json; {time.perf_counter() - begin:.0f} s in all"
    )


if __name__ == "__main__":
    main()
