"""Prompts read apart, in lines of serving engines: one line for a worker that reads prompts, one
for the engine that decodes, and a router that names all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from predictor.errors import InputError
from predictor.records import dataclass
from reckon.launch.launcher import rendered
from reckon.launch.shell import Script, options
from reckon.launch.table import Derived, Entry, Facts, Flags, whole_number

WORKERS, SIZE, SHARED = "@prefill-workers", "@prefill-tp", "@prefill-dp"
"""Flags under which workers, their tensor parallel and their replicas of the attention are kept
apart from the engine's."""

READS, DECODES = "--prefill", "--decode"
"""Flags under which routers name the engines of each kind."""


def _says(facts: Facts) -> Flags:
    if not facts.get("prefill_workers"):
        return {}
    found = {WORKERS: facts["prefill_workers"], SIZE: facts["prefill_tp"]}
    return found | ({SHARED: copies} if (copies := facts.get("prefill_dp", 1)) > 1 else {})


def _means(flags: Flags, facts: Facts) -> Facts:
    if WORKERS not in flags and SIZE not in flags:
        return {}
    found = {
        "prefill_workers": whole_number(READS, flags.get(WORKERS, 1)),
        "prefill_tp": whole_number("tensor parallel of the prefill engine", flags.get(SIZE, 1)),
    }
    if SHARED in flags:
        found["prefill_dp"] = whole_number("replicas of the prefill engine", flags[SHARED])
    return found


APART = Derived(
    (WORKERS, SIZE, SHARED), _says, _means, fields=("prefill_workers", "prefill_tp", "prefill_dp")
)
"""How many workers read prompts, their tensor parallel and their replicas of the attention."""


@dataclass(frozen=True, slots=True)
class Roles:
    """How an engine's lines say what they do.

    flag            that says it
    reads, decodes  its value for a worker that reads prompts, and for the engine that decodes
    mark            by which a worker's value is known
    sizes           flags of the tensor parallel
    router          the command of the router
    """

    flag: str
    reads: str
    decodes: str
    mark: str
    sizes: tuple[str, ...]
    router: str

    def lines(
        self, head: str, engine: Flags, facts: Facts, entries: Sequence[Entry], whole: Flags
    ) -> str:
        """Commands that start everything.

        head     of a server's command
        engine   flags of the engine that decodes, `whole` with those of the load
        entries  the engine's table, by which a worker's own sizes are written
        """
        if WORKERS not in whole:
            return rendered(head, engine)
        size, count = facts["prefill_tp"], int(facts["prefill_workers"])
        copies = facts.get("prefill_dp", 1)
        divided = facts["ep"] > 1 or copies > 1
        sizes = {"tp": size, "pp": 1, "dp": copies, "ep": size * copies if divided else 1}
        own: Flags = {}
        for entry in entries:
            own |= entry.write({**facts, **sizes}, True)
        worker = {f: v for f, v in own.items() if f in engine or f in (*self.sizes, *OWN)}
        length = {f: v for f, v in engine.items() if f not in whole}
        urls = [f"{READS} http://PREFILL-{n}:8000" for n in range(count)]
        router = " \\\n    ".join([self.router, *urls, f"{DECODES} http://DECODE-0:8000"])
        return (
            f"# on each of {count} hosts that read prompts, PREFILL-0 and on:\n"
            + rendered(head, {**worker, **length, self.flag: self.reads})
            + "# where the answers are decoded, DECODE-0:\n"
            + rendered(head, {**engine, self.flag: self.decodes})
            + f"{router}\n"
        )

    def taken(self, script: Script) -> tuple[Script, Flags]:
        """A script without its workers and its router, and what they said.

        Raises InputError for workers that are not as many for every engine that decodes.
        """
        left: list[list[str]] = []
        found: Flags = {}
        for words in script.commands:
            if READS in words:
                readers, decoders = words.count(READS), max(words.count(DECODES), 1)
                if readers % decoders:
                    raise InputError(
                        f"{readers} engines that read prompts for {decoders} that decode are no "
                        "whole number for each"
                    )
                found[WORKERS] = readers // decoders
                continue
            given = {name.replace("_", "-"): value for name, value in options(words).items()}
            if self.mark not in str(given.get(self.flag, "")) and not _of_dynamo(given):
                left.append(words)
                continue
            found[SIZE] = next((given[f] for f in self.sizes if f in given), 1)
            copies = next((given[f] for f in COPIES if f in given), 1)
            if str(copies) == "1":
                continue
            found[SHARED] = whole_number("data parallel", copies)
            if WITHIN in given:
                found[SIZE] = whole_number("tensor parallel", found[SIZE]) // found[SHARED]
        return replace(script, commands=left), found


COPIES = ("--data-parallel-size", "-dp", "--dp-size", "--dp")
"""Flags for replicas of the attention, which share experts."""

WITHIN = "--enable-dp-attention"
"""Flag of SGLang by which these are among the ranks that its tensor parallel counts."""

OWN = (*COPIES, WITHIN, "--ep-size", "--enable-expert-parallel")
"""Flags that a worker may have where the engine that decodes has none."""


def _of_dynamo(given: Flags) -> bool:
    """Whether a line is of a worker that reads prompts, as Dynamo says it to either engine
    (ai-dynamo/dynamo, recipes of 2026)."""
    return "--is-prefill-worker" in given or given.get("--disaggregation-mode") == "prefill"
