"""Rebuild the technology tables in `data/technology/` from the shared fact tables.

    python tools/curate_technology.py ../shared

Densities, powers and speeds are those of the catalog's generic rows (named foundry nodes stand
behind them); what is changed or added on the way stands here, each with its source.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pandas as pd

TECHNOLOGY = Path(__file__).resolve().parent.parent / "data" / "technology"

# name: row of the catalog, defects per cm2 in volume production, processor of its products
LOGIC = {
    "N12": ("generic 12nm", "N16/12FFN", 0.09, "volta"),
    "N10": ("generic 10nm", "N10", 0.09, "ampere"),
    "N7": ("generic 7nm", "N7", 0.09, "ampere"),
    "N5": ("generic 5nm", "N5", 0.10, "hopper"),
    "N4": ("generic 4nm", "N4/4N/4NP", 0.10, "blackwell"),
    "N3": ("generic 3nm", "N3E", 0.12, "blackwell"),
    "N2": ("generic 2nm", "N2", 0.15, "blackwell"),
    "N1.6": ("generic 1.6nm", "A16", 0.15, "blackwell"),
    "N1.4": ("generic 1.4nm", "A14", 0.15, "blackwell"),
    "N1": ("generic 1nm", "imec A10 (1 nm class)", 0.15, "blackwell"),
}
# The catalog knows no wafer price below A16: each full node since N7 added 44 % (10,000 USD at N7,
# 30,000 at N2, three nodes later), rounded.
WAFERS = {"N1.4": 45000, "N1": 65000}
SPEEDS = {"N1.4": 1.80}  # epium.com: N7 to A14, 1.8 times at iso-power; the generic row has 1.72

# Pin rates of shipping products where they stay below the standard's: catalog notes.
PRODUCTS = {
    "HBM3": (5.2, 16, "H100, MI300X: 5.2 Gbps; 16 GB stacks of H100"),
    "HBM3E": (8.0, 24, "B200: 8.0 Gbps, 24 GB stacks"),
    "HBM4": (8.0, 36, "JEDEC base rate; announced products run 10-11 Gbps"),
}
# Edge of the die that a device's interface takes [mm] and its area [mm2], from die shots of GA100
# and GH100 (six sites on two edges of 32 mm; Locuza, 2021); GDDR: 32-bit channels of AD102.
INTERFACES = {"graphics": (4.0, 5.5), "hbm": (10.5, 11.0)}
PRICES = {  # USD per GB, of the order of 2023-2025 contract prices (from memory); newer: estimates
    "GDDR6": 3.5, "GDDR6X": 4.5, "GDDR7": 5.0, "HBM2": 10.0, "HBM2E": 11.0, "HBM3": 13.0,
    "HBM3E": 15.0, "HBM4": 18.0, "HBM4E": 20.0, "HBM5": 22.0,
}  # fmt: skip

NETWORKS = {
    "NVLink2": "nvlink2", "NVLink3": "nvlink3", "NVLink4": "nvlink4", "NVLink5": "nvlink5",
    "NVLink6": "nvlink6", "InfiniBand EDR": "infiniband-edr", "InfiniBand HDR": "infiniband-hdr",
    "InfiniBand NDR": "infiniband-ndr", "InfiniBand XDR": "infiniband-xdr",
    "InfiniBand GDR": "infiniband-gdr",
}  # fmt: skip
PER_PORT = {  # USD per accelerator: adapter, optics and its share of switches (from memory)
    "NVLink2": 600, "NVLink3": 900, "NVLink4": 1200, "NVLink5": 2200, "NVLink6": 3600,
    "EDR": 1100, "HDR": 1900, "NDR": 3200, "XDR": 5000, "GDR": 8000,
}  # fmt: skip


def nodes(shared: Path) -> pd.DataFrame:
    table = pd.read_csv(shared / "catalog" / "logic_nodes.csv").set_index("node")
    rows = []
    for name, (generic, foundry, defects, processor) in LOGIC.items():
        of, real = table.loc[generic], table.loc[foundry]
        price = real["wafer_price_usd"] if name not in WAFERS else WAFERS[name]
        stated = name not in WAFERS
        rows.append(
            {
                "name": name,
                "year": int(real["year_hvm"]),
                "density": of["cumulative_logic_density_vs_n7"],
                "power": of["cumulative_power_iso_speed_vs_n7"],
                "speed": SPEEDS.get(name, of["cumulative_speed_iso_power_vs_n7"]),
                "sram_mib_mm2": of["sram_density_mib_mm2"],
                "wafer_usd": int(price),
                "defects_per_cm2": defects,
                "processor": processor,
                "source": f"{foundry}: {real['source']}"
                + ("" if stated else "; wafer price extrapolated, 44 % per full node")
                + "; defects: TSMC symposium statements, 0.1 per cm2 mature (from memory)",
                "checked": real["checked"] if stated else "weak",
            }
        )
    return pd.DataFrame(rows)


def memories(shared: Path) -> pd.DataFrame:
    table = pd.read_csv(shared / "catalog" / "memory_tech.csv")
    table = table[table["kind"].isin(INTERFACES)]
    rows = []
    for of in table.to_dict("records"):
        name = of["name"]
        if name == "HBM1":
            continue
        edge, area = INTERFACES[of["kind"]]
        usual = (of["pin_rate_gbps"], of["capacity_gb_per_device"], "")
        rate, capacity, product = PRODUCTS.get(name, usual)
        rows.append(
            {
                "name": name,
                "year": int(of["year"]),
                "bandwidth_gbs": rate * of["bus_width_bits"] / 8,
                "capacity_gb": capacity,
                "pj_per_bit": of["pj_per_bit"],
                "edge_mm": edge,
                "area_mm2": area,
                "usd_per_gb": PRICES[name],
                "source": f"{of['source']}" + (f"; {product}" if product else ""),
                "checked": of["checked"],
            }
        )
    return pd.DataFrame(rows)


def networks(shared: Path) -> pd.DataFrame:
    table = pd.read_csv(shared / "catalog" / "network_tech.csv").set_index("name")
    rows = []
    for name, link in NETWORKS.items():
        of = table.loc[name]
        short = name.removeprefix("InfiniBand ")
        up = of["class"] == "scale-up"
        rows.append(
            {
                "name": short,
                "class": of["class"],
                "link": link,
                "year": int(of["year"]),
                "bandwidth_gbs": of["per_device_unidir_gbs"],
                "lanes": int(of["lanes"] * of["links_per_device"]) if up else int(of["lanes"]),
                "in_switch": int(up and short >= "NVLink4"),
                "pj_per_bit": of["pj_per_bit"],
                "usd_per_accelerator": PER_PORT[short],
                "source": of["source"],
                "checked": of["checked"],
            }
        )
    return pd.DataFrame(rows)


def prices(shared: Path) -> pd.DataFrame:
    table = pd.read_csv(shared / "catalog" / "accelerators.csv")
    table = table[table["list_price_usd"].notna()]
    kept = table[["name", "list_price_usd", "source"]].copy()
    kept["list_price_usd"] = kept["list_price_usd"].astype(int)
    return kept


TABLES = (nodes, memories, networks, prices)


def written(table: pd.DataFrame) -> str:
    return table.to_csv(index=False, lineterminator="\n")


def main() -> None:
    shared = Path(sys.argv[1])
    TECHNOLOGY.mkdir(parents=True, exist_ok=True)
    for make in TABLES:
        (TECHNOLOGY / f"{make.__name__}.csv").write_text(written(make(shared)), encoding="utf-8")


if __name__ == "__main__":
    main()
