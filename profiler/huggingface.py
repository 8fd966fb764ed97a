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


def configuration(model: Model, context: int) -> Any:
    """The configuration of a GPT-2 or a Llama of a model's dimensions."""
    import transformers

    if model.gated:
        return transformers.LlamaConfig(
            hidden_size=model.hidden,
            num_hidden_layers=model.layers,
            num_attention_heads=model.heads,
            num_key_value_heads=model.kv_heads,
            head_dim=model.head_dim,
            intermediate_size=model.ffn_hidden,
            vocab_size=model.vocab,
            max_position_embeddings=context,
            tie_word_embeddings=model.tied_embeddings,
        )
    return transformers.GPT2Config(
        n_embd=model.hidden,
        n_layer=model.layers,
        n_head=model.heads,
        n_inner=model.ffn_hidden,
        vocab_size=model.vocab,
        n_positions=context,
        tie_word_embeddings=model.tied_embeddings,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
    )


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
    made = transformers.AutoModelForCausalLM.from_config(
        configuration(model, context), attn_implementation="sdpa"
    )
    return Causal(made.to(device.torch, DTYPES[precision])).train()
