"""Print the definitions under a path: fullname, kind, number of uses, file:line. By syntax tree only (no types).

    python symbols.py --root WORKTREE --under replicator/application [--kind class,function] [--tsv] [--private-only]

Columns: fullname  kind  uses  same  file:line
  uses  module-level names: uses resolved through imports (in its module, and where it is imported);
        members (method, property, field, attribute, enum-member): attribute accesses and keywords with that name anywhere, by name only.
  same  how many definitions in the code base have that simple name (of the same level: module-level, or members).
"""

from __future__ import annotations

import argparse
import ast
import subprocess
import sys
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path

TOPS = ("replicator", "adapters", "tests", "benchmarks", "scripts")


@dataclass
class Def:
    fullname: str
    kind: str
    path: str
    line: int
    name: str
    member: bool


PACKAGES: set[str] = set()


def module_of(path: str) -> str:
    """As it is imported: tests from the first folder up without __init__.py."""
    parts = path[:-3].split("/")
    if parts[0] in ("tests", "scripts"):
        while len(parts) > 1 and not all("/".join(path.split("/")[:i]) in PACKAGES for i in range(path.count("/") + 2 - len(parts), path.count("/") + 1)):
            parts = parts[1:]
    if parts[-1] == "__init__":
        parts.pop()
    return ".".join(parts)


def assigned(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.AnnAssign):
        targets = [node.target]
    elif isinstance(node, ast.Assign):
        targets = node.targets
    else:
        return []
    found = []
    for target in targets:
        for each in target.elts if isinstance(target, (ast.Tuple, ast.List)) else [target]:
            if isinstance(each, ast.Name):
                found.append(each.id)
    return found


def base_names(node: ast.ClassDef) -> set[str]:
    found = set()
    for base in node.bases:
        base = base.value if isinstance(base, ast.Subscript) else base
        found.add(base.attr if isinstance(base, ast.Attribute) else getattr(base, "id", ""))
    return found


def definitions(tree: ast.Module, path: str) -> list[Def]:
    module, tests = module_of(path), path.startswith("tests/")
    found: list[Def] = []

    def add(scope: list[str], name: str, kind: str, line: int, member: bool) -> None:
        full = f"{path}::{'::'.join([*scope, name])}" if tests else ".".join([module, *scope, name])
        found.append(Def(full, kind, path, line, name, member))

    def body(stmts: list[ast.stmt], scope: list[str], owner: ast.ClassDef | None) -> None:
        for node in stmts:
            match node:
                case ast.ClassDef():
                    bases = base_names(node)
                    kind = "protocol" if "Protocol" in bases else "pydantic" if "BaseModel" in bases else "class"
                    add(scope, node.name, kind, node.lineno, owner is not None)
                    body(node.body, [*scope, node.name], node)
                case ast.FunctionDef() | ast.AsyncFunctionDef():
                    decorators = {getattr(d, "id", getattr(d, "attr", "")) for d in node.decorator_list}
                    if decorators & {"setter", "overload"}:
                        continue
                    kind = "function" if owner is None else "property" if decorators & {"property", "cached_property"} else "method"
                    if tests and node.name.startswith("test"):
                        kind = "test"
                    if not (node.name.startswith("__") and node.name.endswith("__")):
                        add(scope, node.name, kind, node.lineno, owner is not None)
                    if owner is not None:
                        for sub in ast.walk(node):
                            for target in getattr(sub, "targets", [getattr(sub, "target", None)]):
                                if isinstance(sub, (ast.Assign, ast.AnnAssign)) and isinstance(target, ast.Attribute) and getattr(target.value, "id", "") == "self":
                                    full = f"{path}::{'::'.join([*scope, target.attr])}" if tests else ".".join([module, *scope, target.attr])
                                    if not any(d.fullname == full for d in found):
                                        add(scope, target.attr, "attribute", target.lineno, True)
                case ast.Assign() | ast.AnnAssign():
                    for name in assigned(node):
                        enum = owner is not None and base_names(owner) & {"Enum", "StrEnum", "IntEnum", "Flag"}
                        kind = "constant" if owner is None else "enum-member" if enum else "field"
                        if name != "__all__" and not (name.startswith("__") and name.endswith("__")):
                            add(scope, name, kind, node.lineno, owner is not None)
                case ast.If() | ast.Try() | ast.With():
                    body(node.body, scope, owner)
                    body(getattr(node, "orelse", []), scope, owner)
                    for handler in getattr(node, "handlers", []):
                        body(handler.body, scope, owner)

    body(tree.body, [], None)
    return found


def imports(tree: ast.Module, path: str) -> dict[str, str]:
    module, found = module_of(path), {}
    package = module if path.endswith("__init__.py") else module.rpartition(".")[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            base = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            origin = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                found[alias.asname or alias.name] = f"{origin}.{alias.name}"
        elif isinstance(node, ast.Import):
            for alias in node.names:
                found[alias.asname or alias.name.split(".")[0]] = alias.name if alias.asname else alias.name.split(".")[0]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", required=True)
    parser.add_argument("--under", action="append", default=[])
    parser.add_argument("--kind", default="")
    parser.add_argument("--tsv", action="store_true")
    args = parser.parse_args()
    root = Path(args.root)
    listed = subprocess.run(["git", "ls-files", *(f"{t}/*.py" for t in TOPS)], cwd=root, capture_output=True, text=True, check=True).stdout.split()
    paths = [p for p in listed if (root / p).is_file()]
    PACKAGES.update(p.removesuffix("/__init__.py") for p in paths if p.endswith("/__init__.py"))
    trees = {path: ast.parse((root / path).read_text()) for path in paths}
    defs = {path: definitions(tree, path) for path, tree in trees.items()}
    modules = {module_of(path) for path in paths}
    tables = {module_of(path): imports(tree, path) for path, tree in trees.items()}
    level = {f"{module_of(p)}.{d.name}" for p, ds in defs.items() for d in ds if not d.member}

    def resolve(full: str) -> str:
        for _ in range(5):
            if full in level or full in modules:
                return full
            module, _, name = full.rpartition(".")
            if module not in tables or name not in tables[module]:
                return full
            full = tables[module][name]
        return full

    resolved: Counter[str] = Counter()
    members: Counter[str] = Counter()
    for path, tree in trees.items():
        module, table = module_of(path), tables[module_of(path)]

        def dotted(node: ast.expr) -> str | None:
            if isinstance(node, ast.Name):
                own = f"{module}.{node.id}"
                return own if own in level else resolve(table[node.id]) if node.id in table else None
            if isinstance(node, ast.Attribute) and (base := dotted(node.value)) in modules:
                return resolve(f"{base}.{node.attr}")
            return None

        for node in ast.walk(tree):
            if isinstance(node, (ast.Name, ast.Attribute)):
                full = dotted(node)
                if full is not None and full in level and not isinstance(node.ctx, ast.Store):
                    resolved[full] += 1
                if isinstance(node, ast.Attribute):
                    members[node.attr] += 1
            elif isinstance(node, ast.keyword) and node.arg:
                members[node.arg] += 1
    same: dict[bool, Counter[str]] = defaultdict(Counter)
    for found in defs.values():
        for each in found:
            same[each.member][each.name] += 1
    kinds = set(filter(None, args.kind.split(",")))
    under = [u.rstrip("/") for u in args.under]
    rows = []
    for path, found in defs.items():
        if under and not any(path == u or path.startswith(u + "/") for u in under):
            continue
        for each in found:
            if kinds and each.kind not in kinds:
                continue
            uses = 0 if each.kind == "test" else members[each.name] if each.member else resolved[f"{module_of(path)}.{each.name}"]
            rows.append((each.fullname, each.kind, str(uses), str(same[each.member][each.name]), f"{path}:{each.line}"))
    if args.tsv:
        print(*("\t".join(row) for row in rows), sep="\n")
        return
    widths = [max((len(row[i]) for row in rows), default=0) for i in range(5)]
    for row in rows:
        print(row[0].ljust(widths[0]), row[1].ljust(widths[1]), row[2].rjust(widths[2]), row[3].rjust(widths[3]), row[4])


if __name__ == "__main__":
    sys.exit(main())
