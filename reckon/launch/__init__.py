"""Launch lines of training frameworks and serving engines: plans written as such, and read back.

emit(name, request, run)        a complete request as a launch line, and what it cannot say
read_launch(name, text, model)  what a launch line, a script or a configuration says
target_of(name, ...)            what plans a launch line can say
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from predictor.catalog import spelled
from predictor.errors import unknown
from predictor.hardware import Cluster
from predictor.models import Model
from predictor.timing import RunParameters
from reckon.launch import dialect
from reckon.launch.automodel import AUTOMODEL
from reckon.launch.deepspeed import DEEPSPEED
from reckon.launch.dialect import Dialect, Difference, Emitted, Launch, Request, check_kind
from reckon.launch.foundry import FOUNDRY
from reckon.launch.llamacpp import LLAMACPP
from reckon.launch.lmdeploy import LMDEPLOY
from reckon.launch.maxtext import MAXTEXT
from reckon.launch.megatron import MEGATRON
from reckon.launch.nanotron import NANOTRON
from reckon.launch.nemo import NEMO
from reckon.launch.sglang import SGLANG
from reckon.launch.target import Target
from reckon.launch.tgi import TGI
from reckon.launch.torchtitan import TORCHTITAN
from reckon.launch.trainer import TRAINER
from reckon.launch.trtllm import TRTLLM
from reckon.launch.vllm import VLLM

DIALECTS: dict[str, Dialect] = {
    one.name: one
    for one in (MEGATRON, TORCHTITAN, NEMO, AUTOMODEL, DEEPSPEED, TRAINER, MAXTEXT, NANOTRON,
                FOUNDRY, VLLM, SGLANG, TRTLLM, TGI, LMDEPLOY, LLAMACPP)
}  # fmt: skip


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


def target_of(
    name: str, model: Model, cluster: Cluster, run: RunParameters, serving: bool
) -> Target:
    """What plans are bounded to that a launch line is sought for.

    run      memory parameters, by which what a line leaves open is completed
    serving  whether fleets are sought

    Raises InputError for an unknown dialect, and for one of the other kind of run.
    """
    dialect = _known(name)
    check_kind(dialect, serving, "for", "plan")
    return Target(dialect, model, cluster, run)


def framework_of(name: str) -> str:
    """The framework whose defaults hold where a launch line says nothing.

    Raises InputError for an unknown dialect.
    """
    return _known(name).framework


def _known(name: str) -> Dialect:
    """A dialect by its name, that of its framework, or another spelling of either."""
    one = spelled(name)
    found = (d for d in DIALECTS.values() if one in (d.name, spelled(d.name), d.framework))
    dialect = next(found, None)
    if dialect is None:
        raise unknown("launch line", name, DIALECTS)
    return dialect


__all__ = [
    "DIALECTS",
    "Difference",
    "Emitted",
    "Launch",
    "Request",
    "Target",
    "emit",
    "framework_of",
    "read_launch",
    "target_of",
]
