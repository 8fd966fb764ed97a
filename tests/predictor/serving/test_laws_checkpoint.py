"""In what weights were that ran, where nobody says so: what fits all that share them."""

from __future__ import annotations

from typing import Any

import pytest

from predictor import catalog
from predictor.precision import WEIGHT_BYTES
from predictor.serving.checkpoint import FILLED, as_narrow_as_fits

H100, A100 = catalog.accelerator("H100-SXM5-80GB"), catalog.accelerator("A100-SXM4-80GB")
NAMES = ("llama3-8b", "llama3-70b", "llama3-405b", "mixtral-8x22b", "qwen3-235b-a22b")


def told(name: str, machine: Any = H100, **values: Any) -> list[tuple[str, str, bool]]:
    found = as_narrow_as_fits(values, catalog.model(name), machine)
    return [(one.value, one.rule, one.when) for one in found]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("tp", [1, 2, 4, 8])
@pytest.mark.parametrize("dp", [None, 1, 2, 4])
def test_accelerators_are_as_many_however_they_are_stated(
    name: str, tp: int, dp: int | None
) -> None:
    """A group's, or all of them and the replicas they are in."""
    replicas = {} if dp is None else {"dp": dp}
    assert told(name, tp=tp, **replicas) == told(name, gpus=tp * (dp or 1), **replicas)
    assert told(name, tp=tp, pp=2, **replicas) == told(name, tp=2 * tp, **replicas)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("machine", [H100, A100])
def test_the_widest_that_fits_is_taken(name: str, machine: Any) -> None:
    """By hand: parameters times bytes, in nine tenths of the memory of all that share them. Who
    has no 8-bit products goes on to four bits."""
    model = catalog.model(name)
    for tp in (1, 2, 4, 8):
        for dp in (1, 2):
            ranks = tp * dp if model.is_moe else tp
            room = FILLED * float(machine.memory) * ranks
            types = ["bf16", *(["fp8"] if machine is H100 else []), "int4_wo"]
            fits = [one for one in types if model.parameters * WEIGHT_BYTES[one] <= room]
            found = told(name, machine, tp=tp, dp=dp)
            assert [value for value, _, _ in found] == fits[:1]
            for value, rule, when in found:
                assert f" {ranks} x {machine.name}" in rule
                assert when == (value != "bf16")


def test_nothing_is_said_where_nothing_is_stated_or_a_host_holds_weights() -> None:
    assert told("llama3-8b") == []
    assert told("llama3-8b", tp=1, offload="weights") == []
