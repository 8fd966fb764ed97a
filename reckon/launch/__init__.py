"""Launch lines of training frameworks and serving engines: plans written as such, and read back.

emit(name, request, run)        a complete request as a launch line, and what it cannot say
read_launch(name, text, model)  what a launch line, a script or a configuration says
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from predictor.errors import unknown
from predictor.models import Model
from predictor.timing import RunParameters
from reckon.launch import dialect
from reckon.launch.deepspeed import DEEPSPEED
from reckon.launch.dialect import Dialect, Difference, Emitted, Launch, Request
from reckon.launch.megatron import MEGATRON
from reckon.launch.nemo import NEMO
from reckon.launch.sglang import SGLANG
from reckon.launch.torchtitan import TORCHTITAN
from reckon.launch.trtllm import TRTLLM
from reckon.launch.vllm import VLLM

DIALECTS: dict[str, Dialect] = {
    one.name: one for one in (MEGATRON, TORCHTITAN, NEMO, DEEPSPEED, VLLM, SGLANG, TRTLLM)
}


def emit(name: str, request: Request, run: RunParameters) -> Emitted:
    """Write a complete request as a launch line; what it cannot say is listed.

    Raises InputError for an unknown dialect, and for one of the other kind of run.
    """
    return dialect.emit(_known(name), request, run)


def read_launch(
    name: str,
    given: str,
    model: Model | None = None,
    beside: Mapping[str, Any] | None = None,
) -> Launch:
    """Read a launch line, or the file that `given` names.

    model   given beside the line; it counts instead of the line's dimensions
    beside  keys of a plan that count instead of what the line says

    Raises InputError.
    """
    return dialect.read(_known(name), given, model, beside)


def _known(name: str) -> Dialect:
    if name not in DIALECTS:
        raise unknown("launch line", name, DIALECTS)
    return DIALECTS[name]


__all__ = ["DIALECTS", "Difference", "Emitted", "Launch", "emit", "read_launch"]
