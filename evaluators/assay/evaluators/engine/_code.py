"""The code that a function runs, as digests by name: for telling whether, and where, it has changed.

From the function on, whatever it names is followed, as far as it is written in the project: functions and classes, also
of other modules, the constants (texts, numbers) and containers beside them, such as prompts, and what objects of the
project hold of plain values, but for what the code itself changes (see `_state`). Installed packages are not looked at;
and neither comments nor other functions of the same files matter.
"""

from __future__ import annotations

import dis
import functools
import hashlib
import inspect
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from assay.evaluators.engine._state import PLAIN, Moving, attributes_of, is_container, settled, text_of

MOST = 2_000  # functions and constants
_INSTALLED = tuple({str(Path(sysconfig.get_path(name)).resolve()) for name in ("stdlib", "platstdlib")})
_OURS = ("assay.tracer", "assay.collector", "assay.evaluators", "assay.cli")


def code_of(function: Any) -> dict[str, str]:
    """Name → digest of everything that a callable reaches in its project."""
    walk = _walked(function)
    known = {name: digest for name, digest in walk.digests.items() if name not in walk.stored}
    return dict(sorted({**known, **settled(walk.state, walk.moving)}.items()))


class NoSource(ValueError):
    """The source text of a function is not to be had: it was typed in, made by `exec`, or written in C."""


def source_of(function: Any) -> dict[str, str]:
    """As `code_of`, from source texts, which are the same for every Python. Raises `NoSource`."""
    whole = inspect.unwrap(function)
    walk = _walked(whole, _source)
    if not walk.digests:  # installed: what it calls is as old as its package
        walk.digests[_name(whole)] = _digest(_source(whole if inspect.isroutine(whole) else type(whole)))
    known = {name: digest for name, digest in walk.digests.items() if name not in walk.stored}
    return dict(sorted({**known, **settled(walk.state, walk.moving)}.items()))


def unknown_to(function: Any) -> list[str]:
    """What the objects of a callable hold that cannot be compared, as "path (type)"."""
    walk = _walked(function)
    return sorted(
        f"{path} ({kind.__qualname__})"
        for path, (name, kind) in walk.unknown.items()
        if not (kind in (list, set, dict) and walk.moving.holds(name, container=True))
    )


def _bytecode(function: FunctionType) -> str:
    return _of_code(function.__code__)


def _source(function: Any) -> str:
    try:
        return inspect.cleandoc(inspect.getsource(function))
    except (OSError, TypeError):
        raise NoSource(f"the source of {_name(function)} is not to be had") from None


def _walked(function: Any, text: Callable[[FunctionType], str] = _bytecode) -> _Walk:
    walk = _Walk(text)
    walk.add("", function)
    while walk.ahead and len(walk.digests) < MOST:
        walk.step()
    return walk


class _Walk:
    """What was found so far, and what is still to be looked at."""

    def __init__(self, text: Callable[[FunctionType], str]) -> None:
        self._text = text
        self.digests: dict[str, str] = {}
        self.stored: set[str] = set()  # global names that the code itself assigns: counters and caches, not settings
        self.ahead: list[Any] = []
        self.state: dict[str, tuple[str, str, bool]] = {}  # of objects, by path: name, digest, whether a container
        self.moving = Moving()
        self.unknown: dict[str, tuple[str, type]] = {}  # by path, what is held and not plain: its name and type
        self._seen: set[int] = set()
        self._objects: dict[int, Any] = {}  # held, so that no other takes the id of one

    def add(self, name: str, value: Any) -> None:
        """Note a constant, or remember something to look at."""
        if _is_constant(value):
            if name:
                self.digests[name] = _digest(_stable(value))
            return
        value = inspect.unwrap(value) if callable(value) else value
        if isinstance(value, functools.partial):
            self.add("", value.func)
            self._all(f"{name or _name(value.func)}(…)", {**value.keywords, **dict(enumerate(value.args))})
        elif isinstance(value, MethodType):
            self.add("", value.__func__)
            self.add(name, value.__self__)
        elif isinstance(value, FunctionType | type):
            self._remember(value)
        elif not isinstance(value, ModuleType):
            self._remember(type(value))
            self._object(name or f"{_name(type(value))}()", value)

    def _object(self, path: str, value: Any) -> None:
        if id(value) in self._objects or len(self.state) > MOST or not _is_project(type(value).__module__):
            return
        self._objects[id(value)] = value
        for name, inner in attributes_of(value).items():
            self._held(f"{path}.{name}", name, inner)

    def _held(self, path: str, name: str, value: Any) -> None:
        """Note what an object or a closure holds under a name."""
        text = text_of(value)
        if text is not None:
            self.state[path] = name, _digest(text), is_container(value)
        elif callable(value) or isinstance(value, ModuleType) or _is_project(type(value).__module__):
            self.add(path, value)
        else:
            self.unknown[path] = name, type(value)

    def step(self) -> None:
        """Look at one function or class."""
        value = self.ahead.pop()
        if isinstance(value, type):
            self._all(
                _name(value), {name: _inner(member) for name, member in vars(value).items() if _is_own(name, member)}
            )
            for base in value.__bases__:
                self.add("", base)
        else:
            self._function(value)

    def _function(self, function: FunctionType) -> None:
        code, module = function.__code__, function.__module__
        self.digests[_name(function)] = _digest(self._text(function))
        for inner in _nested(code):
            self.moving.note(function.__name__, inner)
        named = {name for inner in _nested(code) for name in inner.co_names}
        self.stored.update(f"{module}.{name}" for inner in _nested(code) for name in _stores(inner))
        for name in sorted(named):
            value = function.__globals__.get(name, sys.modules.get(name))
            if isinstance(value, ModuleType):
                if _is_project(value.__name__):
                    self._all(
                        value.__name__, {name: vars(value)[name] for name in sorted(named) if name in vars(value)}
                    )
            elif name in function.__globals__:
                self._named(f"{module}.{name}", name, value)
        self._all(f"{_name(function)}.", _defaults(function))
        self._all(_name(function), _closure(function))

    def _all(self, prefix: str, values: Mapping[Any, Any]) -> None:
        for name, value in values.items():
            self._named(f"{prefix}.{name}", str(name), value)

    def _named(self, path: str, name: str, value: Any) -> None:
        if is_container(value):
            self._held(path, name, value)
        else:
            self.add(path, value)

    def _remember(self, value: Any) -> None:
        if id(value) not in self._seen and _is_project(getattr(value, "__module__", None)):
            self._seen.add(id(value))
            self.ahead.append(value)


@functools.cache
def _is_project(module: str | None) -> bool:
    """Whether a module is neither installed nor built in nor ours; what has no file was typed in."""
    if not module or module in sys.builtin_module_names or module.startswith(_OURS):
        return False
    file = getattr(sys.modules.get(module), "__file__", None)
    if file is None:
        return module == "__main__" or module not in sys.modules
    path = Path(file).resolve()
    return not ({"site-packages", "dist-packages"} & set(path.parts)) and not str(path).startswith(_INSTALLED)


def _is_constant(value: Any) -> bool:
    if isinstance(value, tuple | frozenset):
        return all(map(_is_constant, value))
    return isinstance(value, PLAIN)


def _stable(value: Any) -> str:
    """The same text in every process: sets have no order."""
    return repr(sorted(map(repr, value))) if isinstance(value, frozenset) else repr(value)


def _of_code(code: CodeType) -> str:
    consts = [_of_code(const) if isinstance(const, CodeType) else _stable(const) for const in code.co_consts]
    return repr((code.co_code, consts, code.co_names, code.co_varnames, code.co_freevars))


def _nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield from _nested(const)


def _stores(code: CodeType) -> Iterator[str]:
    return (step.argval for step in dis.get_instructions(code) if step.opname == "STORE_GLOBAL")


def _defaults(function: FunctionType) -> dict[str, Any]:
    code, values = function.__code__, function.__defaults__ or ()
    names = code.co_varnames[code.co_argcount - len(values) : code.co_argcount]
    return dict(zip(names, values, strict=True)) | (function.__kwdefaults__ or {})


def _closure(function: FunctionType) -> dict[str, Any]:
    values = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            values[name] = cell.cell_contents
        except ValueError:  # not filled yet
            continue
    return values


def _is_own(name: str, member: Any) -> bool:
    """Whether somebody wrote it in a class, rather than Python, or a library that makes classes."""
    if is_container(member) and name.startswith("_") and name.endswith("_"):
        return False
    return name not in ("__module__", "__doc__", "__firstlineno__", "__static_attributes__", "__qualname__")


def _inner(value: Any) -> Any:
    """What a static or class method or a property is made of."""
    return getattr(value, "__func__", None) or getattr(value, "fget", None) or value


def _name(value: Any) -> str:
    return f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', type(value).__qualname__)}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:12]
