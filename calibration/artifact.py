"""Writes calibrations: plain numbers in `calibration.json`, weights in `arrays.npy`, hashes of
measured shapes in `shapes.npy`. `predictor.catalog.load` reads them."""

from __future__ import annotations

import json
import math
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from predictor.catalog import (
    ARRAYS,
    ENGINES,
    FILES,
    MANIFEST,
    SCHEMA_VERSION,
    SHAPES,
    learned_mapping,
)
from predictor.catalog import FILE as SERVING
from predictor.errors import InputError
from predictor.files import prepare_folder
from predictor.hardware import LinkModel
from predictor.timing import Calibration, EfficiencyModel, RunParameters


def _number(value: float) -> float:
    """Six significant digits: enough for any fit, and diffs stay readable."""
    return float(f"{value:.6g}")


def _microseconds(name: str, seconds: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """A table of times under a name, nothing where it is empty."""
    found = {key: _number(value * 1e6) for key, value in sorted(seconds.items())}
    return {name: found} if found else {}


def outward(bounds: np.ndarray, towards: float) -> np.ndarray:
    """Bounds as 32 bits keep them, not within what they were: what all points share (a feature that
    is 4096 in each) is not outside of its box for a rounding."""
    kept = bounds.astype(np.float32)
    inside = kept > bounds if towards < 0 else kept < bounds
    return np.where(inside, np.nextafter(kept, np.float32(towards)), kept)


def _entry(
    model: EfficiencyModel, arrays: list[np.ndarray], shapes: list[np.ndarray], offset: int
) -> dict[str, Any]:
    """The entry of a model, whose numbers are added to `arrays`, of which there are `offset`."""
    low, high = outward(model.low, -np.inf), outward(model.high, np.inf)
    pieces = [low, high, model.mean, model.scale]
    for weight, bias in zip(model.weights, model.biases, strict=True):
        pieces += [weight, bias]
    pieces += [model.tilt, *(model.stacks[name] for name in sorted(model.stacks))]
    if model.near is not None:
        pieces += [model.near.centres, model.near.pull, model.near.side]
    first = sum(s.size for s in shapes)
    arrays.extend(np.ravel(piece) for piece in pieces)
    shapes.append(model.keys)
    return {
        "kind": model.kind,
        "dtype": model.dtype,
        "accelerator": model.accelerator,
        "latency_us": _number(model.latency * 1e6),
        "limit": _number(model.limit),
        **({"least": _number(model.least)} if model.least else {}),
        "degree": model.degree,
        "sigma": _number(model.sigma),
        "points": model.points,
        "offsets": {name: _number(value) for name, value in sorted(model.offsets.items())},
        "features": int(model.low.size),
        "widths": [model.weights[0].shape[0], *(w.shape[1] for w in model.weights)],
        "stacks": sorted(model.stacks),
        "year": None if np.isnan(model.year) else _number(model.year),
        **_microseconds("lags_us", model.lags),
        **_microseconds("casts_us", model.casts),
        "bent": bool(model.tilt.size),
        **(
            {}
            if model.near is None
            else {
                "near": {
                    "points": int(model.near.pull.size),
                    "variants": list(model.near.variants),
                    "reach": _number(model.near.reach),
                    "kinship": _number(model.near.kinship),
                }
            }
        ),
        **(
            {}
            if model.kin is None
            else {
                "vendor": model.kin.vendor,
                "traits": [
                    None if math.isnan(trait) else _number(trait) for trait in model.kin.traits
                ],
            }
        ),
        "offset": int(offset),
        "keys": [int(first), int(model.keys.size)],
    }


def _run_entry(run: RunParameters) -> dict[str, Any]:
    return {
        "host_per_kernel_us": _number(run.host_per_kernel * 1e6),
        "overlap": dict(run.overlap),
        "contention": run.contention,
        "context_gb": _number(run.context / 1e9),
        "fragmentation": run.fragmentation,
        "memory_sigma": run.memory_sigma,
        "sigma": _number(run.sigma),
        "sigma_moe": _number(run.sigma_moe),
        **(
            {"spreads": {k: [_number(x) for x in v] for k, v in run.spreads.items()}}
            if run.spreads
            else {}
        ),
        "sigma_plan": _number(run.sigma_plan),
        "sigma_unnamed": _number(run.sigma_unnamed),
        "sigma_untimed": _number(run.sigma_untimed),
        "factors": dict(run.factors),
        **({"habits": dict(run.habits)} if run.habits else {}),
        **({"usual": {k: list(v) for k, v in run.usual.items()}} if run.usual else {}),
        **({"jitter": {k: list(v) for k, v in run.jitter.items()}} if run.jitter else {}),
        **({"sold": dict(run.sold)} if run.sold else {}),
        "sources": dict(run.sources),
    }


def _link_entry(link: LinkModel) -> dict[str, Any]:
    lag, clock, beyond = link.latency_sigma, link.clock, link.beyond
    return {
        "op": link.op,
        "link": link.link,
        "base_us": _number(link.base * 1e6),
        "hop_us": _number(link.hop * 1e6),
        "root": _number(link.root),
        "log2_sizes": [_number(x) for x in link.log2_sizes],
        "efficiencies": [_number(x) for x in link.efficiencies],
        "sigma": _number(link.sigma),
        **({} if math.isnan(lag) else {"latency_sigma": _number(lag)}),
        "points": link.points,
        "pedigree": link.pedigree,
        **({} if math.isnan(clock) else {"clock_mhz": _number(clock / 1e6)}),
        "sharing": _number(link.sharing),
        **({} if math.isnan(beyond) else {"beyond_us": _number(beyond * 1e6)}),
        "curves": [
            {
                "members": curve.members,
                "log_ideal": [_number(x) for x in curve.log_ideal],
                "log_factor": [_number(x) for x in curve.log_factor],
            }
            for curve in link.curves
        ],
    }


def _learned(calibration: Calibration) -> dict[str, Any]:
    """What own runs of training say, where any were measured."""
    return {} if calibration.own is None else {"own": learned_mapping(calibration.own)}


def manifest(
    calibration: Calibration, heldout: Mapping[str, Any]
) -> tuple[dict[str, Any], np.ndarray, np.ndarray]:
    """A calibration as the content of its three files."""
    arrays: list[np.ndarray] = []
    shapes: list[np.ndarray] = []
    kernels, offset = [], 0
    for key in sorted(calibration.kernels):
        before = len(arrays)
        kernels.append(_entry(calibration.kernels[key], arrays, shapes, offset))
        offset += sum(array.size for array in arrays[before:])
    content = {
        "schema_version": SCHEMA_VERSION,
        "name": calibration.name,
        "provenance": {k: v for k, v in calibration.provenance.items() if k != ENGINES},
        "interval": {
            "level": calibration.interval_level,
            "q": _number(calibration.interval_q),
        },
        "run": _run_entry(calibration.run),
        **_learned(calibration),
        **({"power": rounded(calibration.power)} if calibration.power else {}),
        "throttles": {
            name: {
                "start": _number(t.start),
                "gamma": _number(t.gamma),
                "fade_us": _number(t.fade * 1e6),
                "watts_per_tflops": _number(t.watts * 1e12),
            }
            for name, t in sorted(calibration.throttles.items())
        },
        "transfer_sigma": {k: _number(v) for k, v in sorted(calibration.transfer_sigma.items())},
        "links": [_link_entry(link) for _, link in sorted(calibration.links.items())],
        "kernels": kernels,
        "heldout": dict(heldout),
        "fitted": {
            "files": sorted(calibration.fitted_files),
            "point_ids": sorted(calibration.fitted_points),
        },
    }
    flat = np.concatenate(arrays) if arrays else np.empty(0)
    keys = np.concatenate(shapes) if shapes else np.empty(0)
    return content, flat.astype(np.float32), keys.astype(np.float64)


KEPT = (SERVING,)
"""Files of a calibration that others write; they stay."""


def check_folder(out: Path) -> Path:
    """The folder that a calibration is to take, resolved.

    Raises InputError where it cannot be written, or holds anything but a calibration.
    """
    out = out.resolve()
    prepare_folder(out.parent)
    if out.is_dir():
        others = sorted(path.name for path in out.iterdir() if path.name not in FILES + KEPT)
        if others:
            raise InputError(f"{out} holds other files ({others[0]}); give a folder of its own")
    elif out.exists():
        raise InputError(f"{out} is a file; give a folder")
    return out


def _check_shared(folder: Path, kernels: Any, arrays: np.ndarray, keys: np.ndarray) -> None:
    """Raise InputError unless a folder holds these models, weights and shapes itself."""
    try:
        same = (
            json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["kernels"] == kernels
            and np.array_equal(np.load(folder / ARRAYS, allow_pickle=False), arrays)
            and np.array_equal(np.load(folder / SHAPES, allow_pickle=False), keys)
        )
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"{folder} holds no kernels to share ({error})") from None
    if not same:
        raise InputError(f"{folder} holds other kernels than the calibration that is to share them")


def write(
    calibration: Calibration,
    out: Path,
    heldout: Mapping[str, Any] | None = None,
    kernels: str | None = None,
) -> None:
    """Write a calibration to a folder, whole or not at all.

    The files are made in a temporary folder beside `out`, which then takes its place; engines
    that were fitted into it (`serving.json`) stay.

    kernels   name of a calibration beside `out` that has the same kernels: they are kept there
              only; None keeps all in `out`

    Raises InputError as `check_folder`, and where the other's kernels are not the same.
    """
    out = check_folder(out)
    content, arrays, keys = manifest(calibration, heldout or {})
    if kernels is not None:
        _check_shared(out.parent / kernels, content["kernels"], arrays, keys)
        content["kernels"] = kernels
    staged = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    try:
        text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
        (staged / MANIFEST).write_text(text, encoding="utf-8")
        if kernels is None:
            np.save(staged / ARRAYS, arrays, allow_pickle=False)
            np.save(staged / SHAPES, keys, allow_pickle=False)
        staged.chmod(0o755)
        for name in KEPT:
            if (out / name).is_file():
                shutil.copy2(out / name, staged / name)
        if out.exists():
            old = staged.with_name(staged.name + "-old")
            os.replace(out, old)
            os.replace(staged, out)
            shutil.rmtree(old)
        else:
            os.replace(staged, out)
    except BaseException:
        shutil.rmtree(staged, ignore_errors=True)
        raise


def heldout_table(fits: Mapping[Any, Any]) -> dict[str, Any]:
    """Held-out errors as JSON: 'kind/dtype/accelerator' -> figures."""
    return rounded({"/".join(key): asdict(found) for key, found in sorted(fits.items())})


def rounded(table: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """The same figures with as many digits as are kept."""
    return {
        key: {name: _number(value) for name, value in row.items()} for key, row in table.items()
    }
