"""Given texts to the log-probabilities of their tokens: a causal language model, or a function."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, cast

from spanwise.evaluators.models._causal import Causal, Pair, Reading
from spanwise.evaluators.models._each import each, joined, parted
from spanwise.evaluators.models._encoding import Encoding
from spanwise.evaluators.models._find import NoModel, Place, check_whole, is_offline, loading
from spanwise.evaluators.models._gguf import check, place_of
from spanwise.evaluators.models._local import Local, told
from spanwise.evaluators.models._presets import Use
from spanwise.evaluators.models._shared import Key, Loaded, bytes_of, device_of
from spanwise.evaluators.models._trust import trusting

if TYPE_CHECKING:
    from spanwise.evaluators.models._encoding import Vector, Vectors

DTYPES = ("float32", "bfloat16", "float16")
WANTED = "a function of a list of (prefix, text) that gives a list of log-probabilities, one per token, for each"
_OF_AN_API = re.compile(  # what only companies' own servers answer to
    r"(chatgpt|gpt-(3\.5|4|5)|o[1345](-|$)|claude-|gemini-|grok-|command-(r|a)(-|$)|deepseek-(chat|reasoner)$)"
)
_APIS = ("openai", "anthropic", "azure", "google", "gemini", "vertex_ai", "bedrock", "openrouter", "xai", "cohere")


class LikelihoodModel(Local):
    """Log-probabilities of given texts, each text once per process and model; nothing is loaded before the first.

    `model` is a folder, a model of the hub, a preset's name, a GGUF file (which needs `gguf` and `accelerate`), or a
    function of a list of (prefix, text). `device` is "cuda", "mps" or "cpu" (None: the first that there is); `dtype`
    "float32", or "bfloat16" or "float16" for half of the memory and two or three digits. Weights that run code when
    they are loaded (`remote_code`), or that are pickles (`pickle`), are loaded only where that is said.

    Prefix and text are tokenized as one; a token with characters of both, as a space before a word, is the text's.
    What special tokens are called is read as text. The first token has nothing before it: it has no log-probability,
    and is left out, where the tokenizer puts no BOS there. `bos=True` puts one, or the EOS of models without, so that
    all tokens count; `bos=False` none.

    A text longer than `max_length` tokens (None: what the model reads at once, 2,048 at most) is read in windows that
    begin `stride` tokens (None: half of them) after one another, and each of its tokens counts once, in the first
    window that has it: the strided window of Hugging Face's page on perplexity. Windows of all texts go through the
    model by about `batch_tokens` tokens.
    """

    USE: ClassVar[Use] = "likelihood"

    def __init__(
        self,
        model: str | os.PathLike[str] | Callable[[list[Pair]], Any] | None = None,
        *,
        name: str | None = None,
        device: str | None = None,
        dtype: str = "float32",
        max_length: int | None = None,
        stride: int | None = None,
        bos: bool | None = None,
        batch_tokens: int = 4096,
        token: str | None = None,
        remote_code: bool = False,
        pickle: bool = False,
    ) -> None:
        _check(dtype, max_length=max_length, stride=stride, batch_tokens=batch_tokens)
        local = model if model is None or callable(model) else _local(model)
        super().__init__(local, name, device, token, remote_code, pickle)
        self.dtype = dtype
        self.reading = Reading(max_length, stride, bos, batch_tokens)
        self._own = Encoding(self._asked, ragged=True)  # of a function

    def log_probabilities(self, pairs: Sequence[Pair]) -> list[Vector]:
        """Of each (prefix, text) an array of (tokens of the text,), in their order: natural logarithms.

        Raises what the model raises for one of them.
        """
        if not pairs:
            return []
        keys = [joined(*pair) for pair in pairs]
        found = self._encoding()(keys)
        return [found[key] for key in keys]

    def each(self, pairs: Sequence[Pair]) -> dict[Pair, Vector | Exception]:
        """The log-probabilities of each, or why the model fails for this one. Raises `NoModel`: no text's fault."""
        return each(self.log_probabilities, pairs)

    @cached_property
    def _found(self) -> tuple[Place, str | None]:
        return place_of(self._given)

    @cached_property
    def _place(self) -> Place:
        return self._found[0]

    def _encoding(self) -> Encoding:
        if self._function is not None:
            return self._own
        return self._shared(self._read, self.reading, ragged=True)

    def _how(self) -> Mapping[str, Any]:
        how = {name: value for name, value in asdict(self.reading).items() if name != "batch_tokens"}
        return {"dtype": self.dtype, **how}

    def _key(self) -> Key:
        return *super()._key(), self._found[1], self.dtype

    def _load(self) -> Loaded:
        place, file = self._found
        with loading(place, f"log-probabilities with {place.name}"), trusting(place, "LikelihoodModel"):
            if file is not None:
                check()
            import torch
            from transformers import AutoModelForCausalLM, AutoTokenizer

            device = device_of(self.device)
            options = self._options(file)
            tokenizer = AutoTokenizer.from_pretrained(place.where, **options)
            if file is None and not self._pickle:
                options["use_safetensors"] = True
            model, told = cast(Any, AutoModelForCausalLM.from_pretrained)(
                place.where, output_loading_info=True, **options
            )
            check_whole(told, place.name, "causal language model")
            model.to(device=device, dtype=getattr(torch, self.dtype)).eval()
            causal = Causal(model, tokenizer, place.name)
        return Loaded(causal, place.name, "likelihood", place.where, device, bytes_of(model), 0.0)

    def _options(self, file: str | None) -> dict[str, Any]:
        options = {"token": self._token, "trust_remote_code": self._remote_code, "local_files_only": is_offline()}
        return options if file is None else {**options, "gguf_file": file}

    def _read(self, keys: list[str]) -> Vectors:
        held = self._loaded()
        with held.running:
            held.texts += len(keys)
            found = held.model.log_probabilities([parted(key) for key in keys], self.reading)
            return cast("Vectors", found)

    def _asked(self, keys: list[str]) -> Vectors:
        """What a function gives, if these are log-probabilities. Raises `ValueError`."""
        assert self._function is not None
        given = self._function([parted(key) for key in keys])
        if isinstance(given, str | bytes) or not hasattr(given, "__len__") or len(given) != len(keys):
            raise ValueError(f"a likelihood model gave {given!r:.100} for {len(keys)} texts: it is {WANTED}")
        return cast("Vectors", [_checked(one) for one in given])


def likelihood_model(given: Any = None, **options: Any) -> LikelihoodModel:
    """A model of whatever names one: itself, a function, a folder, a name, a dict of arguments, None (the default).

    Raises `NoModel` for anything else, and for chat endpoints.
    """
    if (made := told(LikelihoodModel, given, options)) is not None:
        return made
    if hasattr(given, "base_url") or hasattr(given, "backend"):  # a `Judge`, or somebody's client
        raise _chat(type(given).__name__)
    if callable(given):
        return LikelihoodModel(given, **options)
    raise NoModel(f"a likelihood model is a model's name, a folder, or {WANTED}, not {given!r:.200}")


def _local(given: str | os.PathLike[str]) -> str | os.PathLike[str]:
    """The name of a model that may run here. Raises `NoModel` for that of a server."""
    name = os.fspath(given)
    first, *rest = re.split("[/:]", name)
    of_an_api = _OF_AN_API.match(rest[-1] if rest and first in _APIS else name)
    if re.match(r"(https?|wss?)://", name, re.IGNORECASE) or (of_an_api and not os.path.isdir(name)):
        raise _chat(name)
    return given


def _chat(what: str) -> NoModel:
    return NoModel(
        f"{what!r} is a chat endpoint, which gives log-probabilities of what it writes and none of a text that it is "
        "given: name a model that runs here (a folder, a model of the hub, a GGUF file), or write a function of a list "
        "of (prefix, text) for a completions endpoint that echoes its prompt"
    )


def _check(dtype: str, **counts: int | None) -> None:
    """Raises `ValueError`."""
    if dtype not in DTYPES:
        raise ValueError(f"dtype is {', '.join(map(repr, DTYPES))}, not {dtype!r}")
    for name, count in counts.items():
        least = 2 if name == "max_length" else 1
        if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < least):
            raise ValueError(f"{name} is a number of tokens, {least} or more, not {count!r}")


def _checked(given: Any) -> Vector:
    """One text's. Raises `ValueError`."""
    import numpy

    try:
        found = numpy.asarray(given, dtype=numpy.float32)
    except (TypeError, ValueError) as error:
        raise ValueError(f"a likelihood model gave {given!r:.100}: it is {WANTED}") from error
    if found.ndim != 1 or not numpy.isfinite(found).all() or (found > 0).any():
        raise ValueError(f"a likelihood model gave {given!r:.100}: log-probabilities are finite, and 0 at most")
    return cast("Vector", found)
