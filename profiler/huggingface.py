"""A stranger's code: models of HuggingFace `transformers`, built from a configuration with random
weights, as further checks. Nothing is downloaded."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from predictor.errors import InputError
from predictor.models import Model
from profiler.device import Device
from profiler.operators import DTYPES


def available() -> bool:
    """Whether `transformers` is installed."""
    from importlib.util import find_spec

    return find_spec("transformers") is not None


SILENT = ("dropout", "attention_dropout", "resid_pdrop", "embd_pdrop", "attn_pdrop")
"""Names under which configurations drop what training is regularised by: none is here."""


KINDS = {
    "qwen2": "Qwen2Config",
    "qwen2.5": "Qwen2Config",
    "qwen3": "Qwen3Config",
    "mistral": "MistralConfig",
    "gemma2": "Gemma2Config",
    "gemma3": "Gemma3TextConfig",
}
"""Families whose configuration is not a Llama's; layers with and without windows follow each
other as the class has it."""


def configuration(model: Model, context: int) -> Any:
    """The configuration of a model's dimensions: of GPT-2, OPT, a family of `KINDS`, or a Llama."""
    import transformers

    common = {
        "vocab_size": model.vocab,
        "max_position_embeddings": context,
        "tie_word_embeddings": model.tied_embeddings,
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        "hidden_size": model.hidden,
    }
    gated = {
        "num_key_value_heads": model.kv_heads,
        "head_dim": model.head_dim,
        "intermediate_size": model.ffn_hidden,
    }
    silent = dict.fromkeys(SILENT, 0.0)
    if model.family == "opt":
        sizes = {"ffn_dim": model.ffn_hidden, "word_embed_proj_dim": model.hidden}
        return transformers.OPTConfig(**common, **sizes, **silent)
    if not model.gated:
        return transformers.GPT2Config(**common, n_inner=model.ffn_hidden, **silent)
    if model.num_experts:
        gated |= {
            "num_experts": model.num_experts,
            "num_experts_per_tok": model.top_k,
            "moe_intermediate_size": model.expert_ffn_hidden,
        }
    if model.sliding_window:
        gated["sliding_window"] = model.sliding_window
    kind = "Qwen3MoeConfig" if model.num_experts else KINDS.get(model.family, "LlamaConfig")
    return getattr(transformers, kind)(**common, **gated)


class Causal(nn.Module):
    """A causal language model of transformers as the steps here call it: tokens and targets in,
    loss out."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """(batch, sequence) token ids and targets -> scalar loss."""
        loss: torch.Tensor = self.model(input_ids=tokens, labels=target, use_cache=False).loss
        return loss


def causal(model: Model, context: int, precision: str, device: Device) -> nn.Module:
    """A model as transformers builds it, ready to train.

    context     tokens of the longest sequence
    precision   of all weights

    Raises InputError where transformers is not installed.
    """
    if not available():
        raise InputError("this check needs HuggingFace transformers: pip install transformers")
    import transformers

    torch.manual_seed(0)
    with torch.device(device.torch):  # large matrices are drawn sooner where they stay
        made = transformers.AutoModelForCausalLM.from_config(
            configuration(model, context), attn_implementation="sdpa"
        )
    return Causal(made.to(device.torch, DTYPES[precision])).train()
