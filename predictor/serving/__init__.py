"""Serving: completion of a request, passes, latencies, the event engine, fleets read apart."""

from predictor.serving.activities import ServingActivity, serving_activity
from predictor.serving.apart import (
    enough_accelerators,
    held_by_worker,
    holding,
    sending_time,
    worker,
)
from predictor.serving.apart_capacities import Apart, read_apart
from predictor.serving.apart_events import serve_apart
from predictor.serving.apart_loads import apart_loads
from predictor.serving.apart_power import PoweredApart
from predictor.serving.around import Around
from predictor.serving.capacities import (
    Capacity,
    LoadPower,
    Promise,
    capacity,
)
from predictor.serving.checked import counts, served_instead, unchecked
from predictor.serving.clients import VARIATION, Client, arrivals, poisson, spread_lengths
from predictor.serving.completion import READ, ServingRequest, complete_serving, read_by
from predictor.serving.conserved import conserved
from predictor.serving.doubts import Mixture, mixture
from predictor.serving.events import Served, serve
from predictor.serving.fleet import FleetServed, FleetSettings, serve_fleet
from predictor.serving.latency import Latencies, latencies
from predictor.serving.parts import Line, Pass
from predictor.serving.pass_times import DeviceTime, Work
from predictor.serving.passes import EXACT_STEPS, STEPS_LISTED
from predictor.serving.power import (
    held_engines,
    limited,
    serving_power,
    serving_watts,
    slower_engines,
)
from predictor.serving.prediction import BREAKDOWN, InferencePrediction, predict_inference
from predictor.serving.rates import AtRate, Rates, predict_rate
from predictor.serving.reading import read_table
from predictor.serving.simulation import followed, one_by_one, with_fleet
from predictor.serving.spreads import LATE, load_shares, operator_spreads, spread_of, spreads
from predictor.serving.tables import pass_table
from predictor.serving.taxes import decoding_taxes
from predictor.serving.whole_passes import decode_pass, prompt_pass

__all__ = [
    "BREAKDOWN",
    "EXACT_STEPS",
    "LATE",
    "READ",
    "STEPS_LISTED",
    "VARIATION",
    "Apart",
    "Around",
    "AtRate",
    "Capacity",
    "Client",
    "DeviceTime",
    "FleetServed",
    "FleetSettings",
    "InferencePrediction",
    "Latencies",
    "Line",
    "LoadPower",
    "Mixture",
    "Pass",
    "PoweredApart",
    "Promise",
    "Rates",
    "Served",
    "ServingActivity",
    "ServingRequest",
    "Work",
    "apart_loads",
    "arrivals",
    "capacity",
    "complete_serving",
    "conserved",
    "counts",
    "decode_pass",
    "decoding_taxes",
    "enough_accelerators",
    "followed",
    "held_by_worker",
    "held_engines",
    "holding",
    "latencies",
    "limited",
    "load_shares",
    "mixture",
    "one_by_one",
    "operator_spreads",
    "pass_table",
    "poisson",
    "predict_inference",
    "predict_rate",
    "prompt_pass",
    "read_apart",
    "read_by",
    "read_table",
    "sending_time",
    "serve",
    "serve_apart",
    "serve_fleet",
    "served_instead",
    "serving_activity",
    "serving_power",
    "serving_watts",
    "slower_engines",
    "spread_lengths",
    "spread_of",
    "spreads",
    "unchecked",
    "with_fleet",
    "worker",
]
