"""Real functions as a script: their source, that of all they use from the same package, and the imports they need.

A definition is found where its module's source says it is, and copied as it stands there. Names of qualify are
followed into their modules; what comes from elsewhere is imported. Nothing is rewritten.
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
    """Something has no source that a script can hold; the message names it."""


class Exporter:
    """Collects definitions in the order in which a script needs them."""

    def __init__(self, copied: Collection[str] = ()) -> None:
        self._copied = copied
        """modules outside qualify whose definitions are copied too"""
        self._imports: dict[str, None] = {}
        self._definitions: dict[str, str] = {}
        self._owners: dict[str, str] = {}
        """module of each copied definition"""

    def add(self, module: str, name: str) -> bool:
        """Take what a module calls by a name, and all that it uses; False where the module has no such name.

        Raises:
            CannotExport: the module has no source, or renames what it imports, or another definition has the name.
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
        """An import that the script needs besides."""
        self._imports[text] = None

    def add_names_of(self, body: str, module: str) -> None:
        """Take what a text uses and does not define itself, as a module defines it.

        Raises:
            CannotExport: the module has no such name, or the text is no Python.
        """
        for name in globals_of(body):
            if not self.add(module, name):
                raise CannotExport(f"{module} uses {name}, which nothing defines at its top level")

    def script(self, *, title: str, text: str, body: str) -> str:
        """A whole script: its docstring, the imports, the definitions and the body."""
        safe = [part.replace("\\", "\\\\").replace('"""', "'''") for part in (title, text)]
        head = f'"""{safe[0]}\n\n{safe[1]}\n"""\n\n{FUTURE}\n\n'
        imports = "\n".join(sorted(self._imports, key=lambda line: (line.startswith("from"), line)))
        return "\n\n\n".join([head + imports, *self._definitions.values(), body])

    def _add_used(self, module: str, text: str, node: ast.stmt) -> None:
        self.add_names_of(text, module)
        statements = _statements(module)
        # Annotations are not evaluated: readers get the names that an import gives, and no definition more.
        for part in ast.walk(node):
            used = statements.get(part.id) if isinstance(part, ast.Name) else None
            if used and isinstance(used[0], ast.Import | ast.ImportFrom) and not self._is_ours(used[0]):
                self._imports[used[1]] = None

    def _is_ours(self, node: ast.Import | ast.ImportFrom) -> bool:
        return isinstance(node, ast.ImportFrom) and self._is_copied(node.module or "")

    def _is_copied(self, module: str) -> bool:
        return module.partition(".")[0] == "qualify" or module in self._copied


def plain(value: object) -> str:
    """A value as Python source; a module by its name, a number that is not finite as a call."""
    if isinstance(value, ModuleType):
        return value.__name__
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    return repr(value)


def call_of(name: str, *given: str, **values: object) -> str:
    """A call as Python source: names as they are, keywords with plain values."""
    return f"{name}({', '.join([*given, *(f'{key}={plain(value)}' for key, value in values.items())])})"


def globals_of(text: str) -> list[str]:
    """Names that a text reads and does not define at its top level, sorted; builtins and annotations apart.

    Raises:
        CannotExport: the text is no Python.
    """
    try:
        code = compile(f"{FUTURE}\n{text}", "<script>", "exec", dont_inherit=True)
    except SyntaxError as error:
        raise CannotExport(f"{error.text} is no Python") from error
    stored = {str(step.argval) for step in dis.get_instructions(code) if step.opname == "STORE_NAME"}
    read = set(_reads(code)) - stored
    return sorted(name for name in read if not hasattr(builtins, name) and not name.startswith("__"))


def _reads(code: CodeType) -> Iterator[str]:
    """Global names that a code object and those within it read; a class's own names apart."""
    steps = list(dis.get_instructions(code))
    own = {step.argval for step in steps if step.opname == "STORE_NAME"}
    yield from (str(step.argval) for step in steps if step.opname in READS and step.argval not in own)
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _reads(inner)


@cache
def _statements(module: str) -> dict[str, tuple[ast.stmt, str]]:
    """What each name at the top level of a module is: its statement and the source of it.

    An import's source is the import of that one name; a constant's has the docstring under it.
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
    """Statements of a module, those that it tries included."""
    for node in body:
        if isinstance(node, ast.Try):
            yield from _top_level(node.body)
        else:
            yield node


def _bound(item: ast.alias) -> str:
    """The name that an import defines."""
    return item.asname or item.name.partition(".")[0]


def _import(node: ast.Import | ast.ImportFrom, item: ast.alias) -> str:
    renamed = f" as {item.asname}" if item.asname else ""
    origin = f"from {'.' * node.level}{node.module or ''} " if isinstance(node, ast.ImportFrom) else ""
    return f"{origin}import {item.name}{renamed}"
