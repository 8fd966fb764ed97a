"""What files may say: validated forms of accelerators, systems, models and training plans.

Keys carry their unit; `extra` keys are refused. pydantic checks, the arithmetic never sees it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from predictor.errors import InputError, nearest
from predictor.plans import (
    ACCUMULATIONS,
    ADMISSIONS,
    ALLREDUCES,
    ATTENTIONS,
    CP_KINDS,
    DISPATCHES,
    EXECUTIONS,
    FIT,
    FUSIONS,
    HEADWISE,
    KV_BYTES,
    LIBRARIES,
    MATVECS,
    NARROWED,
    OFFLOADS,
    PIPELININGS,
    POOLS,
    RANK_ORDERS,
    RECOMPUTE_METHODS,
    RECOMPUTE_MODULES,
    RECOMPUTES,
    SCHEDULES,
    SCHEDULINGS,
    SERVING_OFFLOADS,
    SHARDINGS,
    SPLITS,
    SPLITTINGS,
    TRAINED,
    WEIGHTS,
)
from predictor.precision import PRECISIONS

Positive = Annotated[float, Field(gt=0, lt=1e30, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1, le=10**9)]
Natural = Annotated[int, Field(ge=0, le=10**9)]
Share = Annotated[float, Field(ge=0, le=1)]


class Spec(BaseModel):
    """Base of all file forms: unknown keys are errors, instances are frozen."""

    model_config = ConfigDict(extra="forbid", frozen=True)


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
    dispatch_us: Annotated[float, Field(ge=0)] | None = None
    split_dispatch_us: Annotated[float, Field(ge=0)] | None = None
    source: str = ""
    notes: str = ""

    @model_validator(mode="after")
    def _one_memory(self) -> AcceleratorSpec:
        if (self.memory_gb is None) == (self.memory_gib is None):
            raise ValueError("state either memory_gb (1e9 bytes) or memory_gib (2**30 bytes)")
        return self


class TierSpec(Spec):
    """One tier of a network; the outermost may leave its size out."""

    link: str
    size: Positive | None = None
    bandwidth_gbs: Positive
    latency_us: Positive | None = None
    oversubscription: Annotated[float, Field(ge=1, le=1e6)] = 1.0
    in_switch: bool = False


class SystemSpec(Spec):
    """A node type and its networks, innermost tier first."""

    name: str
    aliases: str = ""
    accelerator: str | dict[str, Any]
    accelerators_per_node: Count
    host_memory_gb: Positive | None = None
    tiers: Annotated[list[TierSpec], Field(min_length=1)]
    facts: dict[str, Any] = {}
    source: str = ""
    notes: str = ""


def _choice(value: Any, choices: tuple[str, ...]) -> str:
    text = str(value).lower()
    if text not in choices:
        near = nearest(text, choices)
        raise ValueError(
            f"{value!r} is not one of {', '.join(choices)}"
            + (f"; did you mean {near!r}?" if near else "")
        )
    return text


def _one_of(choices: tuple[str, ...]) -> BeforeValidator:
    return BeforeValidator(lambda value: _choice(value, choices))


class QuantizationSpec(Spec):
    """How a checkpoint stores its weights, as `models.Quantization` has it."""

    method: str
    precision: Annotated[str, _one_of(("", *WEIGHTS))] = ""
    cache: Annotated[str, _one_of(("", *KV_BYTES))] = ""
    exempt: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    remark: str = ""


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
    output_gate: bool = False
    delta_layers: Natural = 0
    delta_key_heads: Natural = 0
    delta_value_heads: Natural = 0
    delta_key_dim: Natural = 0
    delta_value_dim: Natural = 0
    delta_conv: Count = 4
    index_heads: Natural = 0
    index_head_dim: Natural = 0
    index_topk: Natural = 0
    quantization: QuantizationSpec | None = None
    hf_id: str = ""
    source: str = ""
    notes: str = ""


def _all_of(choices: tuple[str, ...]) -> BeforeValidator:
    """A list or a text with commas of names, each of `choices`; read as a text with commas."""

    def check(value: Any) -> Any:
        names = value if isinstance(value, list) else str(value).split(",")
        return ",".join(sorted({_choice(str(name).strip(), choices) for name in names}))

    return BeforeValidator(check)


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


class TrainingPlanSpec(Spec):
    """A training request as a user writes it; what is left out is completed and reported."""

    model: str | dict[str, Any] | None = None
    system: str | dict[str, Any] | None = None
    accelerator: str | dict[str, Any] | None = None
    accelerators_per_node: Count | None = None
    inter_link_gbps: Positive | None = None
    gpus: Count | None = None
    tp: Count | None = None
    pp: Count | None = None
    vpp: Count | None = None
    cp: Count | None = None
    dp: Count | None = None
    dp_shard: Count | None = None
    first_layers: Count | None = None
    last_layers: Count | None = None
    ep: Count | None = None
    etp: Count | None = None
    expert_load: Annotated[float, Field(ge=1, le=1e3)] | None = None
    routed_nodes: Count | None = None
    micro_batch: Count | None = None
    global_batch: Count | None = None
    seq_len: Count | None = None
    tokens: Positive | None = None
    price_per_gpu_hour: Positive | None = None
    mtbf_hours: Positive | None = None
    restart_s: Positive | None = None
    storage_gbs: Positive | None = None
    checkpoint_blocking: Share | None = None
    checkpoint_interval_s: Positive | None = None
    sequence_parallel: bool | None = None
    precision: Annotated[str, _one_of(tuple(PRECISIONS))] | None = None
    recompute: Annotated[str, _one_of((*RECOMPUTES, FIT))] | None = None
    recompute_modules: Annotated[str, _all_of(RECOMPUTE_MODULES)] | None = None
    recompute_share: Annotated[float, Field(gt=0, le=1)] | None = None
    recompute_method: Annotated[str, _one_of(RECOMPUTE_METHODS)] | None = None
    recompute_layers: Count | None = None
    offload_activations: Share | None = None
    offload_optimizer: Share | None = None
    loader_rate: Positive | None = None
    offload_to: Annotated[str, _one_of(OFFLOADS)] | None = None
    host_memory_gb: Positive | None = None
    sharding: Annotated[str, _one_of(tuple(SHARDINGS))] | None = None
    attention: Annotated[str, _one_of(ATTENTIONS)] | None = None
    cp_kind: Annotated[str, _one_of(CP_KINDS)] | None = None
    rank_order: Annotated[str, BeforeValidator(_order)] | None = None
    dispatch: Annotated[str, _one_of(DISPATCHES)] | None = None
    trained: Annotated[str, _one_of(TRAINED)] | None = None
    lora_rank: Count | None = None
    mtp: bool | None = None
    schedule: Annotated[str, _one_of(tuple(SCHEDULES))] | None = None
    split: Annotated[str, _one_of(SPLITS)] | None = None
    dropout: bool | None = None
    fused: bool | None = None
    tp_overlap: bool | None = None
    tp_async_backward: bool | None = None
    tp_regather: bool | None = None
    grad_overlap: bool | None = None
    param_overlap: bool | None = None
    p2p_overlap: bool | None = None
    ep_overlap: bool | None = None
    reshard: bool | None = None
    grad_clip: bool | None = None
    weight_bytes: Positive | None = None
    gradient_bytes: Positive | None = None
    reduce_bytes: Positive | None = None
    gather_bytes: Positive | None = None
    optimizer_bytes: Positive | None = None
    logit_bytes: Positive | None = None
    vocab_multiple: Count | None = None
    framework: str | None = None
    era: str | None = None


class ServingPlanSpec(Spec):
    """A serving request as a user writes it; what is left out is completed and reported."""

    model: str | dict[str, Any] | None = None
    system: str | dict[str, Any] | None = None
    accelerator: str | dict[str, Any] | None = None
    accelerators_per_node: Count | None = None
    inter_link_gbps: Positive | None = None
    gpus: Count | None = None
    tp: Count | None = None
    pp: Count | None = None
    dp: Count | None = None
    ep: Count | None = None
    batch: Count | None = None
    concurrency: Count | None = None
    saturated: bool | None = None
    rate: Positive | None = None
    simulate: Count | None = None
    variation: Share | None = None
    input_len: Count | None = None
    output_len: Count | None = None
    precision: Annotated[str, _one_of(WEIGHTS)] | None = None
    kv_precision: Annotated[str, _one_of(tuple(KV_BYTES))] | None = None
    execution: Annotated[str, _one_of(EXECUTIONS)] | None = None
    allreduce: Annotated[str, _one_of(ALLREDUCES)] | None = None
    admission: Annotated[str, _one_of(ADMISSIONS)] | None = None
    pool: Annotated[str, _one_of(POOLS)] | None = None
    narrowed: Annotated[str, _one_of(NARROWED)] | None = None
    library: Annotated[str, _one_of(LIBRARIES)] | None = None
    matvec: Annotated[str, _one_of(MATVECS)] | None = None
    accumulation: Annotated[str, _one_of(ACCUMULATIONS)] | None = None
    fusion: Annotated[str, _one_of(FUSIONS)] | None = None
    splitting: Annotated[str, _one_of(SPLITTINGS)] | None = None
    headwise: Annotated[str, _one_of(HEADWISE)] | None = None
    pipelining: Annotated[str, _one_of(PIPELININGS)] | None = None
    scheduling: Annotated[str, _one_of(SCHEDULINGS)] | None = None
    chunk: Count | None = None
    window: Count | None = None
    max_batch: Count | None = None
    cached: Share | None = None
    synchrony: Share | None = None
    drafted: Natural | None = None
    acceptance: Share | None = None
    draft_cost: Share | None = None
    prefill_workers: Natural | None = None
    prefill_tp: Count | None = None
    kv_gbs: Positive | None = None
    offload: Annotated[str, _one_of(SERVING_OFFLOADS)] | None = None
    host_memory_gb: Positive | None = None
    host_bandwidth_gbs: Positive | None = None
    host_link_gbs: Positive | None = None
    expert_load: Annotated[float, Field(ge=1, le=1e3)] | None = None
    framework: str | None = None
    era: str | None = None


S = TypeVar("S", bound=Spec)


def parse(form: type[S], fields: Mapping[str, Any], where: str) -> S:
    """Validate a mapping.

    where   what to call it in an error: a file, a catalog row, 'the command line'

    Raises InputError, one line, naming the field, what was given and what is allowed.
    """
    if not isinstance(fields, Mapping):
        raise InputError(f"{where}: expected keys and values, got {type(fields).__name__}")
    try:
        return form.model_validate(dict(fields))
    except ValidationError as error:
        raise InputError(f"{where}: {_explain(error, form)}") from None


def _explain(error: ValidationError, form: type[Spec]) -> str:
    # A misspelt key explains a missing one, so it comes first.
    found = error.errors(include_url=False)
    first = next((e for e in found if e["type"] == "extra_forbidden"), found[0])
    place = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        known = _keys(form, first["loc"][:-1])
        near = nearest(str(first["loc"][-1]), known)
        hint = f"; did you mean {near!r}?" if near else f"; known keys: {', '.join(known)}"
        return f"unknown key {place!r}{hint}"
    if first["type"] == "missing":
        return f"key {place!r} is missing"
    message = first["msg"].removeprefix("Value error, ")
    message = message[:1].lower() + message[1:]
    told = f"{place}: {message}" if place else message
    given = repr(first["input"])
    if given in message or isinstance(first["input"], Mapping):
        return told
    return f"{told}, got {given if len(given) <= 60 else given[:57] + '...'}"


def _keys(form: type[Spec], path: tuple[Any, ...]) -> list[str]:
    """Keys allowed at a place inside a form."""
    if path and path[0] == "tiers":
        return list(TierSpec.model_fields)
    return list(form.model_fields)
