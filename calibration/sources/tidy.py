"""The tidy table of operator measurements gathered from many repositories (`ops.parquet`)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from calibration.sources.aiconfigurator import LINKS
from calibration.sources.told import noted
from predictor import catalog
from predictor.precision import ELEMENT_BYTES, SPELLINGS
from predictor.schema import ALONE, COLLECTIVE_OPS, COMPUTE_OPS

LICENCE = "facts from the repositories named in `source`"

ONE_NODE = (
    ("dgxc-benchmarking", "H100-SXM5-80GB", "nvlink4", 450.0, 1.0, 2**8),
    ("simumax", "H100-SXM5-80GB", "nvlink4", 450.0, 1.0, 2**24),
    ("github-issue", "MI300X-192GB", "xgmi4", 448.0, 0.0, 2**8),
)
"""Tables of one node: source, accelerator, link, GB/s, whether the switch reduces, and from which
message on it is sound [bytes] (below, SimuMax's collectives all take 45 to 76 us). Left out:
ml-engineering (times of a Python loop) and MI250X (node count uncertain)."""

COLLECTIVE = [
    "source",
    "accelerator",
    "op",
    "dtype",
    "num_gpus",
    "num_nodes",
    "message_bytes",
    "latency_us",
    "link",
    "link_gbs",
    "in_switch",
]

SIMUMAX_LAYOUTS = {"layout=TN": "fwd", "layout=NN": "dgrad", "layout=NT": "wgrad"}


def _load(path: Path) -> pd.DataFrame:
    table = pd.read_parquet(path)
    for column in ("m", "n", "k", "batch", "num_gpus", "num_nodes", "message_bytes"):
        table[column] = table[column].astype(float)
    return table


def training_gemms(path: Path) -> pd.DataFrame:
    """SimuMax efficiency tables: products of training in their three layouts (A100-PCIe)."""
    table = _load(path)
    table = table[(table["source"] == "simumax") & (table["op"] == "gemm")]
    layout = table["kernel"].str.extract(r"^(layout=\w+)")[0].map(SIMUMAX_LAYOUTS)
    columns = ["source", "accelerator", "op", "dtype", "m", "n", "k", "latency_us"]
    return table[columns].assign(layout=layout, batch=1.0).reset_index(drop=True)


def products(path: Path) -> pd.DataFrame:
    """Products that one library timed on its own hardware: aiter's tuned ones on AMD, DeepGEMM's
    on H20 and H800 (InferSim), those of the fp32 units (NeuSight, no tensor cores), and cuBLAS's on
    the only card of its architecture (`CARD`)."""
    table = _load(path)
    known = table["source"].isin(["aiter", "infersim", "neusight"]) | _of(table, CARD)
    table = table[(table["op"] == "gemm") & known]
    columns = ["source", "accelerator", "op", "dtype", "m", "n", "k", "batch", "latency_us"]
    dtype = table["dtype"].replace(SPELLINGS)
    alone = table["source"].isin(["aiter", "infersim"])  # kernel times, inputs made before
    more = {
        "kernel": np.where(alone, ALONE, ""),
        "cache": np.where(table["source"] == "infersim", "cold", ""),  # flushed before each
    }
    return table[columns].assign(dtype=dtype, layout="fwd", **more).reset_index(drop=True)


def experts(path: Path) -> pd.DataFrame:
    """aiter's tuned experts on AMD accelerators, gated, both products in one call."""
    table = _load(path)
    table = table[(table["op"] == "moe_gemm") & (table["source"] == "aiter")]
    sizes = ["m", "n", "k", "experts", "topk"]
    table = table.assign(
        dtype=table["dtype"].replace(SPELLINGS),
        **{name: table[name].astype(float) for name in sizes},
    )
    table = table[["source", "accelerator", "op", "dtype", *sizes, "latency_us"]]
    return timed_once(table).reset_index(drop=True)


def timed_once(table: pd.DataFrame) -> pd.DataFrame:
    """Rows of experts without times that were carried to other numbers of tokens.

    aiter looks its kernels up by steps of tokens, and some of its tables (those of MI308X, most of
    all) state the time of one number at all that it stands for: the same to a picosecond for 1 to
    16, and again for 1,024 to 32,768, at seven times the peak. What the fewest tokens share was
    timed at the most of them, which the step holds; any other at the fewest.
    """
    series = ["accelerator", "dtype", "n", "k", "experts", "topk"]
    fewest = table.groupby(series, dropna=False)["m"].transform("min")
    alike = table.groupby([*series, "latency_us"], dropna=False)["m"]
    first, last = alike.transform("min"), alike.transform("max")
    return table[table["m"] == last.where(first == fewest, first)]


TPU = ("llmservingsim", "TPUv6e")
"""Source and accelerator of the only operators that were timed on a TPU."""

CARD = ("llmservingsim", "RTX-3090-24GB")
"""Source and accelerator of the only products that were timed on Ampere's chips for graphics."""


def _of(table: pd.DataFrame, pair: tuple[str, str]) -> pd.Series:
    """Rows of a source on an accelerator."""
    return (table["source"] == pair[0]) & (table["accelerator"] == pair[1])


def tensor_processors(path: Path) -> pd.DataFrame:
    """Products and attention of vLLM on a TPU, prompts behind cached keys among them, whose paged
    kernel is not that of training."""
    table = _load(path)
    table = table[_of(table, TPU)]
    sizes = ["m", "n", "k", "batch", "q_len", "kv_len", "heads", "kv_heads", "head_dim", "causal"]
    table = table.assign(**{name: table[name].astype(float) for name in sizes})
    columns = ["source", "accelerator", "op", "dtype", *sizes, "latency_us"]
    kernel = np.where(table["op"] == "attention_prefill", "paged", "")
    return table[columns].assign(layout="fwd", kernel=kernel).reset_index(drop=True)


def streaming(path: Path) -> pd.DataFrame:
    """NeuSight: elementwise kernels and layer norms in fp32, on accelerators of the catalog."""
    table = _load(path)
    table = table[(table["source"] == "neusight") & table["op"].isin(["norm", "elementwise"])]
    kernel = table["kernel"].fillna("")
    binary = kernel.isin(["add", "div", "mul", "pow"])
    unary = kernel.isin(["addu", "divu", "mulu", "relu", "tanh", "gelu"])
    norm = kernel == "ln"
    table = table[(binary | unary | norm) & table["accelerator"].isin(catalog.rows("accelerators"))]
    table = table.assign(
        kernel=kernel.map({"ln": "layernorm", "gelu": "gelu", "add": "add"}).fillna("other"),
        message_bytes=table["m"] * table["n"] * 4.0 * (2.0 + binary),
    )
    columns = [
        "source",
        "accelerator",
        "op",
        "dtype",
        "kernel",
        "m",
        "n",
        "message_bytes",
        "latency_us",
    ]
    return table[columns].reset_index(drop=True)


LEAST_CACHES, LEAST_ROW = 1.5, 1024
"""Times the last-level cache, and elements of a row, from which on conversions are taken: a stream
longer than the cache finds nothing of itself there when it is timed again, as one of a whole model
does not, and a block to a row (vLLM's) fills a machine with long rows alone."""


def conversions(path: Path) -> pd.DataFrame:
    """Kernels that turn bf16 into fp8 by a scale that is known, of the newest release of each
    library (TensorRT-LLM, vLLM) that timed them on an accelerator. They read two bytes of an
    element and write one, as copies do that change its type."""
    table = _load(path)
    table = table[(table["op"] == "elementwise") & (table["dtype"] == "bf16->fp8")]
    moved = table["m"] * table["n"] * (ELEMENT_BYTES["bf16"] + ELEMENT_BYTES["fp8"])
    table = table.assign(dtype="bf16", kernel="copy", message_bytes=moved)
    ours = {name: catalog.accelerator(name) for name in table["accelerator"].unique()}
    cache = table["accelerator"].map({name: float(one.l2) for name, one in ours.items()})
    table = table[(moved > LEAST_CACHES * cache) & (table["n"] >= LEAST_ROW)]
    table = table.replace({"accelerator": {name: one.name for name, one in ours.items()}})
    found = table["framework_version"].unique()
    releases = sorted({catalog.version_of(name) for name in found})
    order = {name: releases.index(catalog.version_of(name)) for name in found}
    own = ["accelerator", "framework"]
    age = table["framework_version"].map(order).astype(int)
    newest = age.groupby([table[name] for name in own], observed=True).transform("max")
    columns = ["source", *own, "op", "dtype", "kernel", "m", "n", "message_bytes", "latency_us"]
    return table[age == newest][columns].reset_index(drop=True)


STRANGERS = ("vidur", "llmservingsim", "infersim", "ml-engineering")
"""Sources that no fit takes, apart from what is known from them alone (`tensor_processors`;
DeepGEMM's products and those of `CARD` in `products`): they tell what other people's harnesses
differ by, those of `CARD` where nothing is known of it."""


def strangers(path: Path) -> pd.DataFrame:
    """Kernels of `STRANGERS` on accelerators that others measured too."""
    table = _load(path)
    fitted = (table["accelerator"] == TPU[1]) | (
        (table["source"] == "infersim") & (table["op"] == "gemm")
    )
    own = table["source"].isin(STRANGERS) & table["op"].isin(COMPUTE_OPS) & ~fitted
    return table[own].reset_index(drop=True)


def multi_node(path: Path) -> pd.DataFrame:
    """nccl-tests tables over several nodes whose fabric their notes name. Left out are reports of
    fabrics that their authors call slow or abnormal (H20, MI250X, A3 High), and those that do not
    state their network (MI350X)."""
    table = _load(path)
    rows = table[(table["num_nodes"] > 1) & table["message_bytes"].notna()]
    told = pd.DataFrame([noted(row, "collectives") for row in rows.to_dict("records")])
    told = told[told["link_gbs"].notna()].astype({"link_gbs": float})
    node = [LINKS[name] for name in told["accelerator"]]
    found = told.assign(
        in_switch=0.0,
        node_link=[name for name, *_ in node],
        node_link_gbs=[gbs for _, gbs, _ in node],
        node_in_switch=[reduces for *_, reduces in node],
    )
    columns = [*COLLECTIVE, "node_link", "node_link_gbs", "node_in_switch"]
    joined = found.reset_index(drop=True)[columns]
    # The table of p4de ends in two rows of the one that follows it.
    return joined[~joined.duplicated(["op", "message_bytes", "latency_us"], keep="last")]


def one_node(path: Path) -> pd.DataFrame:
    """Tables of collectives inside one node, beside aiconfigurator's."""
    table = _load(path)
    found = []
    for source, accelerator, link, rate, in_switch, least in ONE_NODE:
        rows = table[
            (table["source"] == source)
            & (table["accelerator"] == accelerator)
            & table["op"].isin(COLLECTIVE_OPS)
            & (table["message_bytes"] >= least)
        ]
        found.append(rows.assign(link=link, link_gbs=rate, in_switch=in_switch))
    return pd.concat(found, ignore_index=True)[COLLECTIVE]
