"""What rows of a kernel table imply without saying it: data types by their other names, traffic of
kernels that stream their operands, whose
collectives rows time, links of collectives inside a node or between nodes."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd

from calibration.sources import exchanges
from calibration.sources.expert_kernels import NONGATED, experts_kernel
from calibration.tables.kernel_table import PROMPT, STREAMED, is_collective
from calibration.tables.libraries import library
from predictor import catalog
from predictor.errors import InputError
from predictor.hardware import Cluster, bridged
from predictor.precision import ELEMENT_BYTES, SPELLINGS
from predictor.schema import ALONE

LATENT_CACHE, LATENT_KEYS = 576.0, 192.0
"""Head sizes of multi-head latent attention (DeepSeek-V2, section 2.1.2): latent and shared key
while decoding; keys of prompts."""

PASSES = {
    **dict.fromkeys(("add", "div", "mul", "pow"), 3.0),
    **dict.fromkeys(("swiglu", "geglu", "silu_and_mul", "act_fn", "mlp_act"), 3.0),
}
"""Elements read and written per element of the outcome; 2 for all other streaming kernels."""

EAGER = "transformers"
"""A framework whose modules run kernel by kernel, and are timed as a whole: two for an activation
and the product with the other half (LlamaMLP.forward, act_fn(gate) * up, of 2 + 3 passes), six and
two of no size for a norm by root mean squares (LlamaRMSNorm.forward: to 32 bits, square, mean,
product, back, product with the weights; both in casys-kaist/LLMServingSim, profiler/v0/models/
llama.py at 4a23e9f137). Other norms are one kernel of PyTorch's."""

ACTIVATION_PASSES, ACTIVATION_KERNELS = 5.0, 2.0
OWN_PASSES, WIDE_BYTES, NORM_KERNELS = 4.0, 28.0, 8.0
"""Of such a norm: elements of its own type read and written, and bytes of those in 32 bits."""

ROOT_MEAN_SQUARE = re.compile("llama", re.IGNORECASE)
"""Models, as notes name them, that have such norms."""


def implied(table: pd.DataFrame) -> pd.DataFrame:
    """A checked kernel table with what its rows imply filled in; what they state stays."""
    table = table.assign(dtype=table["dtype"].replace(SPELLINGS))
    table = _products(_experts(_attention(_modules(table))))
    return _links(exchanges.known(_traffic(table)))


def _modules(table: pd.DataFrame) -> pd.DataFrame:
    """How many kernels each row times one after the other (`kernels`): those of modules that run
    kernel by kernel, whose norms by root mean squares are elementwise ones."""
    eager = table["framework"].str.startswith(EAGER)
    told = table.get("notes", pd.Series("", table.index)).astype(object).fillna("").astype(str)
    norm = eager & (table["op"] == "norm") & told.str.contains(ROOT_MEAN_SQUARE)
    several = pd.Series(1.0, table.index).mask(norm, NORM_KERNELS)
    several = several.mask(eager & (table["kernel"] == "act_fn"), ACTIVATION_KERNELS)
    table = table.assign(op=table["op"].mask(norm, "elementwise"), kernels=several)
    return table.assign(kernel=table["kernel"].mask(norm, "other"))


def _products(table: pd.DataFrame) -> pd.DataFrame:
    """Products by libraries of kernels, whose inputs were made before: aiter's, DeepGEMM's."""
    own = table["framework"].map(library).eq("aiter") | table["kernel"].str.startswith("DeepGEMM")
    return table.assign(kernel=table["kernel"].mask((table["op"] == "gemm") & own, ALONE))


def _experts(table: pd.DataFrame) -> pd.DataFrame:
    """Kernels of experts by what their tables call them: who sees the rows of its rank alone."""
    rows = table["op"] == "moe_gemm"
    if not rows.any():
        return table
    divided = table["moe_ep"] > 1
    own = divided & (
        table["framework"].map(library).eq("trtllm") | table["kernel"].str.startswith("DeepGEMM")
    )
    found = experts_kernel(table["kernel"].str.contains(NONGATED), own)
    return table.assign(kernel=table["kernel"].mask(rows, found))


def _attention(table: pd.DataFrame) -> pd.DataFrame:
    """Kernels of attention that go without saying: on heads that only latents have; over pages,
    where an engine serves on a TPU."""
    decoding = table["op"].eq("attention_decode") & table["head_dim"].eq(LATENT_CACHE)
    reading = table["op"].eq(PROMPT) & table["head_dim"].eq(LATENT_KEYS)
    paged = table["op"].eq(PROMPT) & table["accelerator"].str.startswith("TPU")
    table = table.assign(
        kernel=table["kernel"].mask(
            paged & table["framework"].str.startswith("vllm") & (table["kernel"] == ""), "paged"
        )
    )
    latent = (decoding & table["kv_heads"].eq(1)) | (
        reading & (table["heads"] == table["kv_heads"])
    )
    return table.assign(kernel=table["kernel"].mask(latent & (table["kernel"] == ""), "mla"))


def _traffic(table: pd.DataFrame) -> pd.DataFrame:
    """Bytes that streaming kernels move, from rows, columns and data type; of one that converts
    ('bf16->fp8'), it reads one type and writes the other."""
    open_ = table["op"].isin(STREAMED) & ~(table["message_bytes"] > 0)
    if not open_.any():
        return table
    rows = table[open_]
    sides = rows["dtype"].str.split("->", n=1)
    read = sides.str[0].map(ELEMENT_BYTES)
    written = sides.str[-1].map(ELEMENT_BYTES)
    streams = rows["kernel"].map(PASSES).fillna(2.0)
    whole = rows["kernels"] == ACTIVATION_KERNELS
    streams = streams.mask(whole, ACTIVATION_PASSES)
    each = read * (streams - 1.0) + written
    each = each.mask(rows["kernels"] == NORM_KERNELS, OWN_PASSES * read + WIDE_BYTES)
    moved = table["message_bytes"].mask(open_, rows["m"] * rows["n"] * each)
    return table.assign(message_bytes=moved)


def _links(table: pd.DataFrame) -> pd.DataFrame:
    """Links of collectives that state an accelerator and how many nodes: those of the instance of a
    cloud or the system that their notes name, else of the catalog's system with it."""
    open_ = is_collective(table) & ((table["link"] == "") | ~(table["link_gbs"] > 0))
    found = table.assign(doubt=0.0)
    told = table["notes"] if "notes" in table else pd.Series("", table.index)
    for (name, notes), rows in table[open_].groupby(["accelerator", told[open_].fillna("")]):
        try:
            cluster, named = _machine(str(name), str(notes))
        except InputError:
            continue
        inner, outer = cluster.tiers[0], cluster.tiers[-1]
        single = rows.index[(rows["num_nodes"].fillna(1.0) <= 1.0).to_numpy()]
        several = rows.index.difference(single)
        if bridged([tier.link for tier in cluster.tiers]):
            wider = single[(rows["num_gpus"][single] > inner.size).to_numpy()]
            single = single.difference(wider)
            _beyond_bridges(found, wider, cluster)
        found.loc[single, "link"] = inner.link
        found.loc[several, "link"] = outer.link
        found.loc[several, "node_link"] = inner.link
        for index, columns, tier in (
            (single, ("link_gbs", "in_switch"), inner),
            (several, ("link_gbs", "in_switch"), outer),
            (several, ("node_link_gbs", "node_in_switch"), inner),
        ):
            found.loc[index, columns[0]] = float(np.mean(tier.rate)) / 1e9
            found.loc[index, columns[1]] = float(bool(tier.in_switch))
        found.loc[several, "doubt"] = 0.0 if named else _open_fabric(cluster)
    return found


def _open_fabric(cluster: Cluster) -> float:
    """Log-standard-deviation of the rate between nodes of a machine that is only assumed: that of
    the catalog's systems with its accelerator about the assumed one."""
    own = cluster.accelerator.name
    rates = [
        catalog.system(name).tiers[-1].rate
        for name, row in catalog.rows("systems").items()
        if row["accelerator"] == own
    ]
    away = np.log(np.array(rates or [1.0], float) / float(np.mean(cluster.tiers[-1].rate)))
    return float(np.sqrt(np.mean(away**2))) if rates else 0.0


def _machine(accelerator: str, notes: str) -> tuple[Cluster, bool]:
    """The machine on which a row was timed, and whether its notes name it.

    Raises InputError where nothing is known of the accelerator.
    """
    one = catalog.accelerator(accelerator)
    instance = catalog.instance_in(notes, one.name)
    named = instance.system if instance else catalog.system_in(notes, one.name)
    found = catalog.system(named) if named else catalog.default_system(one, None)
    return found, bool(named)


def _beyond_bridges(found: pd.DataFrame, rows: pd.Index, cluster: Cluster) -> None:
    """Fill links of collectives of more cards than a bridge joins: through the host, where the
    cards of a bridge carry together what leaves it (`timing.collectives.span`)."""
    inner, outer = cluster.tiers[:2]
    ring = ~found.loc[rows, "op"].isin(["alltoall", "p2p"])
    found.loc[rows, "link"] = outer.link
    found.loc[rows, "link_gbs"] = float(np.mean(outer.rate)) / 1e9 * np.where(ring, inner.size, 1.0)
    found.loc[rows, "in_switch"] = float(bool(outer.in_switch))
