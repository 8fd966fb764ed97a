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

from predictor.models.families import TYPES

ROOT = Path(__file__).resolve().parents[1]
TABLE = ROOT / "data" / "defaults" / "config_classes.json"

NO_SIZES = re.compile(
    "max_|n_positions|n_ctx|nextn|mtp|tie_word|rope|partial|act|name|model_type|architectures"
)
"""Keys that say nothing of a size, or nothing that weights must have (what may be predicted beside
the next token), and those that only say what a user may ask for."""

LATER = ("num_key_value_heads", "head_dim", "sliding_window", "use_sliding_window")
"""Keys that files of their own leave out, too; one without any of the others is no file."""


NO_HEADS = ("deepseek_v32", "glm_moe_dsa", "longcat_flash", "mamba2")
"""Types whose `head_dim` is no head's: a part of one, or a state space's."""


def read_keys() -> set[str]:
    """Every word that the readers of files name."""
    words: set[str] = set()
    for path in (ROOT / "predictor" / "models").glob("*.py"):
        words |= set(re.findall(r'"([A-Za-z_0-9]+)"', path.read_text()))
    return words


def main() -> None:
    """Write the table: by type, keys and values; of types that are within no other file, those
    alone that came later."""
    import transformers

    words, inner, table = read_keys(), set(), {}
    for name, made in transformers.CONFIG_MAPPING.items():
        own = getattr(made, "sub_configs", {}).get("text_config")
        if own is None:
            continue
        try:
            inner.add(made().text_config.model_type)
        except Exception as error:  # classes that need what is not installed
            print(f"{name}: left out ({type(error).__name__})")
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
