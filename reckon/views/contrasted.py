"""What the terminal shows of two runs that were compared."""

from __future__ import annotations

from reckon.verbs.contrasting import Contrast
from reckon.views.terminal import grid

NAMES = {"step_time": "step time", "time_per_token": "time per token",
         "ttft": "time to first token", "tpot": "time per token", "e2e": "end to end",
         "output_tokens_per_s": "output tokens/s"}  # fmt: skip


def show_contrast(found: Contrast) -> None:
    """Print the ratios of B over A, and where the difference lies."""
    rows = [
        [NAMES[name], f"{one.value:.3f}", f"{one.low:.3f} to {one.high:.3f}",
         "a tie" if one.tie else ("B is less" if one.value < 1 else "B is more")]
        for name, one in found.ratios.items()
    ]  # fmt: skip
    if rows:
        print(grid(["B over A", "ratio", "80 % interval", ""], rows, left=1))
    for name, value in found.measured.items():
        print(f"measured: {NAMES[name]} {value:.3f} x")
    if found.terms:
        print()
        lines = [
            [term, f"{a:.4g} s", f"{b:.4g} s", f"{b - a:+.4g} s"] for term, a, b in found.terms
        ]
        print(grid(["term", "A", "B", "B - A"], lines, left=1))
