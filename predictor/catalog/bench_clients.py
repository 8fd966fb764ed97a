"""What benchmark clients draw and count by default: `data/software/clients.yaml`."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from predictor.catalog import tables
from predictor.catalog.filling import Default
from predictor.catalog.software import version_of
from predictor.errors import unknown
from predictor.records import dataclass


@lru_cache(maxsize=1)
def bench_clients() -> dict[str, Any]:
    """The table of clients."""
    return dict(tables.read_mapping(tables.data_dir() / "software" / "clients.yaml"))


@dataclass(frozen=True, slots=True)
class BenchClient:
    """A client's defaults, and its mean length over the one that is stated."""

    defaults: tuple[Default, ...]
    mean: float


def bench_client(name: str) -> BenchClient:
    """A client by its name, with a release behind a dash or without: 'vllm-0.8.5', 'sglang'.

    Raises InputError for an unknown one.
    """
    known = bench_clients()
    plain = name.strip().lower()
    version = ""
    if plain not in known:
        head, dash, tail = plain.rpartition("-")
        if not dash or head not in known:
            raise unknown("client", name, known)
        plain, version = head, tail
    chosen: dict[str, Default] = {}
    mean = 1.0
    for entry in known[plain]:
        since = entry.get("since", "")
        if since and version and version_of(version) < version_of(since):
            continue
        mean = float(entry.get("mean", mean))
        for field, value in entry["set"].items():
            chosen[field] = Default(field, value, f"client {name}: {entry['source']}")
    return BenchClient(tuple(chosen.values()), mean)
