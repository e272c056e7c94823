"""Read source files: modules, their public names, and docstrings."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
Statement = Definition | ast.Assign | ast.AnnAssign


class Module(NamedTuple):
    """A parsed source file."""

    name: str
    tree: ast.Module


def read_package(parent: Path, name: str) -> list[Module]:
    """Every module of a package, the package itself first, then by name."""
    root = parent / name
    paths = sorted(root.rglob("*.py")) if root.is_dir() else [root.with_suffix(".py")]
    source = next(above for above in root.parents if above.name == "src")
    modules = [Module(dotted(path.relative_to(source)), parse(path)) for path in paths]
    return sorted(modules, key=lambda module: module.name)


@cache
def parse(path: Path) -> ast.Module:
    """Parse one file; several pages are made of it."""
    return ast.parse(path.read_text(), str(path))


def dotted(path: Path) -> str:
    """The module name of a file: `penstock/flow/__init__.py` is `penstock.flow`."""
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


def exports(tree: ast.Module) -> list[str] | None:
    """What `__all__` says, or None if there is none."""
    for node in tree.body:
        if "__all__" in targets(node):
            value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
            return list(ast.literal_eval(value)) if value is not None else None
    return None


def definitions(tree: ast.Module | ast.ClassDef) -> dict[str, Statement]:
    """What a module or class defines itself, in order."""
    found: dict[str, Statement] = {}
    for node in tree.body:
        if isinstance(node, Statement):
            for name in targets(node):
                found.setdefault(name, node)
    return found


def targets(node: ast.stmt) -> list[str]:
    """The names a statement defines."""
    match node:
        case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            return [name]
        case ast.Assign(targets=[*nodes]):
            return [target.id for target in nodes if isinstance(target, ast.Name)]
        case ast.AnnAssign(target=ast.Name(id=name)):
            return [name]
    return []


def attribute_docs(tree: ast.Module | ast.ClassDef) -> dict[str, str]:
    """Docstrings that stand right below an assignment, by the assigned name."""
    found: dict[str, str] = {}
    for node, below in zip(tree.body, tree.body[1:], strict=False):
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(below, ast.Expr):
            for name in targets(node):
                found |= dict(literal_text(name, below))
    return found


def literal_text(name: str, node: ast.Expr) -> Iterator[tuple[str, str]]:
    """The text of a bare string, paired with a name."""
    if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
        yield name, " ".join(node.value.value.split())


def summary(node: ast.Module | Definition) -> str:
    """The first line of a docstring."""
    return (ast.get_docstring(node) or "").partition("\n")[0]
