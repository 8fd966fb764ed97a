"""Files say units in their keys: every number that is read arrives in SI. What they leave out is
not there, and what a machine costs is counted by hand."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from predictor import catalog
from predictor.catalog import technology as tech
from predictor.catalog.artifacts import load
from predictor.catalog.clusters import scale_up
from predictor.catalog.cost import catalog_cost, cost_assumptions, die_yield, machine_cost
from predictor.catalog.engines import engines_mapping, from_mapping
from predictor.catalog.forms import parse
from predictor.catalog.specs import AcceleratorSpec, ModelSpec, SystemSpec, TierSpec
from predictor.catalog.systems import alone, default_system, resize_node
from predictor.errors import InputError
from predictor.hardware.budget import perimeter, tiers
from predictor.models.huggingface import from_config
from predictor.models.model import Model
from predictor.timing.engines import EngineParameters, ServingParameters
from predictor.units import SUFFIXES, split_unit, to_si


@pytest.fixture
def manifest(tmp_path: Path) -> tuple[Path, dict]:
    folder = Path(shutil.copytree(catalog.calibration_dir("kernels-only"), tmp_path / "own"))
    return folder, json.loads((folder / "calibration.json").read_text())


def test_every_number_of_a_calibration_is_read_in_si(manifest: tuple[Path, dict]) -> None:
    folder, content = manifest
    link = {
        "op": "allreduce", "link": "wire", "base_us": 7.0, "hop_us": 3.0, "root": 2e-5,
        "log2_sizes": [1, 3], "efficiencies": [0.5, 0.75], "sigma": 0.125, "latency_sigma": 0.25,
        "points": 11, "pedigree": "transferred", "clock_mhz": 1500.0, "sharing": 0.375,
        "curves": [{"members": 4, "log_ideal": [-9.0, -8.0], "log_factor": [0.5, 0.25]}],
    }  # fmt: skip
    bare = {key: link[key] for key in list(link)[:8] if key != "link"}
    content["links"] = [link, {**bare, "link": "bare", "points": 3}]
    content["throttles"] = {
        "arch": {"start": 0.3, "gamma": 0.2, "fade_us": 1500.0, "watts_per_tflops": 0.5}
    }
    content["run"] |= {
        "host_per_kernel_us": 5.0, "context_gb": 1.5, "contention": 1.25, "fragmentation": 0.07,
        "memory_sigma": 0.11, "sigma": 0.12, "sigma_moe": 0.13, "sigma_plan": 0.014,
        "sigma_unnamed": 0.05, "sigma_untimed": 0.16,
        "spreads": {"own": [0.05, 0.06]},
    }  # fmt: skip
    content["interval"] = {"level": 0.9, "q": 1.645}
    content["transfer_sigma"] = {"gemm": 0.17}
    first = content["kernels"][0]
    first["latency_us"], first["lags_us"], first["year"] = 4.0, {"x": 2.0}, None
    (folder / "calibration.json").write_text(json.dumps(content))
    found = load(folder)
    one, other = found.links["allreduce", "wire"], found.links["allreduce", "bare"]
    assert (one.base, one.hop, one.clock) == pytest.approx((7e-6, 3e-6, 1.5e9))
    assert (one.root, one.sharing, one.sigma, one.latency_sigma) == (2e-5, 0.375, 0.125, 0.25)
    assert (one.log2_sizes, one.efficiencies) == ((1, 3), (0.5, 0.75))
    assert (one.points, one.pedigree) == (11, "transferred")
    (curve,) = one.curves
    assert (curve.members, curve.log_ideal, curve.log_factor) == (4, (-9, -8), (0.5, 0.25))
    assert (other.sharing, other.curves, other.pedigree) == (0.0, (), "interpolated")
    assert np.isnan([other.clock, other.latency_sigma]).all()
    capped = found.throttles["arch"]
    assert (capped.start, capped.gamma) == (0.3, 0.2)
    assert (capped.fade, capped.watts) == pytest.approx((1.5e-3, 0.5e-12))
    run = found.run
    assert (run.host_per_kernel, run.context) == pytest.approx((5e-6, 1.5e9))
    assert (run.contention, run.fragmentation, run.memory_sigma) == (1.25, 0.07, 0.11)
    assert (run.sigma, run.sigma_moe, run.sigma_plan) == (0.12, 0.13, 0.014)
    assert (run.spread(False), run.spread(True)) == (0.12, 0.13)
    assert run.spread(False, named=False) == pytest.approx(0.13)  # 5, 12 and 13
    assert run.spread(False, untimed=True) == pytest.approx(0.2)  # 12, 16 and 20
    assert run.spread(False, "", False, True) == pytest.approx((0.13**2 + 0.16**2) ** 0.5)
    assert (run.spread(False, "own"), run.spread(True, "own")) == (0.05, 0.06)
    assert (found.interval_level, found.interval_q) == (0.9, 1.645)
    assert found.transfer_sigma == {"gemm": 0.17}
    kernel = found.kernels[first["kind"], first["dtype"], first["accelerator"]]
    assert kernel.latency == pytest.approx(4e-6)
    assert kernel.lags == pytest.approx({"x": 2e-6})
    assert np.isnan(kernel.year)


def test_models_of_kernels_lie_one_behind_the_other(manifest: tuple[Path, dict]) -> None:
    """Box, mean and scale, weights and biases, in the order of the file; nothing is read twice and
    nothing is left out."""
    folder, content = manifest
    arrays, keys = (np.load(folder / name) for name in ("arrays.npy", "shapes.npy"))
    known = load(folder).kernels
    entries = sorted(content["kernels"], key=lambda e: e["offset"])
    ends = [e["offset"] for e in entries[1:]] + [arrays.size]
    for entry, end in zip(entries, ends, strict=True):
        own = known[entry["kind"], entry["dtype"], entry["accelerator"]]
        parts = [own.low, own.high, own.mean, own.scale]
        for weight, bias in zip(own.weights, own.biases, strict=True):
            parts += [weight, bias]
        parts += [own.tilt, *own.stacks.values()]
        if own.near is not None:
            parts += [own.near.centres, own.near.pull, own.near.side]
        flat = np.concatenate([np.ravel(part) for part in parts])
        assert np.array_equal(flat, arrays[entry["offset"] : end])
        first, count = entry["keys"]
        assert np.array_equal(own.keys, keys[first : first + count])


def test_engines_are_written_as_they_are_read() -> None:
    content = {
        "engines": {"a": {"decode": 1.5, "gap_us": 2.0, "step_us": 300.0, "burst": 1e4}},
        "sigma": {"ttft": 0.2}, "points": ["p"],
    }  # fmt: skip
    own = from_mapping(content).engines["a"]
    assert (own.decode, own.burst) == (1.5, 1e4)
    assert (own.gap, own.step) == pytest.approx((2e-6, 3e-4))
    assert own.request == EngineParameters().request
    written = engines_mapping(ServingParameters({"a": own}, {"ttft": 0.2}, frozenset({"p"})))
    assert written["engines"]["a"]["step_us"] == pytest.approx(300.0)
    again = from_mapping(written).engines["a"]
    for one in fields(EngineParameters):
        assert getattr(again, one.name) == pytest.approx(getattr(own, one.name))


def test_units_are_those_of_the_si() -> None:
    assert split_unit("memory_gb") == ("memory", 1e9)
    assert split_unit("memory_gib") == ("memory", 2**30)
    assert split_unit("link_gbps") == ("link", 1e9 / 8)
    assert split_unit("peak_tflops") == split_unit("peak_tops") == ("peak", 1e12)
    assert split_unit("clock_mhz") == ("clock", 1e6)
    assert split_unit("wait_us") == ("wait", 1e-6)
    assert split_unit("wait_ms") == ("wait", 1e-3)
    assert split_unit("cache_mb") == ("cache", 1e6)
    assert split_unit("message_kb") == ("message", 1e3)
    assert split_unit("name") == ("name", 1.0)
    assert SUFFIXES["_w"] == SUFFIXES["_s"] == 1.0
    assert to_si({"a_gb": 2, "b_gb": True, "c_gb": "x", "d": 3}) == {
        "a": 2e9, "b": True, "c": "x", "d": 3,
    }  # fmt: skip


def test_what_a_model_does_not_state_is_not_there() -> None:
    """No experts, no latents, no windows; every layer alike; a convolution that sees four tokens
    where there is one (Yang et al. 2024), and chunks of 128 (Nemotron-H)."""
    needed = {"name": "m", "layers": 2, "hidden": 64, "heads": 4, "vocab": 100}
    spec = parse(ModelSpec, needed, "test")
    other = {"moe_every_n": 1, "delta_conv": 4, "mamba_chunk": 128}
    for name, (_, default) in ModelSpec.fields().items():
        if name in needed or default is None:
            continue
        value = getattr(spec, name)
        if isinstance(value, int) and not isinstance(value, bool):
            assert value == other.get(name, 0), name
    own = {f.name: f.default for f in fields(Model)}
    for name, value in spec.to_dict().items():
        if name in own and name not in needed and value is not None:
            assert value == own[name], name


def test_what_a_machine_does_not_state() -> None:
    """A network is not oversubscribed unless it says so; an accelerator's host adds nothing."""
    tier = parse(TierSpec, {"link": "wire", "bandwidth_gbs": 50}, "test")
    assert (tier.oversubscription, tier.in_switch, tier.size) == (1.0, False, None)
    system = {"name": "s", "accelerator": "H100-SXM5-80GB", "accelerators_per_node": 8,
              "tiers": [{"link": "wire", "bandwidth_gbs": 50}]}  # fmt: skip
    made = catalog.system(system)
    assert made.tiers[0].rate == 50e9
    assert np.isnan(made.tiers[0].latency)
    facts = {"name": "x", "bf16_tflops": 100, "memory_gib": 16, "memory_bandwidth_gbs": 900,
             "sm_count": 50, "clock_mhz": 1000}  # fmt: skip
    own = catalog.accelerator(facts)
    assert own.memory == 16 * 2**30
    assert own.peak == {"bf16": 1e14}
    # 32 bytes per clock and processor, but no less than the memory's.
    assert own.l2_bandwidth == pytest.approx(32 * 50 * 1e9)
    assert catalog.accelerator({**facts, "sm_count": 1}).l2_bandwidth == 900e9
    assert (own.dispatch, own.split_dispatch, own.doubt) == (0, 0, 0)
    assert 30e6 <= own.l2 <= 50e6, "the order of an A100's"
    bare = catalog.accelerator(
        {k: v for k, v in facts.items() if k not in ("sm_count", "clock_mhz")}
    )
    assert 108 <= bare.sms <= 152
    assert 1.4e9 <= bare.clock <= 2e9
    with pytest.raises(InputError, match="either memory_gb"):
        parse(AcceleratorSpec, {**facts, "memory_gb": 16}, "test")


def test_a_misspelt_key_explains_a_missing_one() -> None:
    """It is told first, whatever else is wrong, and with what was meant."""
    wrong = {"name": "m", "layers": 2, "hiden": 64, "heads": 4}
    with pytest.raises(InputError, match="unknown key 'hiden'; did you mean 'hidden'"):
        parse(ModelSpec, wrong, "test")
    with pytest.raises(InputError, match="key 'vocab' is missing"):
        parse(ModelSpec, {"name": "m", "layers": 2, "hidden": 64, "heads": 4}, "test")
    tier = {"link": "wire", "bandwidth_gbs": 50, "latency": 3}
    system = {"name": "s", "accelerator": "x", "accelerators_per_node": 8, "tiers": [tier]}
    with pytest.raises(InputError, match="did you mean 'latency_us'"):
        parse(SystemSpec, system, "test")


def test_falcon_7b_has_its_published_size() -> None:
    """6.92 billion (tiiuae/falcon-7b), of a feed-forward block four times as wide as the model."""
    config = {"model_type": "falcon", "hidden_size": 4544, "num_attention_heads": 71,
              "num_hidden_layers": 32, "vocab_size": 65024, "multi_query": True}  # fmt: skip
    assert from_config(config, "test")["ffn_hidden"] == 4 * 4544
    assert catalog.model(config).parameters == pytest.approx(6.9217e9, rel=1e-3)


def test_nodes_that_no_catalog_has() -> None:
    """PCIe inside, a 100 Gb/s port for all of a node outside."""
    one = catalog.accelerator({"name": "x", "bf16_tflops": 100, "memory_gb": 16,
                               "memory_bandwidth_gbs": 900})  # fmt: skip
    node = alone(one, 4)
    assert [(t.size, t.rate) for t in node.tiers] == [(4, 32e9), (math.inf, 100e9 / 8 / 4)]
    assert default_system(one, None).accelerators_per_node == 8
    host = catalog.accelerator({"name": "x", "bf16_tflops": 100, "memory_gb": 16,
                                "memory_bandwidth_gbs": 900, "host_link_gbs": 64})  # fmt: skip
    assert alone(host).tiers[0].rate == 64e9
    known = catalog.system("dgx-h100")
    half = resize_node(known, 4)
    assert (half.accelerators_per_node, half.tiers[0].size) == (4, 4)
    assert half.host_memory == pytest.approx(known.host_memory / 2, nan_ok=True)
    assert scale_up(known) == 8
    assert scale_up(catalog.system("GB200-NVL72")) == 72


H100 = {"node": "N5", "area_mm2": 814, "memory": "HBM3", "stacks": 5, "power_w": 700}


def test_energy_is_paid_by_the_kilowatt_hour() -> None:
    """A thousand watts rated, 0.8 of them drawn; the host takes a fifth of the node, cooling a
    fifth more: 1.2 kW for three years of 8,766 hours at 10 cents."""
    known = cost_assumptions(
        {"draw": 0.8, "host_power_share": 0.2, "pue": 1.2, "years": 3, "usd_per_kwh": 0.1}
    )
    found = catalog_cost("V100-SXM2-16GB", 1000.0, 500.0, known)
    assert found is not None
    assert float(found.watts) == pytest.approx(1000 * 0.8 / 0.8 * 1.2)
    assert float(found.energy) == pytest.approx(1.2 * 3 * 8766 * 0.1)
    capital = 8000 + 500 + known["host_usd"]
    assert float(found.capital) == pytest.approx(capital)
    seconds = 3 * 365.25 * 24 * 3600
    assert float(found.per_second) == pytest.approx((capital + 1.2 * 3 * 8766 * 0.1) / seconds)
    assert catalog_cost("no such device", 1.0, 1.0) is None


def test_a_machine_costs_what_its_parts_do() -> None:
    """Dies by their yield, stacks by their capacity, the package by its area; all of it once more
    for packages that are lost; the margin on top is three quarters of the price."""
    made = tech.machine(tech.budget(H100))
    known, given = cost_assumptions(), made.budget
    found = machine_cost(made)
    parts = {name: float(value) for name, value in found.parts.items()}
    spared = 0.8 * float(made.areas["processors"])
    good = float(die_yield(814e-6 - spared, given.node.defects, 3.0))
    whole = math.pi * 147**2 / 814 - 2 * math.pi * 147 / math.sqrt(2 * 814)
    assert parts["dies"] == pytest.approx(given.node.wafer / (math.floor(whole) * good))
    assert parts["package"] == pytest.approx(0.35 * (814 + 5 * 110))
    gib = float(made.accelerator.memory) / 2**30
    price = float(tech.read_table("memories")["HBM3"]["usd_per_gb"])
    assert parts["memory"] == pytest.approx(gib * price)
    assert parts["board and cooling"] == pytest.approx(700 + 0.5 * float(made.power))
    packed = parts["dies"] + parts["package"] + parts["memory"]
    assert parts["packages lost"] == pytest.approx(packed / 0.95 - packed)
    built = packed / 0.95 + parts["board and cooling"]
    assert built + parts["margin"] == pytest.approx(built / (1 - 0.75))
    assert parts["host"] == known["host_usd"]
    watts = float(made.power) * 0.88 / 0.75 * 1.15
    assert float(found.watts) == pytest.approx(watts)


def test_what_a_budget_pays_for_by_hand() -> None:
    """Areas add up to the dies, watts to the power; processors fill what is left."""
    known, given = tech.assumptions(), tech.budget(H100)
    made = tech.machine(given)
    areas = {name: float(value) * 1e6 for name, value in made.areas.items()}
    assert sum(areas.values()) == pytest.approx(814)
    lanes = given.scale_up.lanes + given.scale_out.lanes
    assert areas["links"] == pytest.approx(lanes * known["lane_mm2"])
    assert areas["cache"] == pytest.approx(814 * known["l2_share"])
    assert areas["other"] == pytest.approx(814 * known["other_share"])
    assert areas["memory interfaces"] == pytest.approx(5 * given.memory.area * 1e6)
    width = given.processor.width
    each = known["processor_mm2"] + known["unit_mm2_per_kflop"] * width / 1000
    count = known["enabled_share"] * areas["processors"] / (each / given.node.density)
    own = made.accelerator
    assert float(own.sms) == math.floor(count)
    energy = known["pj_per_flop"] * 1e-12 * given.node.power
    energy *= (width / 2048) ** -known["width_exponent"]
    design = known["clock_ghz"] * 1e9 * given.node.speed
    assert float(made.design_clock) == pytest.approx(design)
    rates = 2 * (given.scale_up.bandwidth * given.scale_up.energy
                 + given.scale_out.bandwidth * given.scale_out.energy)  # fmt: skip
    assert float(made.watts["links"]) == pytest.approx(rates)
    memory = 5 * given.memory.bandwidth * given.memory.energy
    assert float(made.watts["memory"]) == pytest.approx(memory)
    full = energy * float(own.sms) * width * design
    drawn = min(full, 700 - memory - rates)
    assert float(made.watts["processors"]) == pytest.approx(drawn)
    slow = (drawn / full) ** (1 / known["clock_exponent"])
    assert float(made.clock) == pytest.approx(design * slow)
    assert str(made.binds) == ("power" if slow < 1 else "area")
    half = float(own.sms) * width * float(made.clock)
    assert float(own.peak["bf16"]) == pytest.approx(half * given.processor.rates["bf16"])
    assert float(own.peak["fp32"]) == pytest.approx(half / width * given.processor.vector)
    assert float(own.bandwidth) == pytest.approx(5 * given.memory.bandwidth)
    assert float(own.memory) == pytest.approx(5 * given.memory.capacity)
    sram = 814e-6 * known["l2_share"] * given.node.sram * known["sram_array_efficiency"]
    assert float(own.l2) == pytest.approx(sram)
    assert float(own.power) == pytest.approx(memory + rates + drawn)


def test_two_dies_side_by_side_have_six_free_edges() -> None:
    assert float(perimeter(8e-4, 2.0)) == pytest.approx(6 * math.sqrt(4e-4))
    assert float(perimeter(4e-4, 1.0)) == pytest.approx(4 * 0.02)
    joined = tech.machine(tech.budget({**H100, "area_mm2": 1600, "dies": 2}))
    lanes = joined.budget.scale_up.lanes + joined.budget.scale_out.lanes
    known = tech.assumptions()
    links = lanes * known["lane_mm2"] + known["joint_mm2"]
    assert float(joined.areas["links"]) * 1e6 == pytest.approx(links)


def test_units_of_a_technology_file() -> None:
    """Millimetres, pJ per bit, GB/s and binary gigabytes."""
    row, own = tech.read_table("memories")["HBM3"], tech.memory_technology("hbm3")
    assert own.bandwidth == pytest.approx(float(row["bandwidth_gbs"]) * 1e9)
    assert own.capacity == float(row["capacity_gb"]) * 2**30
    assert own.energy == pytest.approx(float(row["pj_per_bit"]) * 1e-12 * 8)
    assert own.edge == pytest.approx(float(row["edge_mm"]) / 1e3)
    assert own.area == pytest.approx(float(row["area_mm2"]) / 1e6)
    node, made = tech.read_table("nodes")["N5"], tech.node("n5")
    assert made.sram == pytest.approx(float(node["sram_mib_mm2"]) * 2**20 / 8 * 1e6)
    assert made.defects == pytest.approx(float(node["defects_per_cm2"]) * 1e4)
    stated = {"stack_gb": 20, "perimeter_mm": 130, "scale_up_gbs": 300, "scale_out_gbs": 25}
    stated |= {"memory_bandwidth_gbs": 2500, "oversubscription": 2, "domain": 32, "l2_share": 0.05}
    given = tech.budget({**H100, **stated})
    assert given.device_memory == 20 * 2**30
    assert given.edge == pytest.approx(0.13)
    assert (given.area, given.l2_share) == pytest.approx((814e-6, 0.05))
    assert (given.scale_up.bandwidth, given.scale_out.bandwidth) == (300e9, 25e9)
    assert given.memory.bandwidth == pytest.approx(500e9)
    network = tiers(given)
    assert [t.size for t in network] == [8, 32, math.inf]
    assert [float(t.rate) for t in network] == pytest.approx([300e9, 300e9, 12.5e9])
    assert [t.size for t in tiers(tech.budget({**H100, "domain": 4}))] == [4, math.inf]
