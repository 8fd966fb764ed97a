"""Builds the calibrations that ship with reckon from the shared measurement sets.

    python -m calibration.build ../shared [--out data/calibrations]

`kernels-only` is fitted to kernels and collectives alone. `default` adds run parameters fitted to
published runs (`calibration.runs`), and shares its kernels.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pandas as pd

from calibration.artifact import heldout_table, rounded, write
from calibration.checks.kernels import families, libraries_left_out
from calibration.kernels.models import fit_kernels
from calibration.kernels.power import power_left_out
from calibration.kernels.throttle import fit_throttle
from calibration.network.fit import fit_links
from calibration.runs.fit import default_run, fit_shared
from calibration.sources import aiconfigurator, fgpm, tidy
from calibration.tables.kernel_table import check_kernels
from predictor import catalog
from predictor.timing import Calibration, Throttle

THROTTLED = {
    "hopper": ("H200-SXM-141GB", "vllm"),
    "blackwell": ("B200-SXM-180GB", "vllm"),
}
"""By architecture: accelerator and library that measured the same shapes burst and sustained."""


def kernel_table(shared: Path) -> pd.DataFrame:
    """All kernel measurements, checked."""
    tables = shared / "bulk" / "kernels" / "aiconfigurator"
    tidy_table = shared / "bulk" / "kernels" / "ops.parquet"
    parts = [
        aiconfigurator.gemm(tables / "gemm_perf.parquet"),
        aiconfigurator.attention(tables / "context_attention_perf.parquet"),
        aiconfigurator.latent_attention(tables / "context_mla_perf.parquet"),
        aiconfigurator.decode(tables / "generation_attention_perf.parquet"),
        aiconfigurator.latent_decode(tables / "generation_mla_perf.parquet"),
        aiconfigurator.experts(tables / "moe_perf.parquet"),
        aiconfigurator.latent_products(tables / "mla_bmm_perf.parquet"),
        fgpm.operators(shared / "bulk" / "seeds" / "fgpm_ops_a100_gh200.csv.gz"),
        tidy.streaming(tidy_table),
        tidy.training_gemms(tidy_table),
        tidy.products(tidy_table),
    ]
    return check_kernels(pd.concat(parts, ignore_index=True), "shared kernel tables")


def collective_table(shared: Path) -> pd.DataFrame:
    """All collective measurements, checked."""
    parts = [
        aiconfigurator.nccl(shared / "bulk/kernels/aiconfigurator/nccl_perf.parquet"),
        aiconfigurator.custom_allreduce(
            shared / "bulk/kernels/aiconfigurator/custom_allreduce_perf.parquet"
        ),
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
        "mla_bmm, moe, nccl, custom_allreduce",
        "origin": "ai-dynamo/aiconfigurator@095f58a51c, 2026-08-21",
        "licence": aiconfigurator.LICENCE,
    },
    {
        "files": "bulk/seeds/fgpm_ops_a100_gh200.csv.gz, fgpm_nccl_perlmutter_vista.csv",
        "origin": "arXiv 2509.22832 (Perlmutter, Vista)",
        "licence": fgpm.LICENCE,
    },
    {
        "files": "bulk/kernels/ops.parquet: aiter, infersim, neusight, simumax, "
        "awsome-distributed-training, dstack, dgxc-benchmarking, github-issue",
        "origin": "repositories named in the table's source column",
        "licence": tidy.LICENCE,
    },
]


def bursts(table: pd.DataFrame) -> pd.DataFrame:
    """Rows that were all timed alike, in short bursts."""
    return table[table["source"] == "aiconfigurator"]


def build(shared: Path, out: Path, jobs: int) -> None:
    """Fit and write `kernels-only` and `default`."""
    table = kernel_table(shared)
    known = set(catalog.rows("accelerators"))
    table = table[table["accelerator"].isin(known)]
    collectives = collective_table(shared)
    print(f"{len(table)} kernel rows, {len(collectives)} collective rows", flush=True)
    kernels = fit_kernels(table, jobs=jobs, progress=lambda text: print(text, flush=True))
    links = fit_links(collectives)
    heldout = {
        "kernels": heldout_table(kernels.heldout),
        "accelerator_left_out": heldout_table(kernels.transfer),
        "sixty_points": heldout_table(kernels.fewshot),
        "coverage_left_out": kernels.transfer_coverage,
        "links": heldout_table(links.heldout),
        "library_left_out": rounded(libraries_left_out(table)),
        "power_ceiling": rounded({n: asdict(c) for n, c in power_left_out(bursts(table)).items()}),
        "families": rounded(families(table, "fgpm")),
    }
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
    arguments = parser.parse_args()
    build(arguments.shared, arguments.out, arguments.jobs)


if __name__ == "__main__":
    main()
