"""ai-dynamo/aiconfigurator measurement tables (Parquet, Apache-2.0).

Latency is in milliseconds, message sizes in elements (2 bytes for half, 1 for int8); attention
states new tokens (`isl`) and past tokens (`step`). Several serving libraries measured the same
shapes; the geometric mean over libraries is the neutral software stack.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from calibration.sources.exchanges import CUSTOM, CUSTOM_LIMIT
from calibration.sources.expert_kernels import experts_kernel, uneven, ungated
from predictor import catalog
from predictor.precision import WEIGHT_BYTES

ACCELERATORS = {
    "NVIDIA A100-SXM4-80GB": "A100-SXM4-80GB",
    "NVIDIA H100 80GB HBM3": "H100-SXM5-80GB",
    "NVIDIA H200": "H200-SXM-141GB",
    "NVIDIA B200": "B200-SXM-180GB",
    "NVIDIA B300 SXM6 AC": "B300-SXM-288GB",
    "NVIDIA GB200": "GB200-186GB",
    "NVIDIA GB300": "GB300-288GB",
    "NVIDIA L40S": "L40S-48GB",
    "NVIDIA RTX PRO 6000 Blackwell Server Edition": "RTX-PRO-6000-96GB",
}
DTYPES = {"bfloat16": "bf16"} | {
    name: name
    for name in (
        "fp8",
        "fp8_block",
        "nvfp4",
        "sq",
        "int8_wo",
        "int4_wo",
        "w4a16_mxfp4",
        "w4a8_mxfp4_mxfp8",
    )
}
HOST_BOUND = "vllm"
"""Library whose block-scaled fp8 products (55 us on Hopper, 150 to 300 elsewhere) and latent
attention (120 to 315 us) wait for the host however small they are: its benchmark did not capture
them in a graph, as serving does. Left out."""

WAITED = 1.4
"""A row that took so much longer than one of more rows by the same matrix (which rows of zeros make
of it) did not time its kernel, in `DISTURBED` benchmarks: SGLang's of block-scaled fp8 wait for the
host on Hopper, 85 to 105 us of outputs between 2^21 and 2^22 elements, whatever k, where larger
ones take 25 to 50 and TensorRT-LLM's 40. On other machines the same shapes are hardly ever such
rows again (SGLang's fp8 and nvfp4: 4 % on B200, of those 5 % on GB200; vLLM's fp8: 9 % on B200, of
those 11 %). Elsewhere 70 to 90 % of them are: kernels that were ill chosen, which stay."""

DISTURBED = (("sglang", "fp8"), ("sglang", "fp8_block"), ("sglang", "nvfp4"), ("vllm", "fp8"))
"""Libraries and data types whose benchmarks were disturbed."""

BROKEN_DECODE = ("1.0.0", "1.3.0rc15", "1.3.0rc17")
"""TensorRT-LLM versions whose decode benchmark shares pages and beats the memory's bandwidth."""

COLLECTIVES = {
    "all_reduce": "allreduce",
    "all_gather": "allgather",
    "reduce_scatter": "reducescatter",
    "alltoall": "alltoall",
}
LINKS = {
    "A100-SXM4-80GB": ("nvlink3", 300.0, 0.0),
    "H100-SXM5-80GB": ("nvlink4", 450.0, 1.0),
    "H200-SXM-141GB": ("nvlink4", 450.0, 1.0),
    "B200-SXM-180GB": ("nvlink5", 900.0, 1.0),
    "B300-SXM-288GB": ("nvlink5", 900.0, 1.0),
    "GB200-186GB": ("nvlink5", 900.0, 1.0),
    "GB300-288GB": ("nvlink5", 900.0, 1.0),
    "L40S-48GB": ("pcie4", 32.0, 0.0),
    "RTX-PRO-6000-96GB": ("pcie5", 64.0, 0.0),
}
"""The scale-up link that each node's collectives ran on: name, GB/s per direction, whether the
switch reduces."""

PEER_ACCESS = {"L40S-48GB": 2.0}
"""Largest group whose members reach each other's memory, where it is not the whole node: that host
gives no access across sockets, and its groups of 4 and 8 collapse to 5 and 2 GB/s (left out)."""

LICENCE = "Apache-2.0"


def _geometric_mean(table: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """One row per shape: the geometric mean of the libraries' latencies."""
    logs = table.assign(log=np.log(table["latency_us"])).groupby(keys, observed=True)["log"].mean()
    return np.exp(logs).rename("latency_us").reset_index()


def _known(table: pd.DataFrame) -> pd.DataFrame:
    table = table.assign(accelerator=table["device"].map(ACCELERATORS))
    return table[table["accelerator"].notna()].copy()


def _gemms(path: Path) -> pd.DataFrame:
    table = _known(pd.read_parquet(path))
    table = table.assign(
        op="gemm",
        dtype=table["gemm_dtype"].map(DTYPES),
        latency_us=table["latency"].astype(float) * 1e3,
        framework=table["dir_backend"],
        source="aiconfigurator",
        **{axis: table[axis].astype(float) for axis in "mnk"},
    )
    table = table[table["dtype"].notna()]
    table = table.reset_index(drop=True)
    host_bound = (table["framework"] == HOST_BOUND) & (table["dtype"] == "fp8_block")
    benchmark = pd.MultiIndex.from_frame(table[["framework", "dtype"]])
    waited = benchmark.isin(DISTURBED) & (_over_larger(table) > WAITED)
    return table[~host_bound & ~waited]


def _over_larger(table: pd.DataFrame) -> pd.Series:
    """Time of each product over the least of those with as many rows or more by the same matrix, of
    the same library, as short or as long at work."""
    run = ["accelerator", "dtype", "framework", "power", "n", "k"]
    falling = table.assign(power=table["power"].notna()).sort_values("m", ascending=False)
    least = falling.groupby(run, observed=True)["latency_us"].cummin()
    return table["latency_us"] / least.reindex(table.index)


def gemm(path: Path) -> pd.DataFrame:
    """`gemm_perf.parquet` as kernel rows: short bursts; a row per accelerator, type, shape and
    library."""
    table = _gemms(path)
    return _by_library(table[table["power"].isna()], ["m", "n", "k"]).assign(layout="fwd")


def gemm_bursts_and_sustained(path: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The same bf16 shapes in short bursts, and for 0.3 s and longer back to back (the runs with
    power readings); one row per accelerator, library (`framework`) and shape."""
    table = _gemms(path)
    table = table[table["dtype"] == "bf16"]
    keys = ["accelerator", "framework", "m", "n", "k"]
    long = table["power"].notna()
    return _geometric_mean(table[~long], keys), _geometric_mean(table[long], keys)


def attention(path: Path) -> pd.DataFrame:
    """`context_attention_perf.parquet`: causal prefill without past tokens, in 16 and 8 bits, and
    in 16 bits over an 8-bit cache."""
    table = _known(pd.read_parquet(path))
    groups = table["num_key_value_heads"]
    table = table.assign(
        kv_heads=groups.where(groups > 0, table["num_heads"]).astype(float),
        head_dim=table["head_dim"].astype(float),
        window=table["window_size"].fillna(0).clip(lower=0).astype(float),
        kv_dtype=table["kv_cache_dtype"].map(DTYPES),
    )
    return _prefills(table, ["window", "kv_dtype"])


def _prefills(table: pd.DataFrame, more: list[str]) -> pd.DataFrame:
    """Rows of causal prefills without past tokens, in short bursts; `more` columns tell kernels
    apart."""
    table = table[(table["step"] == 0) & table["power"].isna()]
    table = table.assign(
        op="attention_prefill",
        dtype=table[next(c for c in ("attn_dtype", "mla_dtype") if c in table)].map(DTYPES),
        latency_us=table["latency"].astype(float) * 1e3,
        batch=table["batch_size"].astype(float),
        q_len=table["isl"].astype(float),
        kv_len=table["isl"].astype(float),
        heads=table["num_heads"].astype(float),
        framework=table["dir_backend"],
        source="aiconfigurator",
    )
    keys = ["batch", "q_len", "kv_len", "heads", "kv_heads", "head_dim"]
    return _by_library(table, keys + more).assign(causal=1.0)


ABSORBED = ("flash_attention", "triton")
"""Kernels of SGLang that attend to the latent cache itself, as in decoding: three to seven times
the arithmetic, which no prefill or training step takes on where the heads can be formed."""


def latent_attention(path: Path) -> pd.DataFrame:
    """`context_mla_perf.parquet`: causal prefill of multi-head latent attention, 16-bit; its
    heads have 192 dimensions for keys and 128 for values."""
    table = _known(pd.read_parquet(path))
    table = table[(table["kv_cache_dtype"] == "bfloat16") & ~table["kernel_source"].isin(ABSORBED)]
    table = table[table["dir_backend"] != HOST_BOUND]
    table = table.assign(
        kv_heads=table["num_heads"].astype(float),
        head_dim=192.0,
        kernel="mla",
    )
    return _prefills(table, ["kernel"])


def _linked(table: pd.DataFrame) -> pd.DataFrame:
    """Rows of a known accelerator and link, within peer access."""
    table = _known(table)
    table = table[table["accelerator"].isin(LINKS)]
    reach = table["accelerator"].map(PEER_ACCESS).fillna(np.inf)
    table = table[table["num_gpus"] <= reach].copy()
    for position, column in enumerate(("link", "link_gbs", "in_switch")):
        table[column] = [LINKS[name][position] for name in table["accelerator"]]
    return table


def custom_allreduce(path: Path) -> pd.DataFrame:
    """`custom_allreduce_perf.parquet`: the engines' own all-reduce of small messages inside a node
    (TensorRT-LLM, vLLM, SGLang; bf16), median over versions, of each engine (`framework`) and of
    all. `mode` is 'graph' inside a captured graph; 'eager' includes 15 to 50 us of launches by the
    host.

    L40S is left out: its hosts with and without peer access differ fourfold and are not told apart.
    """
    table = _linked(pd.read_parquet(path))
    table = table[table["accelerator"] != "L40S-48GB"]
    eager = table["kernel_source"].str.endswith("_eager")
    table = table.assign(
        mode=np.where(eager, "eager", "graph"),
        message_bytes=table["message_size"].astype(float) * 2.0,
        latency_us=table["latency"].astype(float) * 1e3,
        num_gpus=table["num_gpus"].astype(float),
        in_switch=0.0,
        framework=table["dir_backend"],
    )
    table = table[table["message_bytes"] <= CUSTOM_LIMIT]
    keys = ["accelerator", "link", "link_gbs", "in_switch", "mode", "num_gpus", "message_bytes"]
    parts = [
        table.groupby(by, observed=True)["latency_us"].median().reset_index()
        for by in (keys, [*keys, "framework"])
    ]
    rows = pd.concat(parts, ignore_index=True)
    return rows.assign(
        framework=rows["framework"].fillna(""),
        op="allreduce",
        kernel=CUSTOM,
        dtype="bf16",
        num_nodes=1.0,
        source="aiconfigurator",
    )


def nccl(path: Path) -> pd.DataFrame:
    """`nccl_perf.parquet`: NCCL collectives inside one node, out of place, median over versions."""
    table = _linked(pd.read_parquet(path))
    table = table.assign(
        op=table["op_name"].map(COLLECTIVES),
        message_bytes=table["message_size"].astype(float)
        * table["nccl_dtype"].map({"half": 2.0, "int8": 1.0}),
        latency_us=table["latency"].astype(float) * 1e3,
        num_gpus=table["num_gpus"].astype(float),
    )
    table = table[table["op"].notna() & (table["nccl_dtype"] == "half")]
    keys = ["accelerator", "link", "link_gbs", "in_switch", "op", "num_gpus", "message_bytes"]
    rows = table.groupby(keys, observed=True)["latency_us"].median().reset_index()
    return rows.assign(dtype="fp16", num_nodes=1.0, source="aiconfigurator")


def _decodes(path: Path) -> pd.DataFrame:
    """Rows of one new token, caches that are read as they should be."""
    table = _known(pd.read_parquet(path))
    broken = (table["dir_backend"] == "trtllm") & table["dir_version"].isin(BROKEN_DECODE)
    table = table[~broken & table["power"].isna()]
    return table.assign(
        latency_us=table["latency"].astype(float) * 1e3,
        batch=table["batch_size"].astype(float),
        kv_len=table["step"].astype(float) + 1.0,
        heads=table["num_heads"].astype(float),
        kv_dtype=table["kv_cache_dtype"].map({"bfloat16": "bf16", "fp8": "fp8"}),
        framework=table["dir_backend"],
        source="aiconfigurator",
        op="attention_decode",
        dtype="bf16",
    )


DECODED = ["batch", "kv_len", "heads", "kv_heads", "head_dim", "kv_dtype"]


def decode(path: Path) -> pd.DataFrame:
    """`generation_attention_perf.parquet`: one new token, 16- and 8-bit caches."""
    table = _decodes(path)
    kv_heads = table["num_key_value_heads"].astype(float)
    table = table.assign(
        kv_heads=kv_heads.where(kv_heads > 0, table["heads"]),
        head_dim=table["head_dim"].astype(float),
        window=table["window_size"].fillna(0).clip(lower=0).astype(float),
    )
    return _by_library(table, [*DECODED, "window"])


def latent_decode(path: Path) -> pd.DataFrame:
    """`generation_mla_perf.parquet`: one new token against a latent cache of 512 + 64."""
    table = _decodes(path).assign(kv_heads=1.0, head_dim=576.0, kernel="mla")
    table = table[table["framework"] != HOST_BOUND]
    return _by_library(table, [*DECODED, "kernel"])


def latent_products(path: Path) -> pd.DataFrame:
    """`mla_bmm_perf.parquet`: the batched products that take queries to the latent space of keys
    (128 -> 512) and values back (512 -> 128), one per head."""
    table = _known(pd.read_parquet(path))
    before = table["op_name"] == "mla_gen_pre"
    table = table.assign(
        latency_us=table["latency"].astype(float) * 1e3,
        m=table["num_tokens"].astype(float),
        n=np.where(before, 512.0, 128.0),
        k=np.where(before, 128.0, 512.0),
        batch=table["num_heads"].astype(float),
        dtype=table["bmm_dtype"].map(DTYPES),
        framework=table["dir_backend"],
        source="aiconfigurator",
        op="gemm",
    )
    table = table[table["dtype"].notna() & table["power"].isna() & (table["batch"] > 1)]
    return _by_library(table, ["m", "n", "k", "batch"]).assign(layout="fwd")


MISTUNED = 1.3
"""A part of the experts that takes this many times as long as all of them ran in a kernel that the
library's tuning chose by mistake."""

UNTUNED, ON = "flashinfer_cutlass", "NVIDIA H"
"""Kernels that engines tune as they start (FlashInfer's: vllm/model_executor/warmup/
kernel_warmup.py, on capability 9.0 and above) and that the collectors of vLLM and SGLang ran as
they come (collector/{vllm,sglang}/collect_moe.py @ 095f58a: no `autotune`, which that of
TensorRT-LLM, whose kernels these are, has), and the devices on which that shows: 2 to 6 times as
long on Hopper as TensorRT-LLM's in 16 bits and in fp8 with one scale, 1.0 to 1.3 on Blackwell. One
row in nine on H100 and one in six on H200 takes more than `WAITED` times one of more tokens; of all
others at most one in eighty does."""

SCALED_BY_BLOCKS = "fp8_block"
"""Where they take 1.1 times as long as they come."""

WHOLE = 2.0
"""Times of all its parts one after the other, from which on a matrix did not run in the kernel that
they did: its tuning failed (TensorRT-LLM's of 16 wide experts in fp8 on Hopper, which are vLLM's
untuned times there and 4 times those of four parts). Parts that a cache may hold say nothing."""


def _tuned(table: pd.DataFrame) -> pd.DataFrame:
    """Rows of expert products without those that take longer than less divided ones, or much longer
    than all parts of more divided ones."""
    keys = ["accelerator", "dtype", "framework", "kernel", "m", "n", "k", "experts", "topk"]
    wide = table.pivot_table("latency_us", [*keys, "moe_tp"], "moe_ep", observed=True)
    least = wide.cummin(axis=1).ffill(axis=1).groupby(level=keys, observed=True).cummin()
    bound = pd.Series(least.stack(), name="least").reset_index()
    joined = table.merge(bound, on=[*keys, "moe_tp", "moe_ep"], how="left")
    kept = (joined["latency_us"] <= MISTUNED * joined["least"]).to_numpy()
    return table[kept & (_over_parts(table, [*keys, "moe_ep"]) <= WHOLE)]


def _over_parts(table: pd.DataFrame, keys: list[str]) -> npt.NDArray[np.float64]:
    """Time of each row over the least that all parts of itself, or of it more divided, take."""
    names = table["accelerator"]
    cache = names.map({name: catalog.accelerator(name).l2 for name in names.unique()}).astype(float)
    matrix = table["n"] / table["moe_tp"] * table["k"] * table["experts"] / table["moe_ep"]
    cold = matrix * table["dtype"].map(WEIGHT_BYTES) > cache
    every = table["latency_us"] * table["moe_tp"]
    parts = table.assign(every=every.where(cold, np.inf)).sort_values("moe_tp", ascending=False)
    least = parts.groupby(keys, observed=True)["every"].cummin().reindex(table.index)
    return np.asarray((every / least).fillna(0.0), float)


EXPERT_SIZES = {
    "num_tokens": "m",
    "inter_size": "n",
    "hidden_size": "k",
    "num_experts": "experts",
    "topk": "topk",
    "moe_tp_size": "moe_tp",
    "moe_ep_size": "moe_ep",
}
"""Columns of tables of experts, and what they are called here."""

WALKING = "triton"
"""Kernels of TensorRT-LLM that walk over the rows of all ranks, as those of other libraries do."""


def experts(path: Path) -> pd.DataFrame:
    """`moe_perf.parquet`: experts under balanced routing, gated and not, on tokens of all ranks;
    TensorRT-LLM's touch those of their own rank alone (`kernel`): eight ranks take an eighth to a
    sixth of the time of one there, a third with the kernels of others."""
    table = _known(pd.read_parquet(path))
    table = table[(table["distribution"] == "balanced") & table["power"].isna()]
    divided = (table["dir_backend"] == "trtllm") & (table["moe_ep_size"] > 1)
    untuned = table["kernel_source"].str.contains(UNTUNED) & table["device"].str.startswith(ON)
    untuned &= table["moe_dtype"] != SCALED_BY_BLOCKS
    walking = divided & table["kernel_source"].str.contains(WALKING)
    table = table[~(walking | untuned | uneven(table))]
    table = table.assign(
        **{new: table[old].astype(float) for old, new in EXPERT_SIZES.items()},
        latency_us=table["latency"].astype(float) * 1e3,
        dtype=table["moe_dtype"].map(DTYPES),
        kernel=experts_kernel(
            nongated=ungated(table),
            own=(table["dir_backend"] == "trtllm") & (table["moe_ep_size"] > 1),
        ),
        framework=table["dir_backend"],
        source="aiconfigurator",
        op="moe_gemm",
    )
    return _tuned(_by_library(table[table["dtype"].notna()], [*EXPERT_SIZES.values(), "kernel"]))


def _by_library(table: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """One row per accelerator, type, shape and library (`framework`): of its kernels and versions
    the fastest, which is what it chooses where it can."""
    whole = ["accelerator", "op", "dtype", "source", "framework", *keys]
    return table.groupby(whole, observed=True)["latency_us"].min().reset_index()
