"""Shell scripts are read, not run."""

from __future__ import annotations

from pathlib import Path

from reckon.launch.shell import arithmetic, read_script


def test_the_shell_is_read_not_run(tmp_path: Path) -> None:
    script = f"""
A=3
B=$((A*2+1))   # a comment with 'quotes'
C="x $B"; D='$A'
rm -rf {tmp_path}; touch {tmp_path}/made
if [ "$A" -gt 2 ]; then E=big; elif [[ $A == 3 ]]; then E=three; else E=small; fi
for i in 1 2; do echo $i; done
run $A "$C" $D ${{F:-default}} $(hostname) {tmp_path} $E
"""
    found = read_script(script)
    assert found.commands[-1] == [
        "run",
        "3",
        "x 7",
        "$A",
        "default",
        "$(hostname)",
        str(tmp_path),
        "big",
    ]
    assert tmp_path.is_dir()
    assert not list(tmp_path.iterdir())
    assert any("for" in note for note in found.notes)
    assert arithmetic("8 * (3 - 1) / 4") == 4
    assert arithmetic("__import__('os')") is None
    assert arithmetic("1/0") is None
