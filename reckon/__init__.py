"""How fast will this language model train or serve on these accelerators, laid out so; will it fit;
what holds it back; and how sure are we?

    import reckon
    result = reckon.predict_train("llama3-70b", "dgx-h100", {"gpus": 1024, "tp": 8, "pp": 4,
                                  "global_batch": 1024, "seq_len": 8192})
    result.step_time.value, result.to_dict(), result.to_frame()
    served = reckon.predict_infer("llama3-70b", "dgx-h200", {"tp": 8, "batch": 64,
                                  "input_len": 1024, "output_len": 256})
    served.ttft.value, served.tpot.value, served.output_tokens_per_s.value

Each argument is a name, a path, a mapping or an object. Bad input raises `reckon.InputError`.
"""

from __future__ import annotations

from typing import Any

from predictor.errors import InputError

__version__ = "0.1.0"

_LAZY = {
    "predict_train": "reckon.verbs.training",
    "predict_infer": "reckon.verbs.serving",
    "search": "reckon.verbs.plans",
    "search_infer": "reckon.verbs.fleets",
    "Prediction": "reckon.verbs.results",
    "ServingResult": "reckon.verbs.served",
    "sweep": "reckon.sweeping",
    "validate": "reckon.verbs.validating",
    "calibrate": "reckon.verbs.calibrating",
    "adapt": "reckon.verbs.adapting",
    "suggest": "reckon.verbs.adapting",
    "check": "reckon.verbs.judging",
    "compare": "reckon.verbs.contrasting",
    "watch": "reckon.verbs.watching",
    "explain": "reckon.verbs.tracing",
    "read_runs": "reckon.verbs.runs",
    "profile": "reckon.verbs.profiling",
}

__all__ = ["InputError", "__version__", *_LAZY]


def __dir__() -> list[str]:
    """Verbs that were not used yet among them, for notebooks that complete names."""
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    """Import a verb when it is first used: a prediction needs neither pandas nor torch."""
    if name not in _LAZY:
        raise AttributeError(f"module 'reckon' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(_LAZY[name]), name)
    globals()[name] = value
    return value
