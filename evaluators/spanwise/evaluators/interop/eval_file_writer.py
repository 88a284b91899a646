"""Evaluation files generated from imported evals.

The file defines `dataset`, `evaluators` and `task`, as `spanwise eval` needs them. Python code of graders that is not
confirmed appears as comments only. All values of the eval are written as Python literals.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from pprint import pformat
from typing import Any

from spanwise.collector.errors import Refused
from spanwise.evaluators.interop.openai_evals import OpenAIEval
from spanwise.evaluators.interop.openai_graders import digest_source, has_code

_HEAD = '''"""Evaluation imported from OpenAI Evals."""

from spanwise.evaluators.interop import openai_grader

dataset = {dataset}
evaluators = [
'''
_CALL = '''

def task(inputs):
    """Call the model as the past runs did."""
    from openai import OpenAI

    messages = render_messages(
{messages},
        inputs,
    )
    reply = OpenAI().chat.completions.create(model={model}, messages=messages{parameters})
    return reply.choices[0].message.content
'''
_NO_CALL = '''

def task(inputs):
    """Return the answer of your application."""
    raise NotImplementedError("call your application here")
'''
_PARAMETERS = ("temperature", "top_p", "seed", "max_completion_tokens")


def write_eval_file(imported: OpenAIEval, path: str | os.PathLike[str]) -> Path:
    """Write an evaluation file for an imported eval: its dataset, its graders, and a task.

    The task sends the prompt of the newest run that has one. Raises `Refused` if the file exists.
    """
    target = Path(path)
    try:
        with target.open("x", encoding="utf-8") as file:
            file.write(make_eval_file(imported))
    except FileExistsError:
        raise Refused(f"file {str(target)!r} already exists: choose another name") from None
    return target


def make_eval_file(imported: OpenAIEval) -> str:
    """Return the text of an evaluation file."""
    text = _HEAD.format(dataset=_literal(imported.dataset or imported.name))
    made = {evaluator.key: evaluator for evaluator in imported.evaluators}
    comments = []
    for key, definition in imported.graders.items():
        if key not in made:
            comments += _comment_out(imported, key, definition)
            continue
        digest = f"        confirm_code={_literal(digest_source(definition))},\n" if has_code(definition) else ""
        text += f"    openai_grader(\n{_indent(_literal(dict(definition)), 8)},\n        key={_literal(key)},\n{digest}    ),\n"
    text += "]\n" + "".join(f"{line}\n" for line in comments)
    source = _find_prompt(imported)
    if source is None:
        return text + _NO_CALL
    sampling = source.get("sampling_params")
    parameters = "".join(
        f", {name}={_literal(sampling[name])}"
        for name in _PARAMETERS
        if isinstance(sampling, Mapping) and isinstance(sampling.get(name), int | float)
    )
    messages = [
        {"role": each.get("role"), "content": each.get("content")} for each in source["input_messages"]["template"]
    ]
    text = text.replace("import openai_grader\n", "import openai_grader, render_messages\n", 1)
    return text + _CALL.format(
        messages=_indent(_literal(messages), 8), model=_literal(source["model"]), parameters=parameters
    )


def _comment_out(imported: OpenAIEval, key: str, definition: Mapping[str, Any]) -> list[str]:
    """Return a grader that is left out, as comments. Every line of its text begins with #."""
    digest = imported.unconfirmed.get(key)
    reason = (
        f"runs Python code; after reading it, import again with --confirm-code {digest}" if digest else "is left out"
    )
    lines = ["", f"# Grader {json.dumps(key)} {reason}:"]
    source = definition.get("source")
    shown = source if isinstance(source, str) else json.dumps(definition, indent=2, default=str)
    return [
        *lines,
        *(
            f"#     {''.join(c if c.isprintable() or c == chr(9) else ' ' for c in line)}"
            for line in shown.splitlines()
        ),
    ]


def _find_prompt(imported: OpenAIEval) -> Mapping[str, Any] | None:
    """Return the data source of the newest run with a model and a prompt of texts, or None."""
    times = {id: time if type(time := run.get("created_at")) is int else 0 for id, run in imported.runs.items()}
    for id in sorted(times, key=times.__getitem__, reverse=True):
        run = imported.runs[id]
        source = run.get("data_source", {})
        messages = source.get("input_messages")
        template = messages.get("template") if isinstance(messages, Mapping) else None
        is_text = isinstance(template, list) and all(
            isinstance(each, Mapping) and isinstance(each.get("content"), str) and isinstance(each.get("role"), str)
            for each in template
        )
        if template and is_text and isinstance(source.get("model"), str):
            return dict(source)
    return None


def _literal(value: Any) -> str:
    """Return a JSON value as a Python literal of ASCII characters."""
    plain = json.loads(json.dumps(value, default=str))
    return (
        ascii(plain)
        if isinstance(plain, str)
        else pformat(plain, width=100, sort_dicts=False).encode("ascii", "backslashreplace").decode()
    )


def _indent(text: str, columns: int) -> str:
    return "\n".join(" " * columns + line for line in text.splitlines())
