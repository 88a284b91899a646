"""Graders of OpenAI Evals as evaluators, their similarity metrics included.

`string_check`, `text_similarity` and `multi` graders compute scores here. `label_model` and `score_model` graders ask a
judge with the grader's own messages. A `python` grader has source code from someone else. It is neither compiled nor
executed unless the caller confirms exactly this code, by its digest.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from spanwise.collector.records import JSON, Case, canonical_json
from spanwise.evaluators.builtin.case_text import get_tokenizer
from spanwise.evaluators.builtin.text import bleu, fuzzy, rouge
from spanwise.evaluators.interface import Evaluator, Metric, Skip, Unjudged, make_evaluator
from spanwise.evaluators.interop.grader_templates import (
    Formula,
    Namespace,
    list_variables,
    make_namespace,
    render_template,
    split_path,
)
from spanwise.evaluators.judges import Judge, Prompt, make_judge
from spanwise.evaluators.judges.judge_evaluator import Judgement
from spanwise.evaluators.models import Embedder, embedder

# Similarity metrics of OpenAI's text_similarity graders.
#
# OpenAI names the metrics but not their parameters. The definitions here are those of the libraries that its guide
# names or implies: rapidfuzz's ratio, NLTK's sentence BLEU and GLEU and METEOR, F1 of rouge-score. The import reports
# scores of past runs that differ.

COSINE = "cosine"
COSINE_MODEL = "text-embedding-3-large"
COSINE_URL = "https://api.openai.com/v1"


def compute_gleu(text: str, reference: str) -> float:
    """Return Google's BLEU, as NLTK computes it, of NLTK's Treebank words."""
    from nltk.translate.gleu_score import sentence_gleu

    tokens_of = get_tokenizer("nltk")
    return float(sentence_gleu([tokens_of(reference)], tokens_of(text)))


def compute_meteor(text: str, reference: str) -> float:
    """Return METEOR, as NLTK computes it. Raises `Skip` without WordNet, whose synonyms it needs."""
    from nltk.translate.meteor_score import single_meteor_score

    tokens_of = get_tokenizer("nltk")
    try:
        return float(single_meteor_score(tokens_of(reference), tokens_of(text)))
    except LookupError:
        raise Skip("METEOR needs WordNet: python -m nltk.downloader wordnet") from None


METRICS: Mapping[str, Callable[[str, str], float]] = {
    "fuzzy_match": fuzzy,
    "bleu": bleu,
    "gleu": compute_gleu,
    "meteor": compute_meteor,
    **{f"rouge_{order}": partial(rouge, kind=str(order)) for order in range(1, 6)},
    "rouge_l": partial(rouge, kind="L"),
}


def make_cosine(given: Any) -> Callable[[str, str], float]:
    """Return the cosine similarity by an embedder. None is OpenAI's model, at its endpoint."""
    model: Embedder = embedder(given) if given is not None else embedder(COSINE_MODEL, base_url=COSINE_URL)

    def compute_cosine(text: str, reference: str) -> float:
        import numpy

        left, right = (numpy.asarray(vector, dtype=float) for vector in model.embed([text, reference]))
        norm = float(numpy.linalg.norm(left) * numpy.linalg.norm(right))
        return float(left @ right) / norm if norm else 0.0

    return compute_cosine


# Graders of OpenAI Evals as evaluators.

MODEL_TYPES = ("label_model", "score_model")
CODE_TYPES = ("string_check", "text_similarity", "python")
DIGEST_DIGITS = 16
_CASE_FIELDS = ("outputs", "inputs", "reference_outputs", "case")
_OPERATIONS: Mapping[str, Callable[[str, str], bool]] = {
    "eq": lambda text, reference: text == reference,
    "ne": lambda text, reference: text != reference,
    "like": lambda text, reference: reference in text,
    "ilike": lambda text, reference: reference.casefold() in text.casefold(),
}


class UnconfirmedCode(ValueError):
    """Error for a grader with Python code that the caller has not confirmed. `digest` confirms it."""

    def __init__(self, name: str, digest: str) -> None:
        super().__init__(
            f"grader {name!r} runs Python code, which is not confirmed: read it (evaluation files show it), then pass "
            f"confirm_code={digest!r}, or --confirm-code {digest}"
        )
        self.digest = digest


def digest_source(definition: Mapping[str, Any]) -> str:
    """Return the digest that confirms the code of a python grader, or of the python graders within a multi grader."""
    sources = [str(each.get("source")) for each in _list_graders(definition) if each.get("type") == "python"]
    return hashlib.sha256(repr(sources).encode()).hexdigest()[:DIGEST_DIGITS]


def has_code(definition: Mapping[str, Any]) -> bool:
    """Return whether a grader, or one within a multi grader, runs Python code of the eval."""
    return any(each.get("type") == "python" for each in _list_graders(definition))


def make_key(name: str, taken: Collection[str] = ()) -> str:
    """Return a metric key for the name of a grader: "String check" → "string_check". Taken keys get a number."""
    key = base = re.sub(r"\W+", "_", name.strip().lower()).strip("_") or "grader"
    number = 1
    while key in taken:
        number += 1
        key = f"{base}_{number}"
    return key


def openai_grader(
    definition: Mapping[str, Any],
    *,
    key: str | None = None,
    judge: Any = None,
    embedder: Any = None,
    confirm_code: str | None = None,
) -> Evaluator:
    """Return an evaluator for a grader of OpenAI Evals, given as in `testing_criteria`.

    - `key` is the metric key; None derives it from the grader's name.
    - `judge` answers `label_model` and `score_model` graders. None is the grader's model, at the judges' endpoint.
    - `embedder` is the model of the metric `cosine`. None is OpenAI's text-embedding-3-large.
    - `confirm_code` is the digest of the source of a `python` grader. Without it, the code is refused.

    The variables `item` are the fields of inputs and reference, `sample` those of the outputs. Raises
    `UnconfirmedCode`, and `ValueError` for a definition that cannot be imported.
    """
    _check_definition(definition)
    key = key or make_key(str(definition.get("name") or definition["type"]))
    made = _Grader.make(definition, judge, embedder, confirm_code)
    is_model = bool(made.judges)
    function: Any = _ModelGrader(made) if is_model else made
    settings = {"definition": definition, "judges": [dict(each.identity) for each in made.judges]}
    return make_evaluator(
        function,
        name=key,
        key=key,
        metrics=[make_metric(key, definition)],
        version=compute_version(definition) if not is_model else _digest(settings),
        source="model" if is_model else "code",
        parameters={"type": str(definition["type"])},
        origin={},
    )


def make_metric(key: str, definition: Mapping[str, Any]) -> Metric:
    """Return the metric of a grader, with its threshold and the range of its scores."""
    kind, threshold = definition.get("type"), definition.get("pass_threshold")
    bounds: tuple[float, float] | None = (0.0, 1.0)
    if kind == "score_model":
        bounds = _read_range(definition)
    elif kind in ("multi", "python"):
        bounds = None
    elif kind == "text_similarity" and definition.get("evaluation_metric") == COSINE:
        bounds = (-1.0, 1.0)
    if kind in ("string_check", "label_model"):
        threshold = 1.0
    is_number = isinstance(threshold, int | float) and math.isfinite(threshold)
    return Metric(key, bounds, threshold=float(threshold) if is_number else None, primary=True)  # type: ignore[arg-type]


def compute_version(definition: Mapping[str, Any]) -> str:
    """Return the version of feedback that OpenAI's own run of the grader gave: a hash of its definition."""
    return _digest({name: value for name, value in definition.items() if name not in ("id", "pass_threshold")})


def _digest(value: Any) -> str:
    return hashlib.sha256(canonical_json(value)).hexdigest()[:8]


def _list_graders(definition: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the definitions of a grader without graders of its own, or of all graders within a multi grader."""
    if definition.get("type") != "multi":
        yield definition
        return
    for _, each in _list_parts(definition):
        yield each


def _list_parts(definition: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the graders of a multi grader by the names that its formula uses. Raises `ValueError`."""
    given = definition.get("graders")
    if isinstance(given, Mapping) and "type" in given and not isinstance(given["type"], Mapping):
        given = [given]
    if isinstance(given, Mapping):
        parts = [(str(name), each) for name, each in given.items()]
    elif isinstance(given, Sequence) and not isinstance(given, str):
        parts = [(str(each.get("name")) if isinstance(each, Mapping) else "", each) for each in given]
    else:
        raise ValueError(f"graders of a multi grader must be an object or a list, got {given!r:.100}")
    for name, each in parts:
        if not isinstance(each, Mapping) or each.get("type") not in (*CODE_TYPES, *MODEL_TYPES):
            raise ValueError(f"grader {name!r} of a multi grader has the unknown type {each!r:.100}")
    return parts


def _check_definition(definition: Any) -> None:
    """Raise `ValueError`, in one line, for a definition whose fields are missing or of the wrong type."""
    if not isinstance(definition, Mapping):
        raise ValueError(f"a grader must be an object with type and name, got {definition!r:.100}")
    kind = definition.get("type")
    name = str(definition.get("name") or kind)
    texts = {"string_check": ("input", "reference"), "text_similarity": ("input", "reference"), "python": ("source",)}
    texts |= {"score_model": ("model",), "label_model": ("model",), "multi": ("calculate_output",)}
    if not isinstance(kind, str) or kind not in texts:
        raise ValueError(
            f"grader {name!r:.100} has the unknown type {kind!r:.100}; expected one of: {', '.join(texts)}"
        )
    for part in texts[kind]:
        if not isinstance(definition.get(part), str):
            raise ValueError(f"grader {name!r}: {part} must be a text, got {definition.get(part)!r:.100}")
    if kind == "string_check" and definition.get("operation") not in tuple(_OPERATIONS):
        raise ValueError(
            f"grader {name!r}: unknown operation {definition.get('operation')!r:.100}; expected one of: {', '.join(_OPERATIONS)}"
        )
    if kind == "text_similarity" and definition.get("evaluation_metric") not in (COSINE, *METRICS):
        known = ", ".join((COSINE, *METRICS))
        raise ValueError(
            f"grader {name!r}: unknown evaluation_metric {definition.get('evaluation_metric')!r:.100}; expected one of: {known}"
        )
    if kind == "label_model":
        labels, passing = definition.get("labels"), definition.get("passing_labels")
        if not (_is_list_of_texts(labels) and labels and _is_list_of_texts(passing)):
            raise ValueError(f"grader {name!r}: labels and passing_labels must be lists of texts, got {labels!r:.100}")
    if kind == "score_model":
        _read_range(definition)
    if kind in MODEL_TYPES:
        _read_messages(definition)
    for variable in list_grader_variables(definition):
        split_path(variable)
    if kind == "multi":
        graders = _list_parts(definition)
        for _, grader in graders:
            _check_definition(grader)
        for used in Formula(definition["calculate_output"]).names:
            if used not in _name_scores(graders):
                known = ", ".join(each for each, _ in graders)
                raise ValueError(f"grader {name!r}: calculate_output uses {used!r}, which is no grader; it has {known}")


def _name_scores(parts: Sequence[tuple[str, Any]]) -> dict[str, int]:
    """Return the names by which a formula may refer to graders, with their positions."""
    names: dict[str, int] = {}
    for position, (name, _) in enumerate(parts):
        for form in (name, make_key(name), f"{make_key(name)}_score"):
            names.setdefault(form, position)
    return names


def _is_list_of_texts(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(each, str) for each in value)


def _read_range(definition: Mapping[str, Any]) -> tuple[float, float]:
    given = definition.get("range")
    if given is None:
        return 0.0, 1.0
    is_pair = isinstance(given, list | tuple) and len(given) == 2 and all(type(each) in (int, float) for each in given)
    if not is_pair or not given[0] < given[1]:
        raise ValueError(f"grader {definition.get('name')!r}: range must be two rising numbers, got {given!r:.100}")
    return float(given[0]), float(given[1])


def _read_messages(definition: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return roles and templates of a model grader's messages. Raises `ValueError` for images, audio and other content."""
    name, given = definition.get("name"), definition.get("input")
    if isinstance(given, str):
        return [("user", given)]
    if not isinstance(given, list | tuple) or not given:
        raise ValueError(f"grader {name!r}: input must be a list of messages, got {given!r:.100}")
    messages = []
    for message in given:
        role = message.get("role") if isinstance(message, Mapping) else None
        if role not in ("user", "assistant", "system", "developer"):
            raise ValueError(f"grader {name!r}: a message must have a role, got {message!r:.100}")
        content = message.get("content")
        parts = content if isinstance(content, list | tuple) else [content]
        texts = [part.get("text") if isinstance(part, Mapping) else part for part in parts]
        if not texts or not all(isinstance(text, str) for text in texts):
            raise ValueError(f"grader {name!r}: only texts can be sent to a judge, got {content!r:.100}")
        messages.append(("system" if role == "developer" else str(role), "\n".join(map(str, texts))))
    return messages


def list_grader_variables(definition: Mapping[str, Any]) -> list[str]:
    """Return the variables in the templates of a grader, without those in the source of python graders."""
    found: list[str] = []
    for each in _list_graders(definition):
        for part in ("input", "reference"):
            if isinstance(value := each.get(part), str):
                found += list_variables(value)
        if each.get("type") in MODEL_TYPES:
            found += [name for _, text in _read_messages(each) for name in list_variables(text)]
    return list(dict.fromkeys(found))


@dataclass(frozen=True)
class _Score:
    """Result of one grader. `steps` names the scores of the graders within a multi grader."""

    value: float
    label: str | None = None
    comment: str | None = None


@dataclass(frozen=True)
class _Grader:
    """Grader as a function of a case. `grade` computes a score, and `judges` are those that it asks."""

    definition: Mapping[str, Any]
    judges: tuple[Judge, ...] = ()
    parts: tuple[tuple[str, _Grader], ...] = ()
    formula: Formula | None = None
    compute: Callable[..., Any] | None = field(default=None, compare=False)

    @classmethod
    def make(cls, definition: Mapping[str, Any], judge: Any, embedder: Any, confirm_code: str | None) -> _Grader:
        kind = definition["type"]
        if has_code(definition):
            digest = digest_source(definition)
            if confirm_code != digest:
                raise UnconfirmedCode(str(definition.get("name")), digest)
        if kind == "multi":
            parts = tuple((name, cls._make_part(each, judge, embedder)) for name, each in _list_parts(definition))
            judges = tuple(each for _, part in parts for each in part.judges)
            return cls(definition, judges, parts, Formula(definition["calculate_output"]))
        return cls._make_part(definition, judge, embedder)

    @classmethod
    def _make_part(cls, definition: Mapping[str, Any], judge: Any, embedder: Any) -> _Grader:
        """Return a grader whose code is confirmed."""
        kind = definition["type"]
        if kind in MODEL_TYPES:
            return cls(definition, (_make_grader_judge(definition, judge),))
        if kind == "python":
            return cls(definition, compute=_load_python(definition))
        if kind == "string_check":
            return cls(definition, compute=_OPERATIONS[definition["operation"]])
        metric = definition["evaluation_metric"]
        return cls(definition, compute=make_cosine(embedder) if metric == COSINE else METRICS[metric])

    @property
    def __signature__(self) -> inspect.Signature:
        """Return the fields of a case that the grader needs: outputs only if it has a variable of `sample`."""
        variables = list_grader_variables(self.definition)
        needed = has_code(self.definition) or any(split_path(variable)[0] == "sample" for variable in variables)
        parameters = [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=inspect.Parameter.empty if name == "case" or (name == "outputs" and needed) else None,
            )
            for name in _CASE_FIELDS
        ]
        return inspect.Signature(sorted(parameters, key=lambda each: each.default is None))

    def __call__(self, case: Case, **fields: Any) -> Any:
        namespace = make_namespace(case)
        if self.formula is None:
            return {"score": self.compute_score(namespace)}
        return combine(self, {name: part.compute_score(namespace) for name, part in self.parts})

    def compute_score(self, namespace: Namespace) -> float:
        """Return the score of a grader that asks no judge. Raises `Skip` for a case without a variable."""
        assert self.compute is not None
        if self.definition["type"] == "python":
            result = self.compute(dict(namespace["sample"]), dict(namespace["item"]))
            if isinstance(result, bool) or not isinstance(result, int | float) or not math.isfinite(result):
                raise ValueError(f"grade() must return a finite number, got {result!r:.100}")
            return float(result)
        text, reference = (render_template(self.definition[name], namespace) for name in ("input", "reference"))
        return float(self.compute(text, reference))


def combine(grader: _Grader, scores: Mapping[str, float]) -> dict[str, Any]:
    """Return the feedback row of a multi grader: the formula's result, with the single scores as its comment."""
    assert grader.formula is not None
    positions, values = _name_scores(grader.parts), list(scores.values())
    result = grader.formula.compute({name: values[position] for name, position in positions.items()})
    return {"score": result, "comment": ", ".join(f"{name} = {value:.4g}" for name, value in scores.items())}


class _ModelGrader:
    """Grader that asks judges: a model grader, or a multi grader with one."""

    def __init__(self, grader: _Grader) -> None:
        self.grader = grader
        self.judges = grader.judges

    @property
    def __signature__(self) -> inspect.Signature:
        return self.grader.__signature__

    @property
    def where(self) -> tuple[str, ...]:
        """Return the endpoints that receive the messages."""
        return tuple(dict.fromkeys(judge.where for judge in self.judges))

    def ready(self) -> None:
        """Raise `NoJudge` if one of the judges cannot be called."""
        for judge in self.judges:
            judge.check()

    async def __call__(self, case: Case, **fields: Any) -> dict[str, Any]:
        namespace, name = make_namespace(case), make_key(str(self.grader.definition.get("name")))
        if self.grader.formula is None:
            async with Judgement(name, self.judges[0], case) as judgement:
                score = await ask_model(self.grader, judgement, namespace)
                return judgement.row(score.value, label=score.label, comment=score.comment)
        scores: dict[str, float] = {}
        row: dict[str, Any] = {}
        for part_name, part in self.grader.parts:
            if not part.judges:
                scores[part_name] = part.compute_score(namespace)
                continue
            async with Judgement(make_key(part_name), part.judges[0], case) as judgement:
                scores[part_name] = (await ask_model(part, judgement, namespace)).value
                row = judgement.row(scores[part_name])
        return {**row, **combine(self.grader, scores)}


async def ask_model(grader: _Grader, judgement: Judgement, namespace: Namespace) -> _Score:
    """Return the score of a model grader. Raises `Unjudged` for a reply outside the labels or the range."""
    definition = grader.definition
    if definition["type"] == "label_model":
        labels = list(dict.fromkeys(definition["labels"]))
        result: dict[str, JSON] = {"type": "string", "enum": labels}
        rule = f"one of the labels {json.dumps(labels, ensure_ascii=False)}"
    else:
        low, high = _read_range(definition)
        result = {"type": "number"}
        rule = f"a number from {low:g} to {high:g}"
    schema = {
        "type": "object",
        "properties": {"reasoning": {"type": "string"}, "result": result},
        "required": ["reasoning", "result"],
        "additionalProperties": False,
    }
    rule = f'Reply with a JSON object that has "reasoning", a short text, and "result", {rule}.'
    templates = _read_messages(definition)
    messages = [{"role": role, "content": render_template(text, namespace)} for role, text in templates]
    prompt = Prompt(make_key(str(definition.get("name")))[:64], f"OpenAI grader {_digest(definition)}", names=())
    answer = await judgement.ask_messages(prompt, [*messages, {"role": "system", "content": rule}], schema)
    found = answer.value.get("result") if isinstance(answer.value, Mapping) else None
    comment = answer.value.get("reasoning") if isinstance(answer.value, Mapping) else None
    if definition["type"] == "label_model":
        if found not in definition["labels"]:
            raise Unjudged(f"the judge gave the label {found!r:.100}; expected one of: {', '.join(labels)}")
        return _Score(float(found in definition["passing_labels"]), str(found), comment)
    if isinstance(found, bool) or not isinstance(found, int | float) or not low <= found <= high:
        raise Unjudged(f"the judge gave the score {found!r:.100}; expected a number from {low:g} to {high:g}")
    return _Score(float(found), None, comment)


def _make_grader_judge(definition: Mapping[str, Any], given: Any) -> Judge:
    """Return the given judge, else one for the grader's model with its sampling parameters."""
    if given is not None:
        return make_judge(given)
    sampling = definition.get("sampling_params")
    sampling = sampling if isinstance(sampling, Mapping) else {}
    settings: dict[str, Any] = {"model": definition["model"]}
    for name, ours in (("temperature", "temperature"), ("seed", "seed"), ("max_completions_tokens", "max_tokens")):
        if type(sampling.get(name)) in (int, float):
            settings[ours] = sampling[name]
    return make_judge(settings)


def _load_python(definition: Mapping[str, Any]) -> Callable[..., Any]:
    """Execute the confirmed source of a python grader, and return its function `grade(sample, item)`."""
    name = definition.get("name")
    namespace: dict[str, Any] = {"__name__": f"openai_grader_{make_key(str(name))}"}
    try:
        exec(compile(definition["source"], f"<grader {name}>", "exec"), namespace)
    except Exception as error:
        raise ValueError(f"the code of grader {name!r} cannot be loaded: {type(error).__name__}: {error}") from error
    grade = namespace.get("grade")
    if not callable(grade):
        raise ValueError(f"the code of grader {name!r} has no function grade(sample, item)")
    return grade  # type: ignore[no-any-return]


def score_without_judge(grader: Any, namespace: Namespace) -> float:
    """Return the score of an imported grader that asks no judge. Raises `Skip` for a missing variable."""
    if grader.formula is None:
        return float(grader.compute_score(namespace))
    scores = {name: part.compute_score(namespace) for name, part in grader.parts}
    return float(combine(grader, scores)["score"])
