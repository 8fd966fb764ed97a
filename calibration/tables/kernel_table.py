"""Kernel tables: checking them, and turning their rows into shapes."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from calibration.sources import own_gpus
from calibration.sources.expert_kernels import alone, matrices
from predictor.errors import InputError
from predictor.models import keys_seen
from predictor.precision import ELEMENT_BYTES, WEIGHT_BYTES
from predictor.schema import (
    ALONE,
    COLLECTIVE_OPS,
    COMPUTE_OPS,
    DEVICE_OPS,
    KERNEL_NUMBERS,
    KERNEL_SCHEMA_VERSION,
)
from predictor.timing import PLAIN, PROMPTS, Shapes, kind_of

NEEDED = ("accelerator", "op", "dtype", "latency_us")
TEXTS = (
    "layout", "kernel", "kv_dtype", "link", "node_link", "cache", "mode", "source", "framework",
)  # fmt: skip
NUMBERS = (
    *KERNEL_NUMBERS, "link_gbs", "in_switch", "node_link_gbs", "node_in_switch", "latency_us",
    "power_w", "waited",
)  # fmt: skip


def check_kernels(table: pd.DataFrame, where: str) -> pd.DataFrame:
    """Check a kernel table and give every column its type.

    Raises InputError, naming the column or the line (the first row is line 2).
    """
    missing = [column for column in NEEDED if column not in table]
    if missing:
        raise InputError(f"{where} is no kernel table: column {missing[0]!r} is missing")

    def refuse(bad: pd.Series, column: str, must: str) -> None:
        if bad.any():
            row = int(np.argmax(bad.to_numpy()))
            value = table[column].iloc[row]
            shown = repr(value) if isinstance(value, str) else str(value)
            raise InputError(f"{where}, line {row + 2}: {column} {must}, got {shown}")

    if "schema_version" in table:
        given = table["schema_version"]
        known = pd.to_numeric(given, errors="coerce") == KERNEL_SCHEMA_VERSION
        must = f"is not {KERNEL_SCHEMA_VERSION}, which this reckon reads (profile the device anew)"
        refuse(given.notna() & ~known, "schema_version", must)
    checked = table.copy()
    for column in NUMBERS:
        if column not in table:
            checked[column] = np.nan
            continue
        values = pd.to_numeric(table[column], errors="coerce").astype(float)
        refuse(values.isna() & table[column].notna(), column, "must be a number")
        refuse((values < 0) | np.isinf(values), column, "must be a number from 0 up")
        checked[column] = values
    refuse(~(checked["latency_us"] > 0), "latency_us", "must be above 0")
    for column in (*NEEDED[:3], *TEXTS):
        text = table[column].astype(object) if column in table else pd.Series("", table.index)
        checked[column] = text.where(text.notna(), "").astype(str)
    for column in NEEDED[:3]:
        refuse(checked[column] == "", column, "must be stated")
    return checked


LATENT_VALUES, LATENT_HEAD = 512.0, 160.0
"""Multi-head latent attention (DeepSeek-V2, section 2.1.2): width of the compressed values; mean
head size of a prefill, 192 for keys and 128 for values."""

DIMENSIONS = {
    "gemm": ("m", "n", "k"),
    "moe_gemm": ("m", "n", "k", "experts", "topk"),
    "attention_prefill": ("batch", "q_len", "kv_len", "heads", "head_dim"),
    "attention_backward": ("batch", "q_len", "kv_len", "heads", "head_dim"),
    "attention_decode": ("batch", "kv_len", "heads", "head_dim"),
}
"""What a row must state to be timed; of other kernels and of collectives it is `message_bytes`."""


def gaps(table: pd.DataFrame) -> pd.Series:
    """Why each row of a checked table can be neither fitted nor predicted; '' where it can."""
    why = pd.Series("", table.index)

    def note(bad: pd.Series, reason: pd.Series | str) -> None:
        why.mask(bad & (why == ""), reason, inplace=True)

    collective = is_collective(table)
    note(
        table["op"].isin(DEVICE_OPS),
        "copies, launches, overlaps, host times and waiting describe the device only",
    )
    known = table["op"].isin(COMPUTE_OPS) | collective
    note(~known, "kernels of this kind are not predicted yet: " + table["op"])
    launched = table["mode"].isin(["compiled", "graph"]) & table["op"].isin(COMPUTE_OPS)
    note(launched, "compiled and captured kernels are measured only, not fitted yet")
    note(table["mode"] == "crowded", "collectives of several groups at once are measured only")
    typed = ~collective & ~table["dtype"].isin(ELEMENT_BYTES)
    note(typed & table["op"].isin(DIMENSIONS), "unknown data type " + table["dtype"])
    for op, needed in DIMENSIONS.items():
        for column in needed:
            note((table["op"] == op) & ~(table[column] > 0), f"{column} is not stated")
    moving = ~table["op"].isin(DIMENSIONS)
    note(moving & ~(table["message_bytes"] > 0), "message_bytes is not stated")
    note(collective & ~(table["num_gpus"] > 1), "num_gpus is not stated")
    unlinked = (table["link"] == "") | ~(table["link_gbs"] > 0)
    note(collective & unlinked, "the link is not stated (columns link, link_gbs)")
    return why


PROMPT = "attention_prefill"

STREAMED = ("norm", "elementwise", "softmax", "loss", "embedding", "optimizer")
"""Operators that stream their operands through the processor."""


def variants(table: pd.DataFrame) -> pd.Series:
    """Variant of each row, as `predictor.work.Operator.variant` spells it."""
    layout = table["layout"].where(table["layout"] != "", "fwd")
    batched = (table["op"] == "gemm") & (table["batch"].fillna(1) > 1)
    layout = layout.where(~(batched & (layout == "fwd")), "bmm")
    named = table["op"].isin(STREAMED)
    attention = table["op"].str.startswith("attention")
    found = layout.where(~named, table["kernel"].where(table["kernel"] != "", "fwd"))
    fused = table["kernel"].where(
        table["kernel"].isin(["flash2", "cudnn", "mla", "paged"]), "flash"
    )
    narrow = table["kv_dtype"].isin(["fp8", "int8"])
    wide = table["dtype"].map(ELEMENT_BYTES) > 1
    small = narrow & (table["op"].eq("attention_decode") | (table["op"].eq(PROMPT) & wide))
    latent = fused == "mla"
    reads_prompt = table["op"] == PROMPT
    fused = fused.mask(small & latent & ~reads_prompt, "mla_kv8")
    fused = fused.mask(small & (fused == "flash"), "kv8")
    return found.where(~attention, fused)


def kinds(table: pd.DataFrame) -> pd.Series:
    """Kind of each row, under which its efficiency is fitted; '' for collectives and for rows
    that no fit uses."""
    fitted = ~is_collective(table) & (gaps(table) == "")
    pairs = pd.MultiIndex.from_arrays([table["op"], variants(table)])
    codes, distinct = pd.factorize(pairs)
    named = np.array([kind_of(op, variant) for op, variant in distinct], dtype=object)
    found = pd.Series(named[codes] if len(named) else codes, index=table.index, dtype=object)
    found = found.mask(table["source"] == own_gpus.SOURCE, found.astype(str) + f"@{PLAIN}")
    return found.where(fitted, "")


def is_collective(table: pd.DataFrame) -> pd.Series:
    """Rows that time a collective."""
    return table["op"].isin(COLLECTIVE_OPS)


def shapes_of(table: pd.DataFrame, op: str, dtype: str) -> Shapes:
    """Rows of one op and data type as shapes; bytes and FLOPs as `predictor.work` counts them."""
    names, codes = np.unique(variants(table).to_numpy(dtype=str), return_inverse=True)
    # With latent attention one compressed head stands for keys and values.
    latent = np.char.startswith(names, "mla")[codes]
    size = ELEMENT_BYTES.get(dtype, 2.0)
    if op == "attention_decode":
        found = _decoding(table, size, latent)
    elif op.startswith("attention"):
        found = _attention(table, size, latent, op == "attention_backward")
    elif op == "moe_gemm":
        found = _experts(table, size, WEIGHT_BYTES.get(dtype, 2.0))
    else:
        m, n, k, batch = (_column(table, name) for name in ("m", "n", "k", "batch"))
        moved, flop = _column(table, "message_bytes"), np.zeros_like(m)
        if op == "gemm":
            out = np.where(variants(table) == "wgrad", 4.0, max(size, 2.0))
            moved = (size * m * k + WEIGHT_BYTES.get(dtype, 2.0) * k * n + out * m * n) * batch
            flop = 2.0 * m * n * k * batch
        found = _Sizes(m, n, k, batch, flop, moved)
    cold, alone = ((table[name] == value).to_numpy().astype(float)
                   for name, value in (("cache", "cold"), ("kernel", ALONE)))  # fmt: skip
    if op in PROMPTS:  # a loop of PyTorch has no cache
        alone = np.maximum(alone, (table["framework"] == "pytorch").to_numpy().astype(float))
    sizes = (found.m, found.n, found.k, found.batch, found.flop, found.moved)
    made = Shapes(op, dtype, tuple(names), codes.astype(float), *sizes, joined=alone, cold=cold)
    more = {name: getattr(found, name) for name in ("idle", "windowed", "sharing")}
    return replace(made, **{name: value for name, value in more.items() if value is not None})


@dataclass(frozen=True, slots=True, eq=False)
class _Sizes:
    """Sizes of rows, FLOPs and bytes moved, each an array over them; where there is such, work
    that is left out, as a multiple of what is done, whether the kernel is one for windows, and how
    many query heads share a key head."""

    m: np.ndarray
    n: np.ndarray
    k: np.ndarray
    batch: np.ndarray
    flop: np.ndarray
    moved: np.ndarray
    idle: np.ndarray | None = None
    windowed: np.ndarray | None = None
    sharing: np.ndarray | None = None


def _column(table: pd.DataFrame, name: str, default: float = 1.0) -> np.ndarray:
    return table[name].fillna(default).to_numpy(dtype=float)


def _window(table: pd.DataFrame) -> np.ndarray:
    """Keys that a query sees at most."""
    stated = _column(table, "window", 0.0)
    return np.where(stated > 0, stated, np.inf)


def _kv_heads(table: pd.DataFrame) -> np.ndarray:
    return table["kv_heads"].fillna(table["heads"]).to_numpy(dtype=float)


def _decoding(table: pd.DataFrame, size: float, latent: np.ndarray) -> _Sizes:
    sequences, key, heads, d = (
        _column(table, name) for name in ("batch", "kv_len", "heads", "head_dim")
    )
    kv_heads, window = _kv_heads(table), _window(table)
    idle = np.maximum(key / window - 1.0, 0.0)
    key = np.minimum(key, window)
    cache = table["kv_dtype"].map(ELEMENT_BYTES).fillna(2.0).to_numpy(dtype=float)
    moved = sequences * (cache * kv_heads * key * np.where(latent, d, 2.0 * d))
    moved = moved + sequences * 2.0 * size * heads * d
    flop = 2.0 * sequences * heads * key * np.where(latent, d + LATENT_VALUES, 2.0 * d)
    rows, windowed = heads / kv_heads, np.isfinite(window).astype(float)
    return _Sizes(
        m=rows,
        n=key,
        k=d,
        batch=sequences * kv_heads,
        flop=flop,
        moved=moved,
        idle=idle,
        windowed=windowed,
    )


def _attention(table: pd.DataFrame, size: float, latent: np.ndarray, backward: bool) -> _Sizes:
    query, key, heads, sequences = (
        _column(table, name) for name in ("q_len", "kv_len", "heads", "batch")
    )
    d = np.where(latent, LATENT_HEAD, _column(table, "head_dim"))
    batch, window = sequences * heads, _window(table)
    seen = keys_seen(query, key, _column(table, "causal"), window)
    forward = 4.0 * batch * query * seen * d
    stored = table["kv_dtype"].map(ELEMENT_BYTES).fillna(size).to_numpy(dtype=float)
    kv_heads = _kv_heads(table)
    moved = sequences * d * (2 * size * query * heads + 2 * stored * key * kv_heads)
    flop, moved = (forward * 2.5, moved * 2.0) if backward else (forward, moved)
    idle = np.maximum(key / window - 1.0, 0.0)
    windowed = np.isfinite(window).astype(float)
    sharing = np.where(latent, 1.0, heads / kv_heads)
    return _Sizes(
        m=query,
        n=np.minimum(key, window),
        k=d,
        batch=batch,
        flop=flop,
        moved=moved,
        idle=idle,
        windowed=windowed,
        sharing=sharing,
    )


def _experts(table: pd.DataFrame, size: float, weight: float) -> _Sizes:
    m, k, topk = (_column(table, name) for name in ("m", "k", "topk"))
    inner = _column(table, "n") / _column(table, "moe_tp")
    # Benchmarks spread tokens evenly: no expert has a second one while another has none.
    routed = np.maximum(m * topk / _column(table, "moe_ep"), 1.0)
    hit = np.minimum(np.ceil(routed), _column(table, "experts") / _column(table, "moe_ep"))
    sides = matrices(table)
    weights = sides * weight * inner * k * hit
    moved = weights + routed * (2.0 * size * k + 2.0 * sides * inner)
    idle = np.where(alone(table), 0.0, np.maximum(m * topk / routed - 1.0, 0.0))
    flop = 2.0 * sides * routed * inner * k
    return _Sizes(routed / hit, inner, k, hit, flop, moved, idle)
