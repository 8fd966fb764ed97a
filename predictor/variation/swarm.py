"""Pipelines whose stages are served by many peers that come and go (Ryabinin et al. 2023, SWARM,
arXiv 2301.11913): throughput of stages of several unlike peers, and of how many they need.

A micro-batch may take any peer of each stage, so that a stage is as fast as all of its peers
together and the pipeline as fast as its slowest stage. Peers that leave are replaced after a while;
meanwhile one that serves a stage with plenty moves to the one that has least (section 3.2).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from predictor.arrays import Array, Numeric


def rate_of_stages(rates: Sequence[Array]) -> float:
    """Micro-batches per second of a pipeline whose stages have peers of these rates each [1/s]."""
    return float(min(np.sum(stage) for stage in rates))


def balanced(peers: Array, work: Array) -> list[list[int]]:
    """Peers dealt to stages: the fastest first, each to the stage that is the slowest so far.

    peers   rate of each, in units of work per second
    work    of a micro-batch on each stage

    Returns the positions of the peers of every stage.
    """
    order = np.argsort(-np.asarray(peers), kind="stable")
    done, found = np.zeros(len(work)), [[] for _ in work]  # type: ignore[var-annotated]
    for peer in order:
        stage = int(np.argmin(done / work))
        done[stage] += peers[peer]
        found[stage].append(int(peer))
    return found


def with_churn(
    peers: int, stages: int, up: float, moves: bool, draws: int = 4000, seed: int = 0
) -> float:
    """Mean throughput over that with all peers there, of equal peers of which each is up for a
    share of the time, by drawing.

    peers   of each stage
    moves   whether peers move to the stage that has least (all that are up are shared out evenly),
            or stay where they are
    """
    there = np.random.default_rng(seed).binomial(peers, up, (draws, stages))
    if moves:
        return float((there.sum(axis=1) // stages).mean() / peers)
    return float(there.min(axis=1).mean() / peers)


def utilisation(passes: Numeric, transfer: Numeric) -> Array:
    """Share of the time in which stages compute where each hands on a message both ways.

    passes    forward and backward pass of a stage with recomputation, three forward passes [s]
    transfer  of one message, one way [s]

    A stage waits where its link, one message each way for each micro-batch, takes longer than its
    passes: 3 x / max(3 x, 2 tau). Arithmetic grows with the square of the width and messages with
    the width, so that wider models wait less (the square-cube law: SWARM, section 3.1).
    """
    return np.asarray(passes / np.maximum(passes, 2.0 * np.asarray(transfer)))
