"""Whole-number arithmetic as a shell has it."""

from __future__ import annotations

import ast
import operator
import re

OPERATIONS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
              ast.Div: operator.floordiv, ast.FloorDiv: operator.floordiv,
              ast.Mod: operator.mod}  # fmt: skip
COMPARISONS = {ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
               ast.GtE: operator.ge, ast.Eq: operator.eq, ast.NotEq: operator.ne}  # fmt: skip


def arithmetic(text: str) -> int | None:
    """Whole-number arithmetic with + - * / %, comparisons and `a ? b : c`; None where it is
    something else."""
    if choice := re.fullmatch(r"([^?:]+)\?([^?:]+):([^?:]+)", text):
        held = arithmetic(choice[1])
        return None if held is None else arithmetic(choice[2] if held else choice[3])

    def value(node: ast.expr) -> int:
        if isinstance(node, ast.Constant) and isinstance(node.value, int):
            return node.value
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return -value(node.operand)
        if isinstance(node, ast.BinOp) and type(node.op) in OPERATIONS:
            return int(OPERATIONS[type(node.op)](value(node.left), value(node.right)))
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            compare = COMPARISONS.get(type(node.ops[0]))
            if compare is not None:
                return int(compare(value(node.left), value(node.comparators[0])))
        raise ValueError

    try:
        return value(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
        return None
