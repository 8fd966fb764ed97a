"""What a request for a search of plans states in other words: a batch in tokens, one of each."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from predictor.catalog import number
from predictor.errors import InputError
from predictor.files import is_file

BATCH_TOKENS = "batch_tokens"
"""Key of a search in place of `global_batch`: tokens per step."""

NEAR = 0.05
"""Share of a batch by which its tokens may miss what was asked for."""


def batch_of(plan: Mapping[str, Any]) -> dict[str, Any]:
    """The request with tokens per step turned into sequences."""
    stated = {name: value for name, value in plan.items() if value is not None}
    tokens = stated.pop(BATCH_TOKENS, None)
    if tokens is None:
        return stated
    if "global_batch" in stated:
        raise InputError("give --global-batch or --batch-tokens, not both")
    try:
        sequences = _sequences(float(tokens) / number("seq_len", stated.get("seq_len", "?")))
    except (ValueError, InputError):
        raise InputError("--batch-tokens is a number and needs one --seq-len") from None
    if sequences < 1:
        raise InputError(f"--batch-tokens {tokens} is less than a sequence")
    return {**stated, "global_batch": sequences}


def _sequences(wanted: float) -> int:
    """So many, where they are whole; else those within a twentieth that halve most often: four
    million tokens of 4,096 each are 1,024, not 977, which no two replicas divide."""
    if wanted == round(wanted):
        return round(wanted)
    steps = [2**power for power in range(20, -1, -1)]
    near = (step * round(wanted / step) for step in steps)
    return next((one for one in near if abs(one / wanted - 1) <= NEAR), round(wanted))


def check_single(**stated: Any) -> None:
    """Raises InputError where several are stated of what a search of plans is of one."""
    for name, value in stated.items():
        several = isinstance(value, list | tuple) or (isinstance(value, str) and "," in value)
        if several and not is_file(Path(str(value))):
            raise InputError(
                f"a search of plans is of one {name}, not of {value}: ask for each, or for all by "
                "reckon sweep with verb: plan train"
            )
