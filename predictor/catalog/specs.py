"""What files may say: validated forms of accelerators, systems, models and training plans.

Keys carry their unit; `extra` keys are refused. pydantic checks, the arithmetic never sees it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from predictor.catalog.forms import EMPTY, Spec
from predictor.errors import nearest
from predictor.plans import (
    AMOUNT,
    COUNT,
    KV_BYTES,
    NATURAL,
    ORDER,
    POSITIVE,
    RANK_ORDERS,
    SERVING_FIELDS,
    SWITCH,
    TEXT,
    TRAINING_FIELDS,
    WEIGHTS,
    WORD,
    WORDS,
    Kind,
    PlanField,
    Table,
    meant,
)

Positive = Annotated[float, POSITIVE]
Amount = Annotated[float, AMOUNT]
Count = Annotated[int, COUNT]
Natural = Annotated[int, NATURAL]
Times = Annotated[float, Kind("ratio", float, least=1, most=1e6)]


PEAKS = (
    "bf16_tflops", "fp16_tflops", "tf32_tflops", "fp32_tflops", "fp8_tflops", "fp4_tflops",
    "int8_tops",
)  # fmt: skip
"""Rates of arithmetic of an accelerator [10^12 a second]."""

MOST_FLOP_PER_BYTE = 3e4
"""Operations for each byte of memory traffic beyond which a number must be in another unit: a
hundred times an H100's; no accelerator of the catalog has a seventh of it."""


class AcceleratorSpec(Spec):
    """One accelerator; peaks are dense tensor rates."""

    name: str
    aliases: str = ""
    vendor: str = ""
    architecture: str = "unknown"
    year: int | None = None
    sm_count: Positive | None = None
    clock_mhz: Positive | None = None
    fp32_tflops: Positive | None = None
    tf32_tflops: Positive | None = None
    fp16_tflops: Positive | None = None
    bf16_tflops: Positive | None = None
    fp8_tflops: Positive | None = None
    fp4_tflops: Positive | None = None
    int8_tops: Positive | None = None
    memory_gb: Positive | None = None
    memory_gib: Positive | None = None
    memory_bandwidth_gbs: Positive
    l2_mb: Positive | None = None
    l2_bandwidth_gbs: Positive | None = None
    tdp_w: Positive | None = None
    host_link_gbs: Positive | None = None
    dispatch_us: Amount | None = None
    split_dispatch_us: Amount | None = None
    source: str = ""
    notes: str = ""

    def check(self) -> None:
        """The capacity is stated once; rates of arithmetic and memory are of one world."""
        if (self.memory_gb is None) == (self.memory_gib is None):
            raise ValueError("state either memory_gb (1e9 bytes) or memory_gib (2**30 bytes)")
        peaks = {key: getattr(self, key) or 0.0 for key in PEAKS}
        key = max(peaks, key=lambda key: peaks[key])
        each = 1e3 * peaks[key] / self.memory_bandwidth_gbs
        if each > MOST_FLOP_PER_BYTE:
            raise ValueError(
                f"{key} {peaks[key]:g} at memory_bandwidth_gbs {self.memory_bandwidth_gbs:g} are "
                f"{each:,.0f} operations a byte (an H100: 295 in bf16); check their units"
            )


class TierSpec(Spec):
    """One tier of a network; the outermost may leave its size out."""

    link: str
    size: Positive | None = None
    bandwidth_gbs: Positive
    latency_us: Positive | None = None
    window_mb: Positive | None = None
    oversubscription: Times = 1.0
    in_switch: bool = False
    direct: bool = False


class SystemSpec(Spec):
    """A node type and its networks, innermost tier first."""

    name: str
    aliases: str = ""
    accelerator: str | dict[str, Any]
    accelerators_per_node: Count
    host_memory_gb: Positive | None = None
    tiers: list[TierSpec]
    facts: dict[str, Any] = EMPTY
    source: str = ""
    notes: str = ""


def _choice(value: Any, choices: tuple[str, ...], words: Mapping[str, str] | None = None) -> str:
    found = meant(value, choices, words or {})
    if found is None:
        near = nearest(str(value).lower(), choices)
        raise ValueError(
            f"{value!r} is not one of {', '.join(choices)}"
            + (f"; did you mean {near!r}?" if near else "")
        )
    return found


def _one_of(
    choices: tuple[str, ...], words: Mapping[str, str] | None = None
) -> Callable[[Any], str]:
    return lambda value: _choice(value, choices, words)


class QuantizationSpec(Spec):
    """How a checkpoint stores its weights, as `models.Quantization` has it."""

    method: str
    precision: Annotated[str, _one_of(("", *WEIGHTS))] = ""
    cache: Annotated[str, _one_of(("", *KV_BYTES))] = ""
    exempt: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    others: Annotated[str, _one_of(("", "fp8_block"))] = ""
    remark: str = ""


class TowerSpec(Spec):
    """An encoder beside a language model, as `models.Tower` has it."""

    kind: Literal["vision", "audio"] = "vision"
    layers: Count
    hidden: Count
    heads: Count
    ffn_hidden: Count
    patches: Count
    tokens: Count
    patch_width: Count = 588
    merged: Count = 1
    gated: bool = False
    window: Natural = 0
    whole: Natural = 0
    several: Literal["batch", "loop", "mask"] = "batch"


class ModelSpec(Spec):
    """Dimensions of a model; what may be left out follows from the rest."""

    name: str
    aliases: str = ""
    family: str = ""
    year: int | None = None
    layers: Count
    hidden: Count
    heads: Count
    kv_heads: Count | None = None
    head_dim: Count | None = None
    ffn_hidden: Natural | None = None
    vocab: Count
    gated: bool = True
    activation: str = "silu"
    norm: Literal["rmsnorm", "layernorm"] = "rmsnorm"
    positions: Literal["rope", "learned", "alibi", "none"] = "rope"
    max_context: Natural = 0
    tied_embeddings: bool = False
    bias: bool = False
    qkv_bias: bool = False
    expert_bias: bool = False
    parallel: Literal["", "shared_norm", "own_norms"] = ""
    num_experts: Natural = 0
    top_k: Natural = 0
    expert_ffn_hidden: Natural = 0
    shared_experts: Natural = 0
    shared_expert_ffn_hidden: Natural = 0
    dense_layers: Natural = 0
    moe_every_n: Count = 1
    q_lora_rank: Natural = 0
    kv_lora_rank: Natural = 0
    qk_rope_head_dim: Natural = 0
    qk_nope_head_dim: Natural = 0
    v_head_dim: Natural = 0
    mtp_layers: Natural = 0
    sliding_window: Natural = 0
    sliding_pattern: str = ""
    expert_hidden: Natural = 0
    attention_layers: Natural = 0
    mamba_layers: Natural = 0
    mamba_heads: Natural = 0
    mamba_head_dim: Natural = 0
    mamba_state: Natural = 0
    mamba_groups: Natural = 0
    mamba_rank: Natural = 0
    mamba_chunk: Count = 128
    mamba_beside: bool = False
    shared_blocks: Natural = 0
    shared_rank: Natural = 0
    shared_queries: bool = False
    output_gate: bool = False
    delta_layers: Natural = 0
    delta_key_heads: Natural = 0
    delta_value_heads: Natural = 0
    delta_key_dim: Natural = 0
    delta_value_dim: Natural = 0
    delta_conv: Count = 4
    delta_gate_rank: Natural = 0
    delta_whole_gate: bool = False
    delta_whole_decay: bool = False
    delta_fixed: bool = False
    conv_layers: Natural = 0
    conv_taps: Natural = 0
    residual_block: Natural = 0
    index_heads: Natural = 0
    index_head_dim: Natural = 0
    index_topk: Natural = 0
    index_block: Natural = 0
    index_pool: Natural = 0
    sharing_layers: Natural = 0
    whole_layers: Natural = 0
    choosing_layers: Natural = 0
    choosing_ratio: Natural = 0
    pooling_layers: Natural = 0
    pooling_ratio: Natural = 0
    reading_layers: Natural = 0
    decoder_layers: Natural = 0
    decoder_choosers: Natural = 0
    candidates: Natural = 0
    index_from_keys: bool = False
    index_means: bool = False
    ngram_layers: Natural = 0
    ngram_rows: Natural = 0
    ngram_lookups: Natural = 0
    ngram_width: Natural = 0
    ngram_taps: Natural = 0
    ngram_embedding: bool = False
    out_groups: Natural = 0
    out_rank: Natural = 0
    streams: Natural = 0
    stream_rank: Natural = 0
    window_heads: Natural = 0
    window_kv_heads: Natural = 0
    window_head_dim: Natural = 0
    head_gate: bool = False
    values_are_keys: bool = False
    borrowing_layers: Natural = 0
    borrowing_ffn_hidden: Natural = 0
    bare_layers: Natural = 0
    ffn_widths: str = ""
    layer_inputs: Natural = 0
    alternating_streams: Natural = 0
    laurel_rank: Natural = 0
    quantization: QuantizationSpec | None = None
    causal: bool = True
    looped: bool = False
    tower: TowerSpec | None = None
    hf_id: str = ""
    source: str = ""
    notes: str = ""


def _all_of(choices: tuple[str, ...]) -> Callable[[Any], str]:
    """A list or a text with commas of names, each of `choices`; read as a text with commas."""

    def check(value: Any) -> Any:
        names = value if isinstance(value, list) else str(value).split(",")
        return ",".join(sorted({_choice(str(name).strip(), choices) for name in names}))

    return check


def _order(value: Any) -> str:
    """An order of dimensions; Megatron's `ep` among them says nothing here, where experts fill the
    ranks of a stage."""
    names = [name for name in str(value).lower().split("-") if name != "ep"]
    if "-".join(names) not in RANK_ORDERS:
        raise ValueError(
            f"{value!r} is not an order of tp, cp, dp and pp from the inside outwards, e.g. "
            f"{RANK_ORDERS[0]}"
        )
    return "-".join(names)


class PlanSpec(Spec):
    """A request as a user writes it: the fields of a table, none of which must be stated; what is
    left out is completed and reported."""

    table: ClassVar[Table] = {}

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    @classmethod
    @cache
    def fields(cls) -> dict[str, tuple[Any, Any]]:
        """Annotation and default of every key."""
        return {name: (_annotation(entry) | None, None) for name, entry in cls.table.items()}


def _annotation(entry: PlanField) -> Any:
    """What a field may hold."""
    kind = entry.kind
    if kind.number is not None:
        return Annotated[kind.number, kind]
    if kind is WORD:
        return Annotated[str, _one_of(entry.choices, entry.words)]
    if kind is WORDS:
        return Annotated[str, _all_of(entry.choices)]
    return {SWITCH: bool, TEXT: str, ORDER: Annotated[str, _order]}.get(kind, str | dict[str, Any])


class TrainingPlanSpec(PlanSpec):
    """A training request."""

    table = TRAINING_FIELDS


class ServingPlanSpec(PlanSpec):
    """A serving request."""

    table = SERVING_FIELDS
