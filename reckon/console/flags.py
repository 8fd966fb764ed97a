"""Flags: those of plan fields, made from the tables, those that verbs share, and what a command
line says with them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from predictor import catalog
from predictor.errors import InputError
from predictor.plans import PLAN, SWITCH, PlanField, Table
from predictor.records import dataclass

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

WIDEST = 44
"""Letters of choices that a line of help lists."""


NAMED = {"model": "models", "system": "systems", "accelerator": "accelerators"}
"""Flags whose values are names of a catalog."""


def _named(context: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of a catalog that go on as what was typed, the last of several behind commas."""
    from click.shell_completion import CompletionItem

    kind = NAMED[str(param.name)]
    before, comma, last = incomplete.rpartition(",")
    names = [*catalog.rows(kind)]
    if kind == "systems":
        names += [one.name for one in catalog.instances()]
    found = [name for name in names if name.lower().startswith(last.lower())]
    return [CompletionItem(f"{before}{comma}{name}") for name in found]


def option(
    name: str,
    text: str,
    metavar: str | None = "N",
    kind: Any = str,
    key: str = "",
    also: tuple[str, ...] = (),
    **more: Any,
) -> click.Option:
    """A flag with a value.

    kind   type of the value
    key    name of the value, where it is not the flag's
    also   further spellings of the flag
    more   further settings of `click.Option`
    """
    names = [f"--{name}", *(f"--{other}" for other in also), *([key] if key else [])]
    shown = more.get("default") is not None
    if name in NAMED:
        more["shell_complete"] = _named
    return click.Option(names, metavar=metavar, help=text, type=kind, show_default=shown, **more)


def switch(name: str, text: str, unless: bool | None = False) -> click.Option:
    """A flag without a value.

    unless   its value where it is not given
    """
    return click.Option([f"--{name}"], is_flag=True, default=unless, help=text)


def argument(name: str, metavar: str, **more: Any) -> click.Argument:
    """What stands without a flag."""
    return click.Argument([name], metavar=metavar, **more)


def json_option() -> click.Option:
    """--json."""
    return option("json", "Whole result as JSON (- = stdout).", "FILE")


def calibration_option() -> click.Option:
    """--calibration."""
    return option("calibration", "What to predict with.", "NAME|DIR", default="default")


def settings_option() -> click.Option:
    """--set."""
    return option("set", "Any other key of a plan (show fields).", "KEY=VALUE", multiple=True)


def allow_oom_option() -> click.Option:
    """--allow-oom."""
    return switch("allow-oom", "Exit 0 even if it does not fit.")


def _help(entry: PlanField, verb: str) -> str:
    if verb == PLAN and entry.planned:
        return entry.planned
    if not entry.choices:
        return entry.help
    whole = " ".join(entry.choices)
    if len(whole) <= WIDEST:
        return f"{whole}."
    return whole[:WIDEST].rpartition(" ")[0] + " ..."


PANELS: dict[str, tuple[str, ...]] = {
    "What is run": ("model", "seq_len", "global_batch", "batch_tokens", "tokens", "precision",
                    "kv_precision", "framework", "batch", "concurrency", "rate", "load",
                    "input_len", "output_len", "attention", "from_megatron", "from_torchtitan",
                    "from_nemo", "from_automodel", "from_deepspeed", "from_trainer", "from_maxtext",
                    "from_nanotron", "from_llm_foundry", "from_vllm", "from_sglang",
                    "from_trtllm", "from_tgi", "from_lmdeploy", "from_llama_cpp"),
    "On what": ("system", "accelerator", "gpus", "accelerators_per_node", "price",
                "price_per_gpu_hour", "inter_link_gbps"),
    "Laid out how": ("tp", "pp", "cp", "ep", "etp", "vpp", "dp", "micro_batch", "sharding",
                     "schedule", "recompute", "sequence_parallel", "offload", "tp_in_node"),
    "What is asked": ("days", "money", "objective", "memory_fraction", "ttft_ms", "tpot_ms",
                      "ttft_percentile", "tpot_percentile", "headroom", "spare", "compare",
                      "explain", "simulate", "allow_oom", "variation", "top"),
    "What is written": ("json", "report", "timeline", "emit", "target", "calibration", "set"),
}  # fmt: skip
"""Headings of a help, and the options below them."""


class Paneled(click.Command):
    """A command whose help has its options below headings."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, panel by panel."""
        panels = {name: panel for panel, names in PANELS.items() for name in names}
        rows: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            # An argument without a text of its own stands in the line of usage.
            if record is not None and record[1]:
                rows.setdefault(panels.get(str(param.name), "Further"), []).append(record)
        for panel in (*PANELS, "Further"):
            if panel in rows:
                with formatter.section(panel):
                    formatter.write_dl(rows[panel])


def field_options(entries: Table, verb: str) -> list[click.Option]:
    """The flags that a verb, of `PlanField.flags`, has for the fields of a plan."""
    found = []
    for entry in entries.values():
        if verb not in entry.flags:
            continue
        dashed = entry.name.replace("_", "-")
        if entry.kind is not SWITCH:
            bare: dict[str, Any] = {}
            if entry.alone:
                bare = {"is_flag": False, "flag_value": entry.alone}
            bare["hidden"] = entry.quiet
            found.append(option(dashed, _help(entry, verb), entry.metavar, **bare))
            continue
        # What is not so unless it is stated needs no flag to deny it.
        names = dashed if entry.default == "no" else f"{dashed}/--no-{dashed}"
        found.append(switch(names, _help(entry, verb), unless=None))
    return found


@dataclass(frozen=True, slots=True)
class Invocation:
    """What a command line says.

    fields       keys of a plan: those of the file, of flags, of --set; later ones count
    where        what to call them in an error: the file, or the command line
    calibration  name or folder
    json         file to write the result to, '-' for standard output
    """

    fields: Mapping[str, Any]
    where: str
    calibration: str
    json: str | None

    @property
    def quiet(self) -> bool:
        """Whether standard output is for the JSON alone."""
        return self.json == "-"

    def write(self, content: Any) -> None:
        """Write the JSON, where it was asked for."""
        if self.json:
            from reckon.console.files import write_json

            write_json(self.json, content)


def invocation(
    given: dict[str, Any],
    keys: Iterable[click.Option],
    lists: Table | None = None,
    also: Mapping[str, Any] | None = None,
) -> Invocation:
    """What a command line says of a plan; taken out of `given`, the values of its flags.

    keys    flags that are keys of the request
    lists   the table whose fields take lists; without one, commas are left to who reads the fields
    also    keys that other flags mean
    """
    flags = {**{str(flag.name): given.pop(str(flag.name)) for flag in keys}, **(also or {})}
    file = given.pop("file", None)
    stated = {name: value for name, value in flags.items() if value is not None}
    content = catalog.read_request(Path(file)) if file else {}
    keyed = settings(given.pop("set"))
    for name in (name for name in keyed if name in stated and str(stated[name]) != keyed[name]):
        flag = name.replace("_", "-")
        raise InputError(f"--{flag} {stated[name]} and --set {name}={keyed[name]}: give one")
    return Invocation(
        {**content, **_split_lists(stated, lists or {}), **keyed},
        file or "command line",
        given.pop("calibration"),
        given.pop("json"),
    )


LENGTHS = ("seq_len", "input_len", "output_len")
"""Flags whose values people write as 8k, and mean 8,192."""


def _thousands(value: Any) -> Any:
    """Lengths with a k as numbers; anything else as it is."""
    if not isinstance(value, str):
        return value
    return re.sub(r"(?<![\w.])(\d+)[kK](?!\w)", lambda m: str(1024 * int(m[1])), value)


def _split_lists(flags: Mapping[str, Any], entries: Table) -> dict[str, Any]:
    """Turn 'a,b' into lists, where the field takes them."""
    found = {}
    for name, given in flags.items():
        value = _thousands(given) if name in LENGTHS else given
        several = name in entries and entries[name].lists
        if several and isinstance(value, str) and "," in value:
            found[name] = [part.strip() for part in value.split(",") if part.strip()]
        else:
            found[name] = value
    return found


def settings(pairs: Iterable[str]) -> dict[str, str]:
    """Keys and values of --set."""
    found = {}
    for pair in pairs:
        key, separator, value = pair.partition("=")
        if not separator:
            raise InputError(f"--set {pair!r}: write KEY=VALUE, e.g. --set grad_overlap=false")
        found[key.strip().replace("-", "_")] = value.strip()
    return found
