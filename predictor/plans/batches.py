"""Requests in batches: those that one evaluation answers together."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import Any, Generic, Protocol, TypeVar

from predictor.arrays import identity, kind, stack
from predictor.hardware import Cluster
from predictor.models import Model
from predictor.records import dataclass

P = TypeVar("P", covariant=True)


class Request(Protocol[P]):
    """Anything that asks of a model on a cluster what a single plan takes."""

    @property
    def model(self) -> Model:
        """What is trained or served."""

    @property
    def cluster(self) -> Cluster:
        """On what."""

    @property
    def plan(self) -> P:
        """How."""


@dataclass(frozen=True, slots=True, eq=False)
class Batch(Generic[P]):
    """Requests that differ in the numbers of their plans alone.

    positions  of each among all requests
    plan       of all, its numbers arrays of as many, in that order (of one request, too)
    """

    positions: tuple[int, ...]
    model: Model
    cluster: Cluster
    plan: P


def batches(requests: Sequence[Request[P]], most: int | None = None) -> Iterator[Batch[P]]:
    """Requests in as few batches as may be, each request in one.

    most   requests of a batch; None: any number

    Requests are together where their models are the same in every dimension, their clusters in
    every number of every accelerator and tier, and their plans in every category.
    """
    groups: dict[Hashable, list[int]] = {}
    known: dict[int, Hashable] = {}
    for position, request in enumerate(requests):
        cluster = request.cluster
        if id(cluster) not in known:
            known[id(cluster)] = identity(cluster)
        key = request.model, known[id(cluster)], kind(request.plan)
        groups.setdefault(key, []).append(position)
    for found in groups.values():
        size = most or len(found)
        for start in range(0, len(found), size):
            positions = found[start : start + size]
            plans: list[Any] = [requests[position].plan for position in positions]
            first = requests[positions[0]]
            yield Batch(tuple(positions), first.model, first.cluster, stack(plans))
