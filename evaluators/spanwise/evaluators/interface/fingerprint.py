"""Fingerprints of code: digests of the code that a function reaches, and evaluator versions derived from them.

A walk starts at the function and follows the names that it uses, as far as they belong to the project. It covers
functions and classes, also of other modules, module constants and containers (such as prompts), and plain attributes
of the project's objects. Values that the code changes while it runs (counters, caches) are left out, see
`MutatedNames`. Installed packages are not followed.
"""

from __future__ import annotations

import ast
import dis
import functools
import hashlib
import inspect
import itertools
import re
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from datetime import date, time, timedelta
from decimal import Decimal
from pathlib import Path, PurePath
from tokenize import TokenError
from types import CodeType, FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import Any
from uuid import UUID

from spanwise.collector.record_corrections import former_identifiers, former_source

MAX_ENTRIES = 2_000  # maximum number of functions and constants
MAX_DEPTH = 4  # maximum nesting of containers
MAX_CONTAINER_VALUES = 10_000  # maximum number of values in one container
PLAIN_TYPES = (str, bytes, int, float, complex, bool, type(None))
_REPR_TYPES = (PurePath, date, time, timedelta, Decimal, UUID, re.Pattern)
# secrets are left out, because rotating them does not affect results
_SECRET_NAME = re.compile(r"(?i)key$|token$|secret|password|credential")
_CONSTRUCTOR_NAMES = ("__init__", "__post_init__", "__new__", "__setstate__", "model_post_init")
_MUTATOR_NAMES = (
    "add append appendleft clear discard extend insert pop popitem popleft remove reverse setdefault sort update"
)
_ASSIGNMENT_OPCODES = ("STORE_ATTR", "DELETE_ATTR", "STORE_GLOBAL", "DELETE_GLOBAL")
_MUTATORS = frozenset(_MUTATOR_NAMES.split())
_STDLIB_PATHS = tuple({str(Path(sysconfig.get_path(name)).resolve()) for name in ("stdlib", "platstdlib")})
_CLASS_METADATA = ("__module__", "__doc__", "__firstlineno__", "__static_attributes__", "__qualname__")
_OWN_PACKAGES = ("spanwise.tracer", "spanwise.collector", "spanwise.evaluators", "spanwise.cli")


def digest_code(function: Any) -> dict[str, str]:
    """Return the digests of all functions, classes and values that a callable reaches in its project, by name."""
    return _walk_code(function).unmutated()


class SourceUnavailable(ValueError):
    """Raised if the source text of a function is not available: it was typed in, made by `exec`, or written in C."""


def digest_source(function: Any) -> dict[str, str]:
    """Return digests as `digest_code` does, but of source texts, which are the same in every Python version.

    Raises `SourceUnavailable`.
    """
    inner = inspect.unwrap(function)
    walk = _walk_code(inner, _read_source)
    # an installed function is digested alone: the code that it calls changes only with its package
    if not walk.digests:
        walk.digests[_qualified_name(inner)] = _digest(_read_source(inner if inspect.isroutine(inner) else type(inner)))
    return walk.unmutated()


def compute_version(
    name: str, *, number: str | None = None, function: Any = None, parameters: Mapping[str, Any] | None = None
) -> str:
    """Return the version of an evaluator: 8 hex digits, a hash of its name, its parameters, and its number or source
    text.

    A built-in evaluator has a `number`, which is raised when its results change. For all others the source text of
    `function` is used, or its bytecode if the source text is not available.
    """
    code: Any = number if number is not None else _digest_function(function)
    texts = {name: compute_fingerprint(value) for name, value in (parameters or {}).items()}
    return _digest(repr((name, code, sorted(texts.items()))))[:8]


def compute_fingerprint(value: Any) -> str:
    """Return a text that identifies a parameter's value in every process. For a function it contains digests of its
    source text.
    """
    if (text := to_stable_text(value)) is not None:
        return text
    if isinstance(value, Mapping):
        return repr(sorted((str(name), compute_fingerprint(member)) for name, member in value.items()))
    if isinstance(value, list | tuple):
        return repr([compute_fingerprint(member) for member in value])
    return repr(_digest_function(value)) if callable(value) else former_source(_qualified_name(type(value)))


def _digest_function(function: Any) -> list[tuple[str, str]]:
    """Return the digests of a function's source text by name. Names omit the module, which may be `__main__`."""
    try:
        digests = digest_source(function)
    except SourceUnavailable:
        code = getattr(function, "__code__", None)  # code made by `exec`, in which `digest_code` finds nothing
        digests = digest_code(function) or {
            _qualified_name(function): _digest(_code_to_text(code)) if isinstance(code, CodeType) else ""
        }
    inner = inspect.unwrap(function)
    prefix = f"{getattr(inner, '__module__', None) or type(inner).__module__}."
    return sorted((name.removeprefix(prefix), digest) for name, digest in digests.items())


def list_untracked_state(function: Any) -> list[str]:
    """Return the values in a callable's objects that cannot be compared, as "path (type)"."""
    walk = _walk_code(function)
    return sorted(
        f"{path} ({kind.__qualname__})"
        for path, (name, kind) in walk.untracked.items()
        if not (kind in (list, set, dict) and walk.mutated.includes(name, container=True))
    )


def _read_bytecode(function: FunctionType) -> str:
    return _code_to_text(function.__code__)


def _read_source(function: Any) -> str:
    code = getattr(function, "__code__", None)
    try:
        text = _read_code_source(code) if isinstance(code, CodeType) else inspect.cleandoc(inspect.getsource(function))
        return former_source(text)
    except (OSError, TypeError, SyntaxError, TokenError):
        raise SourceUnavailable(f"the source of {_qualified_name(function)} is not available") from None


@functools.lru_cache(4096)
def _read_code_source(code: CodeType) -> str:
    """Return the source text of a function. For a lambda return only its body, because its lines may contain other
    lambdas.
    """
    lines, first = inspect.findsource(code)
    if code.co_name == "<lambda>":
        # (line, column) of the beginning and end of each instruction; none if Python does not record columns
        spans = [
            ((start, from_column), (end, to_column))
            for start, end, from_column, to_column in code.co_positions()
            if start is not None and end is not None and from_column is not None and to_column
        ]
        if spans:
            (start, from_column), (end, to_column) = min(start for start, _ in spans), max(end for _, end in spans)
            text = [line.encode() for line in lines[start - 1 : end]]
            text[-1] = text[-1][:to_column]
            text[0] = text[0][from_column:]
            return b"".join(text).decode("utf-8", "replace")
        if (constant := _find_constant_body("".join(lines), code)) is not None:
            return constant
    return inspect.cleandoc("".join(inspect.getblock(lines[first:])))


def _find_constant_body(source: str, code: CodeType) -> str | None:
    """Return the body of a lambda that returns a constant. Python 3.12 records no columns for it."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Lambda) and node.lineno == code.co_firstlineno and code.co_consts:
            with suppress(ValueError):  # the body is not a constant
                if repr(ast.literal_eval(node.body)) == repr(code.co_consts[-1]):
                    return ast.get_source_segment(source, node.body)
    return None


def _walk_code(function: Any, text: Callable[[FunctionType], str] = _read_bytecode) -> _CodeWalk:
    walk = _CodeWalk(text)
    walk.add("", function)
    while walk.pending and len(walk.digests) < MAX_ENTRIES:
        walk.step()
    return walk


class _CodeWalk:
    """State of the walk over a callable's code: the digests so far, and the functions and classes still to visit."""

    def __init__(self, text: Callable[[FunctionType], str]) -> None:
        self._text = text
        self.digests: dict[str, str] = {}
        # variables that the code itself assigns: they are counters and caches, not settings
        self.assigned: set[str] = set()
        self.pending: list[Any] = []
        # state of objects by path: name, digest, whether it is a container
        self.state: dict[str, tuple[str, str, bool]] = {}
        self.mutated = MutatedNames()
        self.untracked: dict[str, tuple[str, type]] = {}  # values that are not plain, by path: name and type
        self._seen: set[int] = set()
        self._objects: dict[int, Any] = {}  # references that keep the objects alive, so that their ids are not reused

    def unmutated(self) -> dict[str, str]:
        """Return the digests by name, without those of variables and attributes that the code changes."""
        known = {name: digest for name, digest in self.digests.items() if name not in self.assigned}
        for path, (name, digest, is_container) in self.state.items():
            if not self.mutated.includes(name, container=is_container):
                known[path] = digest
        return dict(sorted(known.items()))

    def add(self, name: str, value: Any) -> None:
        """Add the digest of a constant, or queue an object to visit."""
        if _is_constant(value):
            if name:
                self.digests[name] = _digest(_stable_repr(value))
            return
        value = inspect.unwrap(value) if callable(value) else value
        if isinstance(value, functools.partial):
            self.add("", value.func)
            self._add_all(
                f"{name or _qualified_name(value.func)}(…)", {**value.keywords, **dict(enumerate(value.args))}
            )
        elif isinstance(value, MethodType):
            self.add("", value.__func__)
            self.add(name, value.__self__)
        elif isinstance(value, FunctionType | type):
            self._enqueue(value)
        elif not isinstance(value, ModuleType):
            self._enqueue(type(value))
            is_known = id(value) in self._objects or len(self.state) > MAX_ENTRIES
            if not is_known and _is_project(type(value).__module__):
                self._objects[id(value)] = value
                path = name or f"{_qualified_name(type(value))}()"
                for attribute, inner in read_attributes(value).items():
                    self._add_state(f"{path}.{attribute}", attribute, inner)

    def _add_state(self, path: str, name: str, value: Any) -> None:
        """Add the value that an object or a closure holds as `name`."""
        text = to_stable_text(value)
        if text is not None:
            self.state[path] = name, _digest(text), is_container(value)
        elif callable(value) or isinstance(value, ModuleType) or _is_project(type(value).__module__):
            self.add(path, value)
        else:
            self.untracked[path] = name, type(value)

    def step(self) -> None:
        """Visit one function or class."""
        value = self.pending.pop()
        if isinstance(value, type):
            members = {}
            for name, member in vars(value).items():
                # only members that the user wrote, not those that Python or a library adds
                is_added = is_container(member) and name.startswith("_") and name.endswith("_")
                if not is_added and name not in _CLASS_METADATA:
                    # the function behind a static method, a class method or a property
                    members[name] = getattr(member, "__func__", None) or getattr(member, "fget", None) or member
            self._add_all(_qualified_name(value), members)
            for base in value.__bases__:
                self.add("", base)
        else:
            self._visit_function(value)

    def _visit_function(self, function: FunctionType) -> None:
        code, module = function.__code__, function.__module__
        self.digests[_qualified_name(function)] = _digest(self._text(function))
        for inner in _iterate_nested_code(code):
            self.mutated.note(function.__name__, inner)
        named = {name for inner in _iterate_nested_code(code) for name in inner.co_names}
        self.assigned.update(
            f"{module}.{name}"
            for inner in _iterate_nested_code(code)
            for name in _iterate_stored_names(inner, "STORE_GLOBAL")
        )
        self.assigned.update(
            f"{_qualified_name(function)}.{name}"
            for inner in _iterate_nested_code(code)
            for name in _iterate_stored_names(inner, "STORE_DEREF")
        )
        for name in sorted(named):
            value = function.__globals__.get(name, sys.modules.get(name))
            if isinstance(value, ModuleType):
                if _is_project(value.__name__):
                    self._add_all(
                        value.__name__, {name: vars(value)[name] for name in sorted(named) if name in vars(value)}
                    )
            elif name in function.__globals__:
                self._add_named(f"{module}.{name}", name, value)
        defaults = function.__defaults__ or ()
        names = code.co_varnames[code.co_argcount - len(defaults) : code.co_argcount]
        by_name = dict(zip(names, defaults, strict=True)) | (function.__kwdefaults__ or {})
        self._add_all(f"{_qualified_name(function)}.", by_name)
        self._add_all(_qualified_name(function), _read_closure(function))

    def _add_all(self, prefix: str, values: Mapping[Any, Any]) -> None:
        for name, value in values.items():
            self._add_named(f"{prefix}.{name}", str(name), value)

    def _add_named(self, path: str, name: str, value: Any) -> None:
        if is_container(value):
            self._add_state(path, name, value)
        else:
            self.add(path, value)

    def _enqueue(self, value: Any) -> None:
        if id(value) not in self._seen and _is_project(getattr(value, "__module__", None)):
            self._seen.add(id(value))
            self.pending.append(value)


@functools.cache
def _is_project(module: str | None) -> bool:
    """Return whether a module belongs to the project: not installed, not built in, not Spanwise.

    A module without a file belongs to the project if its code was typed in: it is `__main__` or not imported.
    """
    if not module or module in sys.builtin_module_names or module.startswith(_OWN_PACKAGES):
        return False
    file = getattr(sys.modules.get(module), "__file__", None)
    if file is None:
        return module == "__main__" or module not in sys.modules
    path = Path(file).resolve()
    return not ({"site-packages", "dist-packages"} & set(path.parts)) and not str(path).startswith(_STDLIB_PATHS)


def _is_constant(value: Any) -> bool:
    if isinstance(value, tuple | frozenset):
        return all(map(_is_constant, value))
    return isinstance(value, PLAIN_TYPES)


def _stable_repr(value: Any) -> str:
    """Return a `repr` that is the same in every process; elements of sets are sorted."""
    return repr(sorted(map(repr, value))) if isinstance(value, frozenset) else repr(value)


def _code_to_text(code: CodeType) -> str:
    consts = [
        _code_to_text(const) if isinstance(const, CodeType) else former_source(_stable_repr(const))
        for const in code.co_consts
    ]
    names = map(former_identifiers, (code.co_names, code.co_varnames, code.co_freevars))
    return repr((code.co_code, consts, *names))


def _iterate_nested_code(code: CodeType) -> Iterator[CodeType]:
    yield code
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield from _iterate_nested_code(const)


def _iterate_stored_names(code: CodeType, opname: str) -> Iterator[str]:
    return (step.argval for step in dis.get_instructions(code) if step.opname == opname)


def _read_closure(function: FunctionType) -> dict[str, Any]:
    values = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            values[name] = cell.cell_contents
        except ValueError:  # the cell is still empty
            continue
    return values


def _qualified_name(value: Any) -> str:
    return f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', type(value).__qualname__)}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:12]


def read_attributes(value: Any) -> dict[str, Any]:
    """Return the attributes of an object by name, including slots, without secrets."""
    attributes = dict(getattr(value, "__dict__", {}))
    for kind in type(value).__mro__:
        for name, member in vars(kind).items():
            if isinstance(member, MemberDescriptorType):
                try:
                    attributes.setdefault(name, member.__get__(value))
                except AttributeError:  # the slot was never set
                    continue
    return {name: inner for name, inner in attributes.items() if not is_secret(name)}


def is_secret(name: str) -> bool:
    """Return whether the name of an attribute or parameter indicates that it holds a secret."""
    return _SECRET_NAME.search(name) is not None


def is_container(value: Any) -> bool:
    """Return whether a value is a list, a set or a dict, which code can change without an assignment."""
    return isinstance(value, list | set | dict)


def to_stable_text(value: Any) -> str | None:
    """Return a text that is the same for equal plain values in every process; None for other values and for large
    ones.
    """
    try:
        return _bounded_text(value, MAX_DEPTH, itertools.count())
    except ValueError:
        return None


def _bounded_text(value: Any, depth: int, counted: Iterator[int]) -> str:
    if next(counted) > MAX_CONTAINER_VALUES or depth < 0:
        raise ValueError("too large")
    if isinstance(value, (*PLAIN_TYPES, *_REPR_TYPES)):
        return repr(value)
    if type(value) in (list, tuple):
        return repr([_bounded_text(inner, depth - 1, counted) for inner in value])
    if type(value) in (set, frozenset):
        return f"set {sorted(_bounded_text(inner, depth - 1, counted) for inner in value)}"
    if isinstance(value, dict):
        pairs = [
            (_bounded_text(key, depth - 1, counted), _bounded_text(inner, depth - 1, counted))
            for key, inner in value.items()
        ]
        return f"dict {sorted(pairs)}"
    raise ValueError("not plain")


class MutatedNames:
    """Names of attributes and variables that code changes while it runs. They are counters and caches, not settings."""

    def __init__(self) -> None:
        self._assigned: set[str] = set()
        # names used in functions that change some container: any of them may be that container
        self._mutated: set[str] = set()

    def note(self, name: str, code: CodeType) -> None:
        """Add the names that the code of a function changes. `name` is the function's name."""
        if name in _CONSTRUCTOR_NAMES:
            return
        steps = list(dis.get_instructions(code))
        self._assigned.update(step.argval for step in steps if step.opname in _ASSIGNMENT_OPCODES)
        if _MUTATORS & set(code.co_names) or any(step.opname in ("STORE_SUBSCR", "DELETE_SUBSCR") for step in steps):
            self._mutated.update((*code.co_names, *code.co_freevars, *code.co_varnames))

    def includes(self, name: str, *, container: bool) -> bool:
        """Return whether an attribute or variable is mutated; `container` states whether it holds a container."""
        return name in self._assigned or (container and name in self._mutated)
