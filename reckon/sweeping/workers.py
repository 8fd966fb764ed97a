"""Where chunks are worked on: in this process, in processes beside it, or on a Dask cluster.

Each gives chunks to workers and yields their rows as they come, in any order. A worker that dies
loses what it had in hand; that is given to another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from typing import Any

from predictor.errors import InputError
from reckon.sweeping.cells import Row, work
from reckon.sweeping.grid import Chunk

Done = tuple[Chunk, list[Row]]

ATTEMPTS = 3
"""Times that processes are started anew without a single chunk done between."""

AHEAD = 4
"""Chunks that wait on the cluster for each of its threads."""

WAIT = "30s"
"""For a scheduler to answer."""


def here(verb: str, calibration: str, pending: Iterator[Chunk]) -> Iterator[Done]:
    """In this process, one after the other."""
    for chunk in pending:
        yield chunk, work(verb, calibration, chunk)


def _kept(verb: str, calibration: str, chunk: Chunk) -> Done:
    return chunk, work(verb, calibration, chunk)


def beside(
    verb: str, calibration: str, pending: Callable[[], Iterator[Chunk]], processes: int
) -> Iterator[Done]:
    """In processes on this machine, with joblib.

    pending   gives the chunks that are not done; asked again when a process has died

    Raises RuntimeError where processes die again and again.
    """
    from joblib import Parallel, delayed
    from joblib.externals.loky.process_executor import BrokenProcessPool

    fruitless = 0
    while fruitless < ATTEMPTS:
        parallel = Parallel(
            n_jobs=processes, return_as="generator_unordered", pre_dispatch=2 * processes
        )
        try:
            for one in parallel(delayed(_kept)(verb, calibration, chunk) for chunk in pending()):
                fruitless = 0
                yield one
            return
        except BrokenProcessPool:  # TerminatedWorkerError is one
            fruitless += 1
    raise RuntimeError(f"worker processes died {ATTEMPTS} times without finishing a chunk")


def on_cluster(
    verb: str, calibration: str, pending: Iterator[Chunk], address: str
) -> Iterator[Done]:
    """On a Dask cluster.

    address   of its scheduler, e.g. 'tcp://10.0.0.1:8786'

    The scheduler gives what a lost worker had to another one. Raises InputError where no scheduler
    answers, where it is gone on the way, or Dask is not installed.
    """
    try:
        from distributed import Client, as_completed
    except ImportError:
        raise InputError("--cluster needs Dask: pip install 'reckon[scale]'") from None
    try:
        client = Client(address, timeout=WAIT, set_as_default=False)
    except (OSError, ValueError) as error:
        told = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(f"--cluster {address}: no scheduler answers ({told})") from None
    try:
        held: dict[str, Chunk] = {}

        def submit() -> Any:
            chunk = next(pending, None)
            if chunk is None:
                return None
            key = f"reckon-{chunk.identity}"
            held[key] = chunk
            return client.submit(work, verb, calibration, chunk, key=key, pure=False)

        threads = sum(client.nthreads().values())
        first = [future for _ in range(AHEAD * max(threads, 2)) if (future := submit())]
        waiting = as_completed(first, loop=client.loop)
        for future in waiting:
            rows: list[Row] = future.result()
            yield held.pop(future.key), rows
            if (following := submit()) is not None:
                waiting.add(following)
    except (CancelledError, OSError) as error:  # what was lost to a scheduler that is gone
        raise InputError(
            f"--cluster {address}: the scheduler is gone ({str(error).splitlines()[0]:.80}); what "
            "is done is kept: run again to go on"
        ) from None
    finally:
        client.close()
