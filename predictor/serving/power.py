"""What serving draws under conditions, and in what time these leave it: passes over prompts, passes
that decode, and what lies between them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

import numpy as np

from predictor.arrays import Array, Index, Numeric, distinct_rows, flat, mapped, shape_of, varying
from predictor.catalog import power_setting
from predictor.errors import InputError
from predictor.power import Conditions, Powered, powered
from predictor.serving.activities import one_pass_each, serving_activity
from predictor.serving.apart import apart
from predictor.serving.apart_power import PoweredApart, powered_apart
from predictor.serving.apart_rates import decoding_slower
from predictor.serving.latency import Latencies, latencies
from predictor.serving.pass_times import Arriving, Work
from predictor.serving.prediction import InferencePrediction
from predictor.serving.stretches import stretches
from predictor.timing import Calibration, EngineParameters


def serving_power(found: InferencePrediction, conditions: Conditions) -> Powered:
    """Power of a second of serving under conditions; phases are shares of a second at the board's
    own limits.

    Raises InputError where an accelerator's power is not known, or the conditions cannot be, and
    for a batch that reads prompts of some plans apart and not of others.
    """
    _reads_apart(found)
    told = _told(found)
    numbers = [*told.values(), conditions]
    shape = np.broadcast_shapes(*(shape_of(one) for one in numbers))
    if not shape:
        return _powered(found, conditions)
    values = [np.broadcast_to(value, shape).ravel() for one in numbers for value in varying(one)]
    first, index = distinct_rows(values)
    few = replace(found, **{name: flat(one, shape, first) for name, one in told.items()})
    return _spread(_powered(few, flat(conditions, shape, first)), len(first), index.reshape(shape))


def serving_watts(found: InferencePrediction, conditions: Conditions) -> Array:
    """Mean power of an accelerator [W], of plans some of which may read prompts apart.

    Raises InputError as `serving_power`.
    """
    own = apart(found.plan)
    if np.all(own) or not np.any(own):
        return serving_power(found, conditions).mean
    told = _told(found)
    shape = np.broadcast_shapes(*(shape_of(one) for one in told.values()))
    kinds, watts = np.broadcast_to(own, shape).ravel(), np.empty(shape)
    for kind in (False, True):
        rows = np.flatnonzero(kinds == kind)
        few = replace(found, **{name: flat(one, shape, rows) for name, one in told.items()})
        watts.ravel()[rows] = serving_power(few, conditions).mean
    return watts


def _told(found: InferencePrediction) -> dict[str, Any]:
    """What of a prediction its power is told by."""
    names = ("plan", "cluster", "parameters", "latencies", "work", "arriving")
    told: dict[str, Any] = {name: getattr(found, name) for name in names}
    return {name: one for name, one in told.items() if one is not None}


def _powered(found: InferencePrediction, conditions: Conditions) -> Powered:
    """Power of a second of plans, each of which is worked out."""
    if _reads_apart(found):
        return powered_apart(found, conditions)
    constants, chassis = power_setting(found.cluster, conditions, found.calibration.power)
    work = serving_activity(found)
    return powered(work.activity, work.pieces, constants, chassis, conditions, rest=_rest(found))


def _reads_apart(found: InferencePrediction) -> bool:
    """Whether prompts are read on accelerators of their own: of all plans, or of none."""
    own = apart(found.plan)
    if np.any(own) and not np.all(own):
        raise InputError("power of plans that read prompts apart is told by themselves")
    return bool(np.any(own))


def _rest(found: InferencePrediction) -> str | None:
    """What of a second stays as it is where passes take longer: at a rate of arrivals, of which
    more run then, what is idle."""
    return None if found.arriving is None else "idle"


def _spread(under: Powered, count: int, index: Index) -> Powered:
    """What is drawn by plans of which some are alike, from that of the distinct ones.

    count   of those
    index   of each plan among them
    """

    def each(value: Numeric) -> Array:
        one = np.asarray(value)
        whole = np.broadcast_to(one, (*one.shape[:-1], count)) if one.ndim else one
        return whole.take(index, axis=-1) if one.ndim else one

    found = replace(mapped(under, each), phases=[mapped(one, each) for one in under.phases])
    if isinstance(found, PoweredApart) and isinstance(under, PoweredApart):
        read, decode = (_spread(one, count, index) for one in (under.readers, under.decoders))
        found = replace(found, readers=read, decoders=decode)
    return found


def _slower(found: InferencePrediction, under: Powered, conditions: Conditions) -> dict[str, Array]:
    """How much longer kernels of passes take under conditions, by their name in `one_pass_each`, in
    the heat of what is drawn meanwhile; where clients follow each other those that read and those
    that decode as all of their time does."""
    names = {name: name for name in ("prompts", "single", "step")}
    work = {**under.work, **one_pass_each(found)}
    return stretches(work, names, found.cluster, found.calibration, conditions, _rest(found))


def _stretched(found: InferencePrediction, under: Powered, conditions: Conditions) -> Work:
    """The work of a prediction in the time that conditions leave it."""
    if isinstance(under, PoweredApart):
        return under.lasting
    slower = _slower(found, under, conditions)
    old = found.work
    passes = {"prompts": old.prompts, "single": old.single, "step": old.decoding}
    made = {n: replace(one, compute=one.compute * slower[n]) for n, one in passes.items()}
    return replace(old, prompts=made["prompts"], single=made["single"], decoding=made["step"])


def limited(
    found: InferencePrediction, under: Powered, conditions: Conditions
) -> InferencePrediction:
    """The prediction in the time that conditions leave it; itself where none slow it.

    Passes over prompts, those that do both and those that decode take each as much longer as their
    own work does; latencies follow as in `latency.latencies`.
    """
    if not conditions.slows:
        return found
    old, own = found.work, found.parameters
    work = _stretched(found, under, conditions)
    now, then = (latencies(one, own) for one in (work, old))
    longer = np.asarray(now.e2e / np.maximum(then.e2e, 1e-15))
    values = {}
    for one in fields(Latencies):
        before, after, mine = (getattr(each, one.name) for each in (then, now, found.latencies))
        ratio = np.where(before > 0, after / np.where(before > 0, before, 1.0), longer)
        values[one.name] = np.asarray(mine * ratio)
    # At a rate of arrivals it is the rate that decides how many requests end, where they can.
    if found.arriving is not None:
        full, rate = np.asarray(found.arriving.full) > 0, found.latencies.requests_per_s
        values["requests_per_s"] = np.where(full, values["requests_per_s"], rate)
        if _reads_apart(found):
            values |= _read_later(found, found.arriving, values, now, then)
    scale = values["e2e"] / np.maximum(found.latencies.e2e, 1e-15)
    breakdown = {name: value * scale for name, value in found.breakdown.items()}
    return replace(found, work=work, latencies=Latencies(**values), breakdown=breakdown)


def _read_later(
    found: InferencePrediction,
    arriving: Arriving,
    values: dict[str, Array],
    now: Latencies,
    then: Latencies,
) -> dict[str, Array]:
    """Latencies of prompts that are read apart at a rate that workers carry: they wait as before
    these (`rates`), and decode as long as among so many.

    now, then   of as many as run, under limits and without
    """
    full, old = np.asarray(arriving.full) > 0, found.latencies
    decoding = (now.e2e - now.ttft) / np.maximum(then.e2e - then.ttft, 1e-15)
    first = old.ttft + arriving.later
    told = {
        "ttft": first,
        "queue": old.queue + arriving.waiting,
        "e2e": first + (old.e2e - old.ttft) * decoding,
    }
    return {name: np.where(full, values[name], one) for name, one in told.items()}


def slower_engines(calibration: Calibration, prompts: float, passes: float) -> Calibration:
    """The calibration of engines whose passes over prompts, and passes that decode, take so many
    times as long on the device: by it requests are served one by one under a limit."""

    def slower(own: EngineParameters) -> EngineParameters:
        return replace(own, prefill=own.prefill * prompts, decode=own.decode * passes)

    known: Mapping[str, EngineParameters] = calibration.serving.engines
    names = {**known, "neutral": known.get("neutral", EngineParameters())}
    engines = {name: slower(own) for name, own in names.items()}
    return replace(calibration, serving=replace(calibration.serving, engines=engines))


def held_engines(
    free: InferencePrediction, held: InferencePrediction, calibration: Calibration
) -> Calibration:
    """The calibration by which passes take as much longer as they do under a limit.

    free, held   the same prediction of one plan, without the limit and under it
    """
    if free is held:
        return calibration

    def ratio(kind: str, before: float) -> float:
        after = float(getattr(held.work, kind).compute)
        return after / before if before > 0 else 1.0

    if not _reads_apart(free):
        prompts = ratio("single", float(free.work.single.compute))
        passes = ratio("decoding", float(free.work.decoding.compute))
        return slower_engines(calibration, prompts, passes)
    # Workers read in passes of their own; under limits others decode than without.
    prompts = ratio("prompts", float(free.work.prompts.compute))
    return slower_engines(calibration, prompts, float(decoding_slower(free, held)))
