"""YAML 1.2 scalars for PyYAML: only true and false are booleans, dates stay texts.

YAML 1.1, which PyYAML reads, turns `no`, `off`, `12:30` and `010` into values of other types.
"""

from __future__ import annotations

import re
from typing import Any

import yaml

_SCALARS = {
    "bool": (r"true|True|TRUE|false|False|FALSE", "tTfF"),
    "int": (r"-?(?:0|[1-9][0-9]*)", "-0123456789"),
    "float": (
        r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+(?:[eE][-+]?[0-9]+)?|[eE][-+]?[0-9]+)|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        "-+.0123456789",
    ),
    "null": (r"~|null|Null|NULL|", "~nN\0"),
    "merge": (r"<<", "<"),
}


class _Loader(yaml.SafeLoader):
    """Safe loader with the scalars of YAML 1.2's JSON schema."""


class _Dumper(yaml.SafeDumper):
    """Safe dumper that quotes texts which YAML 1.1 or 1.2 would read as another type."""


_Loader.yaml_implicit_resolvers = {}
for _name, (_pattern, _first) in _SCALARS.items():
    _characters = [*_first.replace("\0", ""), *([""] if "\0" in _first else [])]
    for _kind in (_Loader, _Dumper):
        _kind.add_implicit_resolver(f"tag:yaml.org,2002:{_name}", re.compile(f"^(?:{_pattern})$"), _characters)


def load(text: str | bytes) -> Any:
    """Return the value of a YAML text. Raises `yaml.YAMLError`."""
    return yaml.load(text, Loader=_Loader)


def dump(value: Any) -> str:
    """Return a YAML text that `load`, and readers of YAML 1.1, read back as the same value."""
    return str(yaml.dump(value, Dumper=_Dumper, allow_unicode=True, sort_keys=False))
