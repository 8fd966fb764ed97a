"""What configuration classes of transformers take for sizes that a file leaves out.

    python tools/config_classes.py     # with transformers installed; writes the table

`save_pretrained` leaves out of a language model within another file (LLaVA's, Idefics', Pixtral's)
whatever is its class's default, and old files lack keys that came later.
"""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

from predictor.models.families import TYPES
from predictor.models.tower import SIZES

ROOT = Path(__file__).resolve().parents[1]
TABLE = ROOT / "data" / "defaults" / "config_classes.json"

NO_SIZES = re.compile(
    "max_|n_positions|n_ctx|nextn|mtp|tie_word|rope|partial|act|name|model_type|architectures"
)
"""Keys that say nothing of a size, or nothing that weights must have (what may be predicted beside
the next token), and those that only say what a user may ask for."""

LATER = ("num_key_value_heads", "head_dim", "sliding_window", "use_sliding_window")
"""Keys that files of their own leave out, too; one without any of the others is no file."""


SEEN = {"patch_size", "image_size", "spatial_merge_size", "temporal_patch_size", "mlp_ratio",
        "window_size", "out_hidden_size", "num_mel_bins", "max_source_positions"}  # fmt: skip
"""Keys of towers beside their sizes."""

TOWERS = ("pixtral", "clip_vision_model", "siglip_vision_model")
"""Types of towers that files of other models name (LLaVA's, Gemma's)."""

NO_HEADS = ("deepseek_v32", "glm_moe_dsa", "longcat_flash", "mamba2")
"""Types whose `head_dim` is no head's: a part of one, or a state space's."""


def read_keys() -> set[str]:
    """Every word that the readers of files name."""
    words: set[str] = set()
    for path in (ROOT / "predictor" / "models").glob("*.py"):
        words |= set(re.findall(r'"([A-Za-z_0-9]+)"', path.read_text()))
    return words


def language(made: Any) -> str:
    """Type of the language model within a class's own file; empty where it has none."""
    if "text_config" not in getattr(made, "sub_configs", {}):
        return ""
    try:
        return str(made().text_config.model_type)
    except Exception as error:  # classes that need what is not installed
        print(f"{made.model_type}: left out ({type(error).__name__})")
        return ""


def of_towers(types: Any) -> dict[str, dict[str, Any]]:
    """What classes of towers take, by their type, or by that of the whole and the key of the part
    where the part's type is never written down."""
    keys = {key for several in SIZES.values() for key in several} | SEEN
    table: dict[str, dict[str, Any]] = {}
    for whole, made in types.items():
        if not {whole, f"{whole}_text", language(made)} & set(TYPES):
            continue
        for part in ("vision_config", "audio_config"):
            own = getattr(made, "sub_configs", {}).get(part)
            if not dataclasses.is_dataclass(own):
                continue
            stated = {
                field.name: field.default
                for field in dataclasses.fields(own)
                if field.name in keys and type(field.default) in (int, float)
            }
            table |= {f"{whole}.{part}": stated} if len(stated) > 2 else {}
    for name in TOWERS:
        made = types[name]
        table[name] = {
            field.name: field.default
            for field in dataclasses.fields(made)
            if field.name in keys and type(field.default) in (int, float)
        }
    return table


def main() -> None:
    """Write the table: by type, keys and values; of types that are within no other file, those
    alone that came later."""
    import transformers

    words, table = read_keys(), of_towers(transformers.CONFIG_MAPPING)
    inner = {language(made) for made in transformers.CONFIG_MAPPING.values()}
    for name in sorted(set(TYPES) & set(transformers.CONFIG_MAPPING)):
        stated = {
            field.name: field.default
            for field in dataclasses.fields(transformers.CONFIG_MAPPING[name])
            if field.name in words
            and type(field.default) in (int, bool)
            and not NO_SIZES.search(field.name)
            and (name, field.name) != ("dots1", "sliding_window")  # of layers that there are not
            and (name in inner or field.name in LATER)
        }
        if "kv_lora_rank" in stated or name in NO_HEADS:  # whose heads have parts of their own
            stated.pop("head_dim", None)
        table |= {name: stated} if stated else {}
    lines = [f"{json.dumps(name)}: {json.dumps(own)}" for name, own in table.items()]
    source = (
        f"transformers {transformers.__version__}, configuration_*.py (tools/config_classes.py)"
    )
    TABLE.write_text("{" + ",\n".join([f'"source": {json.dumps(source)}', *lines]) + "}\n")


if __name__ == "__main__":
    main()
