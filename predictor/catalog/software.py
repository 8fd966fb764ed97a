"""What software does by default, as dated facts with their sources: `data/software/serving/`.

A file says of one engine when its releases came out, and for each field of a plan what it was set
to from which release on, and where: on which accelerators, with which weights, for which models.
Facts of a field stand in the order of time, general ones before those of a case; the last that
holds decides.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from functools import cache, lru_cache
from typing import Any

from predictor.catalog import tables
from predictor.catalog.filling import Default
from predictor.errors import InputError, unknown
from predictor.hardware import Accelerator
from predictor.models import Model
from predictor.records import dataclass
from predictor.units import GIB

NEWEST = "neutral"
"""What a plan without an era says: today's versions."""


@dataclass(frozen=True, slots=True, eq=False)
class Setting:
    """Where software runs: what the conditions of facts are asked of.

    weights  data type of the weights as the checkpoint has it
    tp, dp   of the plan, as stated or as they come out
    drafted  of the plan, where it is stated
    """

    accelerator: Accelerator
    model: Model
    weights: str = "bf16"
    tp: int = 1
    dp: int = 1
    drafted: int = 0


def _kinds(model: Model) -> set[str]:
    found = {"mixture" if model.is_moe else "dense"}
    found |= {"latent"} if model.is_latent else {"separate"}
    found |= {"windowed"} if model.windowed_share == 1.0 else set()
    return found | ({"sparse"} if model.is_sparse else set())


def _memory(setting: Setting) -> float:
    return float(setting.accelerator.memory) / GIB


CONDITIONS: dict[str, Callable[[Any, Setting], bool]] = {
    "memory_from": lambda least, at: _memory(at) >= least,
    "memory_below": lambda most, at: _memory(at) < most,
    "accelerators": lambda names, at: at.accelerator.name.startswith(tuple(names)),
    "other_than": lambda names, at: not at.accelerator.name.startswith(tuple(names)),
    "architectures": lambda names, at: at.accelerator.architecture in names,
    "vendor": lambda name, at: at.accelerator.vendor.lower() == name,
    "multiplies": lambda name, at: name in at.accelerator.peak,
    "weights": lambda names, at: at.weights in names,
    "context_above": lambda most, at: at.model.max_context > most,
    "models": lambda kinds, at: bool(_kinds(at.model) & set(kinds)),
    "families": lambda names, at: at.model.family in names,
    "tp_from": lambda least, at: at.tp >= least,
    "tp_below": lambda most, at: at.tp < most,
    "dp_from": lambda least, at: at.dp >= least,
    "replicas": lambda yes, at: (at.dp > 1) == yes,
    "guesses": lambda yes, at: (at.drafted > 0) == yes,
}
"""What a fact's `where` may ask: memory [GiB], beginnings of accelerators' names, architectures,
the weights' data type, the model's kind, family and longest context, the plan's ranks."""

RANKED = ("tp_from", "tp_below", "dp_from", "replicas")
"""Those that ask for the plan's ranks."""

Version = tuple[int, ...]


def version_of(text: str) -> Version:
    """A release as numbers that compare: '0.11.2rc1' is (0, 11, 2), '0.2' (0, 2, 0).

    Raises InputError where it begins with no number.
    """
    return _numbers(str(text))


@cache
def _numbers(text: str) -> Version:
    found: list[int] = []
    for part in text.lower().removeprefix("v").split("."):
        digits = "".join(_leading(part))
        if not digits:
            break
        found.append(int(digits))
        if digits != part:
            break
    if not found:
        raise InputError(f"version {text!r} begins with no number; write it as in 0.11.2")
    return (*found, 0, 0)[: max(len(found), 3)]


def _leading(part: str) -> list[str]:
    digits: list[str] = []
    for letter in part:
        if not letter.isdigit():
            break
        digits.append(letter)
    return digits


@dataclass(frozen=True, slots=True)
class Fact:
    """One default of an engine.

    field, value  of a plan; the value 'context' is as many tokens as the model can hold, and one
                  such as '8192/dp' is shared by the replicas of the attention
    since         release, or month of engines without any; empty: from the beginning
    where         conditions, of `CONDITIONS`
    source        file and release, page, or what else it was read in
    confidence    'read', 'second-hand' or 'memory'
    """

    field: str
    value: Any
    since: str
    where: Mapping[str, Any]
    source: str
    confidence: str

    def holds(self, setting: Setting) -> bool:
        """Whether the fact is of such a case."""
        return all(CONDITIONS[name](value, setting) for name, value in self.where.items())


@dataclass(frozen=True, slots=True)
class Engine:
    """An engine's facts.

    releases    month of each, oldest first
    periods     last months (YYYY-MM) inside which fitted parameters are shared; what comes after
                the last is a period, too
    like        engine whose fitted parameters stand in, and are drawn towards, where this one is
                built on it
    port        engine that this one is called by on accelerators of a vendor, and the vendor
    only        vendor on whose accelerators alone it runs; '': several
    """

    name: str
    releases: Mapping[str, str]
    periods: tuple[str, ...]
    like: str
    facts: tuple[Fact, ...] = field(repr=False)
    port: tuple[str, str] | None = None
    only: str = ""

    def label(self, era: str | None) -> str:
        """The name of its fitted parameters in an era."""
        if era is not None and era != NEWEST:
            month = month_of(era)
            for until in self.periods:
                if month <= until:
                    return f"{self.name} until {until}"
        return self.name

    def month(self, version: str) -> str:
        """The month in which a release, or the last one before it, came out.

        Raises InputError for an engine of which no releases are known, nor of the one that it is on
        a vendor's accelerators.
        """
        if not self.releases and self.port:
            return engine_named(self.port[0]).month(version)
        if not self.releases:
            raise InputError(f"no releases of {self.name} are known; state --era YYYY-MM instead")
        wanted = version_of(version)
        before = [m for name, m in self.releases.items() if version_of(name) <= wanted]
        return before[-1] if before else next(iter(self.releases.values()))

    def version(self, era: str | None) -> str:
        """The newest release of an era; the newest of all where none is stated, empty where none is
        known or all are later."""
        months = self.releases.items()
        if era is None or era == NEWEST:
            return list(self.releases)[-1] if self.releases else ""
        known = [name for name, month in months if month <= month_of(era)]
        return known[-1] if known else ""

    def defaults(self, setting: Setting, era: str | None, version: str = "") -> list[Default]:
        """What the engine sets, with the fact that each rests on.

        version   release, where one is stated; else the newest of the era
        """
        release = version or self.version(era)
        chosen: dict[str, Fact] = {}
        for fact in self.facts:
            if self._since(fact, release, era) and fact.holds(setting):
                chosen[fact.field] = fact
        named = f"{self.name} {release}".strip()
        return [
            Default(name, _value(fact, setting), f"{named}: {self._told(fact)}")
            for name, fact in chosen.items()
        ]

    def ranked(self, setting: Setting) -> tuple[int, ...]:
        """Which of its facts' conditions on ranks hold, and among how many replicas it shares: what
        an engine does by default differs between two layouts only where these do."""
        held = (
            int(CONDITIONS[name](fact.where[name], setting))
            for fact in self.facts
            for name in RANKED
            if name in fact.where
        )
        return (*held, setting.dp if any(map(_is_divided, self.facts)) else 1)

    def _since(self, fact: Fact, release: str, era: str | None) -> bool:
        if not fact.since:
            return True
        if self.releases:
            return bool(release) and version_of(release) >= version_of(fact.since)
        return era is None or era == NEWEST or month_of(era) >= fact.since

    def _told(self, fact: Fact) -> str:
        since = f", since {fact.since}" if fact.since else ""
        where = ", ".join(f"{name} {_short(value)}" for name, value in fact.where.items())
        case = f" where {where}" if where else ""
        doubt = "" if fact.confidence == "read" else f"; {fact.confidence}"
        return f"{fact.source}{since}{case}{doubt}"


def _short(value: Any) -> str:
    return "/".join(map(str, value)) if isinstance(value, list | tuple) else str(value).lower()


def _value(fact: Fact, setting: Setting) -> Any:
    if fact.value == "context":
        return max(setting.model.max_context, 2048)
    if _is_divided(fact):
        return max(int(fact.value.removesuffix(DIVIDED)) // setting.dp, 1)
    return fact.value


DIVIDED = "/dp"
"""What a value ends with that attention's replicas share."""


def _is_divided(fact: Fact) -> bool:
    return isinstance(fact.value, str) and fact.value.endswith(DIVIDED)


def month_of(era: str) -> str:
    """An era as a month; of a year, its middle.

    Raises InputError for what is no date.
    """
    if not era[:4].isdigit():
        raise InputError(f"era {era!r} is not a date; write YYYY or YYYY-MM")
    return era if len(era) > 4 else f"{era}-06"


@lru_cache(maxsize=1)
def all_engines() -> Mapping[str, Engine]:
    """Every engine that facts are known of, by name."""
    folder = tables.data_dir() / "software" / "serving"
    content = {path.stem: tables.read_mapping(path) for path in sorted(folder.glob("*.yaml"))}
    return {name: _engine(name, content) for name in content}


def engine_named(name: str) -> Engine:
    """An engine by its name. Raises InputError for one that no facts are known of."""
    if name not in all_engines():
        raise unknown("framework", name, all_engines())
    return all_engines()[name]


def ported(name: str, vendor: str) -> str:
    """The engine that a name means on accelerators of a vendor: its port there, if it has one."""
    ports = (one.name for one in all_engines().values() if one.port == (name, vendor))
    return next(ports, name)


def _engine(name: str, content: Mapping[str, Mapping[str, Any]]) -> Engine:
    """An engine from its file, and those of the ones whose code it is (`of`)."""
    own = content[name]
    parent = own.get("of")
    base = _engine(parent, content) if parent else None
    found = list(base.facts) if base else []
    for key, several in own.get("facts", {}).items():
        found += [_fact(name, key, one) for one in several]
    releases = own.get("releases") or (base.releases if base else {})
    return Engine(
        name=name,
        releases=releases,
        periods=tuple(own.get("periods", base.periods if base else ())),
        like=own.get("like", ""),
        facts=tuple(found),
        port=(own["port"]["of"], own["port"]["vendor"]) if "port" in own else None,
        only=own.get("only", ""),
    )


def _fact(name: str, key: str, one: Mapping[str, Any]) -> Fact:
    for condition in one.get("where", {}):
        if condition not in CONDITIONS:
            raise unknown(f"condition of {name}'s {key}", condition, CONDITIONS)
    return Fact(
        field=key,
        value=one["value"],
        since=str(one.get("since", "")),
        where=one.get("where", {}),
        source=one["source"],
        confidence=one.get("confidence", "read"),
    )
