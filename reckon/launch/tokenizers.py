"""The size of the vocabulary that a launch line means by the tokenizer it names: read from the file
where that is there, else by the tokenizer's kind, or the model that the name is of.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from predictor import catalog
from predictor.errors import InputError
from predictor.files import is_file
from reckon.launch.table import Flags

TYPES = {
    "gpt2bpetokenizer": 50257,
    "llama2tokenizer": 32000,
    "bertwordpiecelowercase": 30522,
    "bertwordpiececase": 28996,
    "tiktokenizer": 131072,
}
"""Vocabularies that a tokenizer's kind decides (megatron/training/tokenizer/tokenizer.py, core
0.13; that of TikTokenizer is `DEFAULT_TIKTOKEN_MAX_VOCAB`)."""

FILES = {"nemotron_2_256k.model": 256000, "nemotron_2_128k.model": 128000,
         "20B_tokenizer.json": 50277}  # fmt: skip
"""Vocabularies of files that public configurations name, by the size in their name."""

SIZED = re.compile(r"[-_.](?:(\d{2,3})k\b|([1-9]\d{4,5})(?!\d))", re.I)
"""Pieces, or thousands of them, in the name of a tokenizer's file or folder."""

GPT2 = re.compile(r"(gpt2[-_])?(vocab|encoder)\.json")
"""What the vocabulary of GPT-2 is called beside its merges."""

PLACES = ("--tokenizer-model", "--tokenizer-name-or-path", "--vocab-file")
"""Flags that name a tokenizer's file or repository."""

FLAGS = ("--tokenizer-type", *PLACES, "--merge-file")

LARGEST = 64 * 2**20
"""Bytes of a tokenizer's file that are read."""


def vocabulary(flags: Flags, folder: Path) -> tuple[int, str] | None:
    """The size of the vocabulary that flags of Megatron-LM mean, and how it was found; None where
    they do not say it.

    folder   that files are named relative to
    """
    for flag in PLACES:
        named = str(flags.get(flag, ""))
        if not named or named.lower() in ("none", "null", "true"):
            continue
        size = _counted(folder / named)
        if size:
            return size, f"vocabulary {size} of {named}"
        if Path(named).name in FILES:
            return FILES[Path(named).name], f"vocabulary {FILES[Path(named).name]} of {named}"
    kind = str(flags.get("--tokenizer-type", "")).lower()
    own = {"llama2tokenizer": "--tokenizer-model", "gpt2bpetokenizer": "--vocab-file"}.get(kind)
    file = str(flags.get(own, "")) if own else ""
    if sized := SIZED.search(file):  # a file of someone's own
        size = 1000 * int(sized[1]) if sized[1] else int(sized[2])
        return size, f"vocabulary {size}, as {file} is called; its pieces may be some fewer"
    if kind in TYPES:
        return TYPES[kind], f"vocabulary {TYPES[kind]} of {flags['--tokenizer-type']}"
    merged = "--merge-file" in flags and GPT2.fullmatch(Path(str(flags.get("--vocab-file"))).name)
    if merged and kind in ("", "none", "null"):
        return TYPES["gpt2bpetokenizer"], "vocabulary 50257 of GPT-2, whose files are named"
    for flag in PLACES:
        found = _of_model(str(flags.get(flag, "")))
        if found:
            return found
    return None


def _of_model(named: str) -> tuple[int, str] | None:
    """The vocabulary of the catalog model that a repository or a part of a path is called after."""
    for part in (named, *reversed(named.split("/"))):
        try:
            meant = catalog.read_model_name(re.sub(r"-dist$|\.json$|\.model$", "", part))
        except InputError:
            continue
        if meant is not None:
            size = catalog.model(meant.row).vocab
            return size, f"vocabulary {size} of {meant.row}, whose tokenizer {named} is taken for"
    return None


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False


def _counted(path: Path) -> int | None:
    """Entries of a tokenizer's file; None where it is not there, or is none."""
    if not is_file(path) and _is_folder(path):
        return next((n for name in ("tokenizer.json", "vocab.json", "tokenizer.model")
                     if (n := _counted(path / name))), None)  # fmt: skip
    try:
        if not is_file(path) or path.stat().st_size > LARGEST:
            return None
        body = path.read_bytes()
    except OSError:
        return None
    if path.suffix == ".json":
        return _json_entries(body)
    return _pieces(body) if path.suffix == ".model" else None


def _json_entries(body: bytes) -> int | None:
    try:
        content: Any = json.loads(body)
    except (ValueError, RecursionError):
        return None
    if isinstance(content, dict) and isinstance(content.get("model"), dict):  # tokenizer.json
        own = content["model"].get("vocab")
        more = content.get("added_tokens") or []
        if not isinstance(own, dict | list) or not isinstance(more, list):
            return None
        known = set(own) if isinstance(own, dict) else set()
        added = [t for t in more if isinstance(t, dict) and t.get("content") not in known]
        return len(own) + len(added)
    return len(content) if isinstance(content, dict | list) and len(content) > 255 else None


def _pieces(body: bytes) -> int | None:
    """Pieces of a SentencePiece model: its fields number 1 (sentencepiece_model.proto)."""
    at = count = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = body[at]
            at += 1
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7

    try:
        while at < len(body):
            tag = varint()
            kind = tag & 7
            if kind == 2:
                count += tag >> 3 == 1
                size = varint()  # before it is added: reading it moves on, too
                at += size
            elif kind == 0:
                varint()
            elif kind in (1, 5):
                at += 8 if kind == 1 else 4
            else:
                return None
    except IndexError:
        return None
    return count or None
