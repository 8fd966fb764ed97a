"""Megatron-LM: the arguments of `pretrain_gpt.py`, as a command or as a configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from reckon.launch.dialect import Dialect, Source
from reckon.launch.launcher import NODES, PER_NODE, command, rendered
from reckon.launch.megatron_core import from_core
from reckon.launch.megatron_model import MODEL
from reckon.launch.megatron_plan import FLAGS, PLAN
from reckon.launch.structured import flatten, read_mapping_text
from reckon.launch.table import Facts, Flags

IGNORED = (
    "--lr", "--min-lr", "--adam", "--weight-decay", "--start-weight-decay", "--end-weight-decay",
    "--init-method", "--seed", "--optimizer", "--rampup-batch-size", "--loss-scale",
    "--initial-loss-scale", "--data-", "--split", "--train-data", "--valid-data", "--test-data",
    "--vocab-file", "--merge-file", "--tokenizer", "--tiktoken", "--mock-data", "--dataloader",
    "--num-workers", "--no-create-attention-mask", "--no-mmap", "--num-dataset",
    "--save", "--load", "--ckpt", "--no-load", "--no-save", "--dist-ckpt", "--async-save",
    "--use-dist-ckpt", "--auto-detect-ckpt", "--finetune", "--pretrained",
    "--log", "--timing", "--tensorboard", "--wandb", "--eval", "--exit", "--profile",
    "--manual-gc", "--distributed-", "--master", "--node-rank", "--rdzv", "--local-rank",
    "--use-mcore-models", "--norm-epsilon", "--rotary", "--rope", "--use-rope", "--no-rope-freq",
    "--no-position-embedding", "--apply-layernorm-1p", "--qk-layernorm", "--qk-norm",
    "--attention-softmax-in-fp32", "--no-masked-softmax-fusion", "--transformer-impl",
    "--fp8-amax", "--fp8-margin", "--fp8-interval", "--moe-router-load-balancing-type",
    "--moe-aux-loss", "--moe-z-loss", "--moe-router-score", "--moe-router-bias",
    "--moe-router-enable", "--moe-router-dtype", "--moe-router-pre", "--moe-router-topk-scaling",
    "--mtp-loss", "--test-mode",
    "--override-opt_param", "--override-opt-param", "--spec", "--loss", "--no-gradient",
    "--ddp-bucket", "--enable-experimental", "--mscale", "--original-max", "--beta",
)  # fmt: skip
"""Beginnings of flags that say nothing of speed or memory."""


def _render(flags: Flags, facts: Facts) -> str:
    head = f"torchrun --nproc-per-node {flags[PER_NODE]} --nnodes {flags[NODES]} pretrain_gpt.py"
    return rendered(head, flags)


def canonical(flags: dict[str, Any]) -> Flags:
    """Flags with dashes for underscores."""
    return {f if f.startswith("@") else f.replace("_", "-"): v for f, v in flags.items()}


def _flag(key: str) -> str:
    """The flag that a key of a configuration is named after."""
    return "--" + key.rsplit(".", 1)[-1].replace("_", "-")


def _parse(text: str, folder: Path) -> Source:
    mapping = read_mapping_text(text)
    if mapping is not None:
        flags = from_core(flatten(mapping)).flags
        return Source({f if f[0] in "-@" else _flag(f): v for f, v in flags.items()})
    _, launcher, said, notes = command(text, FLAGS)
    return Source({**launcher, **canonical(said)}, notes)


MEGATRON = Dialect(
    name="megatron",
    framework="megatron-lm",
    serving=False,
    model=MODEL,
    entries=PLAN,
    ignored=IGNORED,
    whole=True,
    render=_render,
    parse=_parse,
)
