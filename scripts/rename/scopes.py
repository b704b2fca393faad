"""Files as bytes, syntax trees with exact positions (also within f-strings), scopes and bindings."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from dataclasses import dataclass, field
from pathlib import Path

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


@dataclass(eq=False)
class Scope:
    kind: str                       # module, class, function, comprehension
    node: ast.AST
    parent: Scope | None
    name: str = ""
    bound: set[str] = field(default_factory=set)
    stores: dict[str, list[ast.AST]] = field(default_factory=dict)     # nodes that bind
    globals: set[str] = field(default_factory=set)
    nonlocals: set[str] = field(default_factory=set)
    tokens: dict[str, list[tuple[int, Scope]]] = field(default_factory=dict)    # of a binding here: byte offset, scope of the use
    imports: dict[str, list[tuple[ast.stmt, ast.alias]]] = field(default_factory=dict)
    blind: set[str] = field(default_factory=set)    # bindings with an occurrence whose position is unknown


@dataclass
class File:
    path: str
    module: str
    package: str
    data: bytes
    tree: ast.Module
    starts: list[int]
    scope: Scope = None  # type: ignore[assignment]
    scopes: dict[ast.AST, Scope] = field(default_factory=dict)      # scope made by a node
    at: dict[ast.AST, Scope] = field(default_factory=dict)          # scope in which a Name/Attribute/Call/Constant stands
    unbound: dict[str, list[int]] = field(default_factory=dict)     # names that no scope of the file binds
    attributes: list[ast.Attribute] = field(default_factory=list)
    calls: list[ast.Call] = field(default_factory=list)
    strings: list[ast.Constant] = field(default_factory=list)
    docstrings: list[tuple[ast.Constant, Scope]] = field(default_factory=list)
    matches: list[tuple[ast.MatchClass, Scope]] = field(default_factory=list)
    from_imports: list[ast.ImportFrom] = field(default_factory=list)
    plain_imports: list[ast.Import] = field(default_factory=list)
    import_scope: dict[ast.stmt, Scope] = field(default_factory=dict)

    def offset(self, line: int, col: int) -> int:
        return self.starts[line - 1] + col

    def start(self, node: ast.AST) -> int:
        return self.offset(node.lineno, node.col_offset)

    def end(self, node: ast.AST) -> int:
        return self.offset(node.end_lineno, node.end_col_offset)

    def line_of(self, offset: int) -> int:
        import bisect
        return bisect.bisect_right(self.starts, offset)

    def text(self, line: int) -> str:
        end = self.starts[line] if line < len(self.starts) else len(self.data)
        return self.data[self.starts[line - 1]:end].decode().strip()


def parse(path: str, root: Path, module: str, package: str) -> File:
    data = (root / path).read_bytes()
    starts = [0]
    for found in re.finditer(rb"\n", data):
        starts.append(found.end())
    file = File(path, module, package, data, ast.parse(data), starts)
    fix_fstrings(file, file.tree)
    Walker(file).run()
    return file


# ---- f-strings: before 3.12 the tree has wrong positions within them

FIELD_END = re.compile(r"[!:}=]")


def fix_fstrings(file: File, tree: ast.AST) -> None:
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr) and any(isinstance(v, ast.FormattedValue) for v in node.values):
            if getattr(node, "_fixed", False):
                continue
            mark(node)
            exprs = list(fields_of(file, node))
            formatted = list(formatted_values(node))
            if len(exprs) != len(formatted):
                raise ValueError(f"{file.path}:{node.lineno}: f-string with {len(formatted)} fields, {len(exprs)} found")
            for (text, offset), value in zip(exprs, formatted, strict=True):
                line = file.line_of(offset)
                col = offset - file.starts[line - 1]
                new = ast.parse(f"({text})", mode="eval").body
                if ast.dump(new) != ast.dump(value.value):
                    raise ValueError(f"{file.path}:{line}: {text!r} is not what the tree has")
                for sub in ast.walk(new):
                    if hasattr(sub, "lineno"):
                        sub.col_offset += col - 1 if sub.lineno == 1 else 0
                        sub.end_col_offset += col - 1 if sub.end_lineno == 1 else 0
                        sub.lineno += line - 1
                        sub.end_lineno += line - 1
                value.value = new
                fix_fstrings(file, new)


def mark(node: ast.JoinedStr) -> None:
    node._fixed = True
    for value in node.values:
        if isinstance(value, ast.FormattedValue) and isinstance(value.format_spec, ast.JoinedStr):
            mark(value.format_spec)


def formatted_values(node: ast.JoinedStr):
    for value in node.values:
        if isinstance(value, ast.FormattedValue):
            yield value
            if isinstance(value.format_spec, ast.JoinedStr):
                yield from formatted_values(value.format_spec)


def fields_of(file: File, node: ast.JoinedStr):
    """Text and byte offset of each expression, in order."""
    begin = file.start(node)
    segment = file.data[begin:file.end(node)].decode()
    lines = [0]
    wrapped = f"({segment})"
    for found in re.finditer("\n", wrapped):
        lines.append(found.end())
    for token in tokenize.generate_tokens(io.StringIO(wrapped).readline):
        if token.type != tokenize.STRING:
            continue
        prefix = re.match(r"[A-Za-z]*", token.string)[0]
        if "f" not in prefix.lower():
            continue
        quote = 3 if token.string[len(prefix):len(prefix) + 3] in ('"""', "'''") else 1
        at = lines[token.start[0] - 1] + token.start[1] - 1 + len(prefix) + quote
        body = token.string[len(prefix) + quote:-quote]
        for text, index in scan(body, "r" in prefix.lower()):
            yield text, begin + len(segment[:at + index].encode())


def scan(body: str, raw: bool, i: int = 0, depth: int = 0):
    """The fields of a string's body: (expression, index)."""
    n = len(body)
    while i < n:
        c = body[i]
        if not raw and depth == 0 and body.startswith("\\N{", i):
            i = body.index("}", i) + 1
        elif c == "{" and body[i + 1:i + 2] == "{" and depth == 0:
            i += 2
        elif c == "}" and depth == 0:
            i += 2
        elif c == "}":
            return i
        elif c == "{":
            start = i + 1
            i = end_of(body, start)
            text = body[start:i]
            debug = body[i] == "="
            if debug:
                i += 1
                while body[i] == " ":
                    i += 1
            yield text, start
            if body[i] == "!":
                i += 2
            if body[i] == ":":
                i = yield from scan(body, raw, i + 1, depth + 1)
            assert body[i] == "}", (body, i)
            i += 1
        else:
            i += 1
    return i


def end_of(body: str, i: int) -> int:
    level, quote = 0, ""
    while True:
        c = body[i]
        if quote:
            if body.startswith(quote, i):
                i += len(quote) - 1
                quote = ""
        elif c in "'\"":
            quote = c * 3 if body.startswith(c * 3, i) else c
            i += len(quote) - 1
        elif c in "([{":
            level += 1
        elif c in ")]" or (c == "}" and level):
            level -= 1
        elif not level:
            if c in "}:" or (c == "!" and body[i + 1] != "="):
                return i
            if c == "=" and body[i + 1] != "=" and body[i - 1] not in "=!<>" and re.match(r"= *[!:}]", body[i:]):
                return i
        i += 1


# ---- scopes

class Walker:
    def __init__(self, file: File) -> None:
        self.file = file
        self.uses: list[tuple[str, int, Scope]] = []
        self.early: set[int] = set()    # uses in a class body before the name is bound there: they mean the outer name
        self.annotating = 0

    def run(self) -> None:
        file = self.file
        file.scope = file.scopes[file.tree] = Scope("module", file.tree, None)
        self.body(file.tree.body, file.scope, doc=True)
        for name, offset, scope in self.uses:
            home = resolve(scope.parent if offset in self.early else scope, name)
            if home is None:
                file.unbound.setdefault(name, []).append(offset)
            else:
                home.tokens.setdefault(name, []).append((offset, scope))

    def body(self, stmts: list[ast.stmt], scope: Scope, doc: bool = False) -> None:
        for stmt in stmts:
            if isinstance(stmt, ast.Expr) and isinstance(stmt.value, ast.Constant) and isinstance(stmt.value.value, str):
                self.file.docstrings.append((stmt.value, scope))
            else:
                self.visit(stmt, scope)

    def bind(self, scope: Scope, name: str, node: ast.AST, offset: int | None) -> None:
        if name in scope.globals:
            scope = self.file.scope
        elif name in scope.nonlocals:
            outer = resolve(scope.parent, name)
            scope = outer if outer is not None else scope
        scope.bound.add(name)
        scope.stores.setdefault(name, []).append(node)
        if offset is None:
            scope.blind.add(name)
        else:
            scope.tokens.setdefault(name, []).append((offset, scope))

    def after(self, node: ast.AST, pattern: bytes, begin: int | None = None) -> int:
        begin = self.file.start(node) if begin is None else begin
        found = re.compile(pattern).match(self.file.data, begin)
        assert found, f"{self.file.path}:{node.lineno}: {pattern!r}"
        return found.end()

    def many(self, nodes, scope: Scope) -> None:
        for node in nodes:
            if node is not None:
                self.visit(node, scope)

    def visit(self, node: ast.AST, scope: Scope) -> None:
        method = getattr(self, f"visit_{type(node).__name__}", None)
        if method is not None:
            method(node, scope)
            return
        for _, value in ast.iter_fields(node):
            if isinstance(value, list):
                if value and isinstance(value[0], ast.stmt):
                    self.body(value, scope)
                else:
                    self.many((v for v in value if isinstance(v, ast.AST)), scope)
            elif isinstance(value, ast.AST):
                self.visit(value, scope)

    def visit_Name(self, node: ast.Name, scope: Scope) -> None:
        self.file.at[node] = scope
        offset = self.file.start(node)
        if isinstance(node.ctx, ast.Load):
            self.uses.append((node.id, offset, scope))
            if scope.kind == "class" and not self.annotating and node.id not in scope.bound:
                self.early.add(offset)
                self.file.at[node] = scope.parent
            return
        home = scope
        while home.kind == "comprehension" and getattr(node, "_walrus", False):
            home = home.parent
        if isinstance(node.ctx, ast.Del):
            self.uses.append((node.id, offset, scope))
        else:
            self.bind(home, node.id, node, offset)

    def visit_NamedExpr(self, node: ast.NamedExpr, scope: Scope) -> None:
        node.target._walrus = True
        self.visit(node.target, scope)
        self.visit(node.value, scope)

    def visit_Attribute(self, node: ast.Attribute, scope: Scope) -> None:
        self.file.at[node] = scope
        self.file.attributes.append(node)
        self.visit(node.value, scope)

    def visit_Call(self, node: ast.Call, scope: Scope) -> None:
        self.file.at[node] = scope
        self.file.calls.append(node)
        self.visit(node.func, scope)
        name = getattr(node.func, "id", getattr(node.func, "attr", ""))
        types = node.args[:1] if name == "cast" else [k.value for k in node.keywords if k.arg == "bound"] if name == "TypeVar" else []
        for each in types:
            if isinstance(each, ast.Constant) and isinstance(each.value, str):
                self.quoted(each, scope)
        self.many(node.args, scope)
        self.many((k.value for k in node.keywords), scope)

    def visit_Assign(self, node: ast.Assign, scope: Scope) -> None:
        self.visit(node.value, scope)
        self.many(node.targets, scope)

    def visit_AnnAssign(self, node: ast.AnnAssign, scope: Scope) -> None:
        if node.value is not None:
            self.visit(node.value, scope)
        self.visit(node.target, scope)
        self.annotation(node.annotation, scope)

    def annotation(self, node: ast.AST, scope: Scope) -> None:
        """Names within quotes are names, too."""
        self.annotating += 1
        self.annotated(node, scope)
        self.annotating -= 1

    def annotated(self, node: ast.AST, scope: Scope) -> None:
        self.visit(node, scope)
        stack = [node]
        while stack:
            each = stack.pop()
            if isinstance(each, ast.Constant) and isinstance(each.value, str):
                self.quoted(each, scope)
            elif isinstance(each, ast.Subscript) and getattr(each.value, "id", getattr(each.value, "attr", "")) in ("Literal", "Annotated"):
                continue
            stack.extend(ast.iter_child_nodes(each))

    def quoted(self, node: ast.Constant, scope: Scope) -> None:
        begin = self.file.start(node)
        if self.file.data[begin + 1:self.file.end(node) - 1] != node.value.encode() or "\n" in node.value:
            return
        try:
            tree = ast.parse(node.value, mode="eval").body
        except SyntaxError:
            return
        for sub in ast.walk(tree):
            if hasattr(sub, "lineno"):
                sub.lineno = sub.end_lineno = node.lineno
                sub.col_offset += node.col_offset + 1
                sub.end_col_offset += node.col_offset + 1
        self.visit(tree, scope)

    def visit_Constant(self, node: ast.Constant, scope: Scope) -> None:
        if isinstance(node.value, str):
            self.file.at[node] = scope
            self.file.strings.append(node)

    def visit_JoinedStr(self, node: ast.JoinedStr, scope: Scope) -> None:
        for value in node.values:
            if isinstance(value, ast.FormattedValue):
                self.visit(value.value, scope)
                if value.format_spec is not None:
                    self.visit(value.format_spec, scope)

    def visit_FunctionDef(self, node, scope: Scope) -> None:
        self.many(node.decorator_list, scope)
        name_at = self.after(node, rb"(async\s+)?def\s+")
        node._name_at = name_at
        self.bind(scope, node.name, node, name_at)
        self.function(node, scope)

    visit_AsyncFunctionDef = visit_FunctionDef

    def function(self, node, scope: Scope) -> None:
        args = node.args
        self.many([*args.defaults, *args.kw_defaults], scope)
        inner = self.file.scopes[node] = Scope("function", node, scope, getattr(node, "name", "<lambda>"))
        every = [*args.posonlyargs, *args.args, *([args.vararg] if args.vararg else []), *args.kwonlyargs, *([args.kwarg] if args.kwarg else [])]
        for arg in every:
            if arg.annotation is not None:
                self.annotation(arg.annotation, scope)
            self.bind(inner, arg.arg, arg, self.file.start(arg))
        if isinstance(node, ast.Lambda):
            self.visit(node.body, inner)
            return
        if node.returns is not None:
            self.annotation(node.returns, scope)
        self.declare(node.body, inner)
        self.body(node.body, inner, doc=True)

    def declare(self, stmts: list[ast.stmt], scope: Scope) -> None:
        """`global` and `nonlocal` first."""
        stack: list[ast.AST] = list(stmts)
        while stack:
            node = stack.pop()
            if isinstance(node, (ast.Global, ast.Nonlocal)):
                (scope.globals if isinstance(node, ast.Global) else scope.nonlocals).update(node.names)
            elif not isinstance(node, (*FUNCTIONS, ast.ClassDef, ast.Lambda)):
                stack.extend(child for child in ast.iter_child_nodes(node) if isinstance(child, (ast.stmt, ast.ExceptHandler, ast.match_case)))

    def visit_Lambda(self, node: ast.Lambda, scope: Scope) -> None:
        self.function(node, scope)

    def visit_Global(self, node, scope: Scope) -> None:
        begin = self.file.start(node)
        text = self.file.data[begin:self.file.end(node)]
        for name in node.names:
            found = re.search(rb"\b" + name.encode() + rb"\b", text[8:])
            offset = begin + 8 + found.start() if found else None
            if offset is not None:
                self.uses.append((name, offset, scope))

    visit_Nonlocal = visit_Global

    def visit_ClassDef(self, node: ast.ClassDef, scope: Scope) -> None:
        self.many(node.decorator_list, scope)
        self.many(node.bases, scope)
        self.many((k.value for k in node.keywords), scope)
        node._name_at = self.after(node, rb"class\s+")
        self.bind(scope, node.name, node, node._name_at)
        inner = self.file.scopes[node] = Scope("class", node, scope, node.name)
        self.body(node.body, inner, doc=True)

    def comprehension(self, node, scope: Scope) -> None:
        self.visit(node.generators[0].iter, scope)
        inner = self.file.scopes[node] = Scope("comprehension", node, scope)
        for i, each in enumerate(node.generators):
            self.visit(each.target, inner)
            if i:
                self.visit(each.iter, inner)
            self.many(each.ifs, inner)
        for part in ("elt", "key", "value"):
            if hasattr(node, part):
                self.visit(getattr(node, part), inner)

    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = comprehension

    def visit_Import(self, node: ast.Import, scope: Scope) -> None:
        self.file.plain_imports.append(node)
        self.file.import_scope[node] = scope
        for alias in node.names:
            name = alias.asname or alias.name.split(".")[0]
            self.bind(scope, name, node, self.name_of_alias(alias))
            (self.file.scope if name in scope.globals else scope).imports.setdefault(name, []).append((node, alias))

    def visit_ImportFrom(self, node: ast.ImportFrom, scope: Scope) -> None:
        self.file.from_imports.append(node)
        self.file.import_scope[node] = scope
        for alias in node.names:
            name = alias.asname or alias.name
            self.bind(scope, name, node, self.name_of_alias(alias))
            (self.file.scope if name in scope.globals else scope).imports.setdefault(name, []).append((node, alias))

    def name_of_alias(self, alias: ast.alias) -> int:
        begin = self.file.start(alias)
        if alias.asname is None:
            return begin
        return self.after(alias, re.escape(alias.name.encode()) + rb"\s+as\s+", begin)

    def visit_ExceptHandler(self, node: ast.ExceptHandler, scope: Scope) -> None:
        if node.type is not None:
            self.visit(node.type, scope)
        if node.name:
            self.bind(scope, node.name, node, self.after(node, rb"[\s)]*as\s+", self.file.end(node.type)))
        self.body(node.body, scope)

    def visit_MatchAs(self, node: ast.MatchAs, scope: Scope) -> None:
        if node.pattern is not None:
            self.visit(node.pattern, scope)
        if node.name:
            self.bind(scope, node.name, node, self.file.end(node) - len(node.name.encode()))

    def visit_MatchStar(self, node: ast.MatchStar, scope: Scope) -> None:
        if node.name:
            self.bind(scope, node.name, node, self.file.end(node) - len(node.name.encode()))

    def visit_MatchMapping(self, node: ast.MatchMapping, scope: Scope) -> None:
        self.many(node.keys, scope)
        self.many(node.patterns, scope)
        if node.rest:
            self.bind(scope, node.rest, node, None)

    def visit_MatchClass(self, node: ast.MatchClass, scope: Scope) -> None:
        self.file.matches.append((node, scope))
        self.visit(node.cls, scope)
        self.many([*node.patterns, *node.kwd_patterns], scope)


def resolve(scope: Scope | None, name: str) -> Scope | None:
    """The scope whose binding a name means that is used in `scope`."""
    first = True
    while scope is not None:
        if name in scope.globals:
            while scope.parent is not None:
                scope = scope.parent
            return scope if name in scope.bound else None
        if name in scope.bound and name not in scope.nonlocals and (first or scope.kind != "class"):
            return scope
        # a comprehension directly in a class body does not see the class's names, but its first iterable was visited outside
        first = False
        scope = scope.parent
    return None
