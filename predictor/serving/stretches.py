"""How much longer kernels of passes take under limits of power than by themselves."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from predictor.arrays import Array
from predictor.catalog import power_setting
from predictor.hardware import Cluster
from predictor.power import Activity, Conditions, lengthened
from predictor.serving.activities import EXCHANGE
from predictor.timing import Calibration


def _kernels(work: Mapping[str, Activity], phase: str, longer: Mapping[str, Array]) -> Array:
    """How much longer a phase's kernels take by themselves: its collectives follow no clock.

    longer   times of phases, collectives included, over those by themselves
    """
    kernels, talk = (work.get(f"{phase}{name}") for name in ("", f".{EXCHANGE}"))
    if kernels is None or talk is None:
        return longer[phase]
    return np.asarray(1.0 + (longer[phase] - 1.0) * (1.0 + np.asarray(talk.time) / kernels.time))


def stretches(
    work: Mapping[str, Activity],
    names: Mapping[str, str],
    cluster: Cluster,
    calibration: Calibration,
    conditions: Conditions,
    rest: str | None,
) -> dict[str, Array]:
    """Time of kernels under conditions over that on the machine as it is, in the heat of all the
    work.

    work, rest   as of `power.lengthened`
    names        of what is told, and its phase in the work
    """
    now, usual = (
        lengthened(work, *power_setting(cluster, one, calibration.power), one, rest)
        for one in (conditions, Conditions())
    )
    return {
        name: np.asarray(_kernels(work, of, now) / _kernels(work, of, usual))
        for name, of in names.items()
    }
