"""Snapshot test of the public surface: Python names, command line, HTTP API, wire names and database tables.

`tests/fixtures/public_surface.txt` records the surface. A change of the surface fails this test until the file is
rewritten with `python tests/test_public_surface.py --write`, so that the diff of that file shows the change. Entries
start in the first column and their details are indented, so that `git diff` names the entry in each hunk header.
"""

import ast
import asyncio
import dataclasses
import difflib
import enum
import functools
import gc
import inspect
import json
import os
import re
import sqlite3
import subprocess
import sys
import tempfile
import tomllib
import types
import typing
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, redirect_stderr
from importlib import import_module
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

PACKAGE = "spanwise"  # the namespace package, the command, and the prefix of every name on the wire
ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("tracer", "collector", "evaluators", "cli")
SNAPSHOT = ROOT / "tests" / "fixtures" / "public_surface.txt"
WIDTH = 110  # a longer signature gets one line per parameter

# Public packages that no page imports from.
MORE_PACKAGES = ("evaluators.judges", "evaluators.models", "evaluators.testing", "tracer.testing")
# Modules without `__all__` in which every class is public.
WHOLE_MODULES = ("collector.errors",)
# Packages that a section needs besides the core install; a section is skipped where one is missing.
SERVER = ("fastapi", "grpc", "httpx", "jsonschema", "msgspec", "openai", "typer", "yaml")
# Environment variables of other products that this one reads, and conventions of which the tracer writes attributes
OTHER_VARIABLES = "CURL|DATA_GYM|GRPC|HF|NLTK|OPENAI|OTEL|REQUESTS|SSL|TIKTOKEN|XDG"
CONVENTIONS = "deployment|error|exception|gen_ai|input|openinference|output|process|retrieval|service|session|tag|user"
SPECIAL_METHODS = {
    f"__{name}__"
    for name in "aenter aexit aiter anext await bool call contains enter exit getitem iter len next setitem".split()
}
Lines = Iterator[str]

if __name__ == "__main__":
    sys.path[:0] = [str(ROOT / folder) for folder in FOLDERS]
    sys.modules["haystack"] = None  # type: ignore[assignment]  # the same surface without it, and a faster import


# Python: which names are public


@functools.cache
def documented_imports() -> dict[str, set[str]]:
    """Return the names that Python blocks of the pages import, by module (without the package's name)."""
    found: dict[str, set[str]] = {}
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        for block in re.findall(r"^```python\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL):
            try:
                tree = ast.parse(block)
            except SyntaxError:  # an excerpt
                continue
            for node in ast.walk(tree):
                if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(f"{PACKAGE}."):
                    module = node.module.removeprefix(f"{PACKAGE}.")
                    found.setdefault(module, set()).update(alias.name for alias in node.names)
    return found


@functools.cache
def public_objects() -> dict[str, Any]:
    """Return every public object under its path without the package's name, such as `tracer.flush`."""
    found: dict[str, Any] = {}
    waiting = [*documented_imports(), *MORE_PACKAGES, *WHOLE_MODULES]
    listed: set[str] = set()
    while waiting:
        path = waiting.pop()
        if path in listed:
            continue
        listed.add(path)
        module = import_module(f"{PACKAGE}.{path}")
        names = {*getattr(module, "__all__", ()), *documented_imports().get(path, ())}
        if path in WHOLE_MODULES:
            names |= {name for name, value in vars(module).items() if is_defined_in(value, module)}
        for name in names:
            if not hasattr(module, name):  # a submodule
                import_module(f"{PACKAGE}.{path}.{name}")
            found[f"{path}.{name}"] = value = getattr(module, name)
            if inspect.ismodule(value) and hasattr(value, "__all__"):
                waiting.append(value.__name__.removeprefix(f"{PACKAGE}."))
    return found


def is_defined_in(value: Any, module: types.ModuleType) -> bool:
    return inspect.isclass(value) and value.__module__ == module.__name__ and not value.__name__.startswith("_")


@functools.cache
def main_paths() -> dict[int, str]:
    """Return the path under which an object is described, by its id; elsewhere it is only referred to."""
    paths: dict[int, str] = {}
    for path, value in sorted(public_objects().items(), key=lambda item: (item[0].count("."), item[0])):
        if inspect.isclass(value) or inspect.isfunction(value):
            paths.setdefault(id(value), path)
    return paths


# Python: annotations as the source code has them, which are the same in every version of Python


class Plain(ast.NodeTransformer):
    """Reduces an annotation to one spelling: no module prefixes, no quotes, `X | None` for `Optional[X]`."""

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        return node if node.attr in ("args", "kwargs") else ast.Name(node.attr)  # of a ParamSpec

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        return self.visit(ast.parse(node.value, mode="eval").body) if isinstance(node.value, str) else node

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        name = getattr(node.value, "attr", getattr(node.value, "id", ""))
        if name == "Literal":
            return ast.Subscript(ast.Name("Literal"), node.slice)
        self.generic_visit(node)
        if name == "Optional":
            return ast.BinOp(node.slice, ast.BitOr(), ast.Constant(None))
        if name == "Union" and isinstance(node.slice, ast.Tuple):
            return functools.reduce(lambda left, right: ast.BinOp(left, ast.BitOr(), right), node.slice.elts)
        return node


def annotation_text(node: ast.AST | None) -> str | None:
    return None if node is None else ast.unparse(ast.fix_missing_locations(Plain().visit(node)))


@functools.cache
def definitions(file: str) -> dict[int | str, Any]:
    """Return a file's functions by their first line (decorators included), and its classes by qualified name."""
    found: dict[int | str, Any] = {}

    def collect(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            inner = prefix
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                found[min([child.lineno, *(decorator.lineno for decorator in child.decorator_list)])] = child
                inner = f"{prefix}{child.name}.<locals>."
            elif isinstance(child, ast.ClassDef):
                found[f"{prefix}{child.name}"] = child
                inner = f"{prefix}{child.name}."
            if isinstance(child, ast.stmt | ast.excepthandler):  # expressions hold no definitions
                collect(child, inner)

    collect(parsed(file), "")
    return found


@functools.cache
def parsed(file: str) -> ast.Module:
    return ast.parse(Path(file).read_text(encoding="utf-8"))


def function_node(function: Any) -> Any:
    """Return the definition of a function of the product, None for every other callable."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    if code is None or not is_product_file(code.co_filename):
        return None
    return definitions(code.co_filename).get(code.co_firstlineno)


@functools.cache
def is_product_file(file: str) -> bool:
    return file.endswith(".py") and Path(file).resolve().is_relative_to(ROOT)


def class_node(cls: type) -> Any:
    files = [getattr(sys.modules.get(cls.__module__), "__file__", None) or ""]
    for member in vars(cls).values():
        code = getattr(inspect.unwrap(member), "__code__", None) if inspect.isfunction(member) else None
        files += [code.co_filename] if code else []
    nodes = (definitions(file).get(cls.__qualname__) for file in files if is_product_file(file))
    return next(filter(None, nodes), None)


def field_annotations(cls: type) -> dict[str, str]:
    """Return the annotations in the bodies of a class and its bases of the product."""
    found: dict[str, str] = {}
    for owner in reversed(product_classes(cls)):
        for statement in getattr(class_node(owner), "body", ()):
            if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                found[statement.target.id] = annotation_text(statement.annotation) or ""
    return found


def product_classes(cls: type) -> list[type]:
    return [owner for owner in cls.__mro__ if owner.__module__.split(".")[0] == PACKAGE]


def value_text(value: Any) -> str:
    """Return plain data, and names of functions and classes; everything else is `...`."""
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value.name}"
    if value is None or isinstance(value, bool | int | float | str | bytes):
        return repr(value)
    if isinstance(value, list | tuple):
        inner = ", ".join(map(value_text, value))
        return f"[{inner}]" if isinstance(value, list) else f"({inner}{',' * (len(value) == 1)})"
    if isinstance(value, set | frozenset):
        return f"{{{', '.join(sorted(map(value_text, value)))}}}" if value else f"{type(value).__name__}()"
    if isinstance(value, dict | types.MappingProxyType):
        return f"{{{', '.join(f'{value_text(key)}: {value_text(member)}' for key, member in value.items())}}}"
    if (inspect.isclass(value) or inspect.isroutine(value)) and not value.__name__.startswith(("_", "<")):
        return value.__name__
    return "..."


def type_text(value: Any) -> str:
    """Return a type alias as text."""
    origin, arguments = typing.get_origin(value), typing.get_args(value)
    if origin is typing.Literal:
        return f"Literal[{', '.join(map(repr, arguments))}]"
    if origin in (typing.Union, types.UnionType):
        return " | ".join(map(type_text, arguments))
    if origin is not None and arguments:
        return f"{getattr(origin, '__name__', origin)}[{', '.join(map(type_text, arguments))}]"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(type_text, value))}]"
    if value is type(None):
        return "None"
    if value is ...:
        return "..."
    if isinstance(value, str | typing.ForwardRef):
        return annotation_text(ast.parse(getattr(value, "__forward_arg__", value), mode="eval").body) or ""
    return getattr(value, "__name__", None) or str(value).rpartition(".")[2]


# Python: entries


def parameter_lines(signature: inspect.Signature, annotations: dict[str, str], defaults: dict[str, str]) -> Lines:
    before = None
    for parameter in signature.parameters.values():
        if before == parameter.POSITIONAL_ONLY and parameter.kind != before:
            yield "/"
        if parameter.kind == parameter.KEYWORD_ONLY and before not in (
            parameter.KEYWORD_ONLY,
            parameter.VAR_POSITIONAL,
        ):
            yield "*"
        before = parameter.kind
        star = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
        typed = f": {annotations[parameter.name]}" if annotations.get(parameter.name) else ""
        default = ""
        if parameter.default is not parameter.empty:
            default = f" = {defaults.get(parameter.name) or value_text(parameter.default)}"
        yield f"{star}{parameter.name}{typed}{default}"
    if before == inspect.Parameter.POSITIONAL_ONLY:
        yield "/"


def laid_out(head: str, parameters: Iterable[str], tail: str) -> Lines:
    """Yield a signature on one line, or with one line per parameter if it is long."""
    parameters = list(parameters)
    line = f"{head}({', '.join(parameters)}){tail}"
    if len(line) <= WIDTH or not parameters:
        yield line
        return
    yield f"{head}("
    yield from (f"    {parameter}," for parameter in parameters)
    yield f"){tail}"


def function_lines(path: str, function: Any, *, bound: bool = False, kind: str = "") -> Lines:
    for overload in typing.get_overloads(inspect.unwrap(function)):
        yield from signature_lines(f"overload {path}", overload, bound)
    prefix = kind or ("async def" if is_async(function) else "def")
    yield from signature_lines(f"{prefix} {path}", function, bound)


def is_async(function: Any) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)


def signature_lines(head: str, function: Any, bound: bool) -> Lines:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        yield f"{head}(...)"
        return
    if bound:
        signature = signature.replace(parameters=list(signature.parameters.values())[1:])
    node = function_node(function)
    returns = annotation_text(node.returns) if node else None
    yield from laid_out(head, parameter_lines(signature, annotations_of(node), {}), f" -> {returns}" if returns else "")


def annotations_of(node: Any) -> dict[str, str]:
    if node is None:
        return {}
    given = node.args
    every = [*given.posonlyargs, *given.args, *given.kwonlyargs, *filter(None, (given.vararg, given.kwarg))]
    return {argument.arg: annotation_text(argument.annotation) or "" for argument in every}


def class_lines(path: str, cls: type) -> Lines:
    bases = ", ".join(public_bases(cls))
    tail = f": {bases}" if bases else ""
    parameters = list(constructor(cls))
    yield from laid_out(f"class {path}", parameters, tail) if has_constructor(cls) else [f"class {path}{tail}"]
    entries = {name: list(lines) for name, lines in member_entries(path, cls)}
    for name in sorted(entries):
        yield from entries[name]


def public_bases(cls: type) -> list[str]:
    """Return the bases by name; a private base is replaced by its own bases."""
    found: list[str] = []
    for base in cls.__bases__:
        if base.__module__.split(".")[0] != PACKAGE or id(base) in main_paths():
            names = [] if base.__module__ in ("abc", "typing") or base is object else [base.__name__]
        else:
            names = public_bases(base)
        found += [name for name in names if name not in found]
    return found


def has_constructor(cls: type) -> bool:
    if issubclass(cls, enum.Enum) or getattr(cls, "_is_protocol", False) or typing.is_typeddict(cls):
        return False
    if dataclasses.is_dataclass(cls) or hasattr(cls, "_fields") or hasattr(cls, "__struct_fields__"):
        return True
    return function_node(cls.__init__) is not None


def constructor(cls: type) -> Lines:
    if not has_constructor(cls):
        return
    node = function_node(cls.__init__)
    annotations = annotations_of(node) if node else field_annotations(cls)
    defaults: dict[str, str] = {}
    for name, field in getattr(cls, "__dataclass_fields__", {}).items():
        if field.default_factory is not dataclasses.MISSING and not node:
            defaults[name] = f"{value_text(field.default_factory)}()"
    target = cls.__init__ if node else cls
    signature = inspect.signature(target)
    if node:
        signature = signature.replace(parameters=list(signature.parameters.values())[1:])
    yield from parameter_lines(signature, annotations, defaults)


def member_entries(path: str, cls: type) -> Iterator[tuple[str, Lines]]:
    """Yield the members that no public base has in the same form, each with its lines."""
    inherited: dict[str, str] = {}
    for base in cls.__mro__[1:]:
        if id(base) in main_paths():
            for name, lines in own_entries(base):
                inherited.setdefault(name, "\n".join(lines))
    for name, lines in own_entries(cls):
        text = list(lines)
        if inherited.get(name) != "\n".join(text):
            yield name, (line.replace("\0", path, 1) for line in text)


def own_entries(cls: type) -> Iterator[tuple[str, Lines]]:
    """Yield all public members; `\\0` stands for the path of the class."""
    if issubclass(cls, enum.Enum):
        for member in cls:
            yield member.name, iter([f"value \0.{member.name} = {member.value!r}"])
        return
    parameters = (
        set(inspect.signature(cls).parameters) if has_constructor(cls) and not function_node(cls.__init__) else set()
    )
    seen: set[str] = set()
    for owner in product_classes(cls):
        for name, value in vars(owner).items():
            if name in seen or (name.startswith("_") and name not in SPECIAL_METHODS):
                continue
            lines = member_lines(f"\0.{name}", value)
            if lines is not None and name not in parameters:
                seen.add(name)
                yield name, lines
    attributes = {name: text for name, text in field_annotations(cls).items() if not text.startswith("ClassVar")}
    for owner in reversed(product_classes(cls)):
        attributes |= assigned_attributes(owner)
    for name, text in attributes.items():
        if not name.startswith("_") and name not in seen | parameters:
            yield name, iter([f"attribute \0.{name}{f': {text}' if text else ''}"])


def member_lines(path: str, value: Any) -> Lines | None:
    if isinstance(value, staticmethod):
        return function_lines(path, value.__func__, kind="staticmethod")
    if isinstance(value, classmethod):
        return function_lines(path, value.__func__, bound=True, kind="classmethod")
    if isinstance(value, property | functools.cached_property):
        getter = value.fget if isinstance(value, property) else value.func
        node = function_node(getter)
        returns = annotation_text(node.returns) if node else None
        writable = " (writable)" if isinstance(value, property) and value.fset else ""
        return iter([f"property {path}{f': {returns}' if returns else ''}{writable}"])
    if not inspect.isfunction(value) and hasattr(type(value), "__get__"):
        value = getattr(value, "__wrapped__", value)  # a decorator's own descriptor
    if inspect.isfunction(value):
        # Generated methods, such as the `__len__` of a named tuple, are not of the product.
        return function_lines(path, value, bound=True) if function_node(value) else None
    return None


def assigned_attributes(cls: type) -> dict[str, str]:
    """Return the public attributes that `__init__` of this class assigns, with their annotations where it has any."""
    node = function_node(vars(cls).get("__init__")) if "__init__" in vars(cls) else None
    parameters, found = annotations_of(node), {}
    for statement in ast.walk(node) if node else ():
        if isinstance(statement, ast.AnnAssign):
            pairs = [(statement.target, annotation_text(statement.annotation))]
        elif isinstance(statement, ast.Assign):
            pairs = [
                pair for target in statement.targets for pair in assigned_pairs(target, statement.value, parameters)
            ]
        else:
            continue
        for target, text in pairs:
            if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == "self":
                found[target.attr] = text or found.get(target.attr, "")
    return found


def assigned_pairs(target: Any, value: Any, parameters: dict[str, str]) -> Iterator[tuple[Any, str]]:
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        for each in zip(target.elts, value.elts, strict=True):
            yield from assigned_pairs(*each, parameters)
    else:
        yield target, parameters.get(value.id, "") if isinstance(value, ast.Name) else ""


def python_section() -> Lines:
    for path, value in sorted(public_objects().items()):
        main = main_paths().get(id(value), path)
        if main != path:
            yield f"same {path} as {main}"
        elif inspect.isclass(value):
            yield from class_lines(path, value)
        elif inspect.isroutine(value):
            yield from function_lines(path, value)
        elif inspect.ismodule(value):
            yield f"module {path}"
        elif typing.get_origin(value) is not None or value is Any:
            yield f"type {path} = {type_text(value)}"
        elif isinstance(value, typing.TypeVar):
            yield f"type variable {path}"
        else:
            text = value_text(value)
            yield f"constant {path} = {text if len(text) <= WIDTH else type(value).__name__}"


# Evaluators


def evaluators_section() -> Lines:
    for line in run_command("evaluators", "list", "--json").splitlines():
        known = json.loads(line)
        needs = [*known["needs"], *(f"{name} (optional)" for name in known["uses"])]
        yield f"evaluator {known['id']}: {known['group']}, needs {', '.join(needs) or 'nothing'}"
        for metric in known["metrics"]:
            low, high = ("unbounded" if bound is None else f"{bound:g}" for bound in metric["range"] or (None, None))
            better = {True: "higher is better", False: "lower is better"}.get(
                metric["higher_is_better"], "no direction"
            )
            yield f"    metric {metric['key']}: {low} to {high}, {better}, threshold {metric['threshold']}"
        yield from (f"    parameter {name} = {json.dumps(value)}" for name, value in known["parameters"].items())


# Command line


@functools.cache
def typer_app() -> Any:
    """Return the application that the installed command calls."""
    import typer

    called: list[Any] = []
    with mock.patch.object(typer.Typer, "__call__", lambda app, *_, **__: called.append(app)):
        import_module(f"{PACKAGE}.cli").main()
    return called[0]


def run_command(*arguments: str, **environment: str) -> str:
    """Run a command in this process and return what it prints on standard output."""
    from typer.testing import CliRunner

    result = CliRunner().invoke(typer_app(), arguments, env=environment, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def command_line_section() -> Lines:
    from typer.main import get_command

    yield from command_lines(PACKAGE, get_command(typer_app()))


def command_lines(path: str, command: Any) -> Lines:
    yield f"{path}{' (hidden)' if command.hidden else ''}"
    options = []
    for parameter in command.params:
        if parameter.param_type_name == "argument":
            yield f"    argument {parameter.metavar or parameter.name.upper()}: {describe_parameter(parameter)}"
        else:
            names = ", ".join(parameter.opts) + "".join(f" / {name}" for name in parameter.secondary_opts)
            options.append(f"    option {names}: {describe_parameter(parameter)}")
    yield from sorted(options)
    for name, inner in sorted(getattr(command, "commands", {}).items()):
        yield from command_lines(f"{path} {name}", inner)


def describe_parameter(parameter: Any) -> str:
    """Return type, limits, where else the value comes from, and the default."""
    kind = type_text(parameter.type_descriptor.annotation)
    limits = [f"{name} {bound:g}" for name in ("min", "max") if (bound := getattr(parameter, name, None)) is not None]
    words = [kind, *limits, *(f"from {name}" for name in environment_names(parameter))]
    words += [word for word in ("required", "multiple", "hidden") if getattr(parameter, word, False)]
    words += [f"{parameter.nargs} values"] if parameter.nargs not in (0, 1) else []
    is_shown = not parameter.required and not any(parameter.default is empty for empty in (None, False))
    return ", ".join(words) + (f" = {value_text(parameter.default)}" if is_shown else "")


def environment_names(parameter: Any) -> list[str]:
    names = parameter.envvar or ()
    return [names] if isinstance(names, str) else list(names)


# HTTP API


def http_section() -> Lines:
    from fastapi.routing import APIRoute

    with application() as app:
        description = app.openapi()
        others: dict[str, set[str]] = {}
        for route in flat_routes(app.routes):
            if not (isinstance(route, APIRoute) and route.include_in_schema):
                others.setdefault(route.path, set()).update(getattr(route, "methods", None) or {"ANY"})
    for path, operations in sorted(description["paths"].items()):
        for method in sorted(operations):
            yield from operation_lines(f"{method.upper()} {path}", operations[method])
    for path, methods in sorted(others.items()):
        if methods := methods - {method.upper() for method in description["paths"].get(path, ())}:
            yield f"route {path}: {', '.join(sorted(methods))} (not in the OpenAPI description)"
    for name, schema in sorted(description["components"]["schemas"].items()):
        yield from component_lines(name, schema)


@functools.cache
def temporary_folder() -> tempfile.TemporaryDirectory:
    return tempfile.TemporaryDirectory(prefix="public-surface-")


def new_file(name: str) -> Path:
    return Path(tempfile.mkdtemp(dir=temporary_folder().name), name)


@contextmanager
def application() -> Iterator[Any]:
    """Yield the collector's ASGI application over an empty store."""
    with closing(import_module(f"{PACKAGE}.collector").connect(new_file("served.db"))) as store:
        yield import_module(f"{PACKAGE}.collector.api").create_app(store)


def flat_routes(routes: Iterable[Any]) -> Iterator[Any]:
    for route in routes:
        inner = getattr(getattr(route, "original_router", route), "routes", None)
        if inner:
            yield from flat_routes(inner)
        else:
            yield route


def operation_lines(head: str, operation: dict[str, Any]) -> Lines:
    yield head
    for parameter in sorted(operation.get("parameters", ()), key=lambda each: (each["in"], each["name"])):
        yield f"    {parameter['in']} {field_text(parameter['name'], parameter['schema'], parameter.get('required'))}"
    body = operation.get("requestBody", {})
    for media, content in sorted(body.get("content", {}).items()):
        yield f"    body {media}: {schema_text(content.get('schema'))}{', required' if body.get('required') else ''}"
    answers: dict[str, list[str]] = {}
    for status, response in sorted(operation["responses"].items()):
        for media, content in sorted(response.get("content", {"no body": None}).items()):
            text = media if content is None else f"{media}: {schema_text(content.get('schema'))}"
            answers.setdefault(text, []).append(status)
    yield from (f"    {', '.join(statuses)} {text}" for text, statuses in answers.items())


def component_lines(name: str, schema: dict[str, Any]) -> Lines:
    if "properties" not in schema:
        yield f"schema {name}: {schema_text(schema)}"
        return
    yield f"schema {name}"
    for field, inner in sorted(schema["properties"].items()):
        yield f"    {field_text(field, inner, field in schema.get('required', ()))}"


def field_text(name: str, schema: dict[str, Any], required: bool | None) -> str:
    default = f" = {json.dumps(schema['default'])}" if "default" in schema else ""
    return f"{name}: {schema_text(schema)}{', required' if required else default}"


def schema_text(schema: dict[str, Any] | None) -> str:
    if not schema:
        return "any"
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    for union in ("anyOf", "oneOf"):
        if union in schema:
            return " | ".join(map(schema_text, schema[union]))
    if "enum" in schema or "const" in schema:
        return " | ".join(json.dumps(value) for value in schema.get("enum", [schema.get("const")]))
    kind = schema.get("type", "any")
    if kind == "array":
        members = schema.get("prefixItems")
        kind = f"array[{', '.join(map(schema_text, members)) if members else schema_text(schema.get('items'))}]"
    elif "properties" in schema:
        required = schema.get("required", ())
        fields = sorted(schema["properties"].items())
        kind = ", ".join(f"{name}{'' if name in required else '?'}: {schema_text(inner)}" for name, inner in fields)
        kind = f"{{{kind}}}"
    elif kind == "object" and isinstance(schema.get("additionalProperties"), dict):
        kind = f"object[string, {schema_text(schema['additionalProperties'])}]"
    limits = (
        "minimum",
        "maximum",
        "exclusiveMinimum",
        "exclusiveMaximum",
        "minLength",
        "maxLength",
        "pattern",
        "format",
    )
    return " ".join([kind, *(f"({limit} {schema[limit]})" for limit in limits if limit in schema)])


# Tools for coding agents


def mcp_section() -> Lines:
    from mcp.server.mcpserver import MCPServer

    made: list[Any] = []
    with mock.patch.object(MCPServer, "run", lambda server, *_, **__: made.append(server)):
        run_command("mcp", "--store", str(new_file("agents.db")), "--write")
    for tool in sorted(asyncio.run(made[0].list_tools()), key=lambda tool: tool.name):
        described = tool.model_dump(by_alias=True)
        schema = described["inputSchema"]
        yield f"tool {tool.name}"
        for name, inner in sorted(schema.get("properties", {}).items()):
            yield f"    {field_text(name, inner, name in schema.get('required', ()))}"


# Names in the source code


@functools.cache
def string_constants() -> dict[str, set[str]]:
    """Return the string constants of the product, by folder, without those that name internal objects."""
    starts = rf"({PACKAGE}|x)[._-]|({OTHER_VARIABLES})_|({CONVENTIONS})\."
    candidates = re.compile(rf"[\"']({starts})", re.IGNORECASE)
    found: dict[str, set[str]] = {}
    for folder in FOLDERS:
        values = found[folder] = set()
        for file in sorted((ROOT / folder / PACKAGE).rglob("*.py")):
            if not candidates.search(file.read_text(encoding="utf-8")):  # parsing every file takes seconds
                continue
            nodes = [*ast.walk(parsed(str(file)))]
            internal = {id(name) for node in nodes if isinstance(node, ast.Call) for name in internal_names(node)}
            constants = (node for node in nodes if isinstance(node, ast.Constant) and id(node) not in internal)
            values.update(node.value for node in constants if isinstance(node.value, str))
    return found


def internal_names(call: ast.Call) -> list[ast.expr]:
    """Return the arguments that name a context variable, a context key or a logger."""
    called = getattr(call.func, "attr", getattr(call.func, "id", ""))
    return call.args if called in ("ContextVar", "create_key", "getLogger") else []


def matching_constants(pattern: str, folders: Iterable[str] = FOLDERS) -> set[str]:
    """Return the constants that match from start to end; one that ends with a separator is a prefix."""
    found = {value for folder in folders for value in string_constants()[folder] if re.fullmatch(pattern, value)}
    return {f"{value}*" if value[-1] in "._-" else value for value in found}


def environment_section() -> Lines:
    yield from sorted(matching_constants(rf"({PACKAGE.upper()}|{OTHER_VARIABLES})_[A-Z0-9_]+"))


def attributes_section() -> Lines:
    """Yield the product's own attribute names, and those of conventions that the tracer writes."""
    modules = "|".join(FOLDERS)
    files = "css|db|js|svg"
    own = matching_constants(rf"{PACKAGE}\.(?!({modules})\b)(?!({files})$)[a-z_]+(\.[a-z_]*)*")
    yield from sorted(own | matching_constants(rf"({CONVENTIONS})(\.[a-z_]+)+", ["tracer"]))


def headers_section() -> Lines:
    yield from sorted(matching_constants(rf"({PACKAGE.title()}|[Xx])(-[A-Za-z]+)+"))


def metrics_section() -> Lines:
    """Yield the metrics of a new server with their types, and the names that appear later without."""
    import httpx

    async def scrape(app: Any) -> str:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1") as client:
            return (await client.get("/metrics")).raise_for_status().text

    with application() as app:
        kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", asyncio.run(scrape(app)), re.MULTILINE))
    names = {name for name in matching_constants(rf"{PACKAGE}_[a-z0-9_]+", ["collector"]) if not name.endswith("*")}
    yield from (f"{name} {kinds.get(name, '')}".strip() for name in sorted(names | set(kinds)))


# Packaging


def packaging_section() -> Lines:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    yield from (f"command {name}: {target}" for name, target in sorted(project["scripts"].items()))
    yield from (f"extra {name}" for name in sorted(project["optional-dependencies"]))
    for group, entries in sorted(project["entry-points"].items()):
        yield from (f"entry point {group} {name}: {target}" for name, target in sorted(entries.items()))
    parser = mock.MagicMock()
    import_module(project["entry-points"]["pytest11"][PACKAGE]).pytest_addoption(parser)
    for call in parser.getgroup.return_value.addoption.call_args_list:
        yield f"pytest option {call.args[0]} = {call.kwargs.get('default')!r}"
    yield f"requires Python {project['requires-python']}"


# Databases


def databases_section() -> Lines:
    store = new_file("store.db")
    import_module(f"{PACKAGE}.collector").connect(store).close()
    yield from table_lines("store", store)
    variables = {name: f"{PACKAGE.upper()}_{name.upper()}" for name in ("cache", "vectors")}
    for name, variable in variables.items():
        file = new_file(f"{name}.db")
        file.touch()  # clearing an empty file sets up its tables
        run_command("cache", "clear", "--yes", **dict.fromkeys(variables.values(), "off") | {variable: str(file)})
        yield from table_lines({"cache": "judge cache", "vectors": "vector cache"}[name], file)


def table_lines(database: str, file: Path) -> Lines:
    with closing(sqlite3.connect(file)) as db:
        for pragma in ("application_id", "user_version"):
            yield f"{database}: {pragma} {db.execute(f'PRAGMA {pragma}').fetchone()[0]}"
        tables = dict(db.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table' ORDER BY name"))
        virtual = tuple(f"{name}_" for name, sql in tables.items() if sql.startswith("CREATE VIRTUAL"))
        for name, sql in tables.items():
            if name.startswith(("sqlite_", *virtual)):  # SQLite's own
                continue
            using = re.search(r"USING (\w+)", sql) if sql.startswith("CREATE VIRTUAL") else None
            yield f"{database}: table {name}{f' ({using[1]})' if using else ''}"
            for _, column, kind, not_null, default, key in db.execute(f'PRAGMA table_info("{name}")'):
                words = [column, kind, "NOT NULL" * not_null, f"DEFAULT {default}" if default is not None else ""]
                yield f"    {' '.join(filter(None, [*words, 'PRIMARY KEY' * bool(key)]))}"


# The snapshot

SECTIONS: dict[str, tuple[str, Callable[[], Lines], tuple[str, ...]]] = {
    "python": (f"Python: names below the package `{PACKAGE}`", python_section, SERVER),
    "evaluators": ("Evaluators: ids, metrics and parameters", evaluators_section, SERVER),
    "command line": ("Command line", command_line_section, SERVER),
    "http": ("HTTP API", http_section, SERVER),
    "mcp": ("MCP: tools for coding agents", mcp_section, (*SERVER, "mcp")),
    "environment": ("Environment variables", environment_section, ()),
    "attributes": ("Attribute names on the wire and in stored metadata", attributes_section, ()),
    "headers": ("HTTP headers", headers_section, ()),
    "metrics": ("Prometheus metrics", metrics_section, SERVER),
    "packaging": ("Packaging: commands, plugins and extras", packaging_section, SERVER),
    "databases": ("SQLite tables", databases_section, SERVER),
}
INTRODUCTION = """\
# The public surface. Generated: python tests/test_public_surface.py --write
# A change here is a change for users: describe it in CHANGELOG.md.
"""


def missing_packages(section: str) -> list[str]:
    return [name for name in SECTIONS[section][2] if find_spec(name) is None]


def read_sections() -> dict[str, list[str]]:
    """Return the lines of every section whose packages are installed, read without the user's settings."""
    settings = {name: value for name, value in os.environ.items() if not name.startswith(f"{PACKAGE.upper()}_")}
    settings["XDG_CACHE_HOME"] = temporary_folder().name
    with redirect_stderr(StringIO()), mock.patch.dict(os.environ, settings, clear=True):
        return {name: [*read()] for name, (_, read, _) in SECTIONS.items() if not missing_packages(name)}


@functools.cache
def current_sections() -> dict[str, list[str]]:
    """Return the same from a process that no other test has changed."""
    command = [sys.executable, __file__, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, timeout=300)
    assert done.returncode == 0, done.stderr
    sections: dict[str, list[str]] = json.loads(done.stdout)
    return sections


def recorded_lines(section: str) -> list[str]:
    """Return the lines of a section in the snapshot; none if it has no such section."""
    text = SNAPSHOT.read_text(encoding="utf-8") if SNAPSHOT.exists() else ""
    _, _, rest = text.partition(f"\n{heading(section)}\n")
    return re.split(r"^## ", rest, maxsplit=1, flags=re.MULTILINE)[0].strip("\n").split("\n")


def heading(section: str) -> str:
    return f"## {SECTIONS[section][0]}\n"


def write() -> None:
    """Rewrite the snapshot. Needs every package that a section needs."""
    if missing := sorted({name for section in SECTIONS for name in missing_packages(section)}):
        sys.exit(f"cannot write {SNAPSHOT.name}: install {', '.join(missing)}")
    sections = read_sections().items()
    body = [f"\n{heading(section)}\n" + "\n".join(lines) + "\n" for section, lines in sections]
    SNAPSHOT.write_text(INTRODUCTION + "".join(body), encoding="utf-8")


def difference(recorded: list[str], current: list[str]) -> str:
    """Return a diff in which every hunk names the entry that it is in."""
    report: list[str] = []
    for line in [*difflib.unified_diff(recorded, current, lineterm="", n=1)][2:]:
        if hunk := re.match(r"@@ -(\d+)", line):
            above = recorded[: max(int(hunk[1]) - 1, 0)]
            entry = next((text for text in reversed(above) if not text.startswith((" ", ")"))), "")
            line = f"@@ {entry}"
        report.append(line)
    return "\n".join(report)


@pytest.mark.process
@pytest.mark.parametrize("section", SECTIONS)
def test_public_surface_is_as_recorded(section: str) -> None:
    if missing := missing_packages(section):
        pytest.skip(f"not installed: {', '.join(missing)}")
    changes = difference(recorded_lines(section), current_sections()[section])
    if changes:
        pytest.fail(
            f"the public surface has changed ({SECTIONS[section][0]}):\n{changes}\n\nIf this is intended, run"
            f" `python tests/test_public_surface.py --write` and commit {SNAPSHOT.relative_to(ROOT)}.",
            pytrace=False,
        )


if __name__ == "__main__":
    gc.disable()  # syntax trees are many objects, and none of them is garbage
    if sys.argv[1:] == ["--json"]:
        print(json.dumps(read_sections()))
    elif sys.argv[1:] == ["--write"]:
        write()
    else:
        sys.exit(f"usage: python {Path(sys.argv[0]).name} --write")
