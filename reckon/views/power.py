"""What the terminal shows of power: one short block."""

from __future__ import annotations

from textwrap import wrap

from reckon.verbs.pacing import Paced
from reckon.verbs.powering import PowerResult, Supposed
from reckon.views.terminal import WIDE, grid

BESIDE = WIDE - len("clocks of stages") - 4
"""Letters of a line beside the longest name."""


def energy_text(joules: float) -> str:
    """An energy in J, kJ, MJ or kWh."""
    for size, unit in ((3.6e8, "kWh"), (1e6, "MJ"), (1e3, "kJ")):
        if abs(joules) >= size:
            return f"{joules / (3.6e6 if unit == 'kWh' else size):,.3g} {unit}"
    return f"{joules:.3g} J"


def show_power(
    power: PowerResult | None,
    kwh: dict[str, float] | None = None,
    paced: Paced | None = None,
    limit: Supposed | None = None,
) -> None:
    """Print what is drawn, the phases, heat by position, and what energy costs.

    kwh     costs of a whole run, where there is a budget
    paced   clocks of the stages of a pipeline, where those were asked for
    limit   that nobody stated, where it matters
    """
    if power is None:
        return
    told = power.to_dict()
    mean = told["power_w"]
    phases = ", ".join(
        f"{name} {watts:.0f}" for name, (watts, share) in power.phases.items() if share > 0.005
    )
    each = ", ".join(
        f"{energy_text(told[f'energy_per_{name}_j']['value'])} per {name}" for name in power.counts
    )
    warm = "/".join(f"{one:.0f}" for one in told["temperature_c"])
    held = ", held by heat" if any(told["throttled"]) else ""
    rows = [
        [
            "power",
            f"{mean['value']:.0f} W ({mean['low']:.0f} to {mean['high']:.0f}) per GPU; peak "
            f"{told['peak_1s_w']['value']:.0f} W over 1 s, "
            f"{told['peak_100ms_w']['value']:.0f} W over 0.1 s",
        ],
        *(["" if at else "W by phase", line] for at, line in enumerate(wrap(phases, BESIDE))),
        *(["" if at else "by kind", line] for at, line in enumerate(_kinds(power))),
        ["energy", f"{each}; GPUs at {warm} C{held}"],
        [
            "machines",
            f"{told['node_power_w']['value'] / 1e3:.2f} kW per node, "
            f"{power.site / 1e3:,.1f} kW at the meter",
        ],
    ]
    if limit is not None:
        taken = f"{limit.taken:.0f} W per GPU, as the catalog has it; state --power-limit if yours"
        rows.append(["limit", f"{taken} is lower:"])
        rows.append(["", f"under {limit.lower:.0f} W the step takes {limit.longer:.1%} longer"])
    if kwh:
        rows.append(["whole", _costs(kwh)])
    if paced is not None:
        rows.append(["clocks of stages", _paced(paced)])
    print()
    print(grid(["", ""], rows, left=2))


def _kinds(power: PowerResult) -> list[str]:
    """A line of each kind of accelerators, where some read prompts and nothing else."""
    does = {"prefill": "read prompts", "decode": "decode"}
    return [
        f"{one.gpus} {does[kind]}: {one.mean:.0f} W, {1.0 - one.phases['idle'][1]:.0%} of the time"
        for kind, one in power.kinds.items()
    ]


def _paced(found: Paced) -> str:
    """The clocks of the stages and what they save, in a line."""
    stages = "/".join(f"{one:.2f}" for one in found.clocks)
    each = "mean of its passes" if found.mode == "pass" else "one for a stage"
    later = f", {found.later:.3g} s longer" if found.later > 1e-6 * found.lasts else ""
    return f"save {found.saved:.1%} of the energy{later}: {stages} of the highest, {each}"


def _costs(costs: dict[str, float]) -> str:
    """Kilowatt-hours, money and CO2e of a run, or of a day of serving."""
    parts = [f"{_plainly(costs['site_kwh'])} kWh"]
    if "energy_price" in costs:
        parts.append(f"price {_plainly(costs['energy_price'])}")
    if "kg_co2e" in costs:
        kg = costs["kg_co2e"]
        parts.append(f"{kg / 1e3:,.2f} t CO2e" if kg >= 1e3 else f"{_plainly(kg)} kg CO2e")
    return ", ".join(parts)


def _plainly(amount: float) -> str:
    """An amount in whole units, or three digits of a small one."""
    return f"{amount:,.0f}" if amount >= 100.0 else f"{amount:.3g}"
