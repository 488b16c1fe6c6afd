"""Exports functions as a script: their source, the source of everything that they use from qualify, and imports.

A definition is copied unchanged from the source of its module. Names that a module imports from qualify are followed
into their own modules; names from elsewhere are imported. Nothing is rewritten.
"""

from __future__ import annotations

import ast
import builtins
import dis
import importlib
import inspect
import math
from collections.abc import Collection, Iterator
from functools import cache
from types import CodeType, ModuleType

FUTURE = "from __future__ import annotations"
READS = ("LOAD_NAME", "LOAD_GLOBAL", "LOAD_FROM_DICT_OR_GLOBALS")


class CannotExport(Exception):
    """A definition cannot be copied into a script; the message names it and says why."""


class Exporter:
    """Collects definitions and imports, in the order in which a script needs them."""

    def __init__(self, copied: Collection[str] = ()) -> None:
        self._copied = copied
        """modules outside qualify whose definitions are copied too, instead of imported"""
        self._imports: dict[str, None] = {}
        self._definitions: dict[str, str] = {}
        self._owners: dict[str, str] = {}
        """module of each copied definition"""

    def add(self, module: str, name: str) -> bool:
        """Add the definition that a module has under a name, and all definitions that it uses.

        Returns False where the module has no such name.

        Raises:
            CannotExport: the module has no source, or renames what it imports, or the script already has another
                definition of that name.
        """
        found = _statements(module).get(name)
        if found is None:
            return False
        node, text = found
        if isinstance(node, ast.ImportFrom) and self._is_copied(node.module or ""):
            (item,) = (item for item in node.names if _bound(item) == name)
            if item.asname:
                raise CannotExport(f"{module} calls {item.name} of {node.module} {name}")
            return self.add(str(node.module), name)
        if isinstance(node, ast.Import | ast.ImportFrom):
            self._imports[text] = None
            return True
        if self._owners.get(name, module) != module:
            raise CannotExport(f"{name} is defined in {self._owners[name]} and in {module}")
        if name not in self._owners:
            self._owners[name] = module
            self._add_used(module, text, node)
            self._definitions[name] = text
        return True

    def add_import(self, text: str) -> None:
        """Add an import statement to the script."""
        self._imports[text] = None

    def add_names_of(self, body: str, module: str) -> None:
        """Add all definitions that a piece of source uses but does not define itself.

        Args:
            body: Python source.
            module: module in which its names are looked up.

        Raises:
            CannotExport: the module lacks a name, or the source is no Python.
        """
        for name in globals_of(body):
            if not self.add(module, name):
                raise CannotExport(f"{module} uses {name}, which nothing defines at its top level")

    def script(self, *, title: str, text: str, body: str) -> str:
        """The whole script: a docstring of title and text, the imports, the definitions and the body."""
        safe = [part.replace("\\", "\\\\").replace('"""', "'''") for part in (title, text)]
        head = f'"""{safe[0]}\n\n{safe[1]}\n"""\n\n{FUTURE}\n\n'
        imports = "\n".join(sorted(self._imports, key=lambda line: (line.startswith("from"), line)))
        return "\n\n\n".join([head + imports, *self._definitions.values(), body])

    def _add_used(self, module: str, text: str, node: ast.stmt) -> None:
        self.add_names_of(text, module)
        statements = _statements(module)
        # Annotations are not evaluated. For readers, their names are imported, but no definition is copied for them.
        for part in ast.walk(node):
            used = statements.get(part.id) if isinstance(part, ast.Name) else None
            if used and isinstance(used[0], ast.Import | ast.ImportFrom) and not self._is_ours(used[0]):
                self._imports[used[1]] = None

    def _is_ours(self, node: ast.Import | ast.ImportFrom) -> bool:
        return isinstance(node, ast.ImportFrom) and self._is_copied(node.module or "")

    def _is_copied(self, module: str) -> bool:
        return module.partition(".")[0] == "qualify" or module in self._copied


def plain(value: object) -> str:
    """A value as Python source: a module by its name, NaN and infinity as ``float("…")``, others by ``repr``."""
    if isinstance(value, ModuleType):
        return value.__name__
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    return repr(value)


def call_of(name: str, *given: str, **values: object) -> str:
    """A call as Python source.

    Args:
        name: the function.
        given: names that are passed as positional arguments.
        values: plain values that are passed as keywords.
    """
    return f"{name}({', '.join([*given, *(f'{key}={plain(value)}' for key, value in values.items())])})"


@cache
def globals_of(text: str) -> tuple[str, ...]:
    """Names that a piece of source reads but does not define at its top level, sorted, without builtins.

    Names that only annotations use are left out too.

    Raises:
        CannotExport: the source is no Python.
    """
    try:
        code = compile(f"{FUTURE}\n{text}", "<script>", "exec", dont_inherit=True)
    except SyntaxError as error:
        raise CannotExport(f"{error.text} is no Python") from error
    stored = {str(step.argval) for step in dis.get_instructions(code) if step.opname == "STORE_NAME"}
    read = set(_reads(code)) - stored
    return tuple(sorted(name for name in read if not hasattr(builtins, name) and not name.startswith("__")))


def _reads(code: CodeType) -> Iterator[str]:
    """Global names that a code object and its inner code objects read, without names that a class body defines."""
    steps = list(dis.get_instructions(code))
    own = {step.argval for step in steps if step.opname == "STORE_NAME"}
    yield from (str(step.argval) for step in steps if step.opname in READS and step.argval not in own)
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _reads(inner)


@cache
def _statements(module: str) -> dict[str, tuple[ast.stmt, str]]:
    """For each name at the top level of a module, its statement and source.

    The source of an imported name is an import of that name alone. The source of a constant includes the docstring
    under it.
    """
    try:
        source = inspect.getsource(importlib.import_module(module))
    except (OSError, TypeError) as error:
        raise CannotExport(f"{module} has no source: {error}") from error
    lines, body = source.splitlines(), list(_top_level(ast.parse(source).body))
    found: dict[str, tuple[ast.stmt, str]] = {}
    for index, node in enumerate(body):
        first, last = node.lineno, node.end_lineno
        match node:
            case ast.Import() | ast.ImportFrom():
                found |= {_bound(item): (node, _import(node, item)) for item in node.names}
                continue
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                first = min([first, *(decorator.lineno for decorator in node.decorator_list)])
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                below = body[index + 1] if index + 1 < len(body) else None
                match below:
                    case ast.Expr(value=ast.Constant(value=str())):
                        last = below.end_lineno
            case _:
                continue
        found[name] = (node, "\n".join(lines[first - 1 : last]))
    return found


def _top_level(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Top-level statements of a module, including those within ``try``."""
    for node in body:
        if isinstance(node, ast.Try):
            yield from _top_level(node.body)
        else:
            yield node


def _bound(item: ast.alias) -> str:
    """The name that an imported item gets in its module."""
    return item.asname or item.name.partition(".")[0]


def _import(node: ast.Import | ast.ImportFrom, item: ast.alias) -> str:
    renamed = f" as {item.asname}" if item.asname else ""
    origin = f"from {'.' * node.level}{node.module or ''} " if isinstance(node, ast.ImportFrom) else ""
    return f"{origin}import {item.name}{renamed}"
