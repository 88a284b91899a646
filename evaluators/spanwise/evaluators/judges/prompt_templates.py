"""Prompt templates: placeholders, overrides, few-shot turns, and splitting of long values.

A prompt's file may begin with a line `# version: 2`, which is not sent. Without this line, the version of a built-in
prompt is 1, and that of an override is "own". A file `<id>.txt` in the folder `SPANWISE_PROMPTS` replaces the
built-in prompt. An argument takes precedence over both.
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
MAX_CHARACTERS = 100_000  # maximum characters of all values of a question together
MAX_PARTS = 50  # maximum questions about one long value
PART_OVERLAP = 200  # overlap of these parts in characters, so that a sentence at a boundary is complete in one of them
PromptOverride: TypeAlias = str | Path | Mapping[str, str | Path] | None

_PLACEHOLDER = re.compile(r"\{\{\s*([A-Za-z_][A-Za-z0-9_]*)\s*\}\}|\{([A-Za-z_][A-Za-z0-9_]*)\}")
# LaTeX commands that take an argument in braces
_LATEX = re.compile(r"(?:\\[A-Za-z]+\*?(?:\[[^\[\]]*\])?(?:\{[^{}]*\})*|[_^])\Z")
_LATEX_LOOKBACK = 200  # characters before a brace that are searched for a LaTeX command
_VERSION = re.compile(r"\A# version: *(\S+) *\r?\n")


@dataclass(frozen=True, slots=True)
class Shot:
    """Few-shot example that precedes the question: values by name, and the reply that a good judge gives."""

    values: tuple[tuple[str, str], ...]
    reply: str


@dataclass(frozen=True, slots=True)
class Prompt:
    """Prompt text with placeholders. `names` are the permitted placeholders; `version` is set by the author.

    `{name}` and `{{name}}` are placeholders if the name is one of `names`. All other braces are text, but a
    single unknown word in braces raises `ValueError`, except as an argument of a LaTeX command. `shots` are
    examples, sent in order as turns of a conversation. `bound` is the maximum number of characters of a
    question's values. A case with a longer value in `uncut` is skipped, because an answer about a part of it
    would be meaningless.
    """

    id: str
    text: str
    version: str = "1"
    names: tuple[str, ...] = PLACEHOLDERS
    shots: tuple[Shot, ...] = ()
    bound: int = MAX_CHARACTERS
    uncut: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        # raises `UnicodeEncodeError`, a `ValueError`, for an unpaired surrogate, which cannot be sent
        self.text.encode()
        for match in _PLACEHOLDER.finditer(self.text):
            name = _get_placeholder_name(match)
            if name not in self.names and not _is_latex(self.text, match.start()):
                raise ValueError(
                    f"prompt {self.id!r} has the unknown placeholder {match[0]}{did_you_mean(name, self.names)}; expected "
                    f"one of: {', '.join(self.names)}"
                )

    @property
    def hash(self) -> str:
        """Return 12 hex digits of the SHA-256 of all text that is sent except the values."""
        content = [GUARD_INSTRUCTIONS, self.text, [[shot.values, shot.reply] for shot in self.shots]]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:12]

    @property
    def label(self) -> str:
        """Return the name of the prompt in feedback: "correctness 1 3fa2…"."""
        return f"{self.id} {self.version} {self.hash}"

    @property
    def asked(self) -> tuple[str, ...]:
        """Return the distinct placeholders of the text, in order."""
        names = map(_get_placeholder_name, _PLACEHOLDER.finditer(self.text))
        return tuple(dict.fromkeys(name for name in names if name in self.names))

    def messages(self, values: Mapping[str, str]) -> tuple[Message, ...]:
        """Return the messages with the placeholders replaced by values (texts by name).

        Raises `KeyError` for a missing value, and `Skip` for a value in `uncut` that is longer than the bound.
        """
        for name, missing in self.left_out(values).items():
            if name in self.uncut:
                raise Skip(
                    f"{name} is {missing:,} characters longer than the limit of a question, and {self.id!r} needs all of "
                    f"it: increase max_characters={self.bound}"
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
        """Return the number of characters that a question leaves out of each truncated value, by name."""
        return bound_values({name: values[name] for name in self.asked}, self.bound).left_out

    def in_parts(self, values: Mapping[str, str], name: str) -> list[Mapping[str, str]]:
        """Split the value `name` over several questions, and return the values of each question. The parts overlap.

        Raises `Skip` if more than `MAX_PARTS` questions would be needed.
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
                f"increase max_characters={self.bound}"
            )
        return [{**values, name: values[name][start : start + size]} for start in starts]

    def _filled(self, texts: Mapping[str, str], mark: str) -> str:
        """Return the text with its placeholders replaced by fenced values. Placeholders inside values stay unchanged,
        because there is only one pass.
        """

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
    """Return the prompt with that id (a file of `prompts/`), or its override.

    An override is a text, the `Path` of a text, or a dict of these by prompt id. Raises `ValueError` for an override
    without a placeholder, and `OSError` for a missing file.
    """
    override_text = _find_override(id, override.get(id) if isinstance(override, Mapping) else override)
    override_text = None if override_text is None else _rename_placeholders(override_text, names)
    text = (files(__package__) / "prompts" / f"{id}.txt").read_text("utf-8") if override_text is None else override_text
    header = _VERSION.match(text)
    version = header[1] if header else "1" if override_text is None else "own"
    template = Prompt(id, text[header.end() :] if header else text, version, names, tuple(shots), bound, uncut)
    if override_text is not None and not template.asked:
        raise ValueError(
            f"prompt {id!r} has no placeholder, so the judge would see nothing of the case: {template.text!r:.120}; it may contain "
            f"{', '.join(f'{{{name}}}' for name in names)}. Pass a file as a Path"
        )
    return template


def _rename_placeholders(text: str, names: Sequence[str]) -> str:
    """Replace synonyms in the placeholders of a prompt. Append inputs and outputs to a prompt without placeholders.

    Nothing is appended to a text of one word, as it is probably the name of a file.
    """

    def replaced(match: re.Match[str]) -> str:
        name = _get_placeholder_name(match)
        ours = SYNONYMS.get(name)
        if name in names or ours not in names or _is_latex(text, match.start()):
            return match[0]
        return f"{{{ours}}}"

    renamed = _PLACEHOLDER.sub(replaced, text)
    bare = _PLACEHOLDER.search(renamed) is None and len(text.split()) > 1
    if bare and {"inputs", "outputs"} <= {*names} and "statements" not in names:
        return f"{renamed.rstrip()}\n\nInputs:\n{{inputs}}\n\nOutputs:\n{{outputs}}"
    return renamed


def _find_override(id: str, override: str | Path | None) -> str | None:
    """Return a user's override of a prompt, or None."""
    if isinstance(override, str):
        return override
    folder = os.environ.get("SPANWISE_PROMPTS")
    if override is None and folder and (file := Path(folder) / f"{id}.txt").is_file():
        override = file
    if override is None:
        return None
    try:
        return override.read_text("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"the prompt {str(override)!r} is not UTF-8 text: {error}") from error


def _prepare_values(values: Mapping[str, str], bound: int) -> dict[str, str]:
    return {name: neutralize(text) for name, text in bound_values(values, bound).values.items()}


def _make_message(role: str, content: str) -> Message:
    return {"role": role, "content": content}


def _get_placeholder_name(match: re.Match[str]) -> str:
    return str(match[1] or match[2])


def _is_latex(text: str, start: int) -> bool:
    return _LATEX.search(text[max(0, start - _LATEX_LOOKBACK) : start]) is not None
