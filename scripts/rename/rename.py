"""Rename symbols and move modules by syntax tree and types.

    python rename.py --root WORKTREE MAPPING.yaml... [--dry-run] [--report FILE] [--no-types] [--no-format] [--force]

See README.md beside this file for the mapping.
"""

from __future__ import annotations

import argparse
import ast
import fnmatch
import gc
import importlib.util
import io
import json
import os
import re
import subprocess
import sys
import time
import tokenize
from collections import defaultdict
from pathlib import Path

HERE = Path(__file__).resolve().parent
TOPS = ("replicator", "adapters", "tests", "benchmarks", "scripts")
IDENTIFIER = re.compile(r"[A-Za-z_]\w*\Z")
SECTIONS = ("modules", "files", "symbols", "parameters", "packages")
LOG_CALLS = {"debug", "info", "warning", "error", "exception", "critical", "bind", "log"}
ATTRIBUTE_CALLS = {"getattr", "setattr", "hasattr", "delattr", "object", "__setattr__", "__getattribute__", "__delattr__"}
COMMON = {name for kind in (dict, list, str, bytes, set, Path, io.BytesIO) for name in dir(kind)}
REPLACERS = {"dataclasses.replace", "copy.replace", "msgspec.structs.replace"}
DATA_CALLS = {"dataclasses.asdict", "dataclasses.astuple", "dataclasses.fields", "msgspec.to_builtins", "msgspec.json.encode",
              "pydantic.TypeAdapter", "msgspec.convert"}


def reexec(root: Path) -> None:
    """mypy and its libraries are those of the worktree."""
    python = root / ".venv" / "bin" / "python"
    if python.exists() and Path(sys.prefix) != root / ".venv":
        os.execv(python, [str(python), *sys.argv])


def git(root: Path, *args: str) -> str:
    return subprocess.run(["git", *args], cwd=root, capture_output=True, text=True, check=True).stdout


class Namer:
    """Module names of files, as they are imported: tests by pytest's rule (from the first folder up without __init__.py)."""

    def __init__(self, paths: set[str]) -> None:
        self.paths = paths

    def module(self, path: str) -> str:
        folders, name = path[:-3].split("/")[:-1], path[:-3].split("/")[-1]
        parts = folders if folders[:1] and folders[0] not in ("tests", "scripts") else []
        if not parts:
            while folders and "/".join([*folders, "__init__.py"]) in self.paths:
                parts = [folders.pop(), *parts]
        return ".".join(parts if name == "__init__" else [*parts, name])

    def package(self, path: str) -> str:
        module = self.module(path)
        return module if path.endswith("/__init__.py") else module.rpartition(".")[0]

    def unique(self, path: str) -> str:
        module = self.module(path)
        return f"conftest__{'_'.join(path.split('/')[:-1])}" if module == "conftest" else module


class Problems(list):
    def add(self, where: str, text: str) -> None:
        self.append(f"{where}: {text}" if where else text)


class Rename:
    def __init__(self, root: Path, mapping: dict, with_types: bool | None, jobs_report) -> None:
        self.root = root
        self.mapping = mapping
        self.errors = Problems()
        self.report: dict[str, list[str]] = defaultdict(list)
        self.edits: dict[str, dict[tuple[int, int], tuple[bytes, bytes]]] = defaultdict(dict)
        self.counts: dict[str, int] = defaultdict(int)
        self.clock = time.time()
        self.say = jobs_report
        listed = [p for p in git(root, "ls-files").split("\n") if p and (root / p).is_file()]
        self.tracked = listed
        self.paths = [p for p in listed if p.endswith(".py") and p.split("/")[0] in TOPS]
        self.namer = Namer(set(self.paths))
        self.with_types = with_types

    def tick(self, text: str) -> None:
        now = time.time()
        self.say(f"[{now - self.clock:6.1f} s] {text}")
        self.clock = now

    # ---- 1. read

    def read(self) -> None:
        import scopes
        self.resolve_scope = scopes.resolve
        self.files = {}
        for path in self.paths:
            self.files[path] = scopes.parse(path, self.root, self.namer.module(path), self.namer.package(path))
        self.by_module = {f.module: f for f in self.files.values() if f.module != "conftest"}
        for f in self.files.values():
            if f.module.startswith("tests."):
                self.by_module.setdefault(f.module, f)
        self.modules = set(self.by_module)
        for module in list(self.modules):       # packages without __init__.py
            while "." in module:
                module = module.rpartition(".")[0]
                self.modules.add(module)
        self.tick(f"read {len(self.files)} files")

    # ---- 2. mapping

    def plan(self) -> None:
        self.plan_moves()
        self.plan_symbols()
        if self.with_types is None:
            self.with_types = bool(self.members or self.params)
        self.types = None
        if self.with_types:
            import typed
            files = {p: (self.namer.unique(p), f.data.decode()) for p, f in self.files.items()}
            self.types = typed.Types(self.root, files, sys.executable)
            self.tick(f"mypy ({len(self.types.errors)} messages)")
        self.plan_members()

    def plan_moves(self) -> None:
        self.path_moves: dict[str, str] = {}
        tracked = set(self.tracked)
        for old, new in (self.mapping.get("modules") or {}).items():
            base_old, base_new = old.replace(".", "/"), new.replace(".", "/")
            if f"{base_old}.py" in tracked:
                self.path_moves[f"{base_old}.py"] = f"{base_new}.py"
            elif any(p.startswith(f"{base_old}/") for p in tracked):
                for p in tracked:
                    if p.startswith(f"{base_old}/"):
                        self.path_moves.setdefault(p, base_new + p[len(base_old):])
            else:
                self.errors.add("modules", f"{old}: no such module")
        # a longer key wins over the package that it is in
        for old, new in (self.mapping.get("modules") or {}).items():
            if (p := f"{old.replace('.', '/')}.py") in tracked:
                self.path_moves[p] = f"{new.replace('.', '/')}.py"
        for old, new in (self.mapping.get("files") or {}).items():
            if old in tracked:
                self.path_moves[old] = new
            elif any(p.startswith(old.rstrip("/") + "/") for p in tracked):
                for p in tracked:
                    if p.startswith(old.rstrip("/") + "/"):
                        self.path_moves.setdefault(p, new.rstrip("/") + p[len(old.rstrip("/")):])
            else:
                self.errors.add("files", f"{old}: no such file")
        leaving = set(self.path_moves)
        taken: dict[str, str] = {}
        for old, new in self.path_moves.items():
            if (new in tracked and new not in leaving) or (self.root / new).exists() and new not in leaving:
                self.errors.add("modules", f"{old} -> {new}: there is such a file already")
            if new in taken:
                self.errors.add("modules", f"{old} and {taken[new]} would both become {new}")
            taken[new] = old
        after = {self.path_moves.get(p, p) for p in self.paths}
        self.new_inits: dict[str, str] = {}
        documented = self.mapping.get("packages") or {}
        for package in documented:
            init = package.replace(".", "/").rstrip("/") + "/__init__.py" if "/" not in package else package.rstrip("/") + "/__init__.py"
            if init not in after:
                self.new_inits[init] = documented[package] or ""
        for new in sorted(set(self.path_moves.values())):
            parts = new.split("/")[:-1]
            if parts[0] in ("replicator", "adapters", "benchmarks") and new.endswith(".py"):
                for i in range(1, len(parts) + 1):
                    init = "/".join([*parts[:i], "__init__.py"])
                    if init not in after:
                        self.new_inits.setdefault(init, "")
            elif parts[0] == "tests" and len(parts) == 2 and "/".join([*parts, "__init__.py"]) not in after:
                here = [p for p in after if p.startswith("/".join(parts) + "/")]
                if here and not any(Path(p).name.startswith(("test_", "conftest")) for p in here):
                    self.new_inits.setdefault("/".join([*parts, "__init__.py"]), "")
        for init in self.new_inits:
            module_file = f"{init.removesuffix('/__init__.py')}.py"
            if module_file in after:
                self.errors.add("modules", f"{init}: {module_file} has the same name as the new package")
        self.new_namer = Namer(after | set(self.new_inits))
        self.moved: dict[str, str] = {}
        for old, new in self.path_moves.items():
            if old.endswith(".py"):
                before, then = self.namer.module(old), self.new_namer.module(new)
                if before != then and before != "conftest":
                    self.moved[before] = then
        for path in self.paths:       # files whose package appeared round them
            if path not in self.path_moves and self.namer.module(path) not in ("conftest", self.new_namer.module(path)):
                self.moved[self.namer.module(path)] = self.new_namer.module(path)
        for package in (self.mapping.get("modules") or {}):
            folder = package.replace(".", "/")
            if f"{folder}.py" not in tracked:
                self.moved[package] = self.mapping["modules"][package]
        for old, new in self.moved.items():
            top = new.split(".")[0]
            if top not in (*TOPS, old.split(".")[0]) and (top in sys.stdlib_module_names or (top not in self.modules and has_spec(top))):
                self.errors.add("files", f"{old} -> {new}: `{top}` is the name of an installed package")

    def new_module(self, module: str) -> str:
        return self.moved.get(module, module)

    def locate(self, full: str):
        """(file, [names]) of a mapping's key."""
        if "::" in full:
            path, _, rest = full.partition("::")
            return self.files.get(path), re.split(r"::|\.", rest)
        parts = full.split(".")
        for i in range(len(parts) - 1, 0, -1):
            file = self.by_module.get(".".join(parts[:i]))
            if file is not None:
                return file, parts[i:]
            if (path := "/".join(parts[:i]) + ".py") in self.files:
                return self.files[path], parts[i:]
        return None, []

    def scope_of(self, file, names: list[str]):
        scope = file.scope
        for name in names:
            node = next((n for n in scope.stores.get(name, ()) if n in file.scopes), None)
            if node is None:
                return None
            scope = file.scopes[node]
        return scope

    def plan_symbols(self) -> None:
        self.exports: dict[tuple[str, str], str] = {}       # (path, name) of module-level bindings -> new
        self.members: list[tuple[str, object, list[str], str]] = []
        self.params: list[tuple[str, object, list[str], dict]] = []
        self.simple: dict[str, set[str]] = defaultdict(set)
        for full, new in (self.mapping.get("symbols") or {}).items():
            file, names = self.locate(full)
            if file is None:
                self.errors.add("symbols", f"{full}: no such module or file")
                continue
            if not isinstance(new, str) or not IDENTIFIER.match(new):
                self.errors.add("symbols", f"{full}: {new!r} is no simple name")
                continue
            if names[-1] == new:
                continue
            owner = self.scope_of(file, names[:-1])
            if owner is None:
                self.errors.add("symbols", f"{full}: no such definition in {file.path}")
                continue
            self.simple[names[-1]].add(new)
            if len(names) == 1:
                if names[0] not in owner.bound:
                    self.errors.add("symbols", f"{full}: {file.path} has no `{names[0]}`")
                elif names[0] in owner.imports:
                    node = owner.imports[names[0]][0][0]
                    self.errors.add(f"{file.path}:{node.lineno}", f"{full}: is imported here; name the place of its definition")
                else:
                    self.exports[file.path, names[0]] = new
            else:
                self.members.append((full, file, names, new))
        for full, renamed in (self.mapping.get("parameters") or {}).items():
            file, names = self.locate(full)
            scope = self.scope_of(file, names) if file is not None else None
            if scope is None or scope.kind != "function":
                self.errors.add("parameters", f"{full}: no such function")
                continue
            self.params.append((full, file, names, renamed))

    def plan_members(self) -> None:
        self.family_new: dict[tuple[str, str], str] = {}
        self.member_names: set[str] = {names[-1] for _, _, names, _ in self.members}
        self.families = None
        if self.types is None:
            if self.members:
                self.errors.add("symbols", "members need types: without --no-types")
            return
        param_methods = {names[-1] for _, _, names, _ in self.params}
        self.families = self.types.families(self.member_names | param_methods)
        wanted: dict[tuple[str, str], tuple[str, str]] = {}
        for full, file, names, new in self.members:
            info = self.class_info(file, names[:-1])
            if info is None:
                self.errors.add("symbols", f"{full}: the class is not known to mypy")
                continue
            name = names[-1]
            if name not in info.names:
                owner = next((b.fullname for b in info.mro if name in b.names), None)
                self.errors.add("symbols", f"{full}: the class has no such member" + (f"; it is of {owner}" if owner else ""))
                continue
            if why := self.is_data_model(info, name):
                self.errors.add("symbols", f"{full}: {why}")
                continue
            key = self.families.find((info.fullname, name))
            if key in wanted and wanted[key][0] != new:
                self.errors.add("symbols", f"{full} -> {new}, but {wanted[key][1]} -> {wanted[key][0]}: they are one family")
            wanted[key] = (new, full)
        mapped = {(info.fullname, names[-1]) for _, file, names, _ in self.members if (info := self.class_info(file, names[:-1]))}
        for key, (new, full) in wanted.items():
            for each in sorted(self.families.members(key)):
                self.family_new[each] = new
                info = self.types.infos.get(each[0])
                if info is None:
                    if each[0].split(".")[0] not in ("adapters", "replicator"):
                        self.errors.add("symbols", f"{full}: `{each[0]}.{each[1]}` is not ours, and has to keep its name")
                elif each not in mapped:
                    reason = self.families.because.get(each, "overrides, or is overridden")
                    self.report["renamed along"].append(f"{each[0]}.{each[1]} -> {new} ({reason}; with {full})")
                if info is not None:
                    if why := self.is_data_model(info, each[1]):
                        self.errors.add("symbols", f"{full}: {each[0]}: {why}")
                    self.check_member_collision(info, each[1], new, full)
        self.fakes()
        for left, right, why in self.families.candidates:
            a, b = self.family_new.get(left), self.family_new.get(right)
            if a != b:
                self.report["candidates (may implement the same protocol; add them to the mapping, or leave them)"].append(
                    f"{left[0]}.{left[1]}{f' -> {a}' if a else ' (stays)'} | {right[0]}.{right[1]}{f' -> {b}' if b else ' (stays)'}: {why}")
        self.all_same: dict[str, str] = {}
        for name in self.member_names:
            news = {self.family_new.get((i.fullname, name)) for i in self.types.infos.values() if name in i.names}
            if len(news) == 1 and None not in news:
                self.all_same[name] = news.pop()

    def fakes(self) -> None:
        """Classes of tests that stand in for a part of a class: all that is public in them is in it, and the renamed method
        has the same parameters."""
        paths = {id(info): path for (path, _, _), info in self.types.class_at.items()}
        named = [i for i in self.types.infos.values() if not i.is_protocol and self.member_names & set(i.names)
                 and paths[id(i)].startswith(("tests/", "benchmarks/", "replicator/testing/"))]
        real = [(i, {n for b in i.mro for n in b.names}) for i in self.types.infos.values() if paths[id(i)].startswith(("replicator/", "adapters/"))
                and not paths[id(i)].startswith("replicator/testing/")]
        for info in named:
            if any(b.fullname in self.types.infos for b in info.mro[1:]):
                continue
            public = {n for n in info.names if not n.startswith("_") and arguments(info.names[n].node) is not None}
            for name in public & self.member_names:
                if (info.fullname, name) in self.family_new:
                    continue
                like = [i for i, has in real if public <= has and arguments(self.types.symbol(i, name)) == arguments(info.names[name].node)]
                news = {self.family_new.get(self.families.owner(i, name)) for i in like}
                if len(news) == 1 and None not in news:
                    new = news.pop()
                    for each in self.families.members((info.fullname, name)):
                        self.family_new[each] = new
                        self.report["renamed along"].append(f"{each[0]}.{each[1]} -> {new} (a fake of a part of {like[0].fullname})")
                    self.check_member_collision(info, name, new, info.fullname)
                elif news - {None}:
                    self.report["candidates (may implement the same protocol; add them to the mapping, or leave them)"].append(
                        f"{info.fullname}.{name} (stays): could be a fake of {', '.join(sorted(i.fullname for i in like)[:4])}")

    def class_info(self, file, names: list[str]):
        scope = self.scope_of(file, names)
        if scope is None or scope.kind != "class":
            return None
        return self.info_at(file, scope.node)

    def info_at(self, file, node):
        for line in (node.lineno, *(d.lineno for d in node.decorator_list)):
            if (info := self.types.class_at.get((file.path, line, node.name))) is not None:
                return info
        return None

    def is_data_model(self, info, name: str) -> str:
        node = info.names[name].node if name in info.names else None
        if arguments(node) is not None or getattr(node, "is_classvar", False) or name.startswith("_"):
            return ""       # methods, validators, properties, private attributes
        bases = {b.fullname for b in info.mro}
        if "pydantic.main.BaseModel" in bases:
            return "is a pydantic model: its fields are config keys"
        if "msgspec.Struct" in bases:
            return "is a msgspec.Struct: its fields are keys of documents"
        if info.typeddict_type is not None:
            return "is a TypedDict: its fields are keys"
        return ""

    def check_member_collision(self, info, name: str, new: str, full: str) -> None:
        for other in self.types.infos.values():
            if other is info or info in other.mro or other in info.mro:
                for base in other.mro:
                    if new in base.names and base.fullname != "builtins.object":
                        if self.family_new.get((base.fullname, new), new) != new or self.will_be_renamed(base.fullname, new):
                            continue
                        node = base.names[new].node
                        where = f"{self.path_of(base)}:{node.line if node is not None else base.line}"
                        self.errors.add(where, f"{full} -> {new}: `{base.fullname}` has that name already")
                        return

    def will_be_renamed(self, owner: str, name: str) -> bool:
        return any(names[-1] == name and (i := self.class_info(f, names[:-1])) is not None
                   and self.families.find((i.fullname, name)) == self.families.find((owner, name)) for _, f, names, _ in self.members)

    def path_of(self, info) -> str:
        for (path, _, _), each in self.types.class_at.items():
            if each is info:
                return path
        return info.module_name

    # ---- 3. edits

    def edit(self, file, start: int, old: str, new: str, what: str) -> None:
        old_b, new_b = old.encode(), new.encode()
        end = start + len(old_b)
        if file.data[start:end] != old_b:
            self.errors.add(f"{file.path}:{file.line_of(start)}", f"expected {old!r}, found {file.data[start:end]!r} (a fault of the tool)")
            return
        was = self.edits[file.path].get((start, end))
        if was is not None and was[1] != new_b:
            self.errors.add(f"{file.path}:{file.line_of(start)}", f"{old} -> {new} and -> {was[1].decode()}")
            return
        if was is None:
            self.counts[what] += 1
        self.edits[file.path][start, end] = (old_b, new_b)

    def binding(self, file, scope, name: str, new: str, what: str) -> None:
        """Rename a binding and all its uses."""
        if (file.path, id(scope), name) in self.done_bindings:
            return
        self.done_bindings.add((file.path, id(scope), name))
        for other, same in self.renamed_in_scope[id(scope)].items():
            if same == new and other != name and not self.is_pair(file, scope, other, name):
                node = scope.stores[name][0]
                self.errors.add(f"{file.path}:{getattr(node, 'lineno', 0)}", f"{other} and {name} would both become {new}")
        self.renamed_in_scope[id(scope)][name] = new
        if name in scope.blind:
            self.errors.add(file.path, f"`{name}` is bound in a way that the tool cannot edit")
        for offset, used in scope.tokens.get(name, ()):
            self.edit(file, offset, name, new, what)
            self.shadow_checks.append((file, scope, name, new, offset, used))
        for call in self.named_calls(file).get((id(scope), name), ()):
            self.edit_string(file, call.args[0], new, what)
        if scope.kind == "module":
            for constant in self.all_strings(file):
                if constant.value == name:
                    self.edit_string(file, constant, new, what)

    def is_pair(self, file, scope, one: str, other: str) -> bool:
        """Both names are imports of one thing (a module imported twice)."""
        def origin(name):
            return {(self.absolute(file, s) if isinstance(s, ast.ImportFrom) else "", a.name) for s, a in scope.imports.get(name, ())}
        return bool(origin(one)) and origin(one) == origin(other)

    def named_calls(self, file) -> dict:
        """`T = TypeVar("T")` and the like."""
        if file.path not in self.named_cache:
            found = defaultdict(list)
            for node in ast.walk(file.tree):
                if (isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name) and isinstance(node.value, ast.Call)
                        and getattr(node.value.func, "id", getattr(node.value.func, "attr", "")) in ("TypeVar", "NewType", "ParamSpec", "NamedTuple", "namedtuple", "Enum", "StrEnum", "TypeVarTuple")
                        and node.value.args and isinstance(node.value.args[0], ast.Constant) and node.value.args[0].value == node.targets[0].id):
                    for scope in file.scopes.values():
                        if node.targets[0] in scope.stores.get(node.targets[0].id, ()):
                            found[id(scope), node.targets[0].id].append(node.value)
            self.named_cache[file.path] = found
        return self.named_cache[file.path]

    def check_classes(self) -> None:
        """After all renames no class has one member name for two members of before."""
        reported = set()
        for info in self.types.infos.values():
            origin: dict[str, tuple[str, str]] = {}
            for base in info.mro:
                for name in base.names:
                    key = (base.fullname, name)
                    new = self.family_new.get(key, name)
                    old = origin.setdefault(new, key)
                    if old[1] != name and (new != name or self.family_new.get(old)) and (new, old, key) not in reported:
                        reported.add((new, old, key))
                        node = base.names[name].node
                        self.errors.add(f"{self.path_of(info)}:{info.line}", f"class {info.name}: {old[0]}.{old[1]} and {key[0]}.{name} would both be `{new}`")

    def splats(self) -> None:
        """f(**something), where a keyword of f is renamed: keys of literals are listed, other mappings as well."""
        title = "DANGER: f(**mapping), and keywords of f are renamed (keys: change by hand; stored data?)"
        for file in self.files.values():
            for call in file.calls:
                for keyword in call.keywords:
                    if keyword.arg is not None:
                        continue
                    renamed = self.renamed_keywords(file, call)
                    if not renamed:
                        continue
                    listed = False
                    for other, node in self.literals(file, keyword.value, 0):
                        listed = True
                        if node.value in renamed:
                            self.report[title].append(f"{other.path}:{node.lineno}: key {node.value!r} -> {renamed[node.value]!r}: {other.text(node.lineno)}")
                    if not listed:
                        names = ", ".join(f"{a} -> {b}" for a, b in sorted(renamed.items())[:6])
                        self.report[title].append(f"{file.path}:{call.lineno}: {names}: {file.text(keyword.value.lineno)}")

    def renamed_keywords(self, file, call) -> dict[str, str]:
        kind = self.types.callee(file.path, call.func)
        if self.canonical(file, call.func) in REPLACERS and call.args:
            infos = self.types.classes_of(self.types.types_of(file.path, call.args[0]))
        elif kind is None:
            return {}
        elif kind[0] == "function":
            return self.param_functions.get(kind[1], {})
        elif kind[0] == "method":
            return {k: v for key in kind[1] for k, v in self.param_methods.get(key, {}).items()}
        elif kind[0] == "class":
            infos = [kind[1]]
        else:
            return {}
        found: dict[str, str] = {}
        for info in infos:
            init = next((b for b in info.mro if "__init__" in b.names and b.fullname != "builtins.object"), None)
            if init is not None and not init.names["__init__"].plugin_generated:
                found |= self.param_methods.get((init.fullname, "__init__"), {})
                continue
            for base in info.mro:
                for name, symbol in base.names.items():
                    if (new := self.family_new.get((base.fullname, name))) and type(symbol.node).__name__ == "Var":
                        found[name] = new
        return found

    def literals(self, file, node, depth: int):
        """String keys of the dict literals that an expression is made of."""
        for each in ast.walk(node):
            if isinstance(each, ast.Dict):
                yield from ((file, k) for k in each.keys if isinstance(k, ast.Constant) and isinstance(k.value, str))
            elif isinstance(each, ast.Name) and depth < 3 and each in file.at:
                home = self.resolve_scope(file.at[each], each.id)
                if home is None:
                    continue
                if each.id in home.imports:
                    module, _, name = self.follow(self.canonical(file, each) or "").rpartition(".")
                    other = self.by_module.get(module)
                    stores = other.scope.stores.get(name, ()) if other else ()
                else:
                    other, stores = file, home.stores[each.id]
                for store in stores:
                    value = self.assigned_value(other, store) if other else None
                    if isinstance(value, ast.AST):
                        yield from self.literals(other, value, depth + 1)

    def check_shadows(self) -> None:
        reported = set()

        def stays(scope, name: str) -> bool:
            return name in scope.bound and self.renamed_in_scope[id(scope)].get(name, name) == name

        for file, scope, name, new, offset, used in self.shadow_checks:
            if stays(scope, new) and (id(scope), new) not in reported:
                reported.add((id(scope), new))
                node = scope.stores[new][0]
                self.errors.add(f"{file.path}:{getattr(node, 'lineno', 0)}", f"{name} -> {new}: that name exists there already")
            each, first = used, True
            while each is not None and each is not scope:
                if stays(each, new) and (first or each.kind != "class") and (id(each), new) not in reported:
                    reported.add((id(each), new))
                    node = each.stores[new][0]
                    self.errors.add(f"{file.path}:{getattr(node, 'lineno', 0)}",
                                    f"{name} -> {new}: a local of that name shadows it, used at line {file.line_of(offset)}")
                each, first = each.parent, False
            if scope.kind == "module" and new in file.unbound and (file.path, new) not in reported:
                reported.add((file.path, new))
                self.errors.add(f"{file.path}:{file.line_of(file.unbound[new][0])}", f"{name} -> {new}: the builtin `{new}` is used in this file")
            if scope.kind != "module":
                outer = self.resolve_scope(scope.parent, new)
                if outer is not None and stays(outer, new) and scope.kind == "function":
                    for other_offset, other in outer.tokens.get(new, ()):
                        walk = other
                        while walk is not None and walk is not scope:
                            walk = walk.parent
                        if walk is scope and (id(scope), "outer", new) not in reported:
                            reported.add((id(scope), "outer", new))
                            self.errors.add(f"{file.path}:{file.line_of(other_offset)}", f"{name} -> {new}: would hide the outer `{new}` used here")

    def all_strings(self, file):
        for stmt in file.tree.body:
            if isinstance(stmt, (ast.Assign, ast.AugAssign, ast.AnnAssign)):
                targets = stmt.targets if isinstance(stmt, ast.Assign) else [stmt.target]
                if any(isinstance(t, ast.Name) and t.id == "__all__" for t in targets) and stmt.value is not None:
                    yield from (n for n in ast.walk(stmt.value) if isinstance(n, ast.Constant) and isinstance(n.value, str))

    def edit_string(self, file, constant: ast.Constant, new: str, what: str, old: str | None = None) -> bool:
        """Replace the text of a literal, or `old` in it, where its source shows it as it is."""
        old = constant.value if old is None else old
        begin, end = file.start(constant), file.end(constant)
        source = file.data[begin:end]
        if source.count(old.encode()) != 1:
            return False
        self.edit(file, begin + source.index(old.encode()), old, new, what)
        return True

    def run(self) -> None:
        self.done_bindings: set = set()
        self.renamed_in_scope: dict[int, dict[str, str]] = defaultdict(dict)
        self.shadow_checks: list = []
        self.parents_done: dict[str, set[int]] = defaultdict(set)
        self.named_cache: dict[str, dict] = {}
        self.value_cache: dict = {}
        self.name_cache: dict = {}
        self.rename_exports()
        self.rename_module_imports()
        self.rename_params()
        if self.types is not None and self.member_names | self.kw_names():
            self.rename_members()
        self.rename_attributes_of_modules()
        self.check_shadows()
        if self.types is not None:
            self.check_classes()
            self.splats()
        self.tick("symbols")
        self.debug_fields()
        self.strings()
        self.comments()
        self.tick("strings and comments")

    # module-level symbols

    def absolute(self, file, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        parts = file.package.split(".") if file.package else []
        base = parts[:len(parts) - node.level + 1]
        return ".".join([*base, *([node.module] if node.module else [])])

    def rename_exports(self) -> None:
        """Definitions, then whoever imports them, until nothing new is exported."""
        importers: dict[str, list] = defaultdict(list)
        for file in self.files.values():
            for node in file.from_imports:
                importers[self.absolute(file, node)].append((file, node))
        todo = list(self.exports.items())
        for (path, name), new in todo:
            file = self.files[path]
            self.binding(file, file.scope, name, new, "symbols")
        while todo:
            (path, name), new = todo.pop()
            exporter = self.files[path]
            self.fixture(exporter, name, new)
            for file, node in importers.get(exporter.module, ()):
                scope = file.import_scope[node]
                for alias in node.names:
                    if alias.name == "*":
                        self.report["star imports"].append(f"{file.path}:{node.lineno}: * of {exporter.module}")
                    if alias.name != name:
                        continue
                    begin = file.start(alias)
                    if alias.asname is None or alias.asname == name:
                        self.binding(file, scope, name, new, "symbols")
                        if alias.asname == name:
                            self.edit(file, begin, name, new, "symbols")
                        if scope.kind == "module" and (file.path, name) not in self.exports:
                            self.exports[file.path, name] = new
                            todo.append(((file.path, name), new))
                    elif alias.asname == new:
                        self.edit(file, begin, file.data[begin:file.end(alias)].decode(), new, "symbols")
                    else:
                        self.edit(file, begin, name, new, "symbols")

    def fixture(self, file, name: str, new: str) -> None:
        """A pytest fixture's name is that of parameters."""
        node = next((n for n in file.scope.stores.get(name, ()) if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))), None)
        if node is None or not is_fixture(node):
            return
        others = [f.path for f in self.files.values() for n in f.scope.stores.get(name, ())
                  if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef)) and is_fixture(n) and (f.path, name) not in self.exports]
        if others:
            self.errors.add(f"{file.path}:{node.lineno}", f"fixture {name} -> {new}: {', '.join(others)} has a fixture of that name, too")
            return
        for other in self.files.values():
            if not other.path.startswith("tests/"):
                continue
            for scope in other.scopes.values():
                func = scope.node
                if scope.kind == "function" and not isinstance(func, ast.Lambda) and (func.name.startswith("test") or is_fixture(func)):
                    if any(isinstance(n, ast.arg) for n in scope.stores.get(name, ())):
                        self.binding(other, scope, name, new, "fixtures")
            for call in other.calls:
                if getattr(call.func, "attr", "") in ("usefixtures", "getfixturevalue"):
                    for arg in call.args:
                        if isinstance(arg, ast.Constant) and arg.value == name:
                            self.edit_string(other, arg, new, "fixtures")

    def rename_attributes_of_modules(self) -> None:
        """`module.name`, also through mypy where the module went through a variable."""
        names = {name for _, name in self.exports}
        by_module = defaultdict(dict)
        for (path, name), new in self.exports.items():
            by_module[self.files[path].module][name] = new
            by_module[self.namer.unique(path)][name] = new
        for file in self.files.values():
            for node in file.attributes:
                if node.attr not in names:
                    continue
                module = self.module_of(file, node.value)
                modules = {module} if module else set()
                if not modules and self.types is not None:
                    found = self.types.owners(file.path, node.value, node.attr)
                    modules = found.modules if found else set()
                for each in modules:
                    if node.attr in by_module.get(each, ()):
                        self.edit(file, file.end(node) - len(node.attr.encode()), node.attr, by_module[each][node.attr], "symbols")
        self.by_exporter = by_module

    def module_of(self, file, node: ast.AST) -> str | None:
        """The module that an expression names."""
        if isinstance(node, ast.Name):
            scope = file.at.get(node)
            home = self.resolve_scope(scope, node.id) if scope is not None else None
            if home is None or node.id not in home.imports or len(home.imports[node.id]) != len(home.stores[node.id]):
                return None
            stmt, alias = home.imports[node.id][0]
            if isinstance(stmt, ast.Import):
                return alias.name if alias.asname else alias.name.split(".")[0]
            full = f"{self.absolute(file, stmt)}.{alias.name}".lstrip(".")
            return full if full in self.modules else self.reexported_module(full)
        if isinstance(node, ast.Attribute):
            base = self.module_of(file, node.value)
            full = f"{base}.{node.attr}"
            return full if base and full in self.modules else None
        return None

    def reexported_module(self, full: str) -> str | None:
        module, _, name = full.rpartition(".")
        file = self.by_module.get(module)
        if file is None or name not in file.scope.imports:
            return None
        stmt, alias = file.scope.imports[name][0]
        if isinstance(stmt, ast.ImportFrom):
            full = f"{self.absolute(file, stmt)}.{alias.name}"
            return full if full in self.modules else None
        return None

    def canonical(self, file, node: ast.AST) -> str | None:
        """Dotted name that an expression of names means, e.g. dataclasses.replace."""
        if isinstance(node, ast.Attribute):
            base = self.canonical(file, node.value)
            return f"{base}.{node.attr}" if base else None
        if isinstance(node, ast.Name):
            scope = file.at.get(node)
            home = self.resolve_scope(scope, node.id) if scope is not None else None
            if home is None:
                return node.id
            if node.id in home.imports:
                stmt, alias = home.imports[node.id][0]
                if isinstance(stmt, ast.Import):
                    return alias.name if alias.asname else node.id
                return f"{self.absolute(file, stmt)}.{alias.name}"
            return f"{file.module}.{node.id}" if home.kind == "module" else None
        return None

    # moved modules

    def rename_module_imports(self) -> None:
        if not self.moved and not self.path_moves:
            return
        for file in self.files.values():
            for node in file.from_imports:
                self.move_from_import(file, node)
            for node in file.plain_imports:
                for alias in node.names:
                    if alias.name in self.moved:
                        self.move_plain_import(file, node, alias)
        for old, new in self.path_moves.items():
            if old.endswith(".py"):
                self.parents(self.files[old], new)
                text = self.files[old].data.decode()
                for number, line in enumerate(text.split("\n"), 1):
                    if re.search(r"__file__|__package__|__name__(?!\s*==)|importlib\.resources|__path__", line) and "get_logger(__name__)" not in line:
                        if number not in self.parents_done.get(old, ()):
                            self.report["moved files that know their place (check)"].append(f"{new}:{number}: {line.strip()}")

    def parents(self, file, new: str) -> None:
        """`Path(__file__).parents[2]` of a file that lies deeper, or higher."""
        folders, after = list(Path(file.path).parents), list(Path(new).parents)
        for node in ast.walk(file.tree):
            if (isinstance(node, ast.Subscript) and isinstance(node.value, ast.Attribute) and node.value.attr == "parents"
                    and isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, int)
                    and b"__file__" in file.data[file.start(node):file.end(node)] and node.slice.value < len(folders)):
                folder = folders[node.slice.value]
                if folder in after:
                    index = after.index(folder)
                    self.parents_done[file.path].add(node.lineno)
                    if index != node.slice.value:
                        self.edit(file, file.start(node.slice), str(node.slice.value), str(index), "parents[n]")

    def move_plain_import(self, file, node, alias) -> None:
        old, new = alias.name, self.moved[alias.name]
        self.edit(file, file.start(alias), old, new, "imports")
        if alias.asname:
            return
        for attribute in file.attributes:
            if self.module_of(file, attribute) == old:
                text = file.data[file.start(attribute):file.end(attribute)].decode()
                if text != old:
                    self.errors.add(f"{file.path}:{attribute.lineno}", f"`{text}` is {old}, which moves")
                else:
                    self.edit(file, file.start(attribute), old, new, "imports")
        if "." not in old:
            self.binding(file, file.import_scope[node], old, new, "imports") if "." not in new else self.errors.add(
                f"{file.path}:{node.lineno}", f"import {old} -> {new}: write it as `from ... import`")
        elif old.split(".")[0] != new.split(".")[0]:
            self.errors.add(f"{file.path}:{node.lineno}", f"import {old} -> {new}: write it as `from ... import`")

    def move_from_import(self, file, node: ast.ImportFrom) -> None:
        base = self.absolute(file, node)
        new_path = self.path_moves.get(file.path, file.path)
        new_package = self.new_namer.package(new_path)
        groups: dict[str, list[tuple[ast.alias, str]]] = defaultdict(list)
        for alias in node.names:
            full = f"{base}.{alias.name}" if base else alias.name
            if full in self.moved and full in self.modules and not self.is_symbol(base, alias.name):
                target, _, name = self.moved[full].rpartition(".")
                groups[target].append((alias, name))
            elif full in self.modules and not self.is_symbol(base, alias.name):
                groups[base].append((alias, alias.name))      # a submodule that stays where its package moves
            else:
                groups[self.new_module(base)].append((alias, alias.name))
        if set(groups) == {base} and new_package == file.package and all(a.name == n for a, n in groups[base]):
            return
        data, begin = file.data, file.start(node)
        head = re.compile(rb"from\s+(\.*\s*[\w.]*)\s+import\b").match(data, begin)
        assert head, f"{file.path}:{node.lineno}"
        for entries in groups.values():
            for alias, name in entries:
                if alias.name != name:
                    self.rename_module_alias(file, node, alias, name)
        if len(groups) == 1:
            (target,) = groups
            text = self.spelled(target, new_package, node.level, file.path)
            was = head.group(1).decode()
            if not text:
                self.errors.add(f"{file.path}:{node.lineno}", f"import of {base}: write it as `import`")
            elif text != was:
                self.edit(file, head.start(1), was, text, "imports")
            return
        self.split_import(file, node, groups, new_package)

    def is_symbol(self, module: str, name: str) -> bool:
        file = self.by_module.get(module)
        return file is not None and name in file.scope.bound and not (
            name in file.scope.imports and f"{module}.{name}" in self.modules and all(isinstance(s, ast.ImportFrom) and self.absolute(file, s) == module and a.name == name for s, a in file.scope.imports[name]))

    def rename_module_alias(self, file, node, alias: ast.alias, name: str) -> None:
        scope = file.import_scope[node]
        if alias.asname is not None:
            if alias.asname == name:
                self.edit(file, file.start(alias), file.data[file.start(alias):file.end(alias)].decode(), name, "imports")
            else:
                self.edit(file, file.start(alias), alias.name, name, "imports")
            return
        if self.would_collide(file, scope, alias.name, name):
            self.edit(file, file.start(alias), alias.name, f"{name} as {alias.name}", "imports")
            self.report["module names kept by `as` (the new one is used in that file)"].append(
                f"{file.path}:{node.lineno}: {name} as {alias.name}")
            self.kept_as = True
            return
        self.binding(file, scope, alias.name, name, "imports")
        if scope.kind == "module":
            todo = (file.path, alias.name)
            for other in self.files.values():
                for stmt in other.from_imports:
                    if self.absolute(other, stmt) == file.module and any(a.name == todo[1] for a in stmt.names) and other is not file:
                        self.report["modules imported through another module (check)"].append(f"{other.path}:{stmt.lineno}")

    def would_collide(self, file, scope, old: str, new: str) -> bool:
        if new in scope.bound or (scope.kind == "module" and new in file.unbound):
            return True
        for _, used in scope.tokens.get(old, ()):
            while used is not None and used is not scope:
                if new in used.bound:
                    return True
                used = used.parent
        return False

    def spelled(self, target: str, package: str, level: int, path: str) -> str:
        """How an import names a module: relative as the code base has it, or absolute."""
        top = package.split(".")[0] if package else ""
        if not package or target.split(".")[0] != top:
            return target
        here, there = package.split("."), target.split(".")
        common = 0
        while common < min(len(here), len(there)) and here[common] == there[common]:
            common += 1
        dots = len(here) - common + 1
        if dots == 1 or (level and (top == "adapters" or path.startswith("tests/") or dots <= level)):
            return "." * dots + ".".join(there[common:])
        if level or dots > 1:
            return target
        return target

    def split_import(self, file, node, groups, package: str) -> None:
        begin, end = file.start(node), file.end(node)
        source = file.data[begin:end].decode()
        if "#" in source:
            self.report["comments in imports that were split (check)"].append(f"{file.path}:{node.lineno}")
        indent = " " * node.col_offset
        lines = []
        for target, entries in groups.items():
            names = []
            for alias, _ in entries:
                a, b = file.start(alias), file.end(alias)
                names.append(self.patched(file, a, b))
            lines.append(f"from {self.spelled(target, package, node.level, file.path)} import {', '.join(names)}")
        for key in [k for k in self.edits[file.path] if begin <= k[0] and k[1] <= end]:
            del self.edits[file.path][key]
        self.late_splits.append((file, node, groups, package, begin, end, indent))
        self.edits[file.path][begin, end] = (source.encode(), f"\n{indent}".join(lines).encode())
        self.counts["imports"] += 1

    late_splits: list = []

    def patched(self, file, begin: int, end: int) -> str:
        """Source between two offsets with the edits that are within."""
        out, at = b"", begin
        for (a, b), (_, new) in sorted(self.edits[file.path].items()):
            if begin <= a and b <= end:
                out += file.data[at:a] + new
                at = b
        return (out + file.data[at:end]).decode()

    # members

    def kw_names(self) -> set[str]:
        return {old for _, _, _, renamed in self.params for old in renamed}

    def resolve_found(self, file, found, name: str, where: int, node_text: str = "") -> str | None:
        """The new name of an attribute whose owners were found, or None; lists what is not known."""
        line = file.line_of(where)
        spot = f"{file.path}:{line}"
        if found is None or (found.any and not found.own):
            return self.unknown(file, name, line, "its receiver has no type")
        if not found.own:
            if found.missing:
                return self.unknown(file, name, line, "the receiver's class has no such member")
            return None
        news = {self.family_new.get(key) for key in found.own}
        if news == {None}:
            return None
        if len(news) > 1:
            owners = ", ".join(f"{a}.{b}{'' if self.family_new.get((a, b)) else ' (stays)'}" for a, b in sorted(found.own))
            self.errors.add(spot, f"`.{name}` is of several classes, renamed differently: {owners}")
            return None
        return news.pop()

    def unknown(self, file, name: str, line: int, why: str) -> str | None:
        if name in self.all_same:
            self.report["renamed by name only (no type; all definitions of the name have one new name)"].append(
                f"{file.path}:{line}: {file.text(line)}")
            return self.all_same[name]
        self.unresolved.append((file, name, line, why))
        return None

    def rename_members(self) -> None:
        self.unresolved: list = []
        self.class_nodes: dict = {}
        self.return_cache: dict = {}
        names = self.member_names
        for file in self.files.values():
            if not names:
                break
            self.class_bodies(file)
            for node in file.attributes:
                if node.attr in names:
                    offset = file.end(node) - len(node.attr.encode())
                    if (new := self.resolve_attribute(file, node, offset)) is not None:
                        self.edit(file, offset, node.attr, new, "members")
            for node, _ in file.matches:
                for attr, pattern in zip(node.kwd_attrs, node.kwd_patterns, strict=True):
                    if attr in names:
                        found = self.types.owners(file.path, node.cls, attr)
                        before = file.data[:file.start(pattern)]
                        at = re.search(rb"(\w+)\s*=\s*\Z", before).start(1)
                        if (new := self.resolve_found(file, found, attr, at)) is not None:
                            self.edit(file, at, attr, new, "members")
            for call in file.calls:
                self.call_keywords(file, call, names)
                self.attribute_strings(file, call)
        for file in self.files.values():
            if self.kw_names():
                for call in file.calls:
                    self.param_keywords(file, call)
        self.dangers()
        for name in sorted(names):
            keep = sorted(i.fullname for i in self.types.infos.values() if name in i.names and (i.fullname, name) not in self.family_new)
            if keep:
                more = f" and {len(keep) - 12} more" if len(keep) > 12 else ""
                self.report["classes whose member keeps the old name"].append(f"{name}: {', '.join(keep[:12])}{more}")
        for file, name, line, why in self.unresolved:
            if not self.by_duck(file, name, line):
                common = name in COMMON and "keyword" not in why
                self.report["unresolved, and builtin types have the name as well (mostly theirs)" if common else "UNRESOLVED (a person decides)"].append(f"{file.path}:{line}: .{name}: {why}: {file.text(line)}")

    def infer(self, file, node, depth: int) -> list:
        """Types of an expression that mypy takes for Any: what untyped functions return, what fixtures give."""
        if depth > 8:
            return []
        if self.types.is_typed(file.path, node):
            return self.types.types_of(file.path, node)
        if isinstance(node, ast.Await):
            return self.infer(file, node.value, depth + 1)
        if isinstance(node, ast.IfExp):
            return [*self.infer(file, node.body, depth + 1), *self.infer(file, node.orelse, depth + 1)]
        if isinstance(node, ast.Call):
            target = self.function_of(file, node.func)
            if target:
                return self.returns(*target, depth + 1)
            return self.infer_member(file, node.func, depth, True) if isinstance(node.func, ast.Attribute) else []
        if isinstance(node, ast.Attribute):
            return self.infer_member(file, node, depth, False)
        if isinstance(node, ast.Subscript):
            base = self.infer(file, node.value, depth + 1)
            return base if isinstance(node.slice, ast.Slice) else self.types.items(base, last=True)
        if not isinstance(node, ast.Name):
            return []
        scope = file.at.get(node)
        home = self.resolve_scope(scope, node.id) if scope is not None else None
        if home is None or len(home.stores[node.id]) > 3:
            return []
        if not self.types.types_of(file.path, node):        # unreachable for mypy: as it is elsewhere
            for other in self.names_of(file, home, node.id):
                if self.types.is_typed(file.path, other):
                    return self.types.types_of(file.path, other)
        out = []
        for store in home.stores[node.id]:
            if isinstance(store, ast.arg):
                if home.kind == "function" and not isinstance(home.node, ast.Lambda) and (home.node.name.startswith("test") or is_fixture(home.node)):
                    for other, fixture in self.fixtures_named(file, node.id):
                        out += self.returns(other, fixture, depth + 1)
                continue
            value = self.assigned_value(file, store)
            if value is None:
                continue
            if isinstance(value, list):         # for ... in
                out += self.types.items(self.infer(file, value[0], depth + 1), index=value[1])
            elif isinstance(value, tuple):        # with ... as
                target = self.function_of(file, value[0].func) if isinstance(value[0], ast.Call) else None
                out += self.returns(*target, depth + 1) if target else []
            else:
                out += self.infer(file, value, depth + 1)
        return out

    def names_of(self, file, home, name: str) -> list:
        if file.path not in self.name_cache:
            found = self.name_cache[file.path] = defaultdict(list)
            for node, scope in file.at.items():
                if isinstance(node, ast.Name):
                    found[id(self.resolve_scope(scope, node.id)), node.id].append(node)
        return self.name_cache[file.path][id(home), name]

    def infer_member(self, file, node: ast.Attribute, depth: int, called: bool) -> list:
        out = []
        for info in self.types.classes_of(self.infer(file, node.value, depth + 1)):
            owner, typ, result = self.types.member(info, node.attr)
            if owner is None:
                continue
            if (known := result if called else typ) is not None:
                out.append(known)
            elif called and (found := self.method(owner.fullname, node.attr)) is not None:
                out += self.returns(*found, depth + 1)
        return out

    def method(self, owner: str, name: str):
        """(file, function) of a method that is defined here."""
        if not self.class_nodes:
            for file in self.files.values():
                for node, scope in file.scopes.items():
                    if scope.kind == "class" and (info := self.info_at(file, node)) is not None:
                        self.class_nodes[info.fullname] = (file, scope)
        found = self.class_nodes.get(owner)
        if found is None:
            return None
        node = next((n for n in found[1].stores.get(name, ()) if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))), None)
        return (found[0], node) if node is not None else None

    def assigned_value(self, file, store):
        """The expression that a name is bound to."""
        cache = self.value_cache.get(file.path)
        if cache is None:
            cache = self.value_cache[file.path] = {}
            for node in ast.walk(file.tree):
                if isinstance(node, ast.Assign):
                    for target in node.targets:
                        cache[target] = node.value
                        if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple) and len(target.elts) == len(node.value.elts):
                            cache.update(zip(target.elts, node.value.elts, strict=True))
                        elif isinstance(target, (ast.Tuple, ast.List)):
                            cache.update((e, [node.value, i]) for i, e in enumerate(target.elts))
                elif isinstance(node, (ast.AnnAssign, ast.NamedExpr)) and node.value is not None:
                    cache[node.target] = node.value
                elif isinstance(node, (ast.For, ast.comprehension)):
                    cache[node.target] = [node.iter, None]
                elif isinstance(node, ast.withitem) and node.optional_vars is not None:
                    cache[node.optional_vars] = (node.context_expr,)
        return cache.get(store)

    def function_of(self, file, func):
        """(file, function) of a callee that is defined here."""
        if not isinstance(func, (ast.Name, ast.Attribute)):
            return None
        if isinstance(func, ast.Name):
            scope = file.at.get(func)
            home = self.resolve_scope(scope, func.id) if scope is not None else None
            if home is not None and func.id not in home.imports:
                node = next((n for n in home.stores[func.id] if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))), None)
                return (file, node) if node is not None else None
        full = self.canonical(file, func)
        if full is None:
            return None
        module, _, name = self.follow(full).rpartition(".")
        other = self.by_module.get(module)
        if other is None:
            return None
        node = next((n for n in other.scope.stores.get(name, ()) if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))), None)
        return (other, node) if node is not None else None

    def returns(self, file, function, depth: int) -> list:
        if (key := (file.path, function.lineno)) in self.return_cache:
            return self.return_cache[key]
        self.return_cache[key] = []
        out, stack = [], list(function.body)
        while stack:
            node = stack.pop()
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
                continue
            if isinstance(node, (ast.Return, ast.Yield)) and node.value is not None:
                out += self.infer(file, node.value, depth + 1)
            stack.extend(ast.iter_child_nodes(node))
        self.return_cache[key] = out
        return out

    def fixtures_named(self, file, name: str):
        """Nearest first: this file, then conftest.py upwards; or whatever file has it."""
        near = [file.path]
        folder = Path(file.path).parent
        while str(folder) not in (".", ""):
            near.append(f"{folder}/conftest.py")
            folder = folder.parent
        for path in near:
            other = self.files.get(path)
            if other is None:
                continue
            if name in other.scope.imports:
                target = self.function_of_import(other, name)
                if target:
                    return [target]
            for node in other.scope.stores.get(name, ()):
                if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and is_fixture(node):
                    return [(other, node)]
        return []

    def function_of_import(self, file, name: str):
        module, _, last = self.follow(f"{file.module}.{name}").rpartition(".")
        other = self.by_module.get(module)
        node = next((n for n in other.scope.stores.get(last, ()) if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))), None) if other else None
        return (other, node) if node is not None else None

    def by_duck(self, file, name: str, line: int) -> bool:
        """A local of unknown type, by the set of attributes that are used on it."""
        for node in file.attributes:
            if node.attr == name and node.end_lineno == line and isinstance(node.value, ast.Name):
                scope = file.at.get(node.value)
                home = self.resolve_scope(scope, node.value.id) if scope is not None else None
                if home is None or home.kind != "function":
                    return False
                used = {a.attr for a in file.attributes if isinstance(a.value, ast.Name) and a.value.id == node.value.id
                        and (s := file.at.get(a.value)) is not None and self.resolve_scope(s, node.value.id) is home}
                if len(used) < 2:
                    return False
                fitting = [i for i in self.types.infos.values() if all(any(u in b.names for b in i.mro) for u in used)]
                owners = {next((b.fullname, name) for b in i.mro if name in b.names) for i in fitting}
                news = {self.family_new.get(key) for key in owners}
                if len(news) == 1:
                    new = news.pop()
                    if new is None:
                        return True
                    offset = file.end(node) - len(name.encode())
                    self.edit(file, offset, name, new, "members")
                    self.report["renamed by the attributes that are used together (check)"].append(
                        f"{file.path}:{line}: .{name} with {', '.join(sorted(used - {name}))}: {', '.join(sorted(o[0] for o in owners))}")
                    return True
        return False

    def class_bodies(self, file) -> None:
        """Definitions in class bodies, and names in a class body that mean them."""
        for node, scope in file.scopes.items():
            if scope.kind != "class":
                continue
            info = None
            for name in self.member_names & set(scope.tokens):
                info = info or self.info_at(file, node)
                if info is None:
                    self.unresolved.append((file, name, node.lineno, f"mypy does not know class {node.name}"))
                    break
                if (new := self.family_new.get((info.fullname, name))) is not None:
                    self.binding(file, scope, name, new, "members")
                    for constant in self.slot_strings(node):
                        if constant.value == name:
                            self.edit_string(file, constant, new, "members")

    def slot_strings(self, node: ast.ClassDef):
        for stmt in node.body:
            if isinstance(stmt, ast.Assign) and any(getattr(t, "id", "") in ("__slots__", "__match_args__") for t in stmt.targets):
                yield from (n for n in ast.walk(stmt.value) if isinstance(n, ast.Constant) and isinstance(n.value, str))

    def resolve_attribute(self, file, node: ast.Attribute, offset: int) -> str | None:
        if self.module_of(file, node.value) is not None:
            return None
        if isinstance(node.value, ast.Call) and getattr(node.value.func, "id", "") == "super":
            import typed
            scope = file.at.get(node)
            while scope is not None and scope.kind != "class":
                scope = scope.parent
            info = self.info_at(file, scope.node) if scope is not None else None
            if info is None:
                return self.unknown(file, node.attr, node.end_lineno, "super() of an unknown class")
            found = typed.Found()
            for base in info.mro[1:]:
                if node.attr in base.names:
                    found.own.add((base.fullname, node.attr))
                    break
            return self.resolve_found(file, found, node.attr, offset)
        found = self.types.owners(file.path, node.value, node.attr)
        if found is None:
            found = self.by_syntax(file, node)
        if (found is None and not self.is_foreign_name(file, node.value)) or (found is not None and found.any and not found.own and not found.modules):
            try:
                inferred = self.infer(file, node.value, 0)
            except Exception as wrong:  # noqa: BLE001
                inferred = []
                self.report["guesses that failed (a fault of the tool)"].append(f"{file.path}:{node.lineno}: {wrong!r}")
            if inferred:
                better = self.types.of_types(inferred, node.attr)
                if better.own or better.foreign or better.foreign_any:
                    if len({self.family_new.get(key) for key in better.own}) > 1:
                        return self.unknown(file, node.attr, node.end_lineno, "may be of several classes")
                    found = better
                    if any(key in self.family_new for key in better.own):
                        self.report["renamed by what untyped functions and fixtures return (check a few)"].append(
                            f"{file.path}:{node.end_lineno}: .{node.attr} of {', '.join(sorted(k[0] for k in better.own))}")
        if found is None and self.is_foreign_name(file, node.value):
            return None
        if found is None:
            return self.unknown(file, node.attr, node.end_lineno, "not type-checked (unreachable, or an annotation)")
        if found.modules and not found.own:
            return None
        return self.resolve_found(file, found, node.attr, offset)

    def is_foreign_name(self, file, node) -> bool:
        full = self.canonical(file, node)
        return full is not None and full.split(".")[0] not in TOPS and full.rpartition(".")[0] not in self.modules

    def by_syntax(self, file, node: ast.Attribute):
        """The class by its name (annotations), or `self` in a method that mypy did not reach."""
        import typed
        found = typed.Found()
        info = None
        if isinstance(node.value, ast.Name):
            scope = file.at.get(node)
            home = self.resolve_scope(scope, node.value.id)
            if home is not None and home.kind == "function" and isinstance(home.node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                args = [*home.node.args.posonlyargs, *home.node.args.args]
                if args and args[0].arg == node.value.id and home.parent is not None and home.parent.kind == "class":
                    info = self.info_at(file, home.parent.node)
        if info is None and (full := self.canonical(file, node.value)) is not None:
            info = self.types.info(self.follow(full))
        if info is None:
            return None
        self.types.of_class(info, node.attr, found)
        return found

    def follow(self, full: str) -> str:
        for _ in range(5):
            module, _, name = full.rpartition(".")
            file = self.by_module.get(module)
            if file is None or name not in file.scope.imports:
                return full
            stmt, alias = file.scope.imports[name][0]
            if not isinstance(stmt, ast.ImportFrom):
                return full
            full = f"{self.absolute(file, stmt)}.{alias.name}"
        return full

    def call_keywords(self, file, call: ast.Call, names: set[str]) -> None:
        for keyword in call.keywords:
            if keyword.arg not in names:
                continue
            offset = file.offset(keyword.lineno, keyword.col_offset)
            new = self.keyword(file, call, keyword.arg, offset)
            if new is not None:
                self.edit(file, offset, keyword.arg, new, "members")

    def keyword(self, file, call: ast.Call, name: str, offset: int) -> str | None:
        import typed
        line = file.line_of(offset)
        full = self.canonical(file, call.func)
        if full in REPLACERS and call.args:
            return self.resolve_found(file, self.types.owners(file.path, call.args[0], name), name, offset)
        if isinstance(call.func, ast.Attribute) and call.func.attr == "_replace":
            return self.resolve_found(file, self.types.owners(file.path, call.func.value, name), name, offset)
        func = call.args[0] if full == "functools.partial" and call.args else call.func
        if full and full.split(".")[-1] in ("SimpleNamespace", "Mock", "MagicMock", "namedtuple"):
            self.unresolved.append((file, name, line, f"keyword of {full}"))
            return None
        if isinstance(func, ast.Attribute) and func.attr in LOG_CALLS:
            return None
        kind = self.types.callee(file.path, func)
        if kind is None:
            return None
        if kind[0] == "class":
            return self.field(file, kind[1], name, offset)
        if kind[0] == "any":
            # a class given as a value without type
            self.unresolved.append((file, name, line, "keyword of an untyped callable"))
        return None

    def field(self, file, info, name: str, offset: int) -> str | None:
        """The keyword of a constructor that is made of fields."""
        import typed
        init = next((b for b in info.mro if "__init__" in b.names and b.fullname != "builtins.object"), None)
        generated = init is not None and init.names["__init__"].plugin_generated
        if not generated and not info.is_named_tuple and info.tuple_type is None:
            return None
        found = typed.Found()
        self.types.of_class(info, name, found)
        return self.resolve_found(file, found, name, offset)

    def attribute_strings(self, file, call: ast.Call) -> None:
        """getattr(x, "name"), monkeypatch.setattr(x, "name", ...), attrgetter("name")."""
        func = getattr(call.func, "id", getattr(call.func, "attr", ""))
        if func in ATTRIBUTE_CALLS and len(call.args) >= 2:
            target, literal = call.args[0], call.args[1]
            if isinstance(literal, ast.Constant) and literal.value in self.member_names:
                name = literal.value
                found = self.types.owners(file.path, target, name)
                if self.module_of(file, target) or (found and found.modules and not found.own):
                    return
                if (new := self.resolve_found(file, found, name, file.start(literal))) is not None:
                    self.edit_string(file, literal, new, "members in strings")
                    self.report["names in strings that were changed"].append(f"{file.path}:{call.lineno}: {name} -> {new}")
            elif not isinstance(literal, ast.Constant):
                info = self.types.owners(file.path, target, "__class__")
                self.computed(file, call, target)
        elif func in ("attrgetter", "methodcaller"):
            for arg in call.args[:1 if func == "methodcaller" else None]:
                if isinstance(arg, ast.Constant) and isinstance(arg.value, str) and set(arg.value.split(".")) & self.member_names:
                    self.unresolved.append((file, arg.value, call.lineno, f"{func}"))

    def computed(self, file, call, target) -> None:
        for name in self.member_names:
            found = self.types.owners(file.path, target, name)
            if found is not None and any(key in self.family_new for key in found.own):
                self.report["DANGER: attributes by a computed name"].append(f"{file.path}:{call.lineno}: has {name}: {file.text(call.lineno)}")

    def debug_fields(self) -> None:
        """f"{name=}" prints the name."""
        for file in self.files.values():
            for start, end in self.edits.get(file.path, ()):
                if re.match(rb"\s*=\s*[!:}]", file.data[end:end + 8]):
                    self.report["DANGER: f-strings with {name=} print the new name"].append(f"{file.path}:{file.line_of(start)}")

    def dangers(self) -> None:
        """Names of fields that become data: asdict(x) and the like."""
        for file in self.files.values():
            for call in file.calls:
                full = self.canonical(file, call.func)
                if full not in DATA_CALLS or not call.args:
                    continue
                for hit in self.renamed_inside(file, call.args[0]):
                    self.report["DANGER: field names that become data (keys of stored or printed JSON)"].append(
                        f"{file.path}:{call.lineno}: {full.split('.')[-1]} of {hit}: {file.text(call.lineno)}")

    def renamed_inside(self, file, node) -> list[str]:
        from mypy.types import CallableType, Instance, TypeType, UnionType, get_proper_type
        seen, hits, todo = set(), [], list(self.types.types_of(file.path, node))
        while todo:
            typ = todo.pop()
            typ = get_proper_type(typ) if hasattr(typ, "accept") and not hasattr(typ, "mro") else typ
            if isinstance(typ, UnionType):
                todo += typ.items
            elif isinstance(typ, TypeType):
                todo.append(typ.item)
            elif isinstance(typ, CallableType) and typ.is_type_obj():
                todo.append(typ.ret_type)
            elif isinstance(typ, Instance) or hasattr(typ, "mro"):
                info = typ.type if isinstance(typ, Instance) else typ
                todo += list(getattr(typ, "args", ()))
                if info.fullname in seen or info.fullname not in self.types.infos:
                    continue
                seen.add(info.fullname)
                for base in info.mro:
                    for name, symbol in base.names.items():
                        node_type = getattr(symbol.node, "type", None)
                        if type(symbol.node).__name__ != "Var" or getattr(symbol.node, "is_property", False):
                            continue
                        if (base.fullname, name) in self.family_new:
                            hits.append(f"{base.fullname}.{name}")
                        if node_type is not None:
                            todo.append(node_type)
        return hits

    # parameters

    def rename_params(self) -> None:
        self.param_functions: dict[str, dict[str, str]] = {}
        self.param_methods: dict[tuple[str, str], dict[str, str]] = {}
        for full, file, names, renamed in self.params:
            scope = self.scope_of(file, names)
            targets = [(file, scope)]
            if len(names) > 1 and self.types is not None:
                info = self.class_info(file, names[:-1])
                keys = self.families.members((info.fullname, names[-1])) if names[-1] != "__init__" else {(info.fullname, "__init__")}
                for key in keys:
                    self.param_methods.setdefault(key, {}).update(renamed)
                    found = self.scope_of_member(key)
                    if found and found[1] is not scope:
                        targets.append(found)
            else:
                self.param_functions[f"{self.namer.unique(file.path)}.{names[0]}"] = renamed
            for old, new in renamed.items():
                for f, s in targets:
                    if not any(isinstance(n, ast.arg) for n in s.stores.get(old, ())):
                        if s is scope:
                            self.errors.add("parameters", f"{full}: no parameter `{old}`")
                        continue
                    if any("click" in (self.canonical(f, d.func if isinstance(d, ast.Call) else d) or "") for d in s.node.decorator_list):
                        self.errors.add(f"{f.path}:{s.node.lineno}", f"{full}: click gives its parameters by name")
                        continue
                    self.binding(f, s, old, new, "parameters")
                    if s is not scope:
                        self.report["renamed along"].append(f"{f.path}:{s.node.lineno}: parameter {old} -> {new} (with {full})")

    def scope_of_member(self, key: tuple[str, str]):
        for (path, line, name), info in self.types.class_at.items():
            if info.fullname == key[0]:
                file = self.files[path]
                for node, scope in file.scopes.items():
                    if scope.kind == "class" and self.info_at(file, node) is info:
                        inner = next((file.scopes[n] for n in scope.stores.get(key[1], ()) if n in file.scopes), None)
                        return (file, inner) if inner is not None else None
        return None

    def param_keywords(self, file, call: ast.Call) -> None:
        wanted = self.kw_names()
        for keyword in call.keywords:
            if keyword.arg not in wanted:
                continue
            full = self.canonical(file, call.func)
            func = call.args[0] if full == "functools.partial" and call.args else call.func
            kind = self.types.callee(file.path, func)
            offset, new = file.offset(keyword.lineno, keyword.col_offset), None
            if isinstance(func, ast.Attribute) and isinstance(func.value, ast.Call) and getattr(func.value.func, "id", "") == "super":
                scope = file.at.get(call)
                while scope is not None and scope.kind != "class":
                    scope = scope.parent
                info = self.info_at(file, scope.node) if scope is not None else None
                owner = next((b.fullname for b in info.mro[1:] if func.attr in b.names), None) if info is not None else None
                new = self.param_methods.get((owner, func.attr), {}).get(keyword.arg)
            elif kind is None or kind[0] == "any":
                self.unresolved.append((file, keyword.arg, keyword.lineno, "keyword of an untyped callable"))
            elif kind[0] == "class":
                init = next((b for b in kind[1].mro if "__init__" in b.names), None)
                new = self.param_methods.get((init.fullname, "__init__"), {}).get(keyword.arg) if init else None
            elif kind[0] == "function":
                new = self.param_functions.get(kind[1], {}).get(keyword.arg)
            elif kind[0] == "method":
                news = {self.param_methods.get(key, {}).get(keyword.arg) for key in kind[1]}
                new = news.pop() if len(news) == 1 else None
            if new:
                self.edit(file, offset, keyword.arg, new, "parameters")

    # strings, comments, documents

    def dotted(self, text: str) -> str | None:
        """The new text of `module`, `module.name(.member)` or `module:name(.member)`, where a part of it is renamed."""
        if not re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*(:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*)?", text):
            return None
        if ":" in text:
            module, _, rest = text.partition(":")
            if module not in self.modules:
                return None
            names = rest.split(".")
        else:
            parts = text.split(".")
            i = next((i for i in range(len(parts), 0, -1) if ".".join(parts[:i]) in self.modules), 0)
            if not i or (i == 1 and len(parts) == 1):
                return None
            module, names = ".".join(parts[:i]), parts[i:]
        new_names = self.renamed_path(module, names)
        new = self.new_module(module)
        result = new + ((":" if ":" in text else ".") + ".".join(new_names) if names else "")
        return result if result != text else None

    def renamed_path(self, module: str, names: list[str]) -> list[str]:
        if not names:
            return []
        out = [self.by_exporter.get(module, {}).get(names[0], names[0])]
        info = None
        if self.types is not None and len(names) > 1:
            info = self.types.info(self.follow(f"{module}.{names[0]}"))
        for name in names[1:]:
            owner = next((b.fullname for b in info.mro if name in b.names), None) if info is not None else None
            out.append(self.family_new.get((owner, name), name))
            info = None
        return out

    def strings(self) -> None:
        old_modules = sorted((m for m in self.moved if "." in m), key=len, reverse=True)
        pattern = re.compile(r"(?<![\w./])(" + "|".join(map(re.escape, old_modules)) + r")(?![\w])") if old_modules else None
        test_names = self.test_names()
        paths = self.path_pattern()
        export_names = {name for _, name in self.exports}
        olds = {*self.member_names, *export_names}
        plain: dict[str, list[str]] = defaultdict(list)
        for file in self.files.values():
            self.module_strings(file, export_names)
            for node in file.strings:
                value = node.value
                if (new := self.dotted(value)) is not None:
                    if self.edit_string(file, node, new, "dotted strings"):
                        self.report["dotted strings that were changed"].append(f"{file.path}:{node.lineno}: {value} -> {new}")
                    continue
                if value in test_names:
                    self.edit_string(file, node, test_names[value], "test names in strings")
                    self.report["names in strings that were changed"].append(f"{file.path}:{node.lineno}: {value} -> {test_names[value]}")
                    continue
                if value in self.path_moves:
                    if self.edit_string(file, node, self.path_moves[value], "paths in strings"):
                        self.report["paths in strings that were changed"].append(f"{file.path}:{node.lineno}: {value} -> {self.path_moves[value]}")
                    continue
                if pattern is not None and (found := pattern.search(value)):
                    self.embedded(file, node, pattern)
                elif paths is not None and "/" in value and (found := paths.search(value)):
                    self.report["paths within strings (not changed)"].append(f"{file.path}:{node.lineno}: {found.group()}")
                elif value in olds and (node_key := (file.start(node))) is not None:
                    start, end = file.start(node), file.end(node)
                    if not any(start <= a and b <= end for a, b in self.edits[file.path]):
                        plain[value].append(f"{file.path}:{node.lineno}: {file.text(node.lineno)}")
                elif "\n" in value and re.search(r"^\s*(from|import) ", value, re.M) and any(re.search(rf"\b{o}\b", value) for o in olds):
                    self.report["code in strings that has old names (not changed)"].append(f"{file.path}:{node.lineno}")
        for value, spots in plain.items():
            shown = spots if len(spots) <= 30 else [s for s in spots if s.startswith("tests/")][:15]
            for spot in shown:
                self.report["strings equal to an old name (not changed; data, or a name?)"].append(f"{value}: {spot}")
            if len(shown) < len(spots):
                self.report["strings equal to an old name (not changed; data, or a name?)"].append(f"{value}: {len(spots) - len(shown)} more")

    def embedded(self, file, node, pattern) -> None:
        """A moved module named within a longer string: changed where the string is Python with imports."""
        value = node.value
        code = re.search(r"(^|[\n;])\s*(from|import) ", value) is not None or re.fullmatch(r"[\w.]+\s*", value) is not None
        begin, end = file.start(node), file.end(node)
        source = file.data[begin:end].decode()
        if code and file.path.split("/")[0] in ("tests", "benchmarks"):
            for found in pattern.finditer(source):
                at = begin + len(source[:found.start()].encode())
                self.edit(file, at, found.group(), self.moved[found.group()], "code in strings")
            self.report["code in strings that was changed (check)"].append(f"{file.path}:{node.lineno}")
        else:
            for found in pattern.finditer(value):
                self.report["dotted names within strings (not changed)"].append(f"{file.path}:{node.lineno}: {found.group()}: {value[:90]!r}")

    def module_strings(self, file, names: set[str]) -> None:
        """setattr(module, "name", ...) and getattr(module, "name")."""
        for call in file.calls:
            func = getattr(call.func, "id", getattr(call.func, "attr", ""))
            if func not in ATTRIBUTE_CALLS or len(call.args) < 2:
                continue
            literal = call.args[1]
            if not isinstance(literal, ast.Constant) or literal.value not in names:
                continue
            module = self.module_of(file, call.args[0])
            if module is None and self.types is not None:
                found = self.types.owners(file.path, call.args[0], literal.value)
                module = next(iter(found.modules), None) if found and len(found.modules) == 1 else None
            if module and literal.value in self.by_exporter.get(module, ()):
                new = self.by_exporter[module][literal.value]
                self.edit_string(file, literal, new, "names in strings")
                self.report["names in strings that were changed"].append(f"{file.path}:{call.lineno}: {literal.value} -> {new}")

    def test_names(self) -> dict[str, str]:
        """Old names of tests that have one new name wherever they are defined."""
        if not any(name.startswith("test_") for name in self.simple):
            return {}
        defined: dict[str, set[str | None]] = defaultdict(set)
        for file in self.files.values():
            for node, scope in file.scopes.items():
                name = getattr(node, "name", "")
                if scope.kind == "function" and name in self.simple and name.startswith("test_"):
                    new = self.renamed_in_scope[id(scope.parent)].get(name)
                    defined[name].add(new)
        return {name: next(iter(news)) for name, news in defined.items() if len(news) == 1 and None not in news}

    def path_pattern(self):
        if not self.path_moves:
            return None
        forms = set()
        self.path_forms: dict[str, str] = {}
        suffixes: dict[str, set[str]] = defaultdict(set)
        for p in self.tracked:
            parts = p.split("/")
            for i in range(len(parts)):
                suffixes["/".join(parts[i:])].add(p)
        for old, new in self.path_moves.items():
            parts = old.split("/")
            for i in range(len(parts)):
                form = "/".join(parts[i:])
                if suffixes[form] != {old}:
                    continue
                new_parts = new.split("/")
                # as much of the new path as tells as much: the same top is left out
                cut = min(i, len(new_parts) - 1)
                while cut and new_parts[:cut] != parts[:cut]:
                    cut -= 1
                if i == len(parts) - 1 and new_parts[:-1] == parts[:-1]:
                    cut = len(new_parts) - 1
                self.path_forms[form] = "/".join(new_parts[cut:])
                forms.add(form)
        for old, new in self.moved_folders().items():
            self.path_forms.setdefault(old + "/", new + "/")
            forms.add(old + "/")
        ordered = sorted(forms, key=len, reverse=True)
        return re.compile(r"(?<![\w./-])(" + "|".join(map(re.escape, ordered)) + r")(?![\w-])")

    def moved_folders(self) -> dict[str, str]:
        found = {}
        for old, new in {**(self.mapping.get("modules") or {}), **(self.mapping.get("files") or {})}.items():
            old, new = (old, new) if "/" in old else (old.replace(".", "/"), new.replace(".", "/"))
            if (self.root / old).is_dir():
                found[old] = new
        return found

    def in_backticks(self, file, scope, text: str) -> str | None:
        """New text of what a comment or a docstring has in backticks."""
        if (new := self.dotted(text)) is not None:
            return new
        if not re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*(\(\))?", text):
            return None
        call = "()" if text.endswith("()") else ""
        parts = text.removesuffix("()").split(".")
        first = parts[0]
        if len(parts) == 2 and f"{parts[0]}" in self.last_of_modules:
            module = self.last_of_modules[parts[0]]
            name = self.by_exporter.get(module, {}).get(parts[1], parts[1])
            new = f"{self.new_module(module).rpartition('.')[2]}.{name}"
            return new + call if new != ".".join(parts) else None
        if first not in self.simple and not any(p in self.simple for p in parts):
            return None
        new_first, info = self.meaning(file, scope, first)
        if new_first is None:
            return None
        out = [new_first]
        for name in parts[1:]:
            owner = next((b.fullname for b in info.mro if name in b.names), None) if info is not None else None
            out.append(self.family_new.get((owner, name), name))
            info = None
        new = ".".join(out) + call
        return new if new != text else None

    def meaning(self, file, scope, name: str):
        """What a simple name means in a comment there: (new name, class)."""
        each = scope
        while each is not None:
            if each.kind == "class" and self.types is not None:
                info = self.info_at(file, each.node)
                if info is not None:
                    for base in info.mro:
                        if name in base.names:
                            return self.family_new.get((base.fullname, name), name), None
            elif each.kind == "function" and name in each.bound:
                return self.renamed_in_scope[id(each)].get(name, name), None
            elif each.kind == "module" and name in each.bound:
                info = self.types.info(self.follow(f"{file.module}.{name}")) if self.types is not None else None
                return self.renamed_in_scope[id(each)].get(name, name), info
            each = each.parent
        news, defined = self.simple.get(name, set()), self.definitions_of(name)
        if len(news) == 1 and defined and defined <= {next(iter(news))}:
            return next(iter(news)), None
        return None, None

    def definitions_of(self, name: str) -> set[str | None]:
        if name not in self.defs_cache:
            found: set[str | None] = set()
            for file in self.files.values():
                for scope in file.scopes.values():
                    if scope.kind in ("module", "class") and name in scope.bound and name not in scope.imports:
                        found.add(self.renamed_in_scope[id(scope)].get(name))
            if self.types is not None:
                for info in self.types.infos.values():
                    if name in info.names:
                        found.add(self.family_new.get((info.fullname, name)))
            self.defs_cache[name] = found
        return self.defs_cache[name]

    def comments(self) -> None:
        self.defs_cache: dict[str, set] = {}
        last: dict[str, list[str]] = defaultdict(list)
        for module in self.by_module:
            last[module.rpartition(".")[2]].append(module)
        self.last_of_modules = {k: v[0] for k, v in last.items() if len(v) == 1}
        words = {*self.simple, *(m.rpartition(".")[2] for m in self.moved), *(p.rpartition("/")[2] for p in self.path_moves)}
        words = {w for w in words if w}
        if not words:
            return
        anything = re.compile(r"(?<!\w)(" + "|".join(sorted(map(re.escape, words), key=len, reverse=True)) + r")(?!\w)")
        paths = self.path_pattern()
        for file in self.files.values():
            if not anything.search(file.data.decode()):
                continue
            for node, scope in file.docstrings:
                begin = file.start(node)
                self.comment(file, begin, file.data[begin:file.end(node)].decode(), self.doc_scope(file, node, scope), anything, paths)
            if any("#" in line and anything.search(line) for line in file.data.decode().split("\n")):
                text = file.data.decode()
                for token in tokenize.generate_tokens(io.StringIO(text).readline):
                    if token.type == tokenize.COMMENT and anything.search(token.string):
                        begin = file.starts[token.start[0] - 1] + len(token.line[:token.start[1]].encode())
                        self.comment(file, begin, token.string, self.scope_at(file, token.start[0]), anything, paths)

    def doc_scope(self, file, node, scope):
        return scope

    def scope_at(self, file, line: int):
        best = file.scope
        for node, scope in file.scopes.items():
            if scope.kind in ("class", "function") and not isinstance(node, ast.Lambda) and node.lineno <= line <= node.end_lineno:
                if best is file.scope or node.lineno >= best.node.lineno:
                    best = scope
        return best

    def comment(self, file, begin: int, source: str, scope, anything, paths) -> None:
        taken = []
        for found in re.finditer(r"`([^`\n]+)`", source):
            if anything.search(found.group(1)) and (new := self.in_backticks(file, scope, found.group(1))) is not None:
                at = begin + len(source[:found.start(1)].encode())
                self.edit(file, at, found.group(1), new, "comments")
                taken.append(found.span())
        if paths is not None:
            for found in paths.finditer(source):
                if not any(a <= found.start() < b for a, b in taken):
                    at = begin + len(source[:found.start()].encode())
                    self.edit(file, at, found.group(), self.path_forms[found.group()], "comments")

    # documents

    def documents(self) -> dict[str, str]:
        """New texts of pyproject.toml, documents, scripts and notebooks."""
        changed: dict[str, str] = {}
        olds = sorted((m for m in self.moved if "." in m or m in ("replicator", "adapters")), key=len, reverse=True)
        named = sorted({f"{self.files[p].module}{sep}{name}" for p, name in self.exports for sep in ".:" if "." in self.files[p].module}, key=len, reverse=True)
        every = [*named, *olds]
        dotted = re.compile(r"(?<![\w./-])(" + "|".join(map(re.escape, every)) + r")((?:[.:][A-Za-z_]\w*)*)(?!\w)") if every else None
        paths = self.path_pattern()
        exported = {name: new for (_, name), new in self.exports.items() if self.definitions_of(name) == {new} and re.match(r"_?[A-Z]\w*[a-z]", name)}

        def replaced(found: re.Match) -> str:
            whole = found.group(1) + found.group(2)
            return self.dotted(whole) or self.dotted(found.group(1)) and self.dotted(found.group(1)) + found.group(2) or self.moved.get(found.group(1), found.group(1)) + found.group(2)

        for path in self.tracked:
            if path.endswith(".ipynb"):
                self.notebook(path, changed)
                continue
            if path == "CHANGELOG.md" or path.startswith("tests/golden") or not (
                    path.endswith((".md", ".sh")) or path in ("pyproject.toml", "docker-compose.yml", ".ci/run")):
                continue
            text = (self.root / path).read_text()
            new = dotted.sub(replaced, text) if dotted else text
            if paths is not None:
                new = paths.sub(lambda m: self.path_forms[m.group()], new)
            if path.endswith(".md"):
                new = re.sub(r"`(\w+)`", lambda m: f"`{exported.get(m.group(1), m.group(1))}`", new)
                for full, to in (self.mapping.get("symbols") or {}).items():
                    if "::" in full:
                        new = re.sub(re.escape(full.rpartition("::")[2]) + r"\b", to, new) if full in text else new
            if new != text:
                changed[path] = new
                for number, (a, b) in enumerate(zip(text.split("\n"), new.split("\n"), strict=False), 1):
                    if a != b:
                        self.report["documents that were changed"].append(f"{path}:{number}: {b.strip()[:150]}")
        self.globs()
        return changed

    def globs(self) -> None:
        """per-file-ignores that a moved file leaves or enters."""
        import tomllib
        ignores = tomllib.loads((self.root / "pyproject.toml").read_text())["tool"]["ruff"]["lint"].get("per-file-ignores", {})
        for pattern in ignores:
            expanded = braces(pattern)
            for old, new in self.path_moves.items():
                was, now = (any(fnmatch.fnmatch(p, each) for each in expanded) for p in (old, new))
                if was != now:
                    self.report["ruff per-file-ignores (change pyproject.toml by hand)"].append(
                        f"{old} -> {new}: {'no longer' if was else 'now'} matches {pattern!r}")

    def notebook(self, path: str, changed: dict[str, str]) -> None:
        import scopes
        raw = (self.root / path).read_text()
        book = json.loads(raw)
        for number, cell in enumerate(book["cells"]):
            code = "".join(cell["source"])
            if cell["cell_type"] != "code" or not re.search(r"\b(replicator|adapters)\b", code):
                continue
            for old in sorted(self.moved, key=len, reverse=True):
                if re.search(rf"(?<![\w.]){re.escape(old)}(?![\w])", code):
                    self.report["notebooks (change by hand)"].append(f"{path}: cell {number}: {old} -> {self.moved[old]}")
            for (p, name), new in self.exports.items():
                if self.files[p].module in code and re.search(rf"\b{name}\b", code):
                    self.report["notebooks (change by hand)"].append(f"{path}: cell {number}: {name} -> {new}")

    # ---- 4. write

    def texts(self) -> dict[str, bytes]:
        out: dict[str, bytes] = {}
        for path, edits in self.edits.items():
            if not edits:
                continue
            data, pieces, at = self.files[path].data, [], 0
            for (start, end), (old, new) in sorted(edits.items()):
                if start < at:
                    self.errors.add(f"{path}:{self.files[path].line_of(start)}", f"two edits at one place: {old!r} -> {new!r}")
                    continue
                pieces += [data[at:start], new]
                at = end
            out[path] = b"".join([*pieces, data[at:]])
            try:
                ast.parse(out[path])
            except SyntaxError as wrong:
                self.errors.add(f"{path}:{wrong.lineno}", f"would be no Python: {wrong.msg}")
        return out

    def write(self, texts: dict[str, bytes], documents: dict[str, str], style: bool) -> None:
        for path, text in texts.items():
            (self.root / path).write_bytes(text)
        for path, text in documents.items():
            (self.root / path).write_text(text)
        # in two steps where files change places
        temporary = {}
        for old, new in self.path_moves.items():
            if new in self.path_moves:
                git(self.root, "mv", old, old + ".moving")
                temporary[old] = old + ".moving"
        for old, new in self.path_moves.items():
            (self.root / new).parent.mkdir(parents=True, exist_ok=True)
            git(self.root, "mv", temporary.get(old, old), new)
        for init, text in self.new_inits.items():
            file = self.root / init
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f'"""{text}"""\n' if text else "")
            git(self.root, "add", "-N", init)
        self.remove_empty_packages()
        touched = {self.path_moves.get(p, p) for p in texts} | set(self.path_moves.values()) | set(self.new_inits)
        touched = sorted(p for p in touched if p.endswith(".py") and (self.root / p).exists())
        if style and touched:
            ruff = str(self.root / ".venv/bin/ruff")
            subprocess.run([ruff, "check", "-q", "--select", "I", "--fix", *touched], cwd=self.root, check=False)
            subprocess.run([ruff, "check", "-q", "--select", "RUF022,RUF023", "--fix", *touched], cwd=self.root, check=False)
            subprocess.run([ruff, "format", "-q", *touched], cwd=self.root, check=False)
        self.tick(f"written: {len(texts)} files changed, {len(self.path_moves)} moved")

    def remove_empty_packages(self) -> None:
        for folder in sorted({str(Path(p).parent) for p in self.path_moves}, key=len, reverse=True):
            here = self.root / folder
            if not here.is_dir():
                continue
            left = [p for p in here.iterdir() if p.name != "__pycache__"]
            if [p.name for p in left] == ["__init__.py"]:
                tree = ast.parse(left[0].read_text())
                if all(isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant) for s in tree.body):
                    doc = ast.get_docstring(tree)
                    git(self.root, "rm", "-q", "-f", f"{folder}/__init__.py")
                    self.report["packages that were deleted"].append(f"{folder}" + (f": {doc}" if doc else ""))
                    left = []
            if not left and here.is_dir():
                import shutil
                shutil.rmtree(here)


def arguments(node) -> list | None:
    """Names of a method's parameters; None: no method."""
    node = getattr(node, "func", node)
    node = getattr(node, "impl", None) or node
    names = getattr(node, "arg_names", None)
    return None if names is None else names[1:]


def has_spec(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def is_fixture(node) -> bool:
    for d in node.decorator_list:
        d = d.func if isinstance(d, ast.Call) else d
        if getattr(d, "attr", getattr(d, "id", "")) == "fixture":
            return True
    return False


def braces(pattern: str) -> list[str]:
    found = re.search(r"\{([^{}]*)\}", pattern)
    if not found:
        return [pattern]
    return [each for part in found.group(1).split(",") for each in braces(pattern[:found.start()] + part + pattern[found.end():])]


def load(paths: list[str]) -> dict:
    import yaml
    merged: dict = {section: {} for section in SECTIONS}
    for path in paths:
        for section, entries in (yaml.safe_load(Path(path).read_text()) or {}).items():
            if section not in SECTIONS:
                print(f"{path}: section {section!r} is left out; there are {', '.join(SECTIONS)}", file=sys.stderr)
                continue
            for key, value in (entries or {}).items():
                if key in merged[section] and merged[section][key] != value:
                    sys.exit(f"{path}: {section}: {key} is there twice: {merged[section][key]} and {value}")
                merged[section][key] = value
    return merged


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", required=True, type=Path)
    parser.add_argument("mapping", nargs="+")
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--report", type=Path)
    parser.add_argument("--types", action=argparse.BooleanOptionalAction, default=None, help="default: where members or parameters are renamed")
    parser.add_argument("--no-format", action="store_true")
    parser.add_argument("--force", action="store_true", help="write although there are errors (those renames are left out where they cannot be done)")
    args = parser.parse_args()
    root = args.root.resolve()
    reexec(root)
    mapping = load([str(Path(m).resolve()) for m in args.mapping])
    report = args.report.resolve() if args.report else None
    sys.path.insert(0, str(HERE))
    gc.disable()
    sys.setrecursionlimit(10_000)
    started = time.time()
    job = Rename(root, mapping, args.types, lambda text: print(text, file=sys.stderr, flush=True))
    job.read()
    job.plan()
    job.run()
    documents = job.documents()
    texts = job.texts()
    lines = []
    if job.errors:
        lines += [f"ERRORS ({len(job.errors)})", *(f"  {e}" for e in sorted(set(job.errors))), ""]
    writes = not args.dry_run and (args.force or not job.errors)
    if writes:
        job.write(texts, documents, not args.no_format)
    for title, entries in job.report.items():
        entries = sorted(set(entries))
        lines += [f"{title} ({len(entries)})", *(f"  {e}" for e in entries), ""]
    lines.append(f"{'WRITTEN' if writes else 'NOTHING WRITTEN'}: {sum(job.counts.values())} edits in {len(texts)} files "
                 f"({', '.join(f'{k} {v}' for k, v in job.counts.items())}), {len(job.path_moves)} files moved, "
                 f"{len(documents)} documents, {time.time() - started:.0f} s")
    text = "\n".join(lines)
    if report:
        report.write_text(text + "\n")
    print(text)
    return 1 if job.errors else 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)     # without taking millions of nodes apart
