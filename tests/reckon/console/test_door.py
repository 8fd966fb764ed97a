"""What a newcomer meets on the command line: examples, completion, errors that help, endings."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from reckon.console.cli import main, shortened
from reckon.console.progress import progress

Cli = Callable[..., tuple[int, str, str]]
TRAIN = ["predict", "train", "--model", "llama3-8b", "--system", "dgx-h100", "--seq-len", "4096"]


def test_bare_it_shows_three_examples(cli: Cli) -> None:
    status, out, err = cli()
    assert (status, err) == (0, "")
    assert out.count("reckon predict") == 2
    assert out.count("reckon plan") == 1


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--gpus", "60", "--tp", "8", "--pp", "4", "--global-batch", "64"], "nearest 32 and 64"),
        (["--gpus", "64", "--tp", "3", "--global-batch", "60"], "nearest 2 and 4"),
        (["--gpus", "64", "--tp", "8", "--pp", "1", "--micro-batch", "3", "--global-batch", "64"],
         "nearest 48 and 72"),
        (["--gpus", "64", "--tp", "12", "--pp", "1", "--global-batch", "64"], "nearest"),
    ],
)  # fmt: skip
def test_an_error_names_the_rule_and_what_is_near(cli: Cli, flags: list[str], told: str) -> None:
    status, out, err = cli(*TRAIN, *flags)
    assert (status, out) == (2, "")
    assert told in err
    assert len(err.splitlines()) == 1


def test_long_values_are_cut_and_a_message_is_a_line(cli: Cli) -> None:
    _, _, err = cli("predict", "train", "--model", "m" * 5000, "--system", "dgx-h100")
    assert len(err) < 300
    assert shortened("a\nb") == "a b"
    assert shortened("x" * 80) == "x" * 80


def test_help_has_panels_and_fits_a_terminal(cli: Cli) -> None:
    for verb in (("predict", "train"), ("predict", "infer"), ("plan", "train"), ("plan", "infer")):
        status, out, _ = cli(*verb, "--help")
        assert status == 0
        for panel in ("What is run:", "On what:", "Laid out how:", "What is written:"):
            assert panel in out
        assert max(map(len, out.splitlines())) <= 80
        assert out.count("--system") >= 1


def test_completion_knows_the_catalogs(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "_RECKON_COMPLETE=bash_complete" in cli("completion", "bash")[1]
    status, _, err = cli("completion", "csh")
    assert (status, "did you mean 'zsh'" in err) == (2, True)
    monkeypatch.setenv("_RECKON_COMPLETE", "bash_complete")
    for typed, wanted in (("--model llama3-7", "llama3-70b"), ("--system dgx-h", "DGX-H100"),
                          ("--system dgx-a100,dgx-h", "dgx-a100,DGX-H100"),
                          ("--system p5.4", "p5.48xlarge")):  # fmt: skip
        words = f"reckon predict train {typed}"
        monkeypatch.setenv("COMP_WORDS", words)
        monkeypatch.setenv("COMP_CWORD", str(len(words.split()) - 1))
        with pytest.raises(SystemExit):
            main([])
        assert f"plain,{wanted}" in capsys.readouterr().out.splitlines()


def test_progress_is_silent_where_nobody_looks(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("working") as told:
        told(0.5)
    assert capsys.readouterr() == ("", "")


def test_a_sweep_ends_with_the_best_cells_and_the_refusals(cli: Cli, tmp_path: Path) -> None:
    grid = tmp_path / "grid.yaml"
    grid.write_text(
        "model: llama3-8b\nsystem: dgx-h100\ngpus: [8, 12]\ntp: [1, 2, 3, 5]\n"
        "global_batch: 24\nseq_len: 2048\nmicro_batch: 1\n"
    )
    status, out, _ = cli("sweep", grid, "--out", tmp_path / "swept", "--workers", "1")
    assert status == 0
    assert "best cells" in out
    assert "refused" in out
    assert "does not divide the 32 attention heads" in out


def test_what_was_assumed_is_wrapped(cli: Cli) -> None:
    _, out, _ = cli(*TRAIN, "--gpus", "8", "--global-batch", "8")
    told = ("assumed:" + out.partition("assumed:")[2].partition("\n\n")[0]).splitlines()
    assert len(told) >= 3
    assert max(map(len, told)) <= 100
