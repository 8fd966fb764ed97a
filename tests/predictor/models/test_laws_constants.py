"""Constants of models by what publishers' files say."""

from __future__ import annotations

from predictor.models import choosing, huggingface, repeated
from predictor.models.chosen import NO_INDEX
from predictor.models.narrowing import NEGLIGIBLE


def test_layers_that_compress_keys_do_so_by_four_or_by_a_hundred_and_twenty_eight() -> None:
    """DeepSeek-V4's `compress_ratios`: none, 4 and 128 (configuration_deepseek_v4.py)."""
    kinds = (choosing.WINDOW, choosing.CHOOSING, choosing.POOLING)
    assert dict(zip((0, 4, 128), kinds, strict=True)) == choosing.RATIOS
    assert set(NO_INDEX.values()) == {0}


def test_products_run_again_wholly_or_every_other_time() -> None:
    assert (repeated.GONE, repeated.UNKNOWN) == (1.0, 1 / 2)
    assert NEGLIGIBLE == 1e-3, "a tenth of a percent"


def test_models_may_have_ten_times_the_layers_of_the_deepest() -> None:
    """DeepNet has 1,000 (Wang et al. 2022)."""
    assert huggingface.MOST_LAYERS == 10 * 1000
