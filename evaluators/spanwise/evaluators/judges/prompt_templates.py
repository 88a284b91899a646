"""Prompt templates: placeholders, overrides, few-shot turns, and splitting of long values.

A prompt's file may begin with a line `# version: 2`, which is not sent; without it the version is 1. A folder that
`SPANWISE_PROMPTS` names is looked into first, for `<id>.txt`; an argument takes precedence over both.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TypeAlias

from spanwise.evaluators.interface import SYNONYMS, Skip
from spanwise.evaluators.judges.llm_client.chat_completions import Message
from spanwise.evaluators.judges.untrusted_data import (
    GUARD_INSTRUCTIONS,
    bound_values,
    compute_mark,
    fence_value,
    neutralize,
)
from spanwise.tracer.suggestions import did_you_mean

PLACEHOLDERS = (
    "inputs",
    "outputs",
    "reference_outputs",
    "documents",
    "expected_documents",
    "conditions",
    "guidelines",
    "history",
    "metadata",
    "trajectory",
)
MAX_CHARACTERS = 100_000  # characters of all values of a question together
MAX_PARTS = 50  # questions about one value that is too long for one question
PART_OVERLAP = 200  # characters that such parts have in common, so that no sentence is in neither
PromptOverride: TypeAlias = str | Path | Mapping[str, str | Path] | None

_PLACEHOLDER = re.compile(r"\{\{\s*([A-Za-z_][A-Za-z0-9_]*)\s*\}\}|\{([A-Za-z_][A-Za-z0-9_]*)\}")
_LATEX = re.compile(r"(?:\\[A-Za-z]+\*?(?:\[[^\[\]]*\])?(?:\{[^{}]*\})*|[_^])\Z")  # what takes an argument in braces
_LATEX_LOOKBACK = 200  # characters before a brace in which such a command is looked for
_VERSION = re.compile(r"\A# version: *(\S+) *\r?\n")


@dataclass(frozen=True, slots=True)
class Shot:
    """An example that is shown before the question: values by name, and what a good judge replies."""

    values: tuple[tuple[str, str], ...]
    reply: str


@dataclass(frozen=True, slots=True)
class Prompt:
    """A text with placeholders. `names` are the arguments that it may name; `version` is its author's.

    `{name}` and `{{name}}` are placeholders where the name is one of `names`; every other brace is text, but a single
    unknown word in braces raises `ValueError` (an argument of a LaTeX command is text). `shots` are examples, shown in
    their order as turns of a conversation. `bound` is how many characters of a question's values are sent. A case of
    which a value in `uncut` is longer is skipped: an answer about a part of it would say nothing.
    """

    id: str
    text: str
    version: str = "1"
    names: tuple[str, ...] = PLACEHOLDERS
    shots: tuple[Shot, ...] = ()
    bound: int = MAX_CHARACTERS
    uncut: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self.text.encode()  # half a surrogate pair cannot be sent: a ValueError too
        for match in _PLACEHOLDER.finditer(self.text):
            name = _get_placeholder_name(match)
            if name not in self.names and not _is_latex(self.text, match.start()):
                raise ValueError(
                    f"prompt {self.id!r} has the placeholder {match[0]}, which is none of {', '.join(self.names)}"
                    f"{did_you_mean(name, self.names)}"
                )

    @property
    def hash(self) -> str:
        """12 hex digits of the SHA-256 of all that is sent but the values."""
        said = [GUARD_INSTRUCTIONS, self.text, [[shot.values, shot.reply] for shot in self.shots]]
        return hashlib.sha256(json.dumps(said).encode()).hexdigest()[:12]

    @property
    def label(self) -> str:
        """What feedback says of it: "correctness 1 3fa2…"."""
        return f"{self.id} {self.version} {self.hash}"

    @property
    def asked(self) -> tuple[str, ...]:
        """The arguments whose placeholders stand in the text, each once, in order."""
        given = map(_get_placeholder_name, _PLACEHOLDER.finditer(self.text))
        return tuple(dict.fromkeys(name for name in given if name in self.names))

    def messages(self, values: Mapping[str, str]) -> tuple[Message, ...]:
        """The messages with values (texts, by name) in their places. Raises `KeyError` for one that is not given, and
        `Skip` for one that is longer than the bound and must not be cut.
        """
        for name, missing in self.left_out(values).items():
            if name in self.uncut:
                raise Skip(
                    f"{name} is {missing:,} characters longer than a question may be, and {self.id!r} speaks of all of "
                    f"it: raise max_characters={self.bound}"
                )
        sent = _prepare_values({name: values[name] for name in self.asked}, self.bound)
        shots = [_prepare_values(dict(shot.values), self.bound) for shot in self.shots]
        mark = compute_mark([text for shown in (sent, *shots) for text in shown.values()])
        shown: list[Message] = []
        for shot, texts in zip(self.shots, shots, strict=True):
            shown += [_make_message("user", self._filled(texts, mark)), _make_message("assistant", shot.reply)]
        system = _make_message("system", GUARD_INSTRUCTIONS.replace("{mark}", mark))
        return (system, *shown, _make_message("user", self._filled(sent, mark)))

    def left_out(self, values: Mapping[str, str]) -> Mapping[str, int]:
        """Return how many characters of which value a question leaves out."""
        return bound_values({name: values[name] for name in self.asked}, self.bound).left_out

    def in_parts(self, values: Mapping[str, str], name: str) -> list[Mapping[str, str]]:
        """Return values for as many questions as it takes to show all of one value, without a cut; parts overlap.

        Raises `Skip` where these would be more than `MOST_PARTS`.
        """
        others = sum(len(values[other]) for other in self.asked if other != name)
        size = max(self.bound - others, self.bound // max(1, len(self.asked)), 1)
        if name not in self.asked or len(values[name]) <= size:
            return [values]
        overlap = min(PART_OVERLAP, size // 4)
        starts = range(0, len(values[name]) - overlap, size - overlap)
        if len(starts) > MAX_PARTS:
            raise Skip(
                f"{name} has {len(values[name]):,} characters, too many for {MAX_PARTS} questions to {self.id!r}: "
                f"raise max_characters={self.bound}"
            )
        return [{**values, name: values[name][start : start + size]} for start in starts]

    def _filled(self, texts: Mapping[str, str], mark: str) -> str:
        """The text with fenced values in their places: in one pass, so that what stands in a value stays as it is."""

        def place(match: re.Match[str]) -> str:
            name = _get_placeholder_name(match)
            return fence_value(name, texts[name], mark) if name in texts else match[0]

        return _PLACEHOLDER.sub(place, self.text)


def prompt(
    id: str,
    override: PromptOverride = None,
    names: tuple[str, ...] = PLACEHOLDERS,
    *,
    shots: Sequence[Shot] = (),
    bound: int = MAX_CHARACTERS,
    uncut: tuple[str, ...] = (),
) -> Prompt:
    """The prompt of that id (a file of `prompts/`), or what a user has put in its place: a text, the `Path` of one, or
    a dict with such by the ids of prompts. Raises `ValueError` for one without a placeholder, `OSError` for no file.
    """
    own = _find_override(id, override.get(id) if isinstance(override, Mapping) else override)
    own = None if own is None else _rename_placeholders(own, names)
    text = (files(__package__) / "prompts" / f"{id}.txt").read_text("utf-8") if own is None else own
    said = _VERSION.match(text)
    version = said[1] if said else "1" if own is None else "own"
    made = Prompt(id, text[said.end() :] if said else text, version, names, tuple(shots), bound, uncut)
    if own is not None and not made.asked:
        raise ValueError(
            f"prompt {id!r} has no placeholder, so a judge would see nothing: {made.text!r:.120}; it may name "
            f"{', '.join(f'{{{name}}}' for name in names)}. A file is given as a Path"
        )
    return made


def _rename_placeholders(text: str, names: Sequence[str]) -> str:
    """Return a prompt with synonyms of placeholders replaced; one without placeholders is shown inputs and outputs.

    A text of one word is not: it is probably the name of a file.
    """

    def replaced(match: re.Match[str]) -> str:
        name = _get_placeholder_name(match)
        ours = SYNONYMS.get(name)
        if name in names or ours not in names or _is_latex(text, match.start()):
            return match[0]
        return f"{{{ours}}}"

    made = _PLACEHOLDER.sub(replaced, text)
    bare = _PLACEHOLDER.search(made) is None and len(text.split()) > 1
    if bare and {"inputs", "outputs"} <= {*names} and "statements" not in names:
        return f"{made.rstrip()}\n\nInputs:\n{{inputs}}\n\nOutputs:\n{{outputs}}"
    return made


def _find_override(id: str, override: str | Path | None) -> str | None:
    """What a user has put in the place of a prompt; None where nothing."""
    if isinstance(override, str):
        return override
    folder = os.environ.get("SPANWISE_PROMPTS")
    if override is None and folder and (file := Path(folder) / f"{id}.txt").is_file():
        override = file
    return None if override is None else _read_file(override)


def _read_file(file: Path) -> str:
    try:
        return file.read_text("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"the prompt {str(file)!r} is no text in UTF-8: {error}") from error


def _prepare_values(values: Mapping[str, str], bound: int) -> dict[str, str]:
    return {name: neutralize(text) for name, text in bound_values(values, bound).values.items()}


def _make_message(role: str, content: str) -> Message:
    return {"role": role, "content": content}


def _get_placeholder_name(match: re.Match[str]) -> str:
    return str(match[1] or match[2])


def _is_latex(text: str, start: int) -> bool:
    return _LATEX.search(text[max(0, start - _LATEX_LOOKBACK) : start]) is not None
