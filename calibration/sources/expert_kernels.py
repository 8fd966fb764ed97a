"""What the `kernel` of a row says of a mixture's experts: whether they are gated, and whether the
kernel touches the rows of its own rank alone.

Kernels that get the tokens of all ranks (vLLM's and SGLang's fused experts) put all of them in
order, walk over their blocks and size the activations by them, though they multiply those of their
own experts only; others (TensorRT-LLM's, DeepGEMM's behind DeepEP) never see the rest.

And which rows of a table of even loads are not of even loads: those that were routed by groups.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd

NONGATED, OWN = "nongated", "own"


def experts_kernel(nongated: pd.Series, own: pd.Series) -> pd.Series:
    """`kernel` of rows of experts."""
    found = np.where(nongated, np.where(own, f"{NONGATED} {OWN}", NONGATED), np.where(own, OWN, ""))
    return pd.Series(found, nongated.index, dtype=object)


def matrices(table: pd.DataFrame) -> npt.NDArray[np.float64]:
    """Matrices of an expert in each row: three where it is gated, else two."""
    return np.where(table["kernel"].str.contains(NONGATED), 2.0, 3.0)


def alone(table: pd.DataFrame) -> npt.NDArray[np.bool_]:
    """Whether each row's kernel sees its own rank's tokens alone."""
    words = table["kernel"]
    return (words.str.split().map(lambda found: OWN in found)).to_numpy(bool)


UNGATED = frozenset(
    {(128, 2688, 1856), (512, 1024, 2688), (512, 2048, 5120), (512, 4096, 2688), (512, 8192, 5120)}
)
"""Experts, hidden and inner size of the models in `moe_perf.parquet` whose experts have no gate:
Nemotron-H (collector/cases/models/NemotronHForCausalLM_cases.yaml @ 095f58a: sglang_moe_is_gated
false; collector/vllm/collect_moe.py: relu2_no_mul), which TensorRT-LLM's rows alone name."""


def ungated(table: pd.DataFrame) -> pd.Series:
    """Whether rows of `moe_perf.parquet` are of experts without a gate."""
    sizes = zip(table["num_experts"], table["hidden_size"], table["inter_size"], strict=True)
    return pd.Series([one in UNGATED for one in sizes], table.index, dtype=bool)


BY_GROUPS = {"num_experts": 256, "hidden_size": 7168, "inter_size": 2048, "topk": 8}
"""The model whose tokens collectors of vLLM and SGLang route so: DeepSeek-V3."""

FORMER = "0.5.10"
"""The release of SGLang whose tables multiply, on every rank, all rows of the tokens that have one
expert there: eight ranks take as long as two (on an A100; 0.14 to 0.3 of one in the next release,
whatever the accelerator)."""

FEW_TOKENS = "min_latency"
"""Kernels of TensorRT-LLM whose tokens its collector routes so, whatever the model."""


def uneven(table: pd.DataFrame) -> npt.NDArray[np.bool_]:
    """Whether rows of `moe_perf.parquet` touched part of the experts alone.

    Its even loads give every token one expert in each `topk`-th of them (`balanced_logits` of
    collector/helper.py @ 095f58a). A router that chooses four of eight groups first finds all of
    them alike, keeps the first, and fills up with their first experts, for all tokens the same:
    half of the matrices are never read (collector/{vllm,sglang}/collect_moe.py, num_expert_group 8,
    topk_group 4; collector/trtllm/collect_moe.py, DeepseekV3Gate of all models that min_latency
    runs). On one B200 such a pass over 48 to 256 tokens takes .58 to .78 of what reading all
    experts would, of other models 1.07 and more; two of Mixtral's eight are read. Of ranks the one
    that was timed, the first, has what is filled up: 8, 6, 5, 4.5 and 4.25 of a token's eight
    experts where 2, 4, 8, 16 and 32 share them, and times go as these (5.7, 4.4, 3.7, 3.4 and 3.2
    ms on a GB200), of other models as one over the ranks.
    """
    source = table["dir_backend"]
    grouped = np.logical_and.reduce([table[name] == value for name, value in BY_GROUPS.items()])
    grouped &= source.isin(["vllm", "sglang"])
    former = (source == "sglang") & (table["dir_version"] == FORMER) & (table["moe_ep_size"] > 1)
    few = (source == "trtllm") & table["kernel_source"].str.contains(FEW_TOKENS)
    return np.asarray(grouped | former | few, bool)
