"""Rows of steps and transfers over slow and long links as points, of Decentralized_FM_alpha.

A table of steps states accelerators, layers, layout, and the delay and rate of every link; what it
trains, its repository says: GPT-3 XL (hidden 2048, 16 heads, sequences of 2048) over QQP, whose
embedding and classifier are "very light-weighted" (results/gpt3_xl_fp16.md; the table of embeddings
is whole all the same, and its gradients are exchanged), plain PyTorch modules whose attention is
written out, layers checkpointed one by one (modules/gpt_modules.py), sends and receives on streams
of their own but of one communicator (pipeline_parallel/dist_gpipe_pipeline_async.py), plain SGD
whose gradients are aggregated in the precision of the run after the backward pass
(github.com/DS3Lab/Decentralized_FM_alpha at cb03043).
Rows whose note says that the fp32 copy is offloaded update it on the host (--use-offload,
optimizer/optimizer.py). A table of transfers states what sends them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from calibration.tables.cells import cell
from calibration.tables.runs import Point, Skipped
from predictor import catalog
from predictor.catalog import TrainingPlanSpec, parse
from predictor.errors import InputError
from predictor.hardware import Cluster, Tier
from predictor.models import Model
from predictor.timing import Calibration, RunParameters, collective_time
from predictor.training import complete_training
from predictor.work import Group

STEP_KEY, TRANSFER_KEY = "step_s", "backend"
"""Columns that only tables of slow steps and of slow transfers have, beside `delay_ms`."""

ACCELERATORS = {"V100-16GB": "V100-SXM2-16GB"}
"""AWS p3.2xlarge: one V100 with SXM2 in each node (aws.amazon.com/ec2/instance-types/p3)."""

CLASSES = 2
"""Outputs of the classifier of QQP, in place of a vocabulary."""

WORDS = 28996
"""Rows of the table of embeddings, beside those of the positions: bert-large-cased-vocab.txt, the
default of --vocab-file (utils/dist_args_utils.py at 25fbf53, 2022-04-21; its list of memory counts
113 MiB for the first stage's in 16 bits, results/gpt3_xl_fp16.md)."""

OFFLOADED = "fp32 copy offloaded"
"""Note of rows that keep weights and gradients in fp32 with the host, which updates them."""

COPIED = 2.1e9
"""What a host's thread passes between memory and sockets [bytes/s]: median of gloo's 14 transfers
of 4 MB and more between two processes of one machine (`data/measurements/two-cores-1` to -5). Here
a stage waits for that: all its sends and receives are calls of one NCCL communicator, each of which
waits for the one before where that ran on another stream ("Stream changed from last call, create
dependency against last NCCL kernel launch", src/enqueue.cc of NCCL 2.8.4 to 2.11.4), and so for the
pass between them; messages go through the host, whose sockets hold more than one (`WINDOW`)."""

RECIPE = {
    "micro_batch": 1,
    "seq_len": 2048,
    "handed_rate": COPIED,
    "schedule": "gpipe",
    "recompute": "full",
    "attention": "eager",
    "fused": False,
    "sums_apart": True,
    "sharding": "none",
    "optimizer_bytes": 4,
    "grad_overlap": False,
    "param_overlap": False,
}

WINDOW = 3145728.0
"""That a Linux socket advertises at most, half of tcp_rmem's default maximum of 6 MiB [bytes]
(kernel documentation, networking/ip-sysctl: tcp_rmem, tcp_adv_win_scale 1)."""

SOCKETS = {"gloo": 1.0, "nccl": 16.0}
"""Flows that a transfer is spread over: gloo has one pair of sockets between two ranks; NCCL on AWS
two threads of eight sockets (NCCL documentation, NCCL_SOCKET_NTHREADS, NCCL_NSOCKS_PERTHREAD)."""

FLOW = 5e9 / 8
"""That one flow carries at most between instances of AWS that no cluster placement group holds
together [bytes/s] (docs.aws.amazon.com, "Amazon EC2 instance network bandwidth", single-flow
traffic; looked up 2026-11-23)."""


def slow_cluster(
    row: Mapping[str, Any], window: float = math.inf, most: float = math.inf
) -> Cluster:
    """One accelerator per node behind links of the row's delay and rate.

    window   bytes on their way at most
    most     rate of all flows of a transfer [bytes/s]
    """
    name = str(cell(row, "gpu") or "V100-16GB")
    accelerator = catalog.accelerator(ACCELERATORS.get(name, name))
    link = Tier(
        link="ethernet",
        size=math.inf,
        bandwidth=min(float(row["bandwidth_gbps"]) * 1e9 / 8, most),
        latency=float(row["delay_ms"]) * 1e-3,
        window=window,
    )
    return Cluster(f"{name} nodes", accelerator, 1, (link,))


def slow_model(layers: int | None = None) -> Model:
    """What was trained over slow links: GPT-3 XL whose embeddings are looked up and learned, but
    whose output is a classifier's. Words stand beside the positions, which are no outputs either.

    layers   of the table, where it states them
    """
    model = catalog.model("gpt3-1.3b")
    rows = model.max_context + WORDS
    return replace(model, layers=layers or model.layers, vocab=CLASSES, max_context=rows)


def slow_step(row: Mapping[Any, Any], name: str, run: RunParameters) -> Point | Skipped:
    """A step over slow links as a point, or the reason why it is none.

    name   of the row, which states none
    run    memory parameters, to fill in what is unstated
    """
    source = str(row.get("source", ""))
    if cell(row, "delay_ms") is None or cell(row, "bandwidth_gbps") is None:
        return Skipped(name, source, "its links differ from one another and are not stated")
    if not str(row.get("system", "")).startswith("gpipe"):
        return Skipped(name, source, f"how {row.get('system')!r} runs is not known")
    layout = ("pp", "tp", "dp", "gpus", "micro_batch", "global_batch", "precision")
    stated = {key: value for key in layout if (value := cell(row, key)) is not None}
    element = 4 if stated.get("precision") == "fp32" else 2
    sizes = dict.fromkeys(("reduce_bytes", "gather_bytes", "gradient_bytes"), element)
    fields = {**RECIPE, **sizes, **stated}
    if OFFLOADED in str(row.get("note")):
        fields["offload_optimizer"] = 1.0
    layers = cell(row, "layers")
    model = slow_model(None if layers is None else int(layers))
    try:
        spec = parse(TrainingPlanSpec, fields, "row")
        cluster = slow_cluster(row)
        request = complete_training(spec, run, strict=False, model=model, cluster=cluster)
    except InputError as error:
        return Skipped(name, source, str(error))
    return Point(
        point_id=name,
        source=source,
        request=request,
        measured=float(cell(row, STEP_KEY) or math.nan),
        one_layer=False,
        memory=math.nan,
        status="",
    )


def slow_transfer(row: Mapping[Any, Any], calibration: Calibration) -> tuple[float, float, bool]:
    """Time of a transfer from one node to the next [s], its log-standard-deviation, and whether
    anything was fitted to it."""
    sockets = SOCKETS.get(str(row[TRANSFER_KEY]), 1.0)
    cluster = slow_cluster(row, window=sockets * WINDOW, most=sockets * FLOW)
    time, sigma = collective_time("p2p", float(row["bytes"]), Group(2.0, 1.0), cluster, calibration)
    return float(time), float(sigma), False
