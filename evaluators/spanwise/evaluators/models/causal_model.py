"""Causal language models: log-probabilities of given tokens, in strided windows.

A window holds the tokens that the model reads at once. Each window starts one stride after the previous one, and only
those of its tokens are counted that no earlier window has counted. Hugging Face's page "Perplexity of fixed-length
models" describes this strided window.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import takewhile
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, cast

from spanwise.evaluators.interface.progress_display import track_progress
from spanwise.evaluators.models.inference_batching import (
    CoalescingEncoder,
    LoadedModel,
    LocalModel,
    ModelKey,
    choose_device,
    join_pair,
    make_model,
    parameter_bytes,
    run_each,
    split_pair,
)
from spanwise.evaluators.models.model_resolution import (
    ModelLocation,
    ModelUse,
    NoModel,
    check_complete,
    check_gguf_support,
    explain_loading_errors,
    explain_trust_errors,
    is_offline,
    locate_gguf,
)

if TYPE_CHECKING:
    from spanwise.evaluators.models.disk_cache import Vector, Vectors


PrefixedText: TypeAlias = tuple[str, str]
"""A prefix, which may be empty, and the text after it."""

# maximum characters of the texts that are tokenized together, unless a single text is longer
GROUP_CHARACTERS = 1 << 20
DEFAULT_WINDOW = 2048  # default maximum of tokens per window
MAX_LOGITS = 1 << 24  # maximum elements of a (tokens, vocabulary) array that is computed at once: 64 MB as float32


@dataclass(frozen=True, slots=True)
class ReadingSettings:
    """Tokenization and window settings: window length, stride, BOS token, and tokens per batch."""

    max_length: int | None = None
    stride: int | None = None
    bos: bool | None = None
    batch_tokens: int = 4096


@dataclass(frozen=True, slots=True)
class TokenizedPair:
    """Tokens of a prefix followed by those of a text. Tokens from index `first` on are counted."""

    ids: list[int]
    first: int


@dataclass(frozen=True, slots=True)
class _TokenWindow:
    """Window of one text. `whose` is the index of the text. Of the window's tokens, those from index `first` on are
    counted.
    """

    whose: int
    ids: list[int]
    first: int


class CausalModel:
    """Causal language model of transformers with its tokenizer, in memory. It is not thread-safe.

    Raises `NoModel` if the model is not supported.
    """

    def __init__(self, model: Any, tokenizer: Any, name: str) -> None:
        self.model, self.name = model, name
        self._tokenizer = tokenizer
        tokenizer.split_special_tokens = True  # read "<|endoftext|>" inside a text as plain text
        tokenizer.model_max_length = int(1e30)  # avoid the tokenizer's length warning: this module cuts the windows
        positions = getattr(model.config.get_text_config(), "max_position_embeddings", None)
        self._context = int(positions) if positions else None
        self._head = _find_output_head(model, name)

    def log_probabilities(self, pairs: Sequence[PrefixedText], how: ReadingSettings) -> list[Vector]:
        """Return for each pair an array of natural log-probabilities, one per token of the text that has a preceding
        token.

        Raises `NoModel` if the model does not support the settings, and `ValueError` if it returns a number that is
        not finite.
        """
        return [found for group in _group_pairs(pairs) for found in self._together(group, how)]

    def _together(self, pairs: Sequence[PrefixedText], how: ReadingSettings) -> list[Vector]:
        given = [self.tokens(*pair, how.bos) for pair in pairs]
        width, stride = self.window_size(how)
        rows = [row for whose, one in enumerate(given) for row in _token_windows(whose, one, width, stride)]
        parts: list[list[tuple[int, Vector]]] = [[] for _ in pairs]
        batch_tokens = how.batch_tokens
        if self._head is None:  # the logits cannot be computed in slices
            batch_tokens = min(batch_tokens, max(MAX_LOGITS // _vocabulary_size(self.model.config), 1))
        batches = list(_batch_windows(rows, batch_tokens))
        for batch in track_progress(batches, "windows of texts read"):
            for place, found in zip(batch, self._scores([rows[place] for place in batch]), strict=True):
                parts[rows[place].whose].append((place, found))
        return [self._joined(found) for found in parts]

    def window_size(self, how: ReadingSettings) -> tuple[int, int]:
        """Return the lengths of the window and the stride in tokens. Raises `NoModel` for settings that do not fit the
        model.
        """
        width = how.max_length or min(self._context or DEFAULT_WINDOW, DEFAULT_WINDOW)
        if self._context is not None and width > self._context:
            raise NoModel(f"max_length={width} exceeds the context length of {self.name!r}, {self._context} tokens")
        stride = how.stride or max(width // 2, 1)
        if stride >= width:
            raise NoModel(
                f"stride={stride} must be below the window of {self.name!r}, {width} tokens; leave it out for the default"
            )
        return width, stride

    def tokens(self, prefix: str, text: str, bos: bool | None) -> TokenizedPair:
        """Tokenize prefix and text as one string.

        A token with characters of both, such as the space before a word, belongs to the text. `bos` determines the
        tokens before the prefix (see `_start`). The very first token has no preceding token, so it is never counted.
        """
        start, (ids, of_prefix) = self._start(bos), self._split(prefix, text)
        return TokenizedPair([*start, *ids], max(len(start) + of_prefix, 1))

    def _split(self, prefix: str, text: str) -> tuple[list[int], int]:
        """Return the tokens of prefix and text, and the number of tokens that belong to the prefix."""
        has_offsets = bool(getattr(self._tokenizer, "is_fast", False))
        found = self._tokenizer(prefix + text, add_special_tokens=False, return_offsets_mapping=has_offsets)
        ids: list[int] = found["input_ids"]
        if has_offsets:
            return ids, sum(1 for _ in takewhile(lambda ends: ends[1] <= len(prefix), found["offset_mapping"]))
        before = self._tokenizer(prefix, add_special_tokens=False)["input_ids"] if prefix else []
        return ids, sum(1 for _ in takewhile(lambda two: two[0] == two[1], zip(before, ids, strict=False)))

    def _start(self, bos: bool | None) -> list[int]:
        """Return the tokens to put before a text.

        With `bos` None, these are the tokens that the tokenizer adds; with True, BOS, or EOS if the model has no BOS;
        with False, none.
        """
        if bos is None:
            whole, plain = (self._tokenizer("a", add_special_tokens=added)["input_ids"] for added in (True, False))
            return list(takewhile(lambda token: token != plain[0], whole))
        known = (self._tokenizer.bos_token_id, self._tokenizer.eos_token_id)
        token = next((token for token in known if token is not None), None)
        if bos and token is None:
            raise NoModel(f"{self.name!r} has neither a BOS nor an EOS token: leave bos=True out")
        return [token] if bos and token is not None else []

    def _scores(self, rows: Sequence[_TokenWindow]) -> list[Vector]:
        """Return the log-probabilities of the counted tokens of each window."""
        import torch

        with torch.inference_mode():
            ids, mask = _pad_windows(rows, self.model.device)
            # the hidden states that the output head reads, or the logits if the model changes these after the head
            states = (
                self.model(input_ids=ids, attention_mask=mask, use_cache=False).logits
                if self._head is None
                else self.model.base_model(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state
            )
            ends = [(place, row.first, len(row.ids)) for place, row in enumerate(rows)]
            before: Any = torch.cat([states[place, first - 1 : end - 1] for place, first, end in ends])
            tokens: Any = torch.cat([ids[place, first:end] for place, first, end in ends])
            # compute the logits in slices of at most `MAX_LOGITS` numbers
            many = max(MAX_LOGITS // _vocabulary_size(self.model.config), 1)
            slices = zip(before.split(many), tokens.split(many), strict=True)
            found: Any = torch.cat([self._log_probability(*each) for each in slices]).cpu()
        if not found.isfinite().all():
            raise ValueError(f"{self.name!r} returned a non-finite log-probability; is its dtype too small for it?")
        return [part.numpy() for part in found.split([end - first for _, first, end in ends])]

    def _log_probability(self, states: Any, tokens: Any) -> Any:
        logits = (states if self._head is None else self._head(states)).float()
        chosen = logits.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
        return (chosen - logits.logsumexp(-1)).clamp(max=0.0)

    def _joined(self, parts: list[tuple[int, Vector]]) -> Vector:
        """Concatenate the log-probabilities of a text's windows, in the order of the windows."""
        import numpy

        found = [part for _, part in sorted(parts, key=lambda part: part[0])]
        return numpy.concatenate(found) if found else numpy.zeros(0, dtype=numpy.float32)


def _group_pairs(pairs: Sequence[PrefixedText]) -> Iterator[list[PrefixedText]]:
    """Group consecutive pairs, limited by total length. The pairs of one group are tokenized together."""
    group: list[PrefixedText] = []
    characters = 0
    for pair in pairs:
        group.append(pair)
        characters += len(pair[0]) + len(pair[1])
        if characters >= GROUP_CHARACTERS:
            yield group
            group, characters = [], 0
    if group:
        yield group


def _token_windows(whose: int, given: TokenizedPair, width: int, stride: int) -> Iterator[_TokenWindow]:
    """Yield the windows of a text, without those whose tokens have all been counted in earlier windows."""
    counted = given.first
    for begin in range(0, len(given.ids), stride):
        end = min(begin + width, len(given.ids))
        if end > counted:
            yield _TokenWindow(whose, given.ids[begin:end], counted - begin)
            counted = end
        if end == len(given.ids):
            return


def _batch_windows(rows: Sequence[_TokenWindow], tokens: int) -> Iterator[list[int]]:
    """Yield batches as lists of window indices. Windows of similar length share a batch.

    A batch has at most `tokens` tokens, unless a single window is longer.
    """
    batch: list[int] = []
    longest = 0
    for place in sorted(range(len(rows)), key=lambda place: -len(rows[place].ids)):
        if batch and (len(batch) + 1) * longest > tokens:
            yield batch
            batch = []
        if not batch:
            longest = len(rows[place].ids)
        batch.append(place)
    if batch:
        yield batch


def _pad_windows(rows: Sequence[_TokenWindow], device: Any) -> tuple[Any, Any]:
    """Return token ids and attention mask, both of shape (windows, longest), padded on the right.

    The mask is None if all windows have the same length.
    """
    import torch

    longest = max(len(row.ids) for row in rows)
    ids = torch.zeros((len(rows), longest), dtype=torch.long)
    mask = torch.zeros((len(rows), longest), dtype=torch.long)
    for place, row in enumerate(rows):
        ids[place, : len(row.ids)] = torch.tensor(row.ids)
        mask[place, : len(row.ids)] = 1
    return ids.to(device), None if mask.all() else mask.to(device)


def _find_output_head(model: Any, name: str) -> Any:
    """Return the layer that computes logits from the last hidden states.

    Return None if the model changes the logits after that layer. Some models scale or cap them (Gemma 2, Cohere,
    Granite), so this function computes the logits of a few tokens in both ways and compares them. Raises `NoModel` if
    a later token changes the logits of earlier ones, as in BERT.
    """
    import torch

    with torch.inference_mode():
        few = torch.tensor([[0, 1, 2, 0], [0, 1, 2, 1]], device=model.device)
        logits = model(input_ids=few, use_cache=False).logits
        if not torch.allclose(logits[0, :3], logits[1, :3], rtol=1e-3, atol=1e-3, equal_nan=True):
            raise NoModel(
                f"{name!r} is not a causal language model: a token changes the predictions for the tokens before it"
            )
        head, body = model.get_output_embeddings(), model.base_model
        if head is None or body is model:
            return None
        states = getattr(body(input_ids=few, use_cache=False), "last_hidden_state", None)
        return head if states is not None and torch.equal(head(states), logits) else None


def _vocabulary_size(config: Any) -> int:
    return int(config.get_text_config().vocab_size)


DTYPES = ("float32", "bfloat16", "float16")
EXPECTED_LIKELIHOOD = (
    "a function that maps a list of (prefix, text) to a list of log-probabilities per text, one for each token"
)
_API_MODEL_NAME = re.compile(  # names of models that run only on their providers' servers
    r"(chatgpt|gpt-(3\.5|4|5)|o[1345](-|$)|claude-|gemini-|grok-|command-(r|a)(-|$)|deepseek-(chat|reasoner)$)"
)
_API_PROVIDERS = (
    "openai",
    "anthropic",
    "azure",
    "google",
    "gemini",
    "vertex_ai",
    "bedrock",
    "openrouter",
    "xai",
    "cohere",
)


class LikelihoodModel(LocalModel):
    """Log-probabilities of given texts. Each text is scored once per process and model, and the first text loads the
    model.

    The argument `model` is a folder, a model of the hub, a preset's name, a GGUF file (which needs `gguf` and
    `accelerate`), or a function of a list of (prefix, text). `device` is "cuda", "mps" or "cpu" (None: the first one
    available). `dtype` is "float32", or "bfloat16" or "float16" for half the memory at a precision of two or three
    digits. Weights that run code on loading (`remote_code`) or that are pickles (`pickle`) are loaded only if the
    argument is true.

    Prefix and text are tokenized as one string. A token with characters of both, such as the space before a word,
    belongs to the text. Names of special tokens inside a text are read as plain text. The first token has no
    preceding token and is left out, unless the tokenizer puts a BOS token before it. With `bos=True` a BOS token is
    added (EOS if the model has no BOS), so that all tokens count; with `bos=False` none is added.

    A text longer than `max_length` tokens (None: the model's context length, at most 2,048) is read in windows.
    Windows start `stride` tokens apart (None: half a window), and each token counts once, in the first window that
    contains it. Hugging Face's page on perplexity describes this strided window. Windows of all texts are batched,
    with about `batch_tokens` tokens per batch.
    """

    USE: ClassVar[ModelUse] = "likelihood"

    def __init__(
        self,
        model: str | os.PathLike[str] | Callable[[list[PrefixedText]], Any] | None = None,
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
        _check_settings(dtype, max_length=max_length, stride=stride, batch_tokens=batch_tokens)
        local = model if model is None or callable(model) else _check_local_name(model)
        super().__init__(local, name, device, token, remote_code, pickle)
        self.dtype = dtype
        self.reading = ReadingSettings(max_length, stride, bos, batch_tokens)
        self._own = CoalescingEncoder(self._call_function, ragged=True)  # used if the model is a function

    def log_probabilities(self, pairs: Sequence[PrefixedText]) -> list[Vector]:
        """Return for each (prefix, text) an array of natural log-probabilities, one per counted token of the text.

        Raises the model's exception if it fails for one of them.
        """
        if not pairs:
            return []
        keys = [join_pair(*pair) for pair in pairs]
        encode = self._own if self._function is not None else self._shared(self._read, self.reading, ragged=True)
        found = encode(keys)
        return [found[key] for key in keys]

    def each(self, pairs: Sequence[PrefixedText]) -> dict[PrefixedText, Vector | Exception]:
        """Return the log-probabilities of each pair, or the exception if the model fails for that pair.

        Raises `NoModel` if the model cannot be loaded.
        """
        return run_each(self.log_probabilities, pairs)

    @cached_property
    def _found(self) -> tuple[ModelLocation, str | None]:
        return locate_gguf(self._given)

    @cached_property
    def _place(self) -> ModelLocation:
        return self._found[0]

    def _how(self) -> Mapping[str, Any]:
        how = {name: value for name, value in asdict(self.reading).items() if name != "batch_tokens"}
        return {"dtype": self.dtype, **how}

    def _key(self) -> ModelKey:
        return *super()._key(), self._found[1], self.dtype

    def _load(self) -> LoadedModel:
        place, file = self._found
        with (
            explain_loading_errors(place, f"log-probabilities with {place.name}"),
            explain_trust_errors(place, "LikelihoodModel"),
        ):
            if file is not None:
                check_gguf_support()
            import torch
            from transformers import AutoModelForCausalLM, AutoTokenizer

            device = choose_device(self.device)
            options: dict[str, Any] = {
                "token": self._token,
                "trust_remote_code": self._remote_code,
                "local_files_only": is_offline(),
            }
            if file is not None:
                options["gguf_file"] = file
            tokenizer = AutoTokenizer.from_pretrained(place.where, **options)
            if file is None and not self._pickle:
                options["use_safetensors"] = True
            model, loading_info = cast(Any, AutoModelForCausalLM.from_pretrained)(
                place.where, output_loading_info=True, **options
            )
            check_complete(loading_info, place.name, "causal language model")
            model.to(device=device, dtype=getattr(torch, self.dtype)).eval()
            causal = CausalModel(model, tokenizer, place.name)
        return LoadedModel(causal, place.name, place.where, device, parameter_bytes(model))

    def _read(self, keys: list[str]) -> Vectors:
        loaded = self._loaded()
        with loaded.running:
            loaded.texts += len(keys)
            found = loaded.model.log_probabilities([split_pair(key) for key in keys], self.reading)
            return cast("Vectors", found)

    def _call_function(self, keys: list[str]) -> Vectors:
        """Call the user's function and check its log-probabilities. Raises `ValueError`."""
        assert self._function is not None
        given = self._function([split_pair(key) for key in keys])
        if isinstance(given, str | bytes) or not hasattr(given, "__len__") or len(given) != len(keys):
            raise ValueError(
                f"a likelihood model returned {given!r:.100} for {len(keys)} texts; expected {EXPECTED_LIKELIHOOD}"
            )
        return cast("Vectors", [_check_log_probabilities(one) for one in given])


def likelihood_model(given: Any = None, **options: Any) -> LikelihoodModel:
    """Return a likelihood model for a `LikelihoodModel`, a function, a folder, a name, a dict of arguments, or None
    (the default).

    Raises `NoModel` for anything else, and for chat endpoints.
    """
    if (made := make_model(LikelihoodModel, given, options)) is not None:
        return made
    if hasattr(given, "base_url") or hasattr(given, "backend"):  # `given` is a `Judge`, or an API client
        raise _chat_endpoint_error(type(given).__name__)
    if callable(given):
        return LikelihoodModel(given, **options)
    raise NoModel(f"a likelihood model is a model's name, a folder, or {EXPECTED_LIKELIHOOD}, not {given!r:.200}")


def _check_local_name(given: str | os.PathLike[str]) -> str | os.PathLike[str]:
    """Return the name of a model, unless only a provider hosts that model. Raises `NoModel` for a hosted model."""
    name = os.fspath(given)
    first, *rest = re.split("[/:]", name)
    of_an_api = _API_MODEL_NAME.match(rest[-1] if rest and first in _API_PROVIDERS else name)
    if re.match(r"(https?|wss?)://", name, re.IGNORECASE) or (of_an_api and not os.path.isdir(name)):
        raise _chat_endpoint_error(name)
    return given


def _chat_endpoint_error(what: str) -> NoModel:
    return NoModel(
        f"{what!r} is a chat endpoint, which returns log-probabilities only for the text that it generates, not for a "
        "given text: use a local model (a folder, a model of the hub, a GGUF file), or write a function of a list "
        "of (prefix, text) for a completions endpoint that echoes its prompt"
    )


def _check_settings(dtype: str, **counts: int | None) -> None:
    """Check the data type and the token counts. Raises `ValueError`."""
    if dtype not in DTYPES:
        raise ValueError(f"dtype must be one of {', '.join(map(repr, DTYPES))}, not {dtype!r}")
    for name, count in counts.items():
        least = 2 if name == "max_length" else 1
        if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < least):
            raise ValueError(f"{name} must be a number of tokens, {least} or more, not {count!r}")


def _check_log_probabilities(given: Any) -> Vector:
    """Return one text's log-probabilities as an array. Raises `ValueError`."""
    import numpy

    try:
        found = numpy.asarray(given, dtype=numpy.float32)
    except (TypeError, ValueError) as error:
        raise ValueError(f"a likelihood model returned {given!r:.100}; expected {EXPECTED_LIKELIHOOD}") from error
    if found.ndim != 1 or not numpy.isfinite(found).all() or (found > 0).any():
        raise ValueError(f"a likelihood model returned {given!r:.100}; log-probabilities must be finite and at most 0")
    return cast("Vector", found)
