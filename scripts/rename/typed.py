"""What mypy knows: the owners of attributes, the callees of calls, families of overriding and implementing members."""

from __future__ import annotations

import ast
import io
import os
import sys
import time
from pathlib import Path

from mypy import build, config_parser, lookup, options
from mypy.modulefinder import BuildSource
from mypy.nodes import (
    ClassDef, Decorator, Expression, FuncDef, MemberExpr, MypyFile, Node, OverloadedFuncDef, RefExpr,
    Argument, CallExpr, IndexExpr, NameExpr, TypeApplication, TypeInfo, Var,
)
from mypy.state import state
from mypy.subtypes import is_subtype
from mypy.typestate import type_state
from mypy.typevars import fill_typevars_with_any
from mypy.types import (
    AnyType, CallableType, Instance, LiteralType, NoneType, Overloaded, TupleType, TypeOfAny, TypeType,
    TypeVarLikeType, UnionType, get_proper_type,
)

CACHE = ".rename-cache"


CHILDREN = """body arguments initializer expanded func decorators original_decorators items impl defs base_type_exprs
removed_base_type_exprs keywords metaclass lvalues lvalue rvalue expr else_body index msg from_expr vars types handlers finally_body
target subject guards bodies patterns callee args base left right operands begin_index end_index stride call generator left_expr
sequences condlists indices key value cond if_expr else_expr pattern capture keys values class_ref positionals keyword_values
analyzed""".split()
"""Attributes of mypy's nodes that lead to nodes below them (its visitors cannot be subclassed where mypy is compiled)."""


class Index:
    """Expressions of a file by their positions, and its classes."""

    children: dict[type, list[str]] = {}

    def __init__(self, tree: MypyFile) -> None:
        self.exprs: dict[tuple[int, int, int, int], list[Expression]] = {}
        self.classes: list[ClassDef] = []
        seen: set[int] = set()
        stack: list[object] = list(tree.defs)
        while stack:
            node = stack.pop()
            if isinstance(node, (list, tuple)):
                stack.extend(node)
                continue
            if isinstance(node, dict):
                stack.extend(node.values())
                continue
            if not isinstance(node, (Node, Argument)) or id(node) in seen:
                continue
            seen.add(id(node))
            kind = type(node)
            names = self.children.get(kind)
            if names is None:
                names = self.children[kind] = [name for name in CHILDREN if hasattr(kind, name)]
            if isinstance(node, Expression):
                self.exprs.setdefault((node.line, node.column, node.end_line, node.end_column), []).append(node)
            elif isinstance(node, ClassDef):
                self.classes.append(node)
            elif isinstance(node, Var):
                continue
            for name in names:
                child = getattr(node, name, None)
                if child is not None:
                    stack.append(child)


class Found:
    """Where an attribute may be defined. `own`: (class, name) pairs; `modules`; `any`: receivers of unknown type."""

    def __init__(self) -> None:
        self.own: set[tuple[str, str]] = set()
        self.modules: set[str] = set()
        self.any = self.foreign_any = self.foreign = self.missing = False


class Types:
    def __init__(self, root: Path, files: dict[str, tuple[str, str]], interpreter: str) -> None:
        """`files`: path -> (unique module id, text)."""
        started = time.time()
        opts = options.Options()
        config_parser.parse_config_file(opts, lambda: None, str(root / "pyproject.toml"), io.StringIO(), io.StringIO())
        opts.packages = []
        opts.export_types = opts.preserve_asts = opts.check_untyped_defs = opts.incremental = True
        opts.warn_unused_ignores = opts.warn_unreachable = False
        opts.python_executable = interpreter
        opts.cache_dir = CACHE
        os.chdir(root)
        sources = [BuildSource(path, module, text) for path, (module, text) in files.items()]
        self.errors: list[str] = []
        self.result = build.build(sources, opts, flush_errors=lambda _f, messages, _s: self.errors.extend(messages))
        self.types = self.result.types
        self.modules = self.result.graph and {k: s.tree for k, s in self.result.graph.items() if s.tree is not None}
        self.ours = {module for module, _ in files.values()}
        self.index: dict[str, Index] = {}
        self.texts = {path: text for path, (_, text) in files.items()}
        self.lines: dict[str, set[int]] = {}
        self.infos: dict[str, TypeInfo] = {}
        self.class_at: dict[tuple[str, int, str], TypeInfo] = {}
        for path, (module, _) in files.items():
            tree = self.modules.get(module)
            if tree is None:
                continue
            index = self.index[path] = Index(tree)
            for cls in index.classes:
                self.infos[cls.info.fullname] = cls.info
                self.class_at[path, cls.line, cls.name] = cls.info
        self.seconds = time.time() - started

    # ---- lookups by position

    def nodes(self, path: str, node) -> list[Expression]:
        index = self.index.get(path)
        if index is None:
            return []
        exact = index.exprs.get((node.lineno, node.col_offset, node.end_lineno, node.end_col_offset), [])
        lines = self.wide_lines(path)
        if not lines or (node.lineno not in lines and node.end_lineno not in lines):
            return exact
        # columns of mypy are wrong behind characters that are not ASCII: by the name instead, all of the line that have it
        name = last_name(node)
        return [e for key, each in index.exprs.items() if key[0] == node.lineno and key[2] in (node.end_lineno, None) for e in each
                if name is not None and name_of(e) == name]

    def wide_lines(self, path: str) -> set[int]:
        lines = self.lines.get(path)
        if lines is None:
            text = self.texts[path]
            lines = self.lines[path] = set() if text.isascii() else {i for i, t in enumerate(text.split("\n"), 1) if not t.isascii()}
        return lines

    def types_of(self, path: str, node) -> list:
        found = []
        for each in self.nodes(path, node):
            typ = self.types.get(each)
            if typ is not None:
                found.append(typ)
            elif isinstance(each, RefExpr) and isinstance(each.node, (TypeInfo, MypyFile)):
                found.append(each.node)
        return found

    def owners(self, path: str, node, name: str) -> Found | None:
        """Of the attribute `name` of the expression `node`; None where nothing is known of it."""
        found, seen = Found(), False
        for each in self.nodes(path, node):
            if isinstance(each, RefExpr) and isinstance(each.node, MypyFile):
                found.modules.add(each.node.fullname)
                seen = True
            elif (typ := self.types.get(each)) is not None:
                self.collect(typ, name, found)
                seen = True
            elif isinstance(each, RefExpr) and isinstance(each.node, TypeInfo):
                self.of_class(each.node, name, found)
                seen = True
        return found if seen else None

    def is_typed(self, path: str, node) -> bool:
        return any(not isinstance(get_proper_type(t) if not isinstance(t, Node) else t, AnyType) for t in self.types_of(path, node))

    def of_types(self, found_types: list, name: str) -> Found:
        found = Found()
        for typ in found_types:
            if isinstance(typ, TypeInfo):
                self.of_class(typ, name, found)
            elif not isinstance(typ, MypyFile):
                self.collect(typ, name, found)
        return found

    def classes_of(self, found_types: list) -> list[TypeInfo]:
        out, todo = [], list(found_types)
        while todo:
            typ = todo.pop()
            if isinstance(typ, TypeInfo):
                out.append(typ)
                continue
            if isinstance(typ, Node):
                continue
            typ = get_proper_type(typ)
            if isinstance(typ, UnionType):
                todo += typ.items
            elif isinstance(typ, TypeVarLikeType):
                todo.append(typ.upper_bound)
            elif isinstance(typ, TupleType):
                out.append(typ.partial_fallback.type)
            elif isinstance(typ, Instance):
                out.append(typ.type)
        return out

    def items(self, found_types: list, last: bool = False, index: int | None = None) -> list:
        """What iterables give, or (last) what is at an index."""
        out, todo = [], list(found_types)
        while todo:
            typ = todo.pop()
            if isinstance(typ, Node):
                continue
            typ = get_proper_type(typ)
            if isinstance(typ, UnionType):
                todo += typ.items
            elif isinstance(typ, TupleType):
                out += typ.items if index is None else typ.items[index:index + 1]
            elif isinstance(typ, Instance) and typ.args:
                out.append(typ.args[-1 if last else 0])
        return [t for t in out if not isinstance(get_proper_type(t), AnyType)]

    def member(self, info: TypeInfo, name: str):
        """(owner, type of the attribute or None, what a call of it returns or None)."""
        for base in info.mro:
            if name not in base.names:
                continue
            node = base.names[name].node
            inner = node.func if isinstance(node, Decorator) else node
            typ = get_proper_type(getattr(node, "type", None)) if getattr(node, "type", None) is not None else None
            if isinstance(node, Decorator):
                typ = get_proper_type(node.var.type) if node.var.type is not None else None
            result = typ.ret_type if isinstance(typ, CallableType) else None
            if result is not None and isinstance(get_proper_type(result), AnyType):
                result = None
            if getattr(inner, "is_property", False):
                return base, result, None
            return base, None if typ is None or isinstance(typ, (AnyType, CallableType)) else typ, result
        return None, None, None

    def collect(self, typ, name: str, found: Found) -> None:
        typ = get_proper_type(typ)
        if isinstance(typ, AnyType):
            if is_foreign(typ):
                found.foreign_any = True
            else:
                found.any = True
        elif isinstance(typ, Instance):
            if typ.extra_attrs is not None and typ.extra_attrs.mod_name:
                found.modules.add(typ.extra_attrs.mod_name)
            else:
                self.of_class(typ.type, name, found)
        elif isinstance(typ, UnionType):
            for item in typ.items:
                self.collect(item, name, found)
        elif isinstance(typ, TypeVarLikeType):
            values = getattr(typ, "values", None)
            for item in values or [typ.upper_bound]:
                self.collect(item, name, found)
        elif isinstance(typ, (CallableType, Overloaded)):
            if typ.is_type_obj():
                self.of_class(typ.type_object(), name, found)
            else:
                found.foreign = True
        elif isinstance(typ, TypeType):
            self.collect(typ.item, name, found)
        elif isinstance(typ, TupleType):
            self.of_class(typ.partial_fallback.type, name, found)
        elif isinstance(typ, LiteralType):
            self.of_class(typ.fallback.type, name, found)
        elif isinstance(typ, NoneType):
            pass
        else:
            found.foreign = True

    def of_class(self, info: TypeInfo, name: str, found: Found) -> None:
        for base in info.mro:
            if name in base.names:
                found.own.add((base.fullname, name))
                return
        if info.fallback_to_any:
            found.foreign_any = True
        elif info.module_name in self.ours:
            found.missing = True
        else:
            found.foreign = True

    def callee(self, path: str, func) -> tuple[str, object] | None:
        """("class", TypeInfo), ("function", fullname), ("method", (class, name)), ("foreign", None), ("any", None)."""
        for each in self.nodes(path, func):
            ref = each.expr if isinstance(each, TypeApplication) else each
            if isinstance(ref, RefExpr):
                if isinstance(ref.node, TypeInfo):
                    return "class", ref.node
                if isinstance(ref.node, (FuncDef, OverloadedFuncDef, Decorator)) and not getattr(ref.node, "info", None):
                    return "function", ref.node.fullname
            typ = get_proper_type(self.types.get(each)) if each in self.types else None
            if isinstance(typ, (CallableType, Overloaded)) and typ.is_type_obj():
                return "class", typ.type_object()
            if isinstance(ref, MemberExpr) and (base := self.types.get(ref.expr)) is not None:
                found = Found()
                self.collect(base, ref.name, found)
                if found.own:
                    return "method", found.own
                if found.foreign or found.foreign_any:
                    return "foreign", None
            if isinstance(typ, CallableType) and typ.definition is not None:
                node = typ.definition
                if getattr(node, "info", None):
                    return "method", {(node.info.fullname, node.name)}
                return "function", node.fullname
            if isinstance(typ, Overloaded):
                return "foreign", None
            if isinstance(typ, AnyType):
                return ("foreign" if is_foreign(typ) else "any"), None
            if isinstance(typ, CallableType):
                return "foreign", None
        return None

    # ---- families

    def families(self, names: set[str]) -> Families:
        return Families(self, names)

    def symbol(self, info: TypeInfo, name: str):
        return next((b.names[name].node for b in info.mro if name in b.names), None)

    def info(self, fullname: str) -> TypeInfo | None:
        if fullname in self.infos:
            return self.infos[fullname]
        found = lookup.lookup_fully_qualified(fullname, self.modules)
        node = found.node if found is not None else None
        return node if isinstance(node, TypeInfo) else None


def last_name(node) -> str | None:
    """Kind and name of an expression of the syntax tree."""
    if isinstance(node, ast.Name):
        return f"name {node.id}"
    if isinstance(node, ast.Attribute):
        return f"member {node.attr}"
    if isinstance(node, ast.Call) and (inner := last_name(node.func)):
        return f"call {inner}"
    if isinstance(node, ast.Subscript) and (inner := last_name(node.value)):
        return f"index {inner}"
    return None


def name_of(expr: Expression) -> str | None:
    if isinstance(expr, NameExpr):
        return f"name {expr.name}"
    if isinstance(expr, MemberExpr):
        return f"member {expr.name}"
    if isinstance(expr, CallExpr) and (inner := name_of(expr.callee)):
        return f"call {inner}"
    if isinstance(expr, IndexExpr) and (inner := name_of(expr.base)):
        return f"index {inner}"
    return None


def is_foreign(typ: AnyType) -> bool:
    """Any because a package without types was imported."""
    while typ.source_any is not None:
        typ = typ.source_any
    return typ.type_of_any == TypeOfAny.from_unimported_type or typ.missing_import_name is not None


class Families:
    """Members that must have one name: (class, name) joined over base classes and over protocols that are implemented."""

    def __init__(self, types: Types, names: set[str]) -> None:
        self.types = types
        self.parent: dict[tuple[str, str], tuple[str, str]] = {}
        self.because: dict[tuple[str, str], str] = {}
        self.candidates: list[tuple[tuple[str, str], tuple[str, str], str]] = []
        for info in types.infos.values():
            for name in names:
                having = [base.fullname for base in info.mro if name in base.names and base.fullname != "builtins.object"]
                for each in having[1:]:
                    self.join((having[0], name), (each, name))
        attempted = type_state._attempted_protocols
        with state.strict_optional_set(True):
            self.protocols(names, attempted)

    def protocols(self, names: set[str], attempted) -> None:
        types = self.types
        ours = [info for info in types.infos.values() if info.is_protocol]
        foreign = {f for found in attempted.values() for f in found if f not in types.infos}
        ours += [info for f in foreign if (info := types.info(f)) is not None and info.is_protocol]
        for protocol in ours:
            members = set(protocol.protocol_members)
            touched = members & names
            if not touched:
                continue
            for info in types.infos.values():
                if protocol in info.mro or info.is_protocol and protocol.fullname not in types.infos:
                    continue
                was = protocol.fullname in attempted.get(info.fullname, ())
                has = {m for m in members if any(m in base.names for base in info.mro if base.fullname != "builtins.object")}
                if not has & touched:
                    continue
                fits = has == members and self.fits(info, protocol)
                for name in touched & has:
                    left, right = self.owner(info, name), self.owner(protocol, name)
                    if left == right:
                        continue
                    if fits and (was or protocol.runtime_protocol or len(members) > 1):
                        self.because.setdefault(left, f"implements {right[0]}" + ("" if was else ": has all its members, and they fit"))
                        self.join(left, right)
                    elif has == members and protocol.fullname in types.infos:
                        self.candidates.append((left, right, "has all its members" + (", other types" if not fits else "")))
                    elif was and protocol.fullname in types.infos and len(has) * 2 >= len(members) and not info.is_protocol:
                        self.candidates.append((left, right, f"was given for it; lacks {', '.join(sorted(members - has)[:3])}"))

    def fits(self, info: TypeInfo, protocol: TypeInfo) -> bool:
        try:
            return is_subtype(fill_typevars_with_any(info), fill_typevars_with_any(protocol))
        except Exception:  # noqa: BLE001
            return False

    def owner(self, info: TypeInfo, name: str) -> tuple[str, str]:
        return next((base.fullname, name) for base in info.mro if name in base.names)

    def find(self, key: tuple[str, str]) -> tuple[str, str]:
        while self.parent.get(key, key) != key:
            key = self.parent[key]
        return key

    def join(self, a: tuple[str, str], b: tuple[str, str]) -> None:
        a, b = self.find(a), self.find(b)
        if a != b:
            self.parent[a] = b

    def members(self, key: tuple[str, str]) -> set[tuple[str, str]]:
        root = self.find(key)
        return {each for each in {*self.parent, root, key} if self.find(each) == root}
