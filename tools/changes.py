"""Small changes of a file of `predictor/`: another operator, another number, the other bound."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

GUARD = 1e-9
"""A number so small is no quantity [s, bytes, shares]: it stands where a zero must not."""

OPERATORS: dict[type[ast.operator], tuple[str, str]] = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "/"),
    ast.Div: ("/", "*"),
    ast.Pow: ("**", "*"),
    ast.FloorDiv: ("//", "/"),
}
COMPARISONS: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Lt: ("<", ">="),
    ast.LtE: ("<=", ">"),
    ast.Gt: (">", "<="),
    ast.GtE: (">=", "<"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
}
CALLS = {
    "minimum": "maximum",
    "maximum": "minimum",
    "ceil": "floor",
    "floor": "ceil",
    "min": "max",
    "max": "min",
    "log2": "log",
    "exp": "expm1",
}


@dataclass(frozen=True)
class Mutant:
    """One change: characters `start` to `end` of a line become `new`."""

    file: str
    line: int
    start: int
    end: int
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.start} {self.old} -> {self.new}"

    @property
    def key(self) -> str:
        """What it is called in the list of equivalent ones: file, text of the line, the change."""
        text = (ROOT / self.file).read_text(encoding="utf-8").splitlines()[self.line - 1].strip()
        return f"{self.file} | {text} | {self.old} -> {self.new}"

    def apply(self, text: str) -> str:
        """The file with the change."""
        lines = text.split("\n")
        line = lines[self.line - 1]
        lines[self.line - 1] = line[: self.start] + self.new + line[self.end :]
        return "\n".join(lines)


def mutants_of(path: Path) -> Iterator[Mutant]:
    """Every change of one file; annotations, defaults of flags and messages are left alone."""
    text = path.read_text(encoding="utf-8")
    lines = text.split("\n")
    name = path.relative_to(ROOT).as_posix()
    skipped: set[ast.AST] = set()
    for node in ast.walk(ast.parse(text)):
        if node in skipped:
            skipped.update(ast.iter_child_nodes(node))
            continue
        if isinstance(node, (ast.JoinedStr, ast.Raise, ast.Assert)):
            skipped.update(ast.iter_child_nodes(node))
            continue
        skipped.update(_harmless(node))
        if isinstance(node, ast.AnnAssign):
            skipped.add(node.annotation)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            skipped.update(a.annotation for a in node.args.args if a.annotation)
            skipped.update(a.annotation for a in node.args.kwonlyargs if a.annotation)
            skipped.update([node.returns] if node.returns else [])
        yield from _changes(node, name, lines)


def _harmless(node: ast.AST) -> Iterator[ast.AST]:
    """Numbers whose change no prediction can show: how much a cache keeps, and floors that keep a
    quotient from 0 / 0 (`GUARD` at most)."""
    if not isinstance(node, ast.Call):
        return
    called = getattr(node.func, "attr", getattr(node.func, "id", ""))
    if called == "lru_cache":
        yield from (word.value for word in node.keywords)
        yield from node.args
    elif called in ("maximum", "max"):
        numbers = (one for one in node.args if isinstance(one, ast.Constant))
        yield from (one for one in numbers if 0.0 < abs(float(one.value)) <= GUARD)


def _changes(node: ast.AST, name: str, lines: list[str]) -> Iterator[Mutant]:
    """Changes of one node that lie on one line."""
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        if any(
            isinstance(side, (ast.JoinedStr, ast.Tuple, ast.List))
            for side in (node.left, node.right)
        ):
            return
        old, new = OPERATORS[type(node.op)]
        yield from _between(node.left, node.right, old, new, name, lines)
    elif isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in COMPARISONS:
        old, new = COMPARISONS[type(node.ops[0])]
        yield from _between(node.left, node.comparators[0], old, new, name, lines)
    elif isinstance(node, ast.Constant) and type(node.value) in (int, float):
        line = lines[node.lineno - 1]
        old = line[node.col_offset : node.end_col_offset]
        new = "1.0" if node.value == 0 else f"({old} * 2)" if node.value != 1 else f"({old} + 1)"
        yield Mutant(name, node.lineno, node.col_offset, node.end_col_offset or 0, old, new)
    elif isinstance(node, ast.Call) and isinstance(node.func, (ast.Attribute, ast.Name)):
        called = node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id
        end = node.func.end_col_offset or 0
        if called in CALLS and node.func.end_lineno == node.func.lineno:
            new = CALLS[called]
            yield Mutant(name, node.func.lineno, end - len(called), end, called, new)


def _between(
    left: ast.expr, right: ast.expr, old: str, new: str, name: str, lines: list[str]
) -> Iterator[Mutant]:
    """The operator between two operands, where they share a line."""
    if left.end_lineno != right.lineno:
        return
    start = left.end_col_offset or 0
    at = lines[right.lineno - 1][start : right.col_offset].find(old)
    if at >= 0:
        yield Mutant(name, right.lineno, start + at, start + at + len(old), old, new)
