"""What the name of a machine says: an accelerator as people and drivers call it, so many of them
(`8xH100`, `H100:8`, two nodes as `2x8xH100`), a slice of TPUs (`v5p-128`), or an instance of a
cloud (`data/clouds.csv`; those that are no node of a catalog system, `data/defaults/
instances.yaml`).
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from predictor.catalog import tables
from predictor.catalog.model_names import NAMED, words
from predictor.errors import InputError
from predictor.records import dataclass

VENDORS = re.compile(
    r"\b(nvidia|amd|intel|google|aws|huawei|moore threads|tesla|geforce|instinct|habana|quadro"
    r"|radeon|accelerators?|gpus?|tensor cores?)\b"
)
"""What says nothing beyond the rest of a name."""

SEVERAL = re.compile(
    r"(?:(?:(?P<nodes>[1-9]\d*)\s*[x*\u00d7]\s*)?(?P<before>\d+)\s*[x*\u00d7]\s*)?(?P<one>.+?)"
    r"(?:\s*[x*\u00d7:]\s*(?P<behind>\d+))?"
)

COUNTED = re.compile(r"(?P<count>[1-9]\d*)\s+(?P<one>[a-z].*?)(?:\s+gpus?)?", re.IGNORECASE)
"""So many of an accelerator as text has them ('64 H100s', '16 A100 GPUs', '8 L40S')."""

PLURAL = re.compile(r"(?P<one>.*[A-Z].*\d.*)s")
"""Several of an accelerator whose name has capitals ('V100s', which is no V100S)."""

SLICE = re.compile(r"(?:tpu[- ]?)?(?P<kind>7x|v2|v3|v4|v5p|v5litepod|v5e|v6e)-(?P<count>\d+)")
"""Slices of TPUs as Google Cloud's accelerator types name them."""

CORES = {"v2": 2, "v3": 2, "v4": 2, "v5p": 2, "7x": 2}
"""What the number of such a name counts to a chip: TensorCores of v2 to v5p and TPU7x, whose chips
have two (tpu7x-8 is four chips: docs.cloud.google.com/tpu/docs/tpu7x);
chips of v5e and v6e (docs.cloud.google.com/tpu/docs/v5p: a 4x4x4 slice of 64 chips is v5p-128;
docs .../v5e and .../v6e: v5litepod-8 and v6e-8 have 8 chips; read 2026-11)."""


OWN = {"v5litepod": "v5litepod", "7x": "tpu7x"}
"""Kinds that no `tpu-` stands before in the catalog."""

TOPOLOGY = re.compile(
    r"(?:tpu[- ]?)?(?P<kind>7x|v4|v5p|v5litepod|v5e|v6e)-(?P<axes>\d+(?:x\d+){1,2})"
)
"""Slices as xpk and GKE name them, by the chips along each axis (xpk, core/system_characteristics:
`tpu7x-4x4x8`; GKE's label gke-tpu-topology)."""


@dataclass(frozen=True, slots=True)
class Instance:
    """An instance of a cloud.

    system   the catalog system that it is a node of
    count    accelerators in it
    price    of the instance for an hour, on demand [USD]; None where no price is known
    told     where and when the price held, and its source
    others   what else people call it
    """

    name: str
    system: str
    count: int
    price: float | None
    told: str
    others: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class MachineName:
    """What a name was taken for: an instance, or an accelerator and how many of them.

    count     accelerators that it names; 0 where it names none
    per_node  of them in a node; 0 where it does not say
    system    of the catalog that it names so many of; empty for an accelerator's usual one
    """

    written: str
    accelerator: str = ""
    count: int = 0
    instance: Instance | None = None
    per_node: int = 0
    system: str = ""

    def rule(self, system: str) -> str:
        """What was taken for what, in a line."""
        told = f"{NAMED.replace('model', 'system')}: {self.written} is taken for {system}"
        if self.instance is None and self.count:
            return f"{told}, {self.count} accelerators of it"
        return told


def fold(name: str) -> str:
    """A name as letters and digits, by which spellings are compared."""
    plain = VENDORS.sub(" ", name.lower().replace("_", " ").replace("-", " "))
    return re.sub(r"[^a-z0-9]", "", plain)


@lru_cache(maxsize=4)
def _instances(directory: Path) -> Mapping[str, Instance]:
    path = directory / "clouds.csv"
    try:
        with path.open(newline="", encoding="utf-8") as stream:
            rows = list(csv.DictReader(stream))
    except OSError:
        return {}
    found = {}
    for row in rows:
        price = float(row["usd_per_hour"]) if row["usd_per_hour"] else None
        told = ", ".join(row[k] for k in ("region", "date", "source") if row[k])
        others = tuple(tables.aliases_of(row))
        one = Instance(
            row["instance"], row["system"], int(row["accelerators"]), price, told, others
        )
        names = [row["instance"], *others]
        for name in (*names, *(f"{row['provider']} {each}" for each in names)):
            found[re.sub(r"[^a-z0-9]", "", name.lower())] = one
    return found


def instances() -> list[Instance]:
    """Instances of clouds, in the order of their table."""
    return list({one.name: one for one in _instances(tables.data_dir()).values()}.values())


@lru_cache(maxsize=4)
def _written(directory: Path) -> tuple[tuple[re.Pattern[str], Instance], ...]:
    """How text may spell each instance, the longest names first."""
    every = {one.name: one for one in _instances(directory).values()}.values()
    names = sorted(
        ((name, one) for one in every for name in (one.name, *one.others)),
        key=lambda pair: -len(pair[0]),
    )
    return tuple((_spelling(name), one) for name, one in names)


@lru_cache(maxsize=512)
def _spelling(name: str) -> re.Pattern[str]:
    """How text may spell a name."""
    return re.compile(rf"\b{re.sub('[^a-z0-9]+', '[^a-z0-9]?', name.lower())}\b")


def instance_in(text: str, accelerator: str) -> Instance | None:
    """The instance of a cloud that a text speaks of ('2x p5.48xlarge, EFA', 'GCP A3 Mega') and
    that has a catalog accelerator; None where it names none."""
    systems = tables.rows("systems")
    for spelling, one in _written(tables.data_dir()):
        mentioned = spelling.search(text.lower())
        if mentioned and systems[one.system]["accelerator"] == accelerator:
            return one
    return None


def system_in(text: str, accelerator: str) -> str | None:
    """The catalog system with an accelerator whose name a text has (Vidur's 'network=
    h100_pairwise_nvlink'); None where it has none."""
    own = [n for n, row in tables.rows("systems").items() if row["accelerator"] == accelerator]
    return next((name for name in own if _spelling(name).search(text.lower())), None)


@lru_cache(maxsize=4)
def _accelerators(directory: Path) -> Mapping[str, str]:
    return {fold(name): row for name, row in _named()}


def _named() -> Iterator[tuple[str, str]]:
    """Every name of every accelerator, and its row."""
    for row, content in tables.rows("accelerators").items():
        others = words()["accelerators"].get(row, ())
        for name in (row, *tables.aliases_of(content), *others):
            yield name, row


def _beginning(name: str) -> str | None:
    """The only accelerator whose name begins so, None where there is none; of several the one that
    says no more than its memory ('RTX 4060' is not 'RTX 4060 Ti').

    Raises InputError where there are several.
    """
    wanted = fold(name)
    if len(wanted) < 3:
        return None
    near = sorted(
        {
            row
            for own, row in _named()
            if fold(own).startswith(wanted) and not _other_chip(wanted, own)
        }
    )
    bare = [row for row in near if re.fullmatch(rf"{wanted}\d*(gb)?", fold(row))]
    return _only(name, bare if len(bare) == 1 else near)


VARIANT = re.compile(r"\d|ti|xtx?|(?<=xt)x|d(?![a-z])")
"""How what is left of a word begins where it is the name of another chip."""


def _other_chip(wanted: str, name: str) -> bool:
    """Whether a name ends inside a word of another's that says another chip with what is left of
    it: a GTX 1080 is no 1080 Ti, a B20 no B200, an RX 9070 no 9070 XT.
    """
    before = 0
    for word in re.findall(r"[a-z0-9]+", VENDORS.sub(" ", name.lower())):
        left, before = len(wanted) - before, before + len(word)
        if 0 < left < len(word):
            return VARIANT.match(word, left) is not None
    return False


LOOSE = re.compile(r"(?<=sxm)\d(?!\d)|hbm\d?e?")
"""What of a name people leave out or guess: which SXM socket, which kind of memory."""


def _loosely(name: str) -> str | None:
    """The only accelerator whose name differs in no more than `LOOSE`, None where there is none.

    Raises InputError where there are several.
    """
    wanted = fold(LOOSE.sub("", name.lower()))
    return _only(
        name,
        [row for row in tables.rows("accelerators") if fold(LOOSE.sub("", row.lower())) == wanted],
    )


AROUND = re.compile(
    r"\b(dgx|hgx|mgx|oam|hopper|ampere|(grace )?blackwell( ultra)?|superchip|server|edition"
    r"|hbm\d?e?|nvlink|nvl\d+)\b"
)
"""What of a name says of which generation, board, memory or rack an accelerator is."""


BOARDS = re.compile(r"\b(dgx|hgx)\b")
"""What a name says of NVIDIA's boards, which not every accelerator comes on ('dgx-a10')."""


def _words(name: str) -> str:
    """Words of a name in the order of letters, without `VENDORS`, `AROUND` and `LOOSE`."""
    plain = re.sub(r"[^a-z0-9]+", " ", name.lower())
    plain = re.sub(r"(?<=\d) (?=g(i?b)?\b)", "", AROUND.sub(" ", VENDORS.sub(" ", plain)))
    left = LOOSE.sub("", re.sub(r"(?<=\d)g(i?b)?\b", "gb", plain))
    return " ".join(sorted(left.split()))


@lru_cache(maxsize=4)
def _in_any_order(directory: Path) -> Mapping[str, frozenset[str]]:
    """Accelerators by the words of their names."""
    found: dict[str, set[str]] = {}
    for name, row in _named():
        found.setdefault(_words(name), set()).add(row)
    found.pop("", None)  # a generation or a rack alone ('Blackwell', 'NVL576') says no accelerator
    return {key: frozenset(rows) for key, rows in found.items()}


def _only(name: str, near: list[str]) -> str | None:
    """The accelerator that a name may be, None where there is none.

    Raises InputError where there are several.
    """
    if not near:
        return None
    if len(near) > 1:
        raise InputError(f"accelerator {name!r} may be {', '.join(near)}; name one of them")
    return near[0]


def read_accelerator_name(name: str) -> str | None:
    """The catalog's accelerator that a name stands for, None where none does.

    Raises InputError where it may be several.
    """
    directory = tables.data_dir()
    if exact := _accelerators(directory).get(fold(name)) or _beginning(name) or _loosely(name):
        return exact
    found = _only(name, sorted(_in_any_order(directory).get(_words(name), ())))
    found = found or _beginning(LOOSE.sub("", name.lower()))
    return found if found and (_on_board(found) or not BOARDS.search(name.lower())) else None


def _on_board(accelerator: str) -> bool:
    """Whether there are systems of an accelerator on boards of NVIDIA's."""
    systems = tables.rows("systems")
    return any(
        BOARDS.search(name.lower()) and row["accelerator"] == accelerator
        for name, row in systems.items()
    )


def refuse_not_modelled(name: str) -> None:
    """Raise InputError for the name of a machine that nothing here predicts, with the reason."""
    said = {fold(name), *re.findall(r"[a-z]+|[a-z]+[0-9]+", name.lower())}
    for why, names in words()["not_accelerators"].items():
        if said & {fold(one) for one in names}:
            raise InputError(f"accelerator {name!r} is not predicted: it {why}")


def accelerator_of(name: str) -> str | None:
    """The catalog's accelerator that a name stands for, so many of it, or an instance of a cloud
    ('8xH100', 'trn2.48xlarge'); None where nothing is called so.

    Raises InputError where it may be several.
    """
    if (one := read_accelerator_name(name)) is not None:
        return one
    named = read_machine_name(name)
    if named is None:
        return _of_system(name)
    if named.instance is not None:
        return str(tables.rows("systems")[named.instance.system]["accelerator"])
    return named.accelerator if named.accelerator in tables.rows("accelerators") else None


def _of_system(name: str) -> str | None:
    """The accelerator of the catalog's system that is called so ('DGX-2', 'TPU v4 pod'), None where
    none is."""
    systems = tables.rows("systems")
    own = {fold(one): str(row["accelerator"]) for one, row in systems.items()}
    return own.get(fold(name))


MEMORY = re.compile(r"(?P<chip>.+?)-?(?P<gib>\d+)gb", re.IGNORECASE)


def chip_of(name: str) -> tuple[str, float] | None:
    """What is left of an accelerator's name without its memory, and that [GiB]; None where the
    name says none."""
    said = MEMORY.fullmatch(name.strip())
    return None if said is None else (fold(said["chip"]), float(said["gib"]))


def other_memory(name: str) -> tuple[str, float] | None:
    """The accelerator of the catalog whose name differs in its memory alone ('H100-SXM5-72GB'), the
    nearest where there are several, and the memory that the name states [GiB]; None without."""
    own = chip_of(name)
    if own is None:
        return None
    chips = {row: chip_of(row) for row in tables.rows("accelerators")}
    away = {row: abs(chip[1] - own[1]) for row, chip in chips.items() if chip and chip[0] == own[0]}
    return (min(away, key=lambda row: away[row]), own[1]) if away else None


def _instance(name: str) -> Instance | None:
    known = _instances(tables.data_dir())
    return known.get(re.sub(r"[^a-z0-9]", "", name.lower())) or known.get(_key(name))


@lru_cache(maxsize=4)
def _shares(directory: Path) -> Mapping[str, tuple[str, int]]:
    """Accelerators of instances that are no node of a catalog system, and how many they have."""
    table = tables.read_mapping(directory / "defaults" / "instances.yaml")
    return {
        _key(name): (row, count) for row, named in table.items() for name, count in named.items()
    }


def _key(name: str) -> str:
    """The name of an instance by which spellings are compared."""
    return re.sub(r"^ml\.|^standard_|[^a-z0-9]", "", name.strip().lower())


def _share(name: str, nodes: int) -> MachineName | None:
    """What so many of an instance that is no node of a catalog system are taken for; None for
    another name."""
    row, count = _shares(tables.data_dir()).get(_key(name), ("", 0))
    return MachineName(name, row, nodes * count, per_node=count) if row else None


def _slice(name: str) -> MachineName | None:
    """A slice of TPUs; None for another name, or half a chip."""
    written = name.strip().lower()
    if match := TOPOLOGY.fullmatch(written):
        chips, half = math.prod(map(int, match["axes"].split("x"))), 0
    elif match := SLICE.fullmatch(written):
        chips, half = divmod(int(match["count"]), CORES.get(match["kind"], 1))
    else:
        return None
    one = read_accelerator_name(OWN.get(match["kind"], f"tpu-{match['kind']}"))
    return MachineName(name, one, chips) if one is not None and chips and not half else None


def _joined(row: Mapping[str, Any]) -> int:
    """Accelerators of one system as people count it: of a node, or of the rack that its innermost
    link joins (NVL72)."""
    tiers = [tier for tier in row["tiers"] if tier["link"] == row["tiers"][0]["link"]]
    sizes = [int(float(tier["size"])) for tier in tiers if tier.get("size")]
    return max([int(row["accelerators_per_node"]), *sizes])


def read_machine_name(name: str) -> MachineName | None:
    """What the name of a machine is taken for; None where nothing is called so.

    Raises InputError where it may be several.
    """
    if (instance := _instance(name)) is not None:
        return MachineName(name, count=instance.count, instance=instance)
    known = _accelerators(tables.data_dir())
    if fold(name) in known:
        return MachineName(name, known[fold(name)])
    if (part := _slice(name)) is not None:
        return part
    if (share := _share(name, 1)) is not None:
        return share
    match = SEVERAL.fullmatch(name.strip())
    count = int(match["before"] or match["behind"] or 0) if match else 0
    written = match["one"] if match and count else name
    nodes = int((match["nodes"] if match else None) or 1)
    if count and (instance := _instance(written)) is not None:
        return MachineName(name, count=nodes * count * instance.count, instance=instance)
    if count and (share := _share(written, nodes * count)) is not None:
        return share
    if count and (row := tables.known("systems", re.sub(r"\s+", "-", written))) is not None:
        whole = nodes * count * _joined(row)
        return MachineName(name, str(row["accelerator"]), count=whole, system=str(row["name"]))
    one = read_accelerator_name(written) or (written if other_memory(written) else None)
    if one is not None:
        return MachineName(name, one, nodes * count, per_node=count)
    return _counted(name)


def _counted(name: str) -> MachineName | None:
    """So many of an accelerator; None for another name."""
    match = COUNTED.fullmatch(name.strip())
    if match is None:
        return None
    several = PLURAL.fullmatch(match["one"])
    one = read_accelerator_name(several["one"] if several else match["one"])
    return MachineName(name, one, int(match["count"])) if one is not None else None


def unlike_system(name: str) -> MachineName | None:
    """What a name is taken for that no catalog system has as it is written; None for one that is
    in the catalog, or for a file."""
    if name.endswith((".yaml", ".yml", ".json")) or tables.known("systems", name):
        return None
    return read_machine_name(name)
