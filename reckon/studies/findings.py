"""CharLLM's thirteen findings as signs and ratios, and what reckon says of each.

What each must show was written down before, from the paper's abstract and notes on it; no absolute
number of the paper is public. 'reproduced': sign and ratio; 'sign': the sign, not the size; 'no':
neither. Nothing is fitted to them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from predictor import catalog
from predictor.hardware import Cluster
from predictor.power import package_gap
from predictor.records import dataclass
from predictor.timing import Calibration, collective_time
from predictor.work import Group
from reckon.verbs.training import predict_train

YES, SIGN, NO = "reproduced", "sign", "no"

DENSE = ("gpt3-175b", "llama3-70b")


@dataclass(frozen=True, slots=True)
class Ask:
    """What findings are asked of: the predicted matrix, a plan for single questions, a
    calibration."""

    table: pd.DataFrame
    system: str
    model: str
    plan: Mapping[str, Any]
    calibration: Calibration

    def one(self, **change: Any) -> Any:
        """The plan, changed, predicted."""
        plan = {**self.plan, **change}
        return predict_train(self.model, self.system, plan, self.calibration)

    def sweep(self, name: str) -> pd.DataFrame:
        """Rows of an experiment that fit; without those of sharded weights."""
        own = self.table[self.table["experiment"] == name]
        return own[own["fits"].eq(True)]

    def power(self, **change: Any) -> dict[str, Any]:
        """Power of the plan, changed."""
        told: dict[str, Any] = self.one(**change).power.to_dict()
        return told


Found = tuple[str, str, str]
"""Status, what reckon has, why it is not reproduced."""


def metrics(ask: Ask) -> Found:
    """Efficiency is samples/s per MJ of a step."""
    found = ask.one()
    told = found.power.to_dict()
    rate = float(found.request.plan.global_batch) / found.step_time.value
    own = rate / (told["energy_j"]["value"] / 1e6)
    same = bool(np.isclose(own, told["samples_per_s_per_mj"], rtol=1e-9))
    return (YES if same else NO), f"{own:.3g} samples/s per MJ", ""


def positions(ask: Ask) -> Found:
    """Rear over front 1.05 to 1.35 in air at about 650 W; 1 in liquid."""
    hot = ask.table[ask.table["power_w"].between(600, 700)]["rear_over_front"]
    liquid = ask.power(cooling="liquid")["temperature_c"]
    ratio = liquid[-1] / liquid[0]
    good = bool(len(hot)) and hot.min() >= 1.05 and hot.max() <= 1.35 and abs(ratio - 1) < 1e-6
    return (YES if good else NO), f"{hot.min():.2f} to {hot.max():.2f}; liquid {ratio:.2f}", ""


def dies(ask: Ask) -> Found:
    """Dies of an MI250 package differ by 3 to 12 K."""
    device = catalog.accelerator("MI250-128GB")
    cooled = catalog.chassis(Cluster(device.name, device, 4, ()))
    limit = np.asarray(device.power, float)
    resistance = catalog.power_constants(device).resistance["air"]
    gap = float(package_gap(limit, resistance, cooled))
    good = 3.0 <= gap <= 12.0
    return (YES if good else SIGN if gap > 0 else NO), f"{gap:.1f} K at its limit, in air", ""


def _layouts(own: pd.DataFrame) -> pd.Series:
    """Share of the time that a limit holds the clock, by layout of GPT-3 (recomputing or not)."""
    rows = own[(own["model"] == "gpt3-175b") & own["variant"].isin(["00000", "01000"])]
    return rows.groupby(["tp", "pp"])["held_share"].mean()


def deep_pipelines(ask: Ask) -> Found:
    """GPT-3 on H200: pp 16 and 32 are throttled for longer than tp 8 x pp 4."""
    held = _layouts(ask.sweep("optimization-sweep-h200"))
    longer = [held[deep] > held[8, 4] for deep in ((2, 16), (1, 32))]
    status = YES if all(longer) else SIGN if any(longer) else NO
    told = held.reset_index().to_dict("records")
    text = ", ".join(f"tp{one['tp']} pp{one['pp']} {one['held_share']:.0%}" for one in told)
    why = "one of the two alone: the bubble of more stages is cool"
    return status, f"{text} of the time", "" if status == YES else why


def micro_batches(ask: Ask) -> Found:
    """Past the best micro-batch: throughput flat, peaks and bursts up, more throttling."""
    own = ask.sweep("microbatch-sweep-h200")
    burst = peak = held = count = 0
    for _, rows in own.groupby(["model", "tp", "pp"]):
        ordered = rows.sort_values("micro_batch")
        best = int(ordered["samples_per_s"].to_numpy().argmax())
        if best + 1 >= len(ordered):
            continue
        at, last = ordered.iloc[best], ordered.iloc[-1]
        count += 1
        burst += last["burst"] > at["burst"]
        peak += last["peak_100ms_w"] > at["peak_100ms_w"]
        held += last["held_share"] > at["held_share"]
    text = f"of {count} families burstier {burst}, higher peak {peak}, longer throttled {held}"
    good = [one > 0.8 * count for one in (burst, peak, held)]
    why = "" if all(good) else "peaks stand at the limit already; bubbles grow, and cool"
    return (YES if all(good) else SIGN if good[0] else NO), text, why


def _pairs(own: pd.DataFrame, without: str, with_: str) -> pd.DataFrame:
    """Rows of two variants beside each other."""
    keys = ["model", "tp", "pp", "ep"]
    parts = [own[own["variant"] == one].set_index(keys) for one in (without, with_)]
    return parts[0].join(parts[1].add_suffix("_with"), how="inner")


def overlap(ask: Ask) -> Found:
    """Overlapping communication raises peak power and temperature."""
    own = ask.sweep("optimization-sweep-h200")
    both = pd.concat([_pairs(own, "00000", "10000"), _pairs(own, "01000", "11000")]).reset_index()
    moved = both[both["model"].isin(DENSE) & (both["tp"] > 1)]
    peak = (moved["peak_100ms_w_with"] > moved["peak_100ms_w"]).sum()
    hot = (moved["hottest_c_with"] > moved["hottest_c"]).sum()
    text = f"of {len(moved)} pairs with tensor parallelism peak {peak}, temperature {hot} higher"
    return (
        (YES if peak == hot == len(moved) > 0 else SIGN if hot > len(moved) / 2 else NO),
        text,
        "",
    )


def recomputation(ask: Ask) -> Found:
    """Less throttling for deep pipelines of GPT-3, more for Llama 3 70B."""
    own = ask.sweep("optimization-sweep-h200")
    both = _pairs(own, "00000", "01000").reset_index()
    deep = both[(both["model"] == "gpt3-175b") & (both["pp"] >= 16)]
    llama = both[both["model"] == "llama3-70b"]
    less = (deep["held_share_with"] < deep["held_share"]).all() and len(deep) > 0
    more = (llama["held_share_with"] > llama["held_share"]).all() and len(llama) > 0
    text = "; ".join(
        f"{row['model']} tp{row['tp']} pp{row['pp']} {row['held_share']:.1%} to "
        f"{row['held_share_with']:.1%}"
        for row in (*deep.to_dict("records"), *llama.to_dict("records"))
    )
    status = YES if less and more else SIGN if less or more else NO
    why = "one of the two signs alone: shares of time at the limit move by less than a point"
    return status, text, "" if status == YES else why


def chunks(ask: Ask) -> Found:
    """What tensor ranks send on alone is slower per byte than the whole tensor."""
    cluster = catalog.system(ask.system)
    model = catalog.model(ask.model)
    size = 2.0 * float(ask.plan["seq_len"]) * model.hidden
    rates = []
    for tp in (1, 8):
        between = Group(2.0, float(cluster.accelerators_per_node))
        time, _ = collective_time("p2p", size / tp, between, cluster, ask.calibration)
        rates.append(size / tp / float(time))
    text = f"{rates[1] / 1e9:.1f} against {rates[0] / 1e9:.1f} GB/s"
    good = rates[1] < rates[0]
    why = "fitted transfers between nodes are no slower per byte from some megabytes on"
    return (YES if good else NO), text, "" if good else why


def scales(ask: Ask) -> Found:
    """64 H100 are ahead with the best layouts; 32 H200 where layouts wait for the network."""
    own = ask.table[ask.table["experiment"].str.contains("sweep") & ask.table["fits"].eq(True)]
    keys = ["model", "tp", "pp", "ep", "fsdp"]
    best = own.groupby(["model", "gpu"])["samples_per_s"].max().unstack()
    layouts = own.groupby(["gpu", *keys])["samples_per_s"].max()
    out = bool((best["H100"] > best["H200"]).all())
    beaten = []
    for model in best.index:
        slow = layouts["H100"].xs(model, level="model")
        beaten += [model] * int((slow < best.at[model, "H200"]).sum())
    counts = pd.Series(beaten).value_counts().to_dict()
    text = (
        f"best of 64 H100 ahead in {int((best['H100'] > best['H200']).sum())} of {len(best)}; "
        + (
            "the best of 32 H200 beats layouts of 64 H100: "
            + ", ".join(f"{model} {count}" for model, count in counts.items())
        )
    )
    return (YES if out and beaten else SIGN if out or beaten else NO), text, ""


def adapters(ask: Ask) -> Found:
    """LoRA: five to thirty times the efficiency, at lower power."""
    lora = ask.sweep("lora").groupby("model")
    full = ask.sweep("optimization-sweep-h200").groupby("model")
    ratio = lora["samples_per_s_per_mj"].max() / full["samples_per_s_per_mj"].max()
    cooler = lora["power_w"].mean() < full["power_w"].mean()
    good = bool(ratio.between(5, 30).all() and cooler.all())
    text = ", ".join(f"{model} {value:.1f}x" for model, value in ratio.items())
    why = "only weight gradients and optimizer go: a third of the work, squared; the rest may be " \
          "short samples of its data set, which the files do not state"  # fmt: skip
    return (YES if good else SIGN if (ratio > 1).all() else NO), text, "" if good else why


def brake(ask: Ask) -> Found:
    """One accelerator at 30 % of its clock holds all back: more than three times as slow."""
    top = catalog.power_constants(catalog.system(ask.system).accelerator).clock
    ratio = ask.one(clock=0.3 * float(top) / 1e6).step_time.value / ask.one().step_time.value
    why = "a third of the step waits for links, which keep their rate; a brake may go lower"
    return (YES if ratio > 3 else SIGN if ratio > 1.5 else NO), f"{ratio:.1f}x", \
        "" if ratio > 3 else why  # fmt: skip


def asymmetric(ask: Ask) -> Found:
    """Less work for hot stages gains 1 to 8 %."""
    found = ask.one(tp=4, pp=8, split="heat")  # stages are in front and behind in turn
    gain = found.dealt.cool / found.step_time.value - 1.0
    share = ask.power()["slowest_position_share"]
    status = YES if 0.01 <= gain <= 0.08 else SIGN if share > 0 else NO
    layers = "/".join(str(one.layers) for one in found.dealt.shares)
    why = "a layer is more of a stage than hot positions cost; the clock falls 0.1 % a kelvin"
    text = f"layers {layers} gain {gain:.2%} of at most {share:.2%}"
    return status, text, "" if status == YES else why


def seasons(ask: Ask) -> Found:
    """Throughput falls by 0.05 to 0.3 % for each kelvin of the inlet."""
    times = [ask.one(inlet=inlet).step_time.value for inlet in (25, 40)]
    slope = (times[1] / times[0] - 1) / 15
    status = YES if 0.0005 <= slope <= 0.003 else SIGN if slope > 0 else NO
    why = "only phases at the limit feel it, and links and bubbles do not"
    return status, f"{slope:.3%} per K", "" if status == YES else why


FINDINGS: dict[str, tuple[str, Callable[[Ask], Found]]] = {
    "c1": ("efficiency as samples/s per MJ", metrics),
    "c2": ("rear positions are hotter", positions),
    "c3": ("dies of a package differ", dies),
    "c4": ("deep pipelines are throttled more", deep_pipelines),
    "c5": ("large micro-batches burst", micro_batches),
    "c6": ("overlap heats", overlap),
    "c7": ("recomputation: two signs", recomputation),
    "c8": ("chunked transfers under-use links", chunks),
    "c9": ("scale-up against scale-out", scales),
    "c10": ("LoRA is efficient", adapters),
    "c11": ("a braked accelerator holds all back", brake),
    "c12": ("asymmetric pipelines gain", asymmetric),
    "c13": ("warm air costs throughput", seasons),
}


def findings(ask: Ask) -> pd.DataFrame:
    """One row per finding."""
    rows = []
    for identity, (name, judge) in FINDINGS.items():
        status, here, why = judge(ask)
        stated = " ".join((judge.__doc__ or "").split())
        rows.append({"id": identity, "finding": name, "must show": stated, "status": status,
                     "reckon": here, "why not": why})  # fmt: skip
    return pd.DataFrame(rows)
