"""What requests over HTTP may say: the keys of plans, a model and a system by name or mapping."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from predictor.errors import InputError

FILES = (".yaml", ".yml", ".json")
"""Endings by which the catalog takes a name for a file."""

LONGEST, DEEPEST, MOST = 200, 6, 400
"""Letters of a name, of which the longest of the catalog has 30; mappings within each other, of
which a system of its own tiers and accelerator needs four; values of a request, of which a plan has
some 110 keys and a model and a system of one's own as many again."""

Named = Annotated[str, Field(min_length=1, max_length=LONGEST)]


class Body(BaseModel):
    """A request: a model, a system, and keys of a plan."""

    model_config = ConfigDict(extra="forbid")

    model: Named | dict[str, Any]
    system: Named | dict[str, Any]
    plan: dict[str, Any] = {}


def checked(body: Body) -> dict[str, Any]:
    """The keys of a request.

    Raises InputError for what stands for a file, and for more than a request needs.
    """
    content = {**body.plan, "model": body.model, "system": body.system}
    count = _checked(content, 0)
    if count > MOST:
        raise InputError(f"the request has {count} values, more than {MOST}")
    return {name: value for name, value in content.items() if value is not None}


def _checked(value: Any, depth: int) -> int:
    if depth > DEEPEST:
        raise InputError(f"mappings within each other deeper than {DEEPEST}")
    if isinstance(value, Mapping):
        return sum(_checked(one, depth + 1) for one in value.values())
    if isinstance(value, list):
        return sum(_checked(one, depth + 1) for one in value)
    if isinstance(value, str):
        if value.lower().endswith(FILES) or "\x00" in value:
            raise InputError(f"{value!r:.80} is a file; over HTTP give a name or its content")
        if len(value) > LONGEST:
            raise InputError(f"a value of {len(value)} letters is longer than {LONGEST}")
    return 1
