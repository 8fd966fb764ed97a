"""Bends a fitted model to a device from which only tens of points are at hand.

What is learned is the difference of y = -log(efficiency): a constant, and slopes on the model's
standardised features, each pulled to zero. How much is chosen by predicting points left out; a
richer correction must be clearly better than a poorer one, so that a model which already fits
stays as it is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from sklearn.linear_model import Ridge

from calibration.kernels.fit import Points, inefficiency, predict_points
from predictor.timing import EfficiencyModel

STRENGTHS = (np.inf, 300.0, 100.0, 30.0, 10.0)
"""Pull of the slopes to zero, strongest first; infinite: a constant alone."""

CONFIDENCE = 2.0
"""A richer correction must lower the error on points left out by this many standard errors."""

DRAWS, SHOTS = 20, 60
"""Draws, and points of each: what an hour of a profile gives a kind of kernel."""


@dataclass(frozen=True, slots=True)
class FewShot:
    """Mean absolute errors over draws of `SHOTS` points, on other shapes: of the model of the
    device's relatives, of the same bent, of the device's own model, of the same bent."""

    relatives: float
    bent: float
    own: float
    own_bent: float


def _correction(z: np.ndarray, r: np.ndarray, weight: np.ndarray, strength: float) -> np.ndarray:
    """Constant and slopes that explain the residuals r."""
    tilt = np.zeros(z.shape[1] + 1)
    if np.isfinite(strength):
        fit = Ridge(alpha=strength).fit(z, r, sample_weight=weight)
        tilt[0], tilt[1:] = fit.intercept_, fit.coef_
    else:
        # The constant is pulled to zero as by two more points.
        tilt[0] = (weight @ r) / (weight.sum() + 2.0)
    return tilt


def _apply(tilt: np.ndarray, z: np.ndarray) -> np.ndarray:
    return np.asarray(tilt[0] + z @ tilt[1:])


def bend(model: EfficiencyModel, points: Points) -> EfficiencyModel:
    """The model with a correction learned from points of one device; itself if none helps."""
    z = model.standard(points.features)
    offset = np.array([model.offsets.get(str(name), 0.0) for name in points.variant])
    r = points.y - inefficiency(model, points) - offset
    weight = points.weight
    if len(r) < 8:
        return model
    fold = np.random.default_rng(0).permutation(len(r)) % 5

    def miss(residual: np.ndarray) -> np.ndarray:
        """Relative errors of times; the latency takes no part in them."""
        return np.asarray(np.sqrt(weight) * np.abs(np.expm1(-residual)))

    def left_out(strength: float) -> np.ndarray:
        missed = r.copy()
        for number in range(5):
            out = fold == number
            tilt = _correction(z[~out], r[~out], weight[~out], strength)
            missed[out] = r[out] - _apply(tilt, z[out])
        return miss(missed)

    best, chosen = miss(r), None
    for strength in STRENGTHS:
        found = left_out(strength)
        gain = best - found
        if gain.mean() > CONFIDENCE * gain.std() / np.sqrt(len(gain)):
            best, chosen = found, strength
    if chosen is None:
        return model
    return replace(model, tilt=_correction(z, r, weight, chosen))


def few_shot_trial(relatives: EfficiencyModel, own: EfficiencyModel, points: Points) -> FewShot:
    """Try bending on draws from a well-measured device.

    relatives  a model that never saw the device
    own        the device's own model
    """
    rng = np.random.default_rng(1)
    found = np.zeros((DRAWS, 4))
    for draw in range(DRAWS):
        order = rng.permutation(len(points.time))
        few, rest = points.take(order[:SHOTS]), points.take(order[SHOTS : SHOTS + 2000])
        for column, model in enumerate((relatives, bend(relatives, few), own, bend(own, few))):
            share = predict_points(model, rest) / rest.time - 1.0
            found[draw, column] = np.abs(share).mean()
    return FewShot(*(float(value) for value in found.mean(axis=0)))
