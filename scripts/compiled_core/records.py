"""Rewrite records for mypyc: a struct of msgspec becomes a plain class with typed fields, which mypyc compiles to a native class.

mypyc cannot compile a class whose metaclass it does not know, and a native class is what makes compiled code fast: a field is a
place in a C struct, a method call is a C call. The source keeps its structs, which are short to write, quick to import and quick
to make in pure Python. Only the copy that mypyc reads is rewritten, and every statement keeps its line, so that tracebacks of
compiled code point into the source: the methods that msgspec would provide take the lines of the fields, and blank ones.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

# What a compiled record inherits: text, pickling and copies.
BASE = "hlo_run.records.native"
_OPTIONS = {"frozen", "eq", "cache_hash"}


class NotCompilable(Exception):
    """The module has a construct that the rewriting does not know."""


@dataclass(frozen=True)
class _Field:
    name: str
    type: str
    # The parameter's default and the value that the field gets; empty for a field that must be given.
    default: str
    value: str
    first_line: int
    last_line: int


@dataclass(frozen=True)
class _Options:
    frozen: bool
    eq: bool
    cache_hash: bool


def rewrite(text: str, where: str) -> str:
    """Return the module's text with plain classes instead of structs, and its docstring as a value. Raises NotCompilable."""
    text = _without_starred_membership(text, where)
    tree = ast.parse(text, where)
    lines = text.split("\n")
    # mypyc drops docstrings; `--list_passes` prints their first lines.
    doc = ast.get_docstring(tree, clean=False)
    added = [] if doc is None else [f"__doc__ = {doc!r}"]
    records = [node for node in tree.body if isinstance(node, ast.ClassDef) and _is_struct(node)]
    if not records:
        return "\n".join([*lines, *added, ""])
    # From the last class to the first: what is added after a class does not move the lines of those before it.
    for record in reversed(records):
        _rewrite_class(record, lines, where)
    first = next(n for n in tree.body if isinstance(n, ast.ImportFrom) and n.module == "msgspec")
    lines[first.lineno - 1] += f"; from {BASE} import NativeRecord as _NativeRecord; from typing import Any as _Any"
    for record in records:
        fields = {f.name: f.type for f in _fields(record, where)}
        added += [f"{record.name}.__struct_types__ = {fields!r}", f"{record.name}.__struct_fields__ = {tuple(fields)!r}"]
    return "\n".join([*lines, *added, ""])


def _without_starred_membership(text: str, where: str) -> str:
    """Return the text with `a in tuple((*b, c))` for `a in (*b, c)`, on which mypyc fails."""
    lines = text.encode().split(b"\n")
    inserts: list[tuple[int, int, bytes]] = []
    for node in ast.walk(ast.parse(text, where)):
        if not isinstance(node, ast.Compare):
            continue
        for kind, right in zip(node.ops, node.comparators, strict=True):
            if isinstance(kind, (ast.In, ast.NotIn)) and any(isinstance(e, ast.Starred) for e in getattr(right, "elts", ())):
                assert right.end_lineno is not None, "a parsed node has its end"
                assert right.end_col_offset is not None, "a parsed node has its end"
                inserts += [(right.lineno, right.col_offset, b"tuple("), (right.end_lineno, right.end_col_offset, b")")]
    for line, column, added in sorted(inserts, reverse=True):
        lines[line - 1] = lines[line - 1][:column] + added + lines[line - 1][column:]
    return b"\n".join(lines).decode()


def _is_struct(node: ast.ClassDef) -> bool:
    return any(isinstance(base, ast.Name) and base.id == "Struct" for base in node.bases)


def _rewrite_class(node: ast.ClassDef, lines: list[str], where: str) -> None:
    options = _options(node, where)
    fields = _fields(node, where)
    methods = list(_methods(node, fields, options))
    head = lines[node.lineno - 1]
    changed = re.sub(r"\(Struct\b(.*)\)(:.*)$", r"(_NativeRecord)\2", head)
    if changed == head or len(node.bases) != 1:
        raise NotCompilable(f"{where}:{node.lineno}: the head of struct {node.name} is not one line with the base Struct alone")
    lines[node.lineno - 1] = changed
    # In this order, so that `__init__` comes first and declares what the others use.
    places = sorted([*(field.first_line for field in fields), *_blank_lines(node, lines)])
    for field in fields:
        for number in range(field.first_line, field.last_line + 1):
            lines[number - 1] = ""
    for place, method in zip(places, methods, strict=False):
        lines[place - 1] = "    " + method
    assert node.end_lineno is not None, "a parsed node has its end"
    lines[node.end_lineno : node.end_lineno] = ["    " + method for method in methods[len(places) :]]


def _blank_lines(node: ast.ClassDef, lines: list[str]) -> Iterator[int]:
    """Yield the numbers of the blank lines between the statements of a class, and of the two behind it."""
    ends = [statement.end_lineno or 0 for statement in node.body]
    starts = [min([statement.lineno, *(d.lineno for d in getattr(statement, "decorator_list", ()))]) for statement in node.body]
    for end, start in zip(ends, [*starts[1:], ends[-1] + 3], strict=True):
        yield from (number for number in range(end + 1, min(start, len(lines) + 1)) if not lines[number - 1].strip())


def _options(node: ast.ClassDef, where: str) -> _Options:
    given: dict[str, bool] = {}
    for keyword in node.keywords:
        if keyword.arg not in _OPTIONS or not isinstance(keyword.value, ast.Constant):
            raise NotCompilable(f"{where}:{node.lineno}: struct {node.name} has the option {keyword.arg}")
        given[keyword.arg] = bool(keyword.value.value)
    return _Options(given.get("frozen", False), given.get("eq", True), given.get("cache_hash", False))


def _fields(node: ast.ClassDef, where: str) -> list[_Field]:
    fields: list[_Field] = []
    for statement in node.body:
        if not isinstance(statement, ast.AnnAssign) or not isinstance(statement.target, ast.Name):
            continue
        kind = ast.unparse(statement.annotation)
        if kind.startswith("ClassVar"):
            continue
        name = statement.target.id
        default, value = "", name
        if statement.value is not None:
            default, value, kind = _default(statement.value, name, kind, f"{where}:{statement.lineno}")
        assert statement.end_lineno is not None, "a parsed node has its end"
        fields.append(_Field(name, kind, default, value, statement.lineno, statement.end_lineno))
    return fields


def _default(value: ast.expr, name: str, kind: str, where: str) -> tuple[str, str, str]:
    """Return (default of the parameter, value of the field, type of the parameter)."""
    made = ""
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "field":
        if len(value.keywords) != 1 or value.args or value.keywords[0].arg not in ("default", "default_factory"):
            raise NotCompilable(f"{where}: a field has other options than one default")
        given = value.keywords[0].value
        if value.keywords[0].arg == "default":
            return ast.unparse(given), name, kind
        made = _call(given)
    elif isinstance(value, (ast.List, ast.Dict, ast.Set)):
        made = ast.unparse(value)
    if not made:
        return ast.unparse(value), name, kind
    if re.search(r"\bNone\b", kind.split("[")[0]):
        raise NotCompilable(f"{where}: a field with a factory may be None")
    return "None", f"{made} if {name} is None else {name}", kind


def _call(factory: ast.expr) -> str:
    """Return the expression that calls a factory; `list[int]` is called as `list`, which is faster and means the same."""
    if isinstance(factory, ast.Lambda):
        return f"({ast.unparse(factory.body)})"
    if isinstance(factory, ast.Subscript) and isinstance(factory.value, ast.Name):
        return {"list": "[]", "dict": "{}", "set": "set()"}.get(factory.value.id, f"{factory.value.id}()")
    return f"{ast.unparse(factory)}()"


def _methods(node: ast.ClassDef, fields: list[_Field], options: _Options) -> Iterator[str]:
    """Yield the methods that msgspec gives a struct, each on one line."""
    own = {n.name for n in node.body if isinstance(n, ast.FunctionDef)}
    if "__init__" not in own:
        given = "".join(f", {f.name}: {_parameter(f)}" for f in fields)
        # Parentheses keep a lambda or a conditional apart from what follows.
        sets = [f"self.{f.name}: {f.type} = {f.value}" for f in fields]
        after = ["self._hash: int = 0"] if options.cache_hash else []
        after += ["self.__post_init__()"] if "__post_init__" in own else []
        yield f"def __init__(self{given}) -> None: {'; '.join([*sets, *after]) or 'pass'}"
    if options.eq and "__eq__" not in own:
        same = "".join(f" and self.{f.name} == other.{f.name}" for f in fields)
        yield f"def __eq__(self, other: object) -> bool: return self is other or (isinstance(other, {node.name}){same})"
        if options.frozen and "__hash__" not in own:
            made = f"hash(({''.join(f'self.{f.name}, ' for f in fields)}))"
            if options.cache_hash:
                # Without its last bits it is an int that mypyc needs no object for.
                yield f"def __hash__(self) -> int: self._hash = self._hash or {made} >> 2; return self._hash"
            else:
                yield f"def __hash__(self) -> int: return {made}"
    changed = ", ".join(f"changes.pop({f.name!r}, self.{f.name})" for f in fields)
    yield f"def copied_with(self, changes: 'dict[str, _Any]') -> '{node.name}': return {node.name}({changed})"


def _parameter(field: _Field) -> str:
    if not field.default:
        return field.type
    kind = f"{field.type} | None" if field.value != field.name else field.type
    return f"{kind} = {field.default}"
