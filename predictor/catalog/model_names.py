"""What the name of a model says: which catalog model it is, and how its weights are stored.

Read from a repository (`Qwen/Qwen3-235B-A22B-Instruct-2507-FP8`), a recipe (`llama3_1_70b`) or what
people write; the words are those of `data/defaults/names.yaml`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from predictor.catalog import tables
from predictor.errors import InputError
from predictor.models.families import NOT_READ
from predictor.records import dataclass

NAMED = "the model's name"
"""How rules begin by which words of a name decide."""

DATE = re.compile(r"\d{4}|\d{6}|20\d{6}|hf\d?|v\d{8}")
"""Words of a name that are dates: 0528, 2507, 20250514."""

RELEASE = re.compile(r"v\d+(\.\d+)*|\d{1,4}k|1m")
"""Words behind a name of which no row has them: a checkpoint's release, or its longest context."""


@dataclass(frozen=True, slots=True)
class ModelName:
    """What a name was taken for.

    written    the name
    row        the catalog's name of the model
    stored     data type of the weights that the name says or its checkpoint has; empty: 16 bits
    experts    whether the experts alone are stored so
    said       the word that says how they are stored; empty where the checkpoint is known for it
    why        why the model is that of `row`, where it is called otherwise
    """

    written: str
    row: str
    stored: str = ""
    experts: bool = False
    said: str = ""
    why: str = ""

    @property
    def rule(self) -> str:
        """What was taken for what, in a line."""
        told = f"{NAMED}: {self.written} is taken for {self.row}"
        return f"{told} ({self.why})" if self.why else told

    @property
    def quantization(self) -> dict[str, Any] | None:
        """How its weights are stored, as `specs.QuantizationSpec` has it."""
        if not self.stored:
            return None
        by = f"'{self.said}' in it" if self.said else "its checkpoint is stored so"
        return {
            "method": f"{NAMED}: {by}",
            "precision": self.stored,
            "targets": ("*.experts.*",) if self.experts else (),
            "others": "" if self.said else words()["others"].get(self.stored, ""),
        }


@lru_cache(maxsize=4)
def _words(directory: Path) -> Mapping[str, Any]:
    return tables.read_mapping(directory / "defaults" / "names.yaml")


def words() -> Mapping[str, Any]:
    """The table of words, `data/defaults/names.yaml`."""
    return _words(tables.data_dir())


def parts(name: str) -> list[str]:
    """Words of a name: lower case, cut at dashes, underscores, colons, commas, brackets, blanks,
    and dots that are no decimal points."""
    cuts = r"[-_:,()\[\]\s]+|(?<!\d)\.|\.(?!\d)"
    return [word for word in re.split(cuts, name.lower()) if word]


def key(name: Iterable[str]) -> str:
    """A name as one word, by which spellings are compared."""
    return "".join(name)


def _bare(name: list[str]) -> list[str]:
    """What is left of a name without words that change no dimension, and dates."""
    idle = words()["without_effect"]
    left = [word for word in name if word not in idle]
    return [word for place, word in enumerate(left) if not (place and DATE.fullmatch(word))]


def _first_release(name: list[str]) -> list[str]:
    """A name without what follows its first two words and changes no dimension of them."""
    return [word for place, word in enumerate(name) if place < 2 or not RELEASE.fullmatch(word)]


SIZE = re.compile(r"\d+(\.\d+)?[bmt]")
"""A word of a name that says how many parameters there are."""


def _pointless(name: str) -> str:
    """A key without decimal points, but for that of a size: 67b is not 6.7b. Whoever leaves that
    out too writes a nought first (`05b`)."""
    return re.sub(r"\.(?!\d+[bmt](?![a-z0-9]))", "", re.sub(r"(?<!\d)0(?=\d+[bmt]$)", "0.", name))


def _loose(name: list[str]) -> list[str]:
    """Keys of a name without decimal points. A size stays a word of its own, so that nobody's
    6b becomes another's 3.6b; a number before it may be its whole part (`0-5b`)."""
    if len(name) == 1:
        return [_pointless(name[0])]
    size = next((i for i, word in enumerate(name) if SIZE.fullmatch(word)), len(name))
    found = [(name[:size], name[size:])]
    if size and name[size - 1].isdigit() and size < len(name):
        whole = f"{name[size - 1]}.{name[size]}"
        found.append((name[: size - 1], [whole, *name[size + 1 :]]))
    return ["|".join((_pointless(key(head)), _pointless(key(tail)))) for head, tail in found]


AT_WORK = re.compile(r"a\d+(\.\d+)?[bm]|\d+e")
"""A word of a name that says how many parameters are at work, or how many experts there are."""


def _begun(bare: list[str]) -> str:
    """Key of what a name begins with up to its size, where no more follows than what is at work,
    which people leave out; else ''."""
    more = len(bare) > 2 and AT_WORK.fullmatch(bare[-1]) and SIZE.fullmatch(bare[-2])
    return key(bare[:-1]) if more else ""


@dataclass(frozen=True, slots=True)
class _Index:
    """Rows by the key of all words of their names, of the bare ones, of those without decimal
    points, and of what they begin with; and why a row is called so, by any key."""

    whole: dict[str, set[str]]
    bare: dict[str, set[str]]
    loose: dict[str, set[str]]
    begun: dict[str, set[str]]
    why: dict[str, str]

    def add(self, name: str, row: str, reason: str = "") -> None:
        """Take in a name of a row."""
        cut = parts(name.rsplit("/", 1)[-1])
        left = _bare(cut)
        loose = [_loose(left)[0], _pointless(key(left))]
        places = [(self.whole, key(cut)), (self.bare, key(left)), *((self.loose, k) for k in loose)]
        for table, spelling in (*places, (self.begun, _begun(left))):
            table.setdefault(spelling, set()).add(row)
            if reason:
                self.why[spelling] = reason


@lru_cache(maxsize=4)
def _index(directory: Path) -> _Index:
    index = _Index({}, {}, {}, {}, {})
    for row, content in tables.rows("models").items():
        for name in (row, *tables.aliases_of(content), str(content.get("hf_id", ""))):
            if name:
                index.add(name, row)
    for row, entry in _words(directory)["same"].items():
        if row in tables.rows("models"):
            for name in entry["names"]:
                index.add(name, row, entry["why"])
    return index


def _stored(name: list[str], owner: str) -> tuple[str | None, str, list[str]]:
    """Data type that words of a name say, None where none does; the word; and the other words."""
    table = words()["stored"]
    said = [word for word in name if word in table]
    if not said:
        return None, "", name
    rest = [word for word in name if word not in table]
    exact = next((word for word in said if word not in ("4bit", "8bit")), said[0])
    if exact in ("gptq", "awq") and {"int8", "8bit"} & set(said):
        exact = "int8"
    found = str(table[exact])
    if exact == "fp8" and ("block" in rest or owner in words()["blocks"]):
        found = "fp8_block"
    return found, exact, [word for word in rest if word != "block"]


GGUF = re.compile(
    r"[-_.:](ud[-_])?(q(?P<bits>[3-6])_k(_xl|_[sml])?|q8_0|iq(?P<mixed>[34])_(xs|nl|s|m)"
    r"|q(?P<plain>[45])_[01])(?![a-z0-9])",
    re.I,
)
"""How files of llama.cpp, and tags of Ollama, say that weights are stored (q4_K_M, UD-Q4_K_XL)."""


def gguf_name(name: str) -> tuple[str, str]:
    """A name of a file of llama.cpp, or a tag of Ollama, without what says how weights are stored,
    and the data type that it says; '' where there is none."""
    match = GGUF.search(name)
    if match is None:
        return name, ""
    bits = match["bits"] or match["mixed"] or match["plain"]
    stored = f"q{bits}_k" if bits else "q8_0"
    stored = "int4_wo" if match["plain"] == "4" else stored  # as tables' Q4_0
    left = re.sub(r"[-_.]gguf\b", "", name[: match.start()] + name[match.end() :], flags=re.I)
    return left, stored


@lru_cache(maxsize=512)
def _read(name: str, directory: Path) -> ModelName | None:
    owner, _, last = name.strip().rstrip("/").rpartition("/")
    owner = owner.rsplit("/", 1)[-1].lower()
    last, packed = gguf_name(last)
    cut = parts(last)
    index = _index(directory)
    stored, said, rest = (packed, packed, cut) if packed else _stored(cut, owner)
    left = _bare(rest)
    for table, spelling in (
        (index.whole, key(cut)),
        (index.whole, key(rest)),
        (index.bare, key(left)),
        *((index.loose, one) for one in _loose(left)),
        (index.begun, key(left)),
        *((index.loose, one) for one in _loose(_first_release(left))),
    ):
        if spelling and spelling in table:
            break
    else:
        return None
    rows = sorted(table[spelling])
    if len(rows) > 1:
        if table is index.begun:
            return None
        raise InputError(f"model {name!r} may be {' or '.join(rows)}; name one of them")
    (row,) = rows
    if stored is None:
        native = words()["native"]
        by_key = {key(parts(one)): kind for one, kind in native.items()}
        stored = str(by_key.get(spelling, by_key.get(key(parts(row)), "")))
    experts = stored in words()["experts_only"] and not said
    kind = "int4_wo" if stored == "w4a16_experts" else stored
    return ModelName(name, row, kind, experts, said, index.why.get(spelling, ""))


def read_model_name(name: str) -> ModelName | None:
    """What the name of a model is taken for; None where nothing in the catalog is called so.

    Raises InputError where it may be several models.
    """
    return _read(name, tables.data_dir())


def refuse_not_read(name: str, family: str = "") -> None:
    """Raise InputError for the name of a model whose architecture is not predicted, with what it
    has; or for one whose family, or a word of whose name, says so."""
    said = {*parts(name.rsplit("/", 1)[-1]), *parts(family)}
    for kind, told in words()["not_read_words"].items():
        if said & set(told):
            raise InputError(f"model {name!r} is not predicted: it has {NOT_READ[kind]}")
    bare = _loose(_bare(_stored(parts(name.rsplit("/", 1)[-1]), "")[2]))
    for kind, names in words()["not_read"].items():
        if set(bare) & {_loose(_bare(parts(one)))[0] for one in names}:
            raise InputError(f"model {name!r} is not predicted: it has {NOT_READ[kind]}")


def unlike_catalog(name: str) -> ModelName | None:
    """What a name is taken for that no catalog row has as it is written; None for one that is in
    the catalog, or for a file.

    Raises InputError where it may be several models, or one that is not predicted.
    """
    if name.endswith((".yaml", ".yml", ".json")) or tables.known("models", name):
        return None
    found = read_model_name(name)
    if found is None:
        refuse_not_read(name)
    return found
