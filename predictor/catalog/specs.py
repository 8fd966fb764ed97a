"""What files may say: validated forms of accelerators, systems, models and training plans.

Keys carry their unit; `extra` keys are refused. pydantic checks, the arithmetic never sees it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    create_model,
    model_validator,
)

from predictor.errors import InputError, nearest
from predictor.plans import (
    KV_BYTES,
    ORDER,
    RANK_ORDERS,
    SERVING_FIELDS,
    SWITCH,
    TEXT,
    TRAINING_FIELDS,
    WEIGHTS,
    WORD,
    WORDS,
    PlanField,
    Table,
)

Positive = Annotated[float, Field(gt=0, lt=1e30, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1, le=10**9)]
Natural = Annotated[int, Field(ge=0, le=10**9)]


class Spec(BaseModel):
    """Base of all file forms: unknown keys are errors, instances are frozen."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


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
    window_mb: Positive | None = None
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
    causal: bool = True
    tower: TowerSpec | None = None
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


class PlanSpec(Spec):
    """A request as a user writes it: the fields of a table, none of which must be stated; what is
    left out is completed and reported."""

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...


P = TypeVar("P", bound=PlanSpec)


def _annotation(entry: PlanField) -> Any:
    """The type of a field, as pydantic checks it."""
    kind = entry.kind
    if kind.number is not None:
        stated = {
            "ge": kind.least,
            "gt": kind.above,
            "le": kind.most,
            "lt": kind.below,
            "allow_inf_nan": False if kind.number is float else None,
        }
        known: dict[str, Any] = {name: end for name, end in stated.items() if end is not None}
        return Annotated[kind.number, Field(**known)]
    if kind is WORD:
        return Annotated[str, _one_of(entry.choices)]
    if kind is WORDS:
        return Annotated[str, _all_of(entry.choices)]
    return {SWITCH: bool, TEXT: str, ORDER: Annotated[str, BeforeValidator(_order)]}.get(
        kind, str | dict[str, Any]
    )


def _fields_of(entries: Table) -> Callable[[type[P]], type[P]]:
    """Give a form the fields of a table."""

    def filled(form: type[P]) -> type[P]:
        types: dict[str, Any] = {name: (_annotation(e) | None, None) for name, e in entries.items()}
        return create_model(
            form.__name__, __base__=form, __module__=form.__module__, __doc__=form.__doc__, **types
        )

    return filled


@_fields_of(TRAINING_FIELDS)
class TrainingPlanSpec(PlanSpec):
    """A training request."""


@_fields_of(SERVING_FIELDS)
class ServingPlanSpec(PlanSpec):
    """A serving request."""


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
