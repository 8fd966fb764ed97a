"""What the terminal shows of an explanation."""

from __future__ import annotations

from predictor.timing import Taxes
from predictor.training import Explanation
from reckon.views.terminal import grid, seconds

SHOWN = 8
"""Rows of what would help, and of what is known."""


def show_taxes(found: Taxes) -> None:
    """Print what launching, waiting and bringing data back take, alone and together."""
    rows = [
        [name, seconds(value), f"{value / found.total:.1%}"] for name, value in found.alone.items()
    ]
    rows.append(
        ["all three together", seconds(found.together), f"{found.together / found.total:.1%}"]
    )
    print("\n" + grid(["taxes", "", "share"], rows))


def _word(value: object) -> str:
    """A value of a field as it is written: yes and no, numbers without needless digits."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)


def show_explanation(why: Explanation) -> None:
    """Print what would help most, the longest operators against their ideal, and the pedigree."""
    helping = [
        [remedy.name, seconds(remedy.saves), f"{remedy.share:.1%}", remedy.note]
        for remedy in why.remedies[:SHOWN]
    ]
    print("\n" + grid(["without", "saves", "", "how"], helping))
    stated = [
        [one.field, _word(one.value), _word(one.other), f"{one.change:+.1%}"]
        for one in why.doubts[:SHOWN]
    ]
    if stated:
        print("\n" + grid(["worth stating", "assumed", "if it is", "step"], stated))
    longest = [
        [o.name, o.phase, seconds(o.time), f"{o.share:.1%}", f"{o.ideal / o.time:.0%} of peak"]
        for o in why.operators
        if o.time > 0
    ]
    print("\n" + grid(["longest operators", "phase", "per step", "", "arithmetic"], longest, 2))
    show_taxes(why.taxes)
    known = [
        [
            ground.name,
            f"{ground.share:.1%}",
            ground.known,
            f"{ground.sigma:.0%}",
            f"{ground.points:,}" if ground.points else "none",
        ]
        for ground in why.grounds[:SHOWN]
    ]
    print("\n" + grid(["time rests on", "share", "known", "spread", "measurements"], known))
    rest = sum(ground.share for ground in why.grounds[SHOWN:])
    if rest > 0:
        print(f"and {len(why.grounds) - SHOWN} more fits behind {rest:.1%}")
