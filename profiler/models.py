"""Transformers in plain PyTorch, one module per operator of the predictor's work list.

GPT and Llama style, dense and with a mixture of experts; for training, and, with a cache, for
serving.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from predictor.models import Model
from profiler.operators import rotary, swiglu

Cache = tuple[torch.Tensor, torch.Tensor]
"""Keys and values of one layer, (batch, key heads, longest, head size)."""


class Attention(nn.Module):
    """Projections and causal attention, with rotary positions where the model has them.

    `share` is how many tensor-parallel ranks divide its heads.
    """

    cosine: torch.Tensor
    sine: torch.Tensor

    def __init__(self, model: Model, seq_len: int) -> None:
        super().__init__()
        self.model, self.share = model, 1
        self.qkv = nn.Linear(model.hidden, model.attention_width + 2 * model.kv_width, model.bias)
        self.out = nn.Linear(model.attention_width, model.hidden, model.bias)
        angle = torch.outer(
            torch.arange(seq_len).float(),
            10000.0 ** (-torch.arange(0, model.head_dim, 2).float() / model.head_dim),
        )
        angle = torch.cat((angle, angle), dim=-1)
        self.register_buffer("cosine", angle.cos())
        self.register_buffer("sine", angle.sin())

    def forward(self, x: torch.Tensor, cache: Cache | None = None, at: int = 0) -> torch.Tensor:
        """(batch, sequence, hidden) -> the same; with a cache, the sequence goes on from `at`."""
        b, s, _ = x.shape
        model, share = self.model, self.share
        own = model.attention_width // share
        widths = (own, model.kv_width // share, model.kv_width // share)
        q, k, v = self.qkv(x).split(widths, dim=-1)
        q, k, v = (
            part.view(b, s, part.shape[-1] // model.head_dim, model.head_dim).transpose(1, 2)
            for part in (q, k, v)
        )
        if model.positions == "rope":
            cosine, sine = self.cosine[at : at + s], self.sine[at : at + s]
            q, k = rotary(q, cosine, sine), rotary(k, cosine, sine)
        if cache is not None:
            keys, values = cache
            keys[:, :, at : at + s], values[:, :, at : at + s] = k, v
            k, v = (keys[:, :, : at + s], values[:, :, : at + s]) if at else (k, v)
        y = functional.scaled_dot_product_attention(
            q, k, v, is_causal=at == 0, enable_gqa=k.shape[1] < q.shape[1]
        )
        return self.out(y.transpose(1, 2).reshape(b, s, own))


class FeedForward(nn.Module):
    """Up projection (and gate), activation, down projection."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.gated = model.gated
        self.up = nn.Linear(model.hidden, model.ffn_in_width, model.bias)
        self.down = nn.Linear(model.ffn_hidden, model.hidden, model.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, sequence, hidden) -> the same."""
        y: torch.Tensor = self.up(x)
        return self.down(swiglu(*y.chunk(2, dim=-1)) if self.gated else functional.gelu(y))


class Mixture(nn.Module):
    """Router and gated experts, each token to its `top_k` best; experts run one by one."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.top_k, self.experts = model.top_k, int(model.num_experts)
        self.router = nn.Linear(model.hidden, self.experts, bias=False)
        inner = int(model.expert_ffn_hidden)
        self.up = nn.ModuleList(
            nn.Linear(model.hidden, 2 * inner, bias=False) for _ in range(self.experts)
        )
        self.down = nn.ModuleList(
            nn.Linear(inner, model.hidden, bias=False) for _ in range(self.experts)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, sequence, hidden) -> the same."""
        flat = x.flatten(0, 1)
        shares = functional.softmax(self.router(flat).float(), -1).to(x.dtype)
        weight, chosen = shares.topk(self.top_k, dim=-1)
        order = chosen.flatten().argsort()
        counts = torch.bincount(chosen.flatten(), minlength=self.experts).tolist()
        token = order // self.top_k
        pieces = flat[token].split(counts)
        made = [
            down(swiglu(*up(piece).chunk(2, dim=-1)))
            for piece, up, down in zip(pieces, self.up, self.down, strict=True)
        ]
        scaled = torch.cat(made) * weight.flatten()[order].unsqueeze(-1)
        return torch.zeros_like(flat).index_add_(0, token, scaled).view_as(x)


def norm(model: Model) -> nn.Module:
    """The model's norm over its hidden size."""
    kind = nn.LayerNorm if model.norm == "layernorm" else nn.RMSNorm
    return kind(model.hidden)


class Block(nn.Module):
    """One transformer layer."""

    def __init__(self, model: Model, seq_len: int) -> None:
        super().__init__()
        self.attention_norm, self.attention = norm(model), Attention(model, seq_len)
        self.mlp_norm = norm(model)
        self.mlp = Mixture(model) if model.num_experts else FeedForward(model)

    def forward(self, x: torch.Tensor, cache: Cache | None = None, at: int = 0) -> torch.Tensor:
        """(batch, sequence, hidden) -> the same."""
        x = x + self.attention(self.attention_norm(x), cache, at)
        return x + self.mlp(self.mlp_norm(x))


class Transformer(nn.Module):
    """A decoder with the dimensions of a `predictor.model.Model`; returns the loss."""

    def __init__(self, model: Model, seq_len: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(model.vocab, model.hidden)
        learned = model.positions == "learned"
        self.positions = nn.Embedding(seq_len, model.hidden) if learned else None
        self.blocks = nn.ModuleList(Block(model, seq_len) for _ in range(model.layers))
        self.norm = norm(model)
        self.head = nn.Linear(model.hidden, model.vocab, bias=False)
        if model.tied_embeddings:
            self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """(batch, sequence) token ids and targets -> scalar loss."""
        x = self.embedding(tokens)
        if self.positions is not None:
            x = x + self.positions.weight
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x)).flatten(0, 1).float()
        return functional.cross_entropy(logits, target.flatten())

    def serve(self, tokens: torch.Tensor, caches: list[Cache], at: int) -> torch.Tensor:
        """Logits of the last token, (batch, vocabulary), of sequences that go on from `at`."""
        x = self.embedding(tokens)
        if self.positions is not None:
            x = x + self.positions.weight[at : at + tokens.shape[1]]
        for block, cache in zip(self.blocks, caches, strict=True):
            x = block(x, cache, at)
        logits: torch.Tensor = self.head(self.norm(x[:, -1]))
        return logits
