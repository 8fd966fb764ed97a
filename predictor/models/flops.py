"""How many FLOPs a training token is said to cost: every published convention, side by side.

The same run reads more than 10 % apart from one convention to another, so a utilisation is only
comparable with one that counts the same way.
"""

from __future__ import annotations

from predictor.arrays import Numeric
from predictor.models.attended import attended_keys
from predictor.models.model import Model
from predictor.models.repeated import repeated_share
from predictor.records import dataclass


@dataclass(frozen=True, slots=True)
class Convention:
    """One way of counting model FLOPs per trained token (forward and backward).

    weights   'all' counts every parameter; 'matmul' only what is multiplied: the layers'
              matrices and the output projection, not the embedding lookup.
    attention share of the full s x s attention matrix that is counted: 1, 0.5 (causal) or 0.
    seen      whether of that what masks and windows leave is counted, whatever `attention` says
    """

    name: str
    weights: str
    attention: float
    source: str
    seen: bool = False


CONVENTIONS: dict[str, Convention] = {
    convention.name: convention
    for convention in (
        Convention("6nd", "all", 0.0, "Kaplan et al. 2020: 6 N per token; BLOOM logs"),
        Convention(
            "palm",
            "all",
            1.0,
            "Chowdhery et al. 2022, app. B: 6 N + 12 L H Q T; llm-foundry, torchtitan, nanoGPT",
        ),
        Convention(
            "palm_causal",
            "all",
            0.5,
            "the same with attention counted causally, 6 N + 6 L H Q T: FlashAttention "
            "(Dao 2023, section 4.1), stas00/ml-engineering",
        ),
        Convention(
            "megatron",
            "matmul",
            1.0,
            "Narayanan et al. 2021, eq. 3 and Korthikanti et al. 2022, app. A; NeMo <= 25.07, "
            "MaxText before 2025-07",
        ),
        Convention(
            "megatron_causal",
            "matmul",
            0.5,
            "Megatron-Bridge flop_utils: attention counted causally; MaxText since 2025-07",
        ),
        Convention(
            "attended",
            "matmul",
            0.5,
            "keys that tokens attend to, those outside windows and behind masks left out, as "
            "MaxText counts local layers of Gemma since 2025 (maxtext_utils.py, from memory)",
            seen=True,
        ),
    )
}


def counted_keys(model: Model, seq_len: Numeric) -> Numeric:
    """Keys of a token in the full matrix: all of a sequence, windows and masks aside; of those that
    are chosen or compressed twice what a token sees on average, as a mask halves them."""
    if not (model.is_sparse or model.is_compressed):
        return seq_len
    return 2.0 * attended_keys(model, seq_len, seq_len)


def attended(model: Model, seq_len: Numeric) -> Numeric:
    """Keys that a token attends to, on average over a sequence, in blocks that are alike."""
    if model.is_sparse or model.is_compressed:
        return attended_keys(model, seq_len, seq_len)
    share, whole = model.windowed_share, model.mean_keys(seq_len, False)
    return share * model.mean_keys(seq_len, True) + (1.0 - share) * whole if share else whole


def _parts(model: Model, seq_len: Numeric, convention: Convention) -> tuple[Numeric, Numeric]:
    """Forward FLOPs per token: (everything that full recomputation repeats, attention core)."""
    attention: Numeric = 0.0
    for n, one in model.attention_kinds:
        width = n * one.heads * (one.qk_dim + one.v_dim)
        keys = counted_keys(one, seq_len) * convention.attention
        attention = attention + 2.0 * width * (attended(one, seq_len) if convention.seen else keys)
    if convention.weights == "all":
        return 2.0 * model.active_parameters + attention, attention
    return 2.0 * model.matrix_parameters(active=True) + attention, attention


def model_flop_per_token(
    model: Model, seq_len: Numeric, convention: str, frozen: bool = False
) -> Numeric:
    """Model FLOPs of training on one token [FLOP]: three forward passes' worth.

    seq_len   tokens in a sequence, float or array.
    convention a key of `CONVENTIONS`.
    frozen    whether weights get no gradients of their own, as beside adapters: of their products
              two passes' worth is left, 4 N per token; the adapters' own are not counted
    """
    rule = CONVENTIONS[convention]
    repeated, attention = _parts(model, seq_len, rule)
    head = 0.0 if rule.weights == "all" else 2.0 * model.vocab * model.hidden
    whole = 3.0 * (repeated + head)
    return whole - (repeated - attention + head) if frozen else whole


def hardware_flop_per_token(
    model: Model,
    seq_len: Numeric,
    convention: str,
    recompute: str,
    share: Numeric = 1.0,
    frozen: bool = False,
    unlearned: Numeric = 0.0,
) -> Numeric:
    """FLOPs that the device really does per token [FLOP]: model FLOPs plus recomputation, and
    passes without gradients.

    recompute 'none', 'selective' (the attention core once more), 'per_op' (every other matrix of
              the layers once more: `repeated_products`) or 'full' (layers once more; the
              output projection is not repeated: Narayanan et al. 2021, eq. 3)
    share     of the layers that full recomputation covers
    frozen    whether weights get no gradients of their own
    unlearned  passes forward without gradients beside each that learns
    """
    rule = CONVENTIONS[convention]
    repeated, attention = _parts(model, seq_len, rule)
    extra = {
        "none": 0.0,
        "selective": attention,
        "per_op": repeated_share(model) * (repeated - attention),
        "full": repeated * share,
    }[recompute]
    head = 0.0 if rule.weights == "all" else 2.0 * model.vocab * model.hidden
    extra = extra + unlearned * (repeated + head)
    return model_flop_per_token(model, seq_len, convention, frozen) + extra
