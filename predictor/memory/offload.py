"""What a plan keeps in the host's memory or on its drives instead of on the accelerator, and what
bringing it there and back takes.

Activations leave during the forward pass and return during the backward pass, by copy engines that
take no processors: they hide behind the whole of the stage's pass (Megatron Core's
`cpu_offloading`). Optimizer states stay with the host, which updates them: gradients come down,
CPU Adam streams the states, weights go up, chunk by chunk, so that the slowest of these sets the
pace (Ren et al. 2021, "ZeRO-Offload"; Megatron Core's `optimizer-cpu-offload` with overlapped
copies). On drives the states are read and written besides (Rajbhandari et al. 2021,
"ZeRO-Infinity").
"""

from __future__ import annotations

import numpy as np

from predictor.arrays import Array, Numeric
from predictor.errors import InputError
from predictor.hardware import Accelerator, Cluster
from predictor.models import Model
from predictor.plans import HUGGINGFACE, SHARDINGS, ZERO, TrainingPlan
from predictor.work import Held

PINNED = 0.83
"""Share of the host link that copies from pinned memory reach: 26 of 31.5 GB/s on A100 (PCIe 4),
53 of 63 on H100 (PCIe 5), CUDA samples' bandwidthTest (from memory)."""

HOST_MEMORY = 50e9
"""Host memory traffic per accelerator, at least [bytes/s]: two sockets of eight DDR4-3200 channels
stream about 400 GB/s for eight accelerators. A faster link to the host implies faster memory there
(Grace: 512 GB/s behind 450)."""

ALONE = 4.0
"""Times that share which one accelerator's update reaches where others of its node do not run: half
of the two sockets that eight share."""

USUAL_NODE = 8.0
"""Accelerators of a node with two sockets; those with fewer have at least as much of a host for
each (sixteen threads of a server's processor beside one H200 updated 1.24 billion parameters in 0.7
to 0.8 s: DeepSpeed's CPU Adam, `data/measurements/h200-sxm-5`)."""

OLDER_LINK, OLDER = 20e9, 0.5
"""Links to the host that are slower than this are of PCIe 3 (15.75 GB/s), whose hosts have four to
six channels of DDR4-2400 or -2666 a socket: 19 GB/s for an accelerator of a DGX-1V or an AWS p3
(Xeon E5-2698 v4, E5-2686 v4), 32 with Xeons of 2017 (Intel ARK, from memory); half as much."""

COHERENT = 200e9
"""Links to the host that are faster than this are no PCIe (of its sixth generation: 126 GB/s)."""

ADAM = 0.31
"""Share of the host memory's rate that CPU Adam reaches: eight ranks of DeepSpeed update a billion
parameters each in some 1.9 s, all told, on hosts of H200 and B200 (steps of 8,192 tokens in
stas00/ml-engineering, 2026-08, less what the device takes; the only steps known)."""

NVME_READ, NVME_WRITE = 6.8e9, 4.0e9
"""One data-centre drive (PCIe 4) per accelerator [bytes/s], as in DGX A100 and H100 (datasheets,
from memory)."""

SIGMA = 0.2
"""Log-standard-deviation of these times: hosts differ, and nothing here was fitted."""

HOST_USABLE = 0.9
"""Share of a node's host memory that may hold what is offloaded; the rest is the system's and the
data loader's."""

HOST_USUAL = 128e9
"""Host memory for each accelerator where the node's is not known [bytes]: of the catalog's 40 nodes
that state it a quarter have less than 116 GB, half more than 231."""

RESIDENT = 2.0
"""Layers of offloaded activations on the device at a time: one in use, one on its way."""


def host_link(accelerator: Accelerator) -> Numeric:
    """Rate of pinned copies to or from the host [bytes/s].

    Raises InputError where the accelerator states no link to its host.
    """
    if accelerator.is_host or not np.all(np.asarray(accelerator.host_bandwidth) > 0):
        raise InputError(
            f"{accelerator.name} states no link to its host, so nothing can be offloaded: "
            "offload_activations=0 offload_optimizer=0, or host_link_gbs in a file of its own"
        )
    return PINNED * accelerator.host_bandwidth


def node_memory(cluster: Cluster) -> float:
    """Host memory of a node [bytes], known or usual."""
    usual = HOST_USUAL * cluster.accelerators_per_node
    return usual if np.isnan(cluster.host_memory) else cluster.host_memory


def host_room(cluster: Cluster, plan: TrainingPlan) -> Array:
    """Bytes that the host may keep for each device of a plan: the node's share of the devices that
    run on it; inf where drives keep them."""
    if plan.offload_to != "cpu":
        return np.full(plan.shape, np.inf)
    there = np.minimum(plan.gpus, cluster.accelerators_per_node)
    return np.broadcast_to(HOST_USABLE * node_memory(cluster) / there, plan.shape)


def kept_away(plan: TrainingPlan, layers: Array, flying: Array, kept: Array) -> Array:
    """Activations that the host has of a stage [bytes], (3, *batch), zero where none leave: what it
    has of each layer is on the device while in use, and on its way.

    layers   of the stage
    flying   micro-batches at a time
    kept     by the layers, of one of them [bytes]
    """
    if not np.any(np.asarray(plan.offload_activations) > 0):
        return np.zeros(())
    layered = np.minimum(flying, RESIDENT / np.maximum(layers, 1.0)) * kept
    return np.asarray(plan.offload_activations * (flying * kept - layered))


def host_states(
    plan: TrainingPlan, held: Held, group: Numeric, stored: Numeric | None = None
) -> Numeric:
    """Optimizer states, the gradients for them, and weights that the host keeps [bytes].

    stored   bytes of a weight; the plan's, if not given
    """
    divided = group if SHARDINGS[plan.sharding].optimizer else 1.0
    kept = held.trained * plan.offload_optimizer * (plan.optimizer_bytes + plan.gradient_bytes)
    wide = plan.weight_bytes if stored is None else stored
    return (kept + held.weights * plan.offload_weights * wide) / divided


def rates(plan: TrainingPlan, accelerator: Accelerator) -> tuple[Numeric, Numeric]:
    """Rates at which what is offloaded goes down, and comes up again [bytes/s]."""
    link = host_link(accelerator)
    if plan.offload_to == "nvme":
        return np.minimum(link, NVME_WRITE), np.minimum(link, NVME_READ)
    return link, link


def pass_times(
    plan: TrainingPlan, accelerator: Accelerator, kept: Numeric, weights: Numeric, trained: Numeric
) -> dict[str, Array]:
    """Time of the copies beside a micro-batch's forward and backward pass [s]; down and up go at
    once (links are full duplex).

    kept      bytes of activations that a stage keeps for one micro-batch, any shape that broadcasts
              with the plan
    weights   of a stage that a rank has after they are divided; they come up for every pass
    trained   of these; their gradients go down, and add to those that are there

    Gradients that several micro-batches add up come up, are added to on the device, and go down
    again (`async_accumulate_grad_in_cpu_via_gpu`), in 16 bits.
    """
    down, up = rates(plan, accelerator)
    moved = plan.offload_activations * kept
    part = weights * plan.offload_weights * plan.gather_bytes * (not _fetched(plan))
    gradients = trained * plan.gradients_away * plan.recipe.activation
    again = 1.0 - 1.0 / np.maximum(plan.micro_batches, 1.0)
    backward = part * (1.0 if plan.reshard else 0.0)
    ahead = part * (1.0 + np.asarray(plan.unlearned))
    return {
        "forward": np.maximum(moved / down, ahead / up),
        "backward": np.maximum(gradients / down, (moved + backward + again * gradients) / up),
    }


def _fetched(plan: TrainingPlan) -> bool:
    """Whether weights come up one after the other, behind nothing. DeepSpeed fetches ahead no more
    than `stage3_prefetch_bucket_size` parameters, 5e7 or 0.9 of the width squared (HuggingFace's
    `auto`), less than a matrix of a layer has."""
    return plan.framework in ZERO and bool(np.any(np.asarray(plan.offload_weights) > 0))


def weights_time(
    plan: TrainingPlan, accelerator: Accelerator, weights: Numeric
) -> dict[str, Array]:
    """Time of copies of weights before passes that hide behind nothing [s], by phase; none where
    they hide; `weights` as of `pass_times`."""
    if not _fetched(plan):
        return {}
    part, (_, up) = weights * plan.offload_weights * plan.gather_bytes, rates(plan, accelerator)
    ahead = part * (1.0 + np.asarray(plan.unlearned))
    backward = part * (1.0 if plan.reshard else 0.0)
    return {"forward": np.asarray(ahead / up), "backward": np.asarray(backward / up)}


def takes_loss(plan: TrainingPlan) -> bool:
    """Whether what leaves with activations is what the loss keeps, too. TRL's context holds the
    loss (trainer/sft_trainer.py: `training_step`, models/activation_offloading.py); torchtune's and
    Megatron Core's do not."""
    return plan.framework == HUGGINGFACE


def loss_time(model: Model, plan: TrainingPlan, accelerator: Accelerator) -> Array:
    """Time of a copy of what a loss of PyTorch's own operators keeps of a micro-batch,
    log-probabilities in fp32, which are needed again at once, so that it hides behind nothing [s]
    (two of 8.4 GB took 0.3 s: `data/measurements/h200-sxm-5`)."""
    kept = 4.0 * plan.tokens * plan.vocab_share(model.vocab) * plan.offload_activations
    return np.where(plan.loss_in_one, 0.0, kept / rates(plan, accelerator)[0])


def host_rate(plan: TrainingPlan, cluster: Cluster) -> Numeric:
    """Rate of the host's memory for one accelerator of those that run on it [bytes/s]: its part, or
    one socket's at most where few run, whose processor has its memory there. Only a link that is
    coherent with the host's memory says that the memory is as fast."""
    link = cluster.accelerator.host_bandwidth
    there = np.minimum(plan.gpus, cluster.accelerators_per_node)
    node: Numeric = np.maximum(cluster.accelerators_per_node, USUAL_NODE)
    part = HOST_MEMORY * np.minimum(node / there, ALONE)
    usual = part * np.where(link < OLDER_LINK, OLDER, 1.0)
    return np.asarray(np.maximum(usual, np.where(link > COHERENT, link, 0.0)))


def update_time(plan: TrainingPlan, cluster: Cluster, updated: Array, device: Array) -> Array:
    """Time of the optimizer step where a share of it runs on the host [s].

    updated  parameters that this rank updates
    device   time in which the device would update all of them [s]

    The device updates the rest meanwhile. CPU Adam reads gradients and states and writes states
    and 16-bit weights.
    """
    link, share = host_link(cluster.accelerator), plan.offload_optimizer
    states = plan.optimizer_bytes
    host = ADAM * host_rate(plan, cluster)
    slowest = np.maximum.reduce(
        np.broadcast_arrays(
            plan.gradient_bytes / link,
            plan.weight_bytes / link,
            (plan.gradient_bytes + 2.0 * states + plan.weight_bytes) / host,
            *([states / NVME_READ + states / NVME_WRITE] if plan.offload_to == "nvme" else []),
        )
    )
    return np.asarray(np.maximum((1.0 - share) * device, share * updated * slowest))
