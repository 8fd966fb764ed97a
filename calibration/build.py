"""Builds the calibrations that ship with reckon from the shared measurement sets.

    python -m calibration.build ../shared [--out data/calibrations] [--ops gemm ... | --few]

`kernels-only` is fitted to kernels and collectives alone. `default` adds run parameters fitted to
published runs (`calibration.runs`), and shares its kernels.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from calibration.artifact import heldout_table, rounded, write
from calibration.checks.kernel_rows import KNOWN, STRANGE
from calibration.checks.kernels import families, libraries_left_out
from calibration.checks.stand_ins import with_stand_ins
from calibration.checks.strangers import between_sources
from calibration.kernels.fit import op_of
from calibration.kernels.leaning import LEANT
from calibration.kernels.models import fit_few, fit_kernels
from calibration.kernels.parts import KernelFit
from calibration.kernels.power import power_left_out
from calibration.kernels.throttle import fit_throttle
from calibration.network.fit import fit_links
from calibration.runs.fit import default_run, fit_shared
from calibration.sources import aiconfigurator, fgpm, own_gpus, tidy, wide_experts
from calibration.tables.kernel_table import check_kernels, kinds
from predictor import catalog
from predictor.catalog import MANIFEST, load
from predictor.errors import InputError
from predictor.schema import COMPUTE_OPS
from predictor.timing import ANY, PLAIN_OPS, VENDOR, Calibration, Throttle

THROTTLED = {
    "hopper": ("H200-SXM-141GB", "vllm"),
    "blackwell": ("B200-SXM-180GB", "vllm"),
}
"""By architecture: accelerator and library that measured the same shapes burst and sustained."""


def kernel_table(shared: Path, ops: Collection[str] = ()) -> pd.DataFrame:
    """All kernel measurements of those operators (all, if none are named), checked."""
    tables = shared / "bulk" / "kernels" / "aiconfigurator"
    tidy_table = shared / "bulk" / "kernels" / "ops.parquet"
    fgpm_table = shared / "bulk" / "seeds" / "fgpm_ops_a100_gh200.csv.gz"
    attention = ("attention_prefill", "attention_backward")
    others = ("norm", "elementwise", "softmax", "loss", "embedding", "optimizer")
    readers: list[tuple[tuple[str, ...], Callable[[Path], pd.DataFrame], Path]] = [
        (("gemm",), aiconfigurator.gemm, tables / "gemm_perf.parquet"),
        (attention, aiconfigurator.attention, tables / "context_attention_perf.parquet"),
        (attention, aiconfigurator.latent_attention, tables / "context_mla_perf.parquet"),
        (("attention_decode",), aiconfigurator.decode,
         tables / "generation_attention_perf.parquet"),
        (("attention_decode",), aiconfigurator.latent_decode,
         tables / "generation_mla_perf.parquet"),
        (("moe_gemm",), aiconfigurator.experts, tables / "moe_perf.parquet"),
        (("moe_gemm",), wide_experts.grouped, tables),
        (("gemm",), aiconfigurator.latent_products, tables / "mla_bmm_perf.parquet"),
        (("gemm", *attention, *others), fgpm.operators, fgpm_table),
        (others, tidy.streaming, tidy_table),
        (PLAIN_OPS, own_gpus.plain, catalog.data_dir() / "measurements"),
        (attention, own_gpus.attention, catalog.data_dir() / "measurements"),
        (("elementwise",), tidy.conversions, tidy_table),
        (("gemm",), tidy.training_gemms, tidy_table),
        (("gemm",), tidy.products, tidy_table),
        (("moe_gemm",), tidy.experts, tidy_table),
        (
            ("gemm", "attention_prefill", "attention_decode"),
            tidy.tensor_processors,
            tidy_table,
        ),
    ]  # fmt: skip
    parts = [read(path) for of, read, path in readers if not ops or set(of) & set(ops)]
    table = check_kernels(pd.concat(parts, ignore_index=True), "shared kernel tables")
    return table[table["op"].isin(ops)] if ops else table


def collective_table(shared: Path) -> pd.DataFrame:
    """All collective measurements, checked."""
    parts = [
        aiconfigurator.nccl(shared / "bulk/kernels/aiconfigurator/nccl_perf.parquet"),
        aiconfigurator.custom_allreduce(
            shared / "bulk/kernels/aiconfigurator/custom_allreduce_perf.parquet"
        ),
        wide_experts.exchanges(shared / "bulk/kernels/aiconfigurator"),
        tidy.one_node(shared / "bulk" / "kernels" / "ops.parquet"),
        tidy.multi_node(shared / "bulk" / "kernels" / "ops.parquet"),
        fgpm.collectives(shared / "bulk" / "seeds" / "fgpm_nccl_perlmutter_vista.csv"),
    ]
    return check_kernels(pd.concat(parts, ignore_index=True), "shared collective tables")


def throttles(shared: Path) -> dict[str, Throttle]:
    """Sustained clocks by architecture, from shapes measured both ways."""
    path = shared / "bulk" / "kernels" / "aiconfigurator" / "gemm_perf.parquet"
    tables = aiconfigurator.gemm_bursts_and_sustained(path)
    found = {}
    for architecture, (accelerator, library) in THROTTLED.items():
        burst, sustained = (
            t[(t["accelerator"] == accelerator) & (t["framework"] == library)] for t in tables
        )
        found[architecture] = fit_throttle(burst, sustained, accelerator)
    return found


SOURCES: list[dict[str, Any]] = [
    {
        "files": "bulk/kernels/aiconfigurator: gemm, context and generation attention and mla, "
        "mla_bmm, moe, wideep context and generation moe, nccl, custom_allreduce, "
        "wideep deepep, trtllm_alltoall",
        "origin": "ai-dynamo/aiconfigurator@095f58a51c, 2026-08-21",
        "licence": aiconfigurator.LICENCE,
    },
    {
        "files": "bulk/seeds/fgpm_ops_a100_gh200.csv.gz, fgpm_nccl_perlmutter_vista.csv",
        "origin": "arXiv 2509.22832 (Perlmutter, Vista)",
        "licence": fgpm.LICENCE,
    },
    {
        "files": "bulk/kernels/ops.parquet: aiter, infersim, neusight, simumax, llmservingsim "
        "(TPU, RTX 3090), awsome-distributed-training, dstack, dgxc-benchmarking, github-issue",
        "origin": "repositories named in the table's source column",
        "licence": tidy.LICENCE,
    },
    {
        "files": "data/measurements/h100-sxm, h100-sxm-2, h200-sxm, h200-sxm-2: norms, losses, "
        "embeddings and elementwise kernels of plain PyTorch; h100-sxm-3, h200-sxm-3: attention",
        "origin": "reckon profile and tools/attention_sweep.py, 2026-11-26 and 27",
        "licence": own_gpus.LICENCE,
    },
]


def bursts(table: pd.DataFrame) -> pd.DataFrame:
    """Rows that were all timed alike, in short bursts."""
    return table[table["source"] == "aiconfigurator"]


def _kind_at(position: int, key: str) -> str:
    """The kind that a row of held-out errors names at a position."""
    return key.split("/")[position]


def partly(
    folder: Path, fitted: Collection[str], kernels: KernelFit, heldout: Mapping[str, Any]
) -> tuple[Calibration, dict[str, Any]]:
    """A calibration of which some kernels, and their held-out errors, are new.

    fitted    operators, of all of whose kernels they are, or kinds
    heldout   sections of the new ones
    """
    before = load(folder)
    written = json.loads((folder / MANIFEST).read_text("utf-8"))["heldout"]

    def others(table: Mapping[Any, Any], at: Callable[[Any], str]) -> dict[Any, Any]:
        return {
            key: value
            for key, value in table.items()
            if at(key) not in fitted and op_of(at(key)) not in fitted
        }

    kept = others(before.kernels, lambda key: str(key[0]))
    sigma = kernels.transfer_sigma | others(before.transfer_sigma, str)
    sections = {
        name: table
        if name not in heldout
        else others(table, partial(_kind_at, int(name == "families"))) | heldout[name]
        for name, table in written.items()
    }
    files = frozenset(str(source["files"]) for source in SOURCES)
    found = replace(
        before,
        kernels={**kept, **kernels.models},
        transfer_sigma=sigma,
        fitted_files=files,
        provenance={**before.provenance, "sources": SOURCES},
    )
    return found, sections


def build_few(shared: Path, out: Path) -> None:
    """Fit links, and the pools of few points, over the models of a calibration that is written; run
    parameters stay."""
    known = set(catalog.rows("accelerators"))
    table = kernel_table(shared, LEANT)
    table = table[table["accelerator"].isin(known)]
    links = fit_links(collective_table(shared))
    for name in ("kernels-only", "default"):
        before = load(out / name)
        if name == "kernels-only":
            few = fit_few(table, before.kernels)
        heldout = json.loads((out / name / MANIFEST).read_text("utf-8"))["heldout"]
        heldout["links"] = heldout_table(links.heldout)
        heldout["accelerator_left_out"] |= heldout_table(few.transfer)
        found = replace(before, kernels=few.models, links=links.links)
        write(
            found, out / name, heldout, kernels=None if name == "kernels-only" else "kernels-only"
        )


def pooled(kernels: KernelFit, table: pd.DataFrame) -> None:
    """Leave what a sweep says to the model of all of its architecture's: each of them alone had
    too little time for all heads."""
    swept = table["source"] == own_gpus.SWEEP
    for kind in kinds(table[swept]).unique():
        for name in own_gpus.SWEPT.values():
            for key in [key for key in kernels.models if key[0] == kind and key[2] == name]:
                del kernels.models[key]


def with_strangers(calibration: Calibration, shared: Path, table: pd.DataFrame) -> Calibration:
    """A calibration that knows whose kernels it was fitted to, and what those of others add to its
    spreads.

    table   the kernel rows that it was fitted to
    """
    known = {*calibration.provenance.get(KNOWN, ()), *table["source"].unique().tolist()}
    provenance = {**calibration.provenance, KNOWN: sorted(known - set(tidy.STRANGERS))}
    sigma = {name: one for name, one in calibration.transfer_sigma.items() if name != STRANGE}
    card = catalog.accelerator(tidy.CARD[1])
    lent = (card.name, f"{ANY}{card.architecture}", f"{VENDOR}{card.vendor}")  # from a stranger
    kernels = {key: model for key, model in calibration.kernels.items() if key[2] not in lent}
    bare = replace(calibration, kernels=kernels, provenance=provenance, transfer_sigma=sigma)
    others = check_kernels(tidy.strangers(shared / "bulk" / "kernels" / "ops.parquet"), "strangers")
    more = between_sources(others, bare, calibration.interval_level)
    sigma = {**sigma, STRANGE: more}
    return replace(calibration, provenance=provenance, transfer_sigma=sigma)


def build(
    shared: Path, out: Path, jobs: int, ops: Collection[str] = (), only: Collection[str] = ()
) -> None:
    """Fit and write `kernels-only` and `default`.

    ops    operators to fit; what is known of others, of links and of power stays. All, if none
    only   kinds to fit, as ops; all of those operators', if none
    """
    table = kernel_table(shared, {*ops, *map(op_of, only)})
    if only:
        known = kinds(table)
        if strange := sorted(set(only) - set(known)):
            raise InputError(f"no such kinds of kernels: {', '.join(strange)}")
        table = table[known.isin(set(only))]
    table = table[table["accelerator"].isin(set(catalog.rows("accelerators")))]
    print(f"{len(table)} kernel rows", flush=True)
    kernels = fit_kernels(table, jobs=jobs, progress=lambda text: print(text, flush=True))
    pooled(kernels, table)
    heldout = {
        "kernels": heldout_table(kernels.heldout),
        "accelerator_left_out": heldout_table(kernels.transfer),
        "sixty_points": heldout_table(kernels.fewshot),
        "coverage_left_out": kernels.transfer_coverage,
        **{name: rounded(found) for name, found in libraries_left_out(table).items()},
        "families": rounded(families(table, "fgpm")),
    }
    if some := only or ops:
        calibration, heldout = partly(out / "kernels-only", some, kernels, heldout)
    else:
        collectives = collective_table(shared)
        links = fit_links(collectives)
        heldout["links"] = heldout_table(links.heldout)
        heldout["power_ceiling"] = rounded(
            {name: asdict(one) for name, one in power_left_out(bursts(table)).items()}
        )
        calibration = Calibration(
            name="kernels-only",
            kernels=kernels.models,
            links=links.links,
            throttles=throttles(shared),
            run=default_run(),
            transfer_sigma=kernels.transfer_sigma,
            fitted_files=frozenset(str(source["files"]) for source in SOURCES),
            provenance={
                "fitted_to": "kernels and collectives only; run parameters are documented defaults",
                "rows": {"kernels": len(table), "collectives": len(collectives)},
                "sources": SOURCES,
            },
        )
    calibration = with_strangers(calibration, shared, table)
    if not ops and not only:
        calibration = with_stand_ins(calibration, table)
    write(calibration, out / "kernels-only", heldout)
    fitted = fit_shared(replace(calibration, name="default"), shared)
    write(fitted, out / "default", heldout, kernels="kernels-only")
    print(f"wrote {out}/kernels-only and {out}/default (run spread {fitted.run.sigma:.3f})")


def main() -> None:
    """Command line of the build."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shared", type=Path)
    parser.add_argument("--out", type=Path, default=Path("data/calibrations"))
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--ops", nargs="*", default=[], choices=COMPUTE_OPS, help="only these")
    parser.add_argument("--kinds", nargs="*", default=[], help="only these kernels of operators")
    parser.add_argument("--few", action="store_true", help="only links, and pools of few points")
    arguments = parser.parse_args()
    if arguments.few:
        build_few(arguments.shared, arguments.out)
        return
    try:
        build(
            arguments.shared, arguments.out, arguments.jobs, ops=arguments.ops, only=arguments.kinds
        )
    except InputError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
