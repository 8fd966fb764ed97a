"""What a host takes for training loops whose arithmetic is next to nothing: the work of Python
around operators, which `predictor.training.calls` counts in operators.

    python -m tools.host_shares OUT.csv

On a processor, by its own time of a thread; needs transformers and peft. Loops of `tools/loops.py`
without checkpoints, with reentrant and with other ones; and adapters that are switched off and on.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from predictor.models import Model
from tools import loops

SMALL = Model(
    name="small", layers=8, hidden=64, heads=2, kv_heads=1, head_dim=32, ffn_hidden=64, vocab=64
)
TOKENS = (2, 8)
"""Sequences and their length."""

LOOPS = ("transformers", "transformers-lora16-narrow", "transformers-lora16-autocast")
CHECKPOINTS = {"none": None, "reentrant": True, "hooks": False}
CALLS = 24


def took(call: Callable[[], object]) -> float:
    """Time of a thread for a layer [ms]: the lower quartile of `CALLS`."""
    for _ in range(4):
        call()
    found = []
    for _ in range(CALLS):
        begin = time.process_time()
        call()
        found.append(time.process_time() - begin)
    return 1e3 * sorted(found)[CALLS // 4] / SMALL.layers


def rows() -> Iterator[dict[str, Any]]:
    """One for each loop and kind of checkpoint, and of adapters that are switched."""
    import torch

    from profiler import step
    from profiler.device import find

    torch.set_num_threads(1)
    check, device = step.Check(SMALL, TOKENS[1], TOKENS[0], "bf16"), find("cpu")
    tokens = torch.randint(SMALL.vocab, TOKENS)
    for whose in LOOPS:
        for kind, reentrant in CHECKPOINTS.items():
            module = loops.made(check, device, whose, "none").float()
            if reentrant is not None:
                module.model.gradient_checkpointing_enable({"use_reentrant": reentrant})
                module.model.enable_input_require_grads()

            def stepped(module: Any = module) -> None:
                module(tokens, tokens).backward()
                for one in module.parameters():
                    one.grad = None

            yield {"loop": whose, "checkpoints": kind, "what": "step", "layer_ms": took(stepped)}
        if hasattr(module.model, "disable_adapter"):

            def switched(module: Any = module) -> None:
                with module.model.disable_adapter():
                    pass

            yield {"loop": whose, "checkpoints": "none", "what": "switch",
                   "layer_ms": took(switched)}  # fmt: skip


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    table = pd.DataFrame(rows())
    table.round(4).to_csv(parser.parse_args().out, index=False)
    print(table.to_string())
