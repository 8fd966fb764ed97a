"""What a request may state of a plan: one table of fields, from which come the forms of files
(`predictor.catalog`), the flags of the command line, `reckon show fields` and the reference page.

A new field is an entry here (`training_fields`, `serving_fields`), a field of the plan's dataclass,
and the arithmetic that reads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any

from predictor.records import dataclass


@dataclass(frozen=True, slots=True)
class Kind:
    """Values that a field takes: numbers within ends, or something else.

    what     in words, where `number` is None
    number   int or float
    least, most     ends that are values themselves
    above, below    ends that are none
    scaled          whether people write it with K, M, B or T for thousands to millions of millions
    binary          whether they write it with a k for 1,024
    """

    what: str
    number: type | None = None
    least: float | None = None
    most: float | None = None
    above: float | None = None
    below: float | None = None
    scaled: bool = False
    binary: bool = False

    @property
    def span(self) -> str:
        """The values in words: 'whole, 1 to 1e+09'."""
        if self.number is None:
            return self.what
        ends = [
            f"{word} {end:g}"
            for word, end in (
                ("from", self.least), ("above", self.above), ("to", self.most),
                ("below", self.below),
            )
            if end is not None
        ]  # fmt: skip
        return f"{self.what}, {' '.join(ends)}"


COUNT = Kind("whole", int, least=1, most=10**9)
LENGTH = Kind("whole", int, least=1, most=10**9, binary=True)
NATURAL = Kind("whole", int, least=0, most=10**9)
POSITIVE = Kind("number", float, above=0, below=1e30)
BUDGET = Kind("number", float, above=0, below=1e30, scaled=True)
AMOUNT = Kind("number", float, least=0, below=1e30)
SHARE = Kind("share", float, least=0, most=1)
PART = Kind("share", float, above=0, most=1)
LOAD = Kind("ratio", float, least=1, most=1e3)
SWITCH = Kind("yes or no")
TEXT = Kind("text")
WORD = Kind("one of")
WORDS = Kind("any of")
ORDER = Kind("an order of tp, cp, dp and pp from the inside outwards")
ENTRY = Kind("a name of the catalog, a file, or keys and values")

PREDICT, EXPLAIN, PLAN = "predict", "explain", "plan"
EVERYWHERE = (PREDICT, EXPLAIN, PLAN)

ALL = ("all",)
TRAINING_PHASES = (
    "forward",
    "backward",
    "optimizer",
    "pipeline",
    "communication",
    "host",
    "memory",
)
BOTH = ("prefill", "decode")
SERVING_PHASES = (*BOTH, "load", "communication", "memory")


@dataclass(frozen=True, slots=True)
class PlanField:
    """One field of a request.

    kind     values that it takes, of `choices` where those are words
    words    what else people call the choices (`plans.words`)
    help     one line: what it is
    touches  phases of a step or of a request, memory, or 'run' (days, interruptions, money)
    unit     of the value; '' for what is counted or chosen
    default  what is taken where nothing is stated; '' where that is the default of the plan's
             dataclass
    reason   why that
    more     what one line does not say, and its source
    held     field of the dataclass that holds it, where that has another name; '' where none does
    flags    verbs that have a flag of its name; others take it by --set or from a file
    metavar  of the flag
    lists    whether commas in the flag separate values, each of which is predicted
    planned  `help` of a search, where that differs
    alone    value of the flag where it is given without one; '' where it needs one
    quiet    whether --help leaves the flag out; guides and `show fields` have it
    """

    name: str
    kind: Kind
    help: str
    touches: tuple[str, ...]
    unit: str = ""
    choices: tuple[str, ...] = ()
    words: Mapping[str, str] | None = None
    default: str = ""
    reason: str = ""
    more: str = ""
    held: str | None = None
    flags: tuple[str, ...] = ()
    metavar: str = "N"
    lists: bool = True
    planned: str = ""
    alone: str = ""
    quiet: bool = False

    @property
    def values(self) -> str:
        """The values that it takes, in words."""
        return f"{self.kind.what} {', '.join(self.choices)}" if self.choices else self.kind.span

    @property
    def holder(self) -> str:
        """The field of the plan's dataclass that holds it; '' where none does."""
        return self.name if self.held is None else self.held


Table = Mapping[str, PlanField]


def table(entries: tuple[PlanField, ...]) -> Table:
    """Entries by name, in their order."""
    return {entry.name: entry for entry in entries}


def arithmetic_defaults(plan: type) -> dict[str, Any]:
    """Defaults of a plan's dataclass, of those fields that have one."""
    return {one.name: one.default for one in fields(plan) if one.default is not MISSING}


def default_of(entry: PlanField, plan: type) -> str:
    """What is taken where a field is not stated: as the table says, else the plan's own default."""
    if entry.default or not entry.holder:
        return entry.default
    found = arithmetic_defaults(plan).get(entry.holder, "")
    if entry.kind is SWITCH:
        return "yes" if found else "no"
    if isinstance(found, float):
        return {"nan": "", "inf": "no limit"}.get(f"{found:g}", f"{found:g}")
    return str(found)


CLUSTER_FIELDS = (
    PlanField(
        "model", ENTRY, "Catalog name, config.json or .yaml.", ("all",),
        default="none: must be stated", flags=EVERYWHERE, metavar="NAME", held="",
    ),
    PlanField(
        "system", ENTRY, "Catalog name or .yaml.", ("all",),
        default="the first of the catalog with the accelerator",
        reason="nodes of one accelerator differ little", flags=EVERYWHERE, metavar="NAME", held="",
    ),
    PlanField(
        "accelerator", ENTRY, "Instead of a system.", ("all",), default="the system's",
        flags=EVERYWHERE, metavar="NAME", held="",
        more="Beside a system: its accelerators are these.",
    ),
    PlanField(
        "accelerators_per_node", COUNT, "Node size, where another than the system's.", ("all",),
        default="the system's", held="",
    ),
    PlanField(
        "inter_link_gbps", POSITIVE, "Rate between nodes, per accelerator.", ("communication",),
        unit="Gbit/s", default="the system's", held="",
    ),
)  # fmt: skip
"""What both plans say of where they run."""


def era_fields(whose: str, of: str) -> tuple[PlanField, ...]:
    """What both plans say of the software, each in its words."""
    return (
        PlanField(
            "framework", TEXT, whose, ("all",), default="neutral", flags=EVERYWHERE, metavar="NAME",
            reason="what most of them share",
        ),
        PlanField(
            "era", TEXT, f"Of the {of}, YYYY-MM.", ("all",), default="its latest",
            flags=EVERYWHERE, metavar="DATE", reason="today's versions, unless a date is stated",
        ),
    )  # fmt: skip


PLACEMENTS = ("given", "balanced")
"""Experts lie in the order of their numbers, or are dealt to the ranks by their load."""


PACKINGS = ("fixed", "balanced", "unmasked", "padded")
"""Windows cut from documents one after the other, which attend to themselves alone; documents dealt
to ranks and micro-batches by cost; windows that attend over all of their documents; a document
per sequence, and padding."""

DIVISIONS = ("sequence", "document", "adaptive")
"""What context-parallel ranks divide: the whole sequence, or each document in it."""


def image_fields(of: str) -> tuple[PlanField, ...]:
    """What both plans say of images (or half minutes of sound), which a second tower encodes."""
    return (
        PlanField(
            "images", AMOUNT, f"Images of a {of}, or half minutes of sound.", ALL,
            default="none", held="", reason="text alone unless stated",
            more="Of a model whose file has a vision_config or an audio_config, or a `tower`.",
        ),
        PlanField(
            "image_tiles", POSITIVE, "Tiles that an image is cut into.", ALL, default="1", held="",
            reason="one of the tower's size unless stated",
            more="Of 448 px where the file leaves the size open (Qwen-VL), else of its "
            "`image_size`.",
        ),
    )  # fmt: skip


def expert_fields(touches: tuple[str, ...]) -> tuple[PlanField, ...]:
    """What both plans say of how tokens fall on experts; from it follows `expert_load`."""
    return (
        PlanField(
            "expert_chunks", COUNT, "Parts in which tokens go to their experts and back.", touches,
            default="1", reason="one after the other unless stated",
            more="Dispatch, experts and combine of the parts overlap (EPS-MoE: Qian et al. 2024); "
            "each is smaller.",
        ),
        PlanField(
            "expert_loads", TEXT, "How tokens fall on experts.", touches,
            default="as `expert_load` says", held="",
            more="`even`, but for chance; `dirichlet:A`; `zipf:S`; `one-hot`; or a file with a "
            "number for each expert.",
        ),
        PlanField(
            "expert_replicas", NATURAL, "Further copies of the busiest experts.", touches,
            default="0", held="", reason="no expert is repeated unless stated",
            more="Redundant experts of EPLB (DeepSeek-AI 2024, section 3.4); with `expert_loads`.",
        ),
        PlanField(
            "expert_placement", WORD, "Who holds which expert.", touches, choices=PLACEMENTS,
            default="given", held="", reason="numbers say nothing of the load",
            more="As they are numbered, or dealt by their load; with `expert_loads`.",
        ),
        PlanField(
            "expert_capacity", POSITIVE, "Tokens that an expert takes at most, over the mean.",
            touches, default="no limit", held="", reason="no token is dropped unless stated",
            more="What is beyond is dropped (Fedus et al. 2021); with `expert_loads`.",
        ),
    )  # fmt: skip
