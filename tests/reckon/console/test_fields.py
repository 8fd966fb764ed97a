"""The flags, the listing and the page of reference are those of the table of plan fields."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from predictor.plans import EXPLAIN, PLAN, PREDICT, SERVING_FIELDS, TRAINING_FIELDS, Table
from reckon.console import planning, predicting
from reckon.console.cli import app
from reckon.verbs.asking import BATCH_TOKENS
from reckon.verbs.fleets import OPTIONS
from reckon.verbs.plans import LIMITS, THRIFT
from reckon.views.fields import reference
from tests.conftest import ROOT

Cli = Callable[..., tuple[int, str, str]]


def keys(command: click.Command) -> set[str]:
    """Names of a command's flags."""
    return {str(p.name) for p in command.params if isinstance(p, click.Option)}


@pytest.mark.parametrize(
    ("make", "entries", "verb"),
    [
        (predicting.train_command, TRAINING_FIELDS, PREDICT),
        (predicting.infer_command, SERVING_FIELDS, PREDICT),
        (predicting.explain_command, TRAINING_FIELDS, EXPLAIN),
        (planning.train_command, TRAINING_FIELDS, PLAN),
        (planning.infer_command, SERVING_FIELDS, PLAN),
    ],
)
def test_a_verb_has_the_flags_that_the_table_says(
    make: Callable[[], click.Command], entries: Table, verb: str
) -> None:
    command = make()
    said = {name for name, entry in entries.items() if verb in entry.flags}
    # What a search takes beside fields of a plan may share a name with one.
    own = {*LIMITS, *THRIFT, *OPTIONS, BATCH_TOKENS} if verb == PLAN else set()
    assert keys(command) & set(entries) - own == said - own
    names = [option for p in command.params for option in p.opts]
    assert len(names) == len(set(names)), "no flag is there twice"


def test_a_search_has_a_flag_for_every_key_that_bounds_it() -> None:
    assert {*LIMITS, BATCH_TOKENS, "objective"} <= keys(planning.train_command())
    assert set(OPTIONS) <= keys(planning.infer_command())


def test_every_help_fits_a_screen_and_has_a_line_for_each_flag(cli: Cli) -> None:
    verbs: list[list[str]] = []
    for name in app.places:
        command = app.get_command(click.Context(app), name)
        places = getattr(command, "places", None)
        verbs += [[name, own] for own in places] if places else [[name]]
    assert len(verbs) == 23
    for verb in verbs:
        status, out, _ = cli(*verb, "--help")
        assert status == 0
        assert len(out.splitlines()) <= 60, verb
        assert "Example: reckon" in out
        assert max(len(line) for line in out.splitlines()) <= 80, verb


def test_the_page_of_reference_is_what_the_table_says() -> None:
    assert (ROOT / "docs" / "reference" / "fields.md").read_text() == reference(), (
        "run python tools/reference.py"
    )


def test_fields_are_shown(cli: Cli) -> None:
    listed = json.loads(cli("show", "fields", "--json", "-")[1])
    assert [(row["name"], row["plan"]) for row in listed] == [
        *((name, "training") for name in TRAINING_FIELDS),
        *((name, "serving") for name in SERVING_FIELDS),
    ]
    assert {"unit", "values", "default", "reason", "verbs"} <= set(listed[0])
    status, out, _ = cli("show", "fields")
    assert status == 0
    assert len(out.splitlines()) == len(listed) + 1
    one = json.loads(cli("show", "fields", "seq-len", "--json", "-")[1])
    assert one["training"]["unit"] == "tokens"
    assert one["training"]["flag"] == "--seq-len"
    assert one["training"]["flag_of"] == "predict train, explain, plan train"
    assert "serving" not in one
    status, _, err = cli("show", "fields", "seq_lem")
    assert (status, err) == (2, "reckon: unknown field 'seq_lem'; did you mean 'seq_len'? "
                                "(reckon show fields)\n")  # fmt: skip


def test_a_file_says_what_the_flags_of_a_search_say(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("model: llama3-8b\nsystem: dgx-h100\ntp: 16\ngpus: 16\ntp_in_node: true\n"
                    "global_batch: 16\nseq_len: 4096\n")  # fmt: skip
    status, _, err = cli("plan", "train", path)
    assert status == 2
    assert "node of 8" in err
