"""What the terminal shows of a run that was checked."""

from __future__ import annotations

from predictor.units import GIB
from reckon.verbs.judging import Judged
from reckon.verbs.results import Prediction
from reckon.views.terminal import grid, numbered

LISTED = 6
"""Flags of one kind that are named."""

WORDS = ("fits", "doubtful", "does not fit")


def show_judged(found: Judged) -> None:
    """Print what was understood, the verdict, the time, and what would help most."""
    result, plan = found.result, found.result.request.plan
    if found.launch is not None:
        said = ", ".join(f"{key}={value}" for key, value in found.launch.fields.items())
        print(f"understood ({found.launch.dialect}): {result.request.model.name}, {said}")
        if unknown := found.launch.unknown:
            more = f" and {len(unknown) - LISTED} more" if len(unknown) > LISTED else ""
            print(f"not known, which may matter: {', '.join(unknown[:LISTED])}{more}")
        for note in found.launch.notes:
            print(f"note: {note}")
    memory = f"{result.peak_memory / GIB:.1f} GiB per device"
    if isinstance(result, Prediction):
        time = result.step_time
        chance = f"{1.0 - result.p_oom:.0%} sure to fit"
        what = f"{time.value:.4g} s per step ({time.low:.4g} to {time.high:.4g})"
    else:
        chance = "fits" if result.fits else "does not fit"
        rate = result.output_tokens_per_s
        what = (
            f"first token {result.ttft.value * 1e3:.4g} ms, per token "
            f"{result.tpot.value * 1e3:.4g} ms, {rate.value:.4g} output tokens/s "
            f"({rate.low:.4g} to {rate.high:.4g})"
        )
    of = numbered(float(plan.gpus), "accelerator")
    print(f"{WORDS[found.status]}: {of}, {what}; {memory}, {chance}")
    for doubt in found.doubts:
        print(f"  {doubt}")
    if found.helps:
        rows = [
            [f"{one.field} {one.before} -> {one.after}", f"{one.ratio - 1.0:+.1%}",
             f"{one.memory - 1.0:+.0%}", "fits" if one.fits else "may not fit"]
            for one in found.helps
        ]  # fmt: skip
        print(grid(["what would help most", "cost", "memory", ""], rows, left=1))
