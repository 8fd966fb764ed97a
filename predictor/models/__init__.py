"""What is computed: dimensions, parameter and FLOP counts, configuration files of others."""

from predictor.models.attended import attended_keys
from predictor.models.counts import experts_hit, keys_seen
from predictor.models.encoder import around_layers, encoder, tower_parameters
from predictor.models.feed_forward import widths
from predictor.models.flops import CONVENTIONS, hardware_flop_per_token, model_flop_per_token
from predictor.models.halves import parts, passing_share
from predictor.models.huggingface import from_config, is_config
from predictor.models.model import Model
from predictor.models.narrowing import narrowing
from predictor.models.normed import (
    has_closing_norms,
    has_head_norms,
    has_selected_norms,
    has_whole_norms,
)
from predictor.models.quantization import Quantization
from predictor.models.repeated import UNKNOWN, repeated_products
from predictor.models.served import has_whole_rules, has_wide_router
from predictor.models.streams import handed_width, sums_before
from predictor.models.tower import Tower
from predictor.models.windows import PATTERNS, understood

__all__ = [
    "CONVENTIONS",
    "PATTERNS",
    "UNKNOWN",
    "Model",
    "Quantization",
    "Tower",
    "around_layers",
    "attended_keys",
    "encoder",
    "experts_hit",
    "from_config",
    "handed_width",
    "hardware_flop_per_token",
    "has_closing_norms",
    "has_head_norms",
    "has_selected_norms",
    "has_whole_norms",
    "has_whole_rules",
    "has_wide_router",
    "is_config",
    "keys_seen",
    "model_flop_per_token",
    "narrowing",
    "parts",
    "passing_share",
    "repeated_products",
    "sums_before",
    "tower_parameters",
    "understood",
    "widths",
]
