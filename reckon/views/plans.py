"""What the terminal shows of a search: the ranking, what the winner is worth, the Pareto front."""

from __future__ import annotations

from typing import Any

from predictor.search import Ratio, brief
from predictor.units import GIB
from predictor.variation import NONE
from reckon.verbs.frugal import Frugal
from reckon.verbs.plans import TrainingSearch
from reckon.views.terminal import TERM_NAMES, bar, four, grid, seconds, short, show_assumed, strong

SIZES = ("gpus", "global_batch", "tp", "pp", "vpp", "cp", "ep", "etp", "dp", "micro_batch")
NAMES = {"micro_batch": "mb", "global_batch": "batch", "sequence_parallel": "sp"}
WORDS = ("recompute", "sharding", "schedule", "precision", "cp_kind", "rank_order", "tp_overlap")
PACKED = ("packing", "cp_sharding")
MORE = 3
"""Columns beyond these that are added where plans look alike without them."""

FRONT = 8
"""Plans of the Pareto front that are listed."""


def percent(value: Ratio) -> str:
    """How much slower, with the interval: '+1.2 % (-4 to +7)'."""
    return f"{value.value - 1:+.1%} ({value.low - 1:+.0%}..{value.high - 1:+.0%})"


def _columns(found: TrainingSearch, positions: list[int]) -> list[str]:
    """Fields that are worth a column: sizes that are not 1 throughout, words that vary."""
    result = found.result
    shown = []
    for name in SIZES:
        values = set(result.column(name, positions).tolist())
        constant = name in ("gpus", "global_batch")
        if len(values) > 1 or (not constant and values != {1.0}):
            shown.append(name)
    for name in WORDS:
        always = name in ("recompute", "sharding", "schedule")
        if always or len(set(result.column(name, positions).tolist())) > 1:
            shown.append(name)
    plans = [result.mapping(at) for at in positions]
    shown += [name for name in PACKED if len({plan.get(name) for plan in plans}) > 1]
    gpus = [float(result.gpus[at]) for at in positions]
    for _ in range(MORE):
        unlike = _unlike(plans, gpus, shown)
        if unlike is None:
            break
        shown.append(unlike)
    return shown


def _unlike(plans: list[dict[str, Any]], gpus: list[float], shown: list[str]) -> str | None:
    """A field in which two plans differ that look the same in the columns shown; None: there are no
    such plans."""
    first: dict[tuple[str, ...], dict[str, Any]] = {}
    for plan, count in zip(plans, gpus, strict=True):
        looks = tuple(_cell(plan, count, name) for name in shown)
        other = first.setdefault(looks, plan)
        for name, value in plan.items():
            if name not in shown and str(value) != str(other[name]):
                return name
    return None


def _cell(plan: dict[str, Any], gpus: float, name: str) -> str:
    if name == "gpus":
        return f"{gpus:g}"
    if name == "recompute" and plan[name] == "selective":
        return str(plan["recompute_modules"])
    if name == "recompute" and plan[name] == "full" and plan["recompute_share"] < 1:
        return f"full {plan['recompute_share']:.0%}"
    if name == "sharding" and plan[name] == "hsdp":
        return f"hsdp {plan['dp_shard']}"
    return short(plan[name])


def table(found: TrainingSearch, positions: list[int]) -> str:
    """A table of some plans."""
    result = found.result
    names = _columns(found, positions)
    capacity = float(result.cluster.accelerator.memory)
    days, cost = result.training_days(positions), result.cost(positions)
    varied = result.machines.name != NONE
    rows = []
    for row, (at, against) in enumerate(zip(positions, found.ratios(positions), strict=True)):
        plan = result.mapping(at)
        rate = plan["global_batch"] * plan["seq_len"] / result.step_time[at] / result.gpus[at]
        rows.append(
            [
                str(at + 1),
                *(_cell(plan, float(result.gpus[at]), name) for name in names),
                four(float(result.step_time[at])),
                *([four(float(result.ranked[at]))] if varied else []),
                "" if at == 0 else percent(against),
                "=" if at and against.tie else "",
                f"{rate:,.0f}",
                f"{result.memory[at] / GIB:.1f}",
                f"{result.memory[at] / capacity:.0%}",
                *([] if days is None else [four(float(days[row]))]),
                *([] if cost is None else [f"{cost[row]:,.0f}"]),
            ]
        )
    columns = [
        "#",
        *(NAMES.get(name, name) for name in names),
        "step s",
        *(["P95 s"] if varied else []),
        "over the best",
        "",
        "tok/s/GPU",
        "GiB",
        "full",
        *([] if days is None else ["days"]),
        *([] if cost is None else ["cost"]),
    ]
    return grid(columns, rows, left=1)


def _spent(found: TrainingSearch, one: Frugal, fastest: float, least: float) -> list[str]:
    """Cells of a plan under a limit of power: its time beside the fastest's [s], its energy beside
    the first's [J]."""
    return [
        str(one.position + 1),
        brief(found.result.plan(one.position)),
        "own" if one.limit is None else f"{one.limit:g}",
        four(one.step_time),
        f"{one.step_time / fastest - 1:+.1%}",
        f"{one.power:.0f}",
        four(one.energy / 1e3),
        f"{one.energy / least - 1:+.1%}",
    ]


def frugal_table(found: TrainingSearch, top: int) -> str:
    """Plans of the least energy or money under their limits of power."""
    fastest = float(found.result.step_time.min())
    first = found.frugal[0]
    rows = []
    for one in found.frugal[:top]:
        rows.append(
            [
                *_spent(found, one, fastest, first.energy),
                "" if one.money is None else four(one.money),
                "" if one.saved is None else f"{one.saved:.1%}",
            ]
        )
    names = ["#", "least energy or money", "limit W", "step s", "over the fastest", "W",
             "kJ/sample", "", "money/sample", "by clocks"]  # fmt: skip
    told = (first.money is not None, any(one.saved is not None for one in found.frugal))
    shown = [*range(len(names) - 2), *(len(names) - 2 + at for at in (0, 1) if told[at])]
    return grid([names[at] for at in shown], [[row[at] for at in shown] for row in rows], left=2)


def saving_table(found: TrainingSearch) -> str:
    """The Pareto front of step time and energy, evenly."""
    front = found.saving
    step = max(1, -(-len(front) // FRONT))
    rows = [_spent(found, one, front[0].step_time, front[0].energy) for one in front[::step]]
    names = ["#", "plan", "limit W", "step s", "", "W", "kJ/sample", ""]
    return grid(names, rows, left=2)


def show_training(found: TrainingSearch, top: int) -> None:
    """Print a search."""
    result, counts = found.result, found.result.counts
    gpus = sorted(set(result.gpus.tolist()))
    number = f"{gpus[0]:g}" if len(gpus) == 1 else f"{gpus[0]:g} to {gpus[-1]:g}"
    best = result.mapping(0)
    print(
        f"{strong(result.model.name)} on {number} x {result.cluster.accelerator.name} "
        f"({result.cluster.name}), {best['precision']}, {best['seq_len']} tokens, "
        f"{best['global_batch']} sequences a step"
    )
    print(
        f"{counts.enumerated:,} plans: {counts.possible:,} possible, {counts.fitting:,} fit, "
        f"{counts.timed:,} timed, the others ruled out by a bound\n"
    )
    if found.frugal:
        print(frugal_table(found, top), end="\n\n")
    shown = list(range(min(top, len(result))))
    print(table(found, shown))
    print(f"= as fast as the best, within the {result.calibration.interval_level:.0%} interval\n")
    _why(found)
    front = found.front(FRONT)
    if len(result.frontier) > 1:
        title = f"Pareto front of step time, memory and GPUs ({len(result.frontier)} plans"
        print(strong(f"{title}, {len(front)} shown)" if len(front) < len(result.frontier)
                     else f"{title})"))  # fmt: skip
        print(table(found, front))
    if len(found.saving) > 1:
        print()
        print(strong(f"Pareto front of step time and energy, {len(found.saving)} points"))
        print(saving_table(found), end="\n\n")
    if found.own is not None:
        _own(found)
    show_assumed(result.assumed)


def _why(found: TrainingSearch) -> None:
    """The winner's time, how close the runner-up is, and what each of its choices is worth."""
    winner = found.winner
    total = winner.step_time
    terms = [
        [TERM_NAMES[name], seconds(value), f"{value / total:.1%}", bar(value / total, 20)]
        for name, value in winner.breakdown.items()
        if value > 0.0005 * total
    ]
    print(grid(["time of the best", "", "share", ""], terms), end="\n\n")
    result = found.result
    if len(result) > 1:
        against = found.ratios([1])[0]
        word = "a tie" if against.tie else "clearly slower"
        tied, behind = len(found.ties), found.ties_asked
        beyond = (
            "; further plans were not held against it" if tied == behind < len(result) - 1 else ""
        )
        print(
            f"runner-up {percent(against)}: {word}; of the next {behind} plans, {tied} cannot be "
            f"told from the best{beyond}"
        )
    together: dict[int, list[str]] = {}
    first = {}
    for one in found.alternatives:
        if one.field in first:
            continue
        first[one.field] = one
        value = f"{one.value:g}" if isinstance(one.value, float) else str(one.value)
        together.setdefault(one.position, []).append(f"{NAMES.get(one.field, one.field)} {value}")
    rows = []
    for one in {one.position: one for one in first.values()}.values():
        term, more = one.more
        rows.append(
            [
                brief(result.plan(one.position)),
                percent(one.ratio),
                f"{TERM_NAMES[term]} +{seconds(more)}" if more > 0 else "",
                ", ".join(together[one.position]),
            ]
        )
    if rows:
        print(grid(["instead", "over the best", "costs", "the best with"], rows, left=4))
        print()


def _own(found: TrainingSearch) -> None:
    own = found.own
    assert own is not None
    capacity = float(found.result.cluster.accelerator.memory)
    print(f"\n{strong('your plan')}: {own.label}")
    fit = "" if own.fits else strong(", beyond the limit", "1;31")
    print(
        f"step {four(own.step_time)} s, {percent(own.slower)} over the best"
        f"{' (a tie)' if own.slower.tie else ''}; rank {own.rank:,} of the plans timed; "
        f"{own.memory / GIB:.1f} of {capacity / GIB:.1f} GiB{fit}"
    )
    spent = [(term, more) for term, more in own.spends if abs(more) > 0.002 * own.step_time]
    if spent:
        told = ", ".join(
            f"{TERM_NAMES[term]} {'+' if more > 0 else '-'}{seconds(abs(more))}"
            for term, more in spent[:5]
        )
        print(f"against the best: {told}")


__all__ = ["percent", "show_training", "table"]
