"""Log-probabilities of given tokens under a causal language model: long texts in windows, batches of so many tokens.

A window is what the model reads at once. The next one begins a stride later, and of its tokens those count that the
one before has not counted: the strided window of Hugging Face's page "Perplexity of fixed-length models".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING, Any, TypeAlias

from spanwise.evaluators.models._find import NoModel
from spanwise.evaluators.protocol._telling import tracked

if TYPE_CHECKING:
    from spanwise.evaluators.models._encoding import Vector

Pair: TypeAlias = tuple[str, str]
"""A prefix, which may be empty, and the text after it."""

CHARACTERS = 1 << 20  # of texts whose tokens are in memory at once, or one text
WINDOW = 2048  # tokens that are read at once where nothing else is said
LOGITS = 1 << 24  # numbers of a (tokens, vocabulary) array that is made at once: 64 MB as float32


@dataclass(frozen=True, slots=True)
class Reading:
    """How a model reads: tokens of a window and between two of them, a token before all, tokens of a batch."""

    max_length: int | None = None
    stride: int | None = None
    bos: bool | None = None
    batch_tokens: int = 4096


@dataclass(frozen=True, slots=True)
class Given:
    """The tokens of prefix and text; those from `first` on count."""

    ids: list[int]
    first: int


@dataclass(frozen=True, slots=True)
class _Window:
    """A piece of a text, of which the tokens from `first` on count."""

    whose: int
    ids: list[int]
    first: int


class Causal:
    """A model of transformers with its tokenizer, in memory. Not for two threads at once. Raises `NoModel`."""

    def __init__(self, model: Any, tokenizer: Any, name: str) -> None:
        self.model, self.name = model, name
        self._tokenizer = tokenizer
        tokenizer.split_special_tokens = True  # a text that quotes "<|endoftext|>" is read as any other
        tokenizer.model_max_length = int(1e30)  # windows are ours: no warning
        self._context = _context(model.config)
        self._head = _head(model, name)

    def log_probabilities(self, pairs: Sequence[Pair], how: Reading) -> list[Vector]:
        """Of each pair an array of (tokens of the text that have one before them,), natural logarithms.

        Raises `NoModel` where the model cannot read so, `ValueError` where it gives a number that is not finite.
        """
        return [found for group in _groups(pairs) for found in self._together(group, how)]

    def _together(self, pairs: Sequence[Pair], how: Reading) -> list[Vector]:
        given = [self.tokens(*pair, how.bos) for pair in pairs]
        width, stride = self._width(how)
        rows = [row for whose, one in enumerate(given) for row in _windows(whose, one, width, stride)]
        parts: list[list[tuple[int, Vector]]] = [[] for _ in pairs]
        batches = list(_batches(rows, self._fitting(how.batch_tokens)))
        for batch in tracked(batches, "windows of texts read"):
            for place, found in zip(batch, self._scores([rows[place] for place in batch]), strict=True):
                parts[rows[place].whose].append((place, found))
        return [self._joined(found) for found in parts]

    def tokens(self, prefix: str, text: str, bos: bool | None) -> Given:
        """Both tokenized as one text; a token with characters of both, as the space before a word, is the text's.

        Before them stands what `bos` says. The very first token has none before it, and never counts.
        """
        start, (ids, of_prefix) = self._start(bos), self._split(prefix, text)
        return Given([*start, *ids], max(len(start) + of_prefix, 1))

    def _split(self, prefix: str, text: str) -> tuple[list[int], int]:
        """The tokens of both, and how many of them are the prefix's."""
        ends_told = bool(getattr(self._tokenizer, "is_fast", False))
        found = self._tokenizer(prefix + text, add_special_tokens=False, return_offsets_mapping=ends_told)
        ids: list[int] = found["input_ids"]
        if ends_told:
            return ids, sum(1 for _ in takewhile(lambda ends: ends[1] <= len(prefix), found["offset_mapping"]))
        before = self._tokenizer(prefix, add_special_tokens=False)["input_ids"] if prefix else []
        return ids, sum(1 for _ in takewhile(lambda two: two[0] == two[1], zip(before, ids, strict=False)))

    def _start(self, bos: bool | None) -> list[int]:
        """The tokens before a text: None: what its tokenizer puts there; True: BOS, or EOS where there is no BOS."""
        if bos is None:
            whole, plain = (self._tokenizer("a", add_special_tokens=added)["input_ids"] for added in (True, False))
            return list(takewhile(lambda token: token != plain[0], whole))
        known = (self._tokenizer.bos_token_id, self._tokenizer.eos_token_id)
        token = next((token for token in known if token is not None), None)
        if bos and token is None:
            raise NoModel(f"{self.name!r} has neither a BOS nor an EOS token: leave bos=True out")
        return [token] if bos and token is not None else []

    def _width(self, how: Reading) -> tuple[int, int]:
        width = how.max_length or min(self._context or WINDOW, WINDOW)
        if self._context is not None and width > self._context:
            raise NoModel(f"{self.name!r} reads {self._context} tokens at once, not max_length={width}")
        stride = how.stride or max(width // 2, 1)
        if stride >= width:
            raise NoModel(f"stride={stride} is below the {width} tokens that {self.name!r} reads at once, or left out")
        return width, stride

    def _fitting(self, batch_tokens: int) -> int:
        """Tokens that go through the model together; fewer where it makes all logits at once."""
        if self._head is not None:
            return batch_tokens
        return min(batch_tokens, max(LOGITS // _vocabulary(self.model.config), 1))

    def _scores(self, rows: Sequence[_Window]) -> list[Vector]:
        """Of each window the log-probabilities of the tokens that count."""
        import torch

        with torch.inference_mode():
            ids, mask = _padded(rows, self.model.device)
            states = self._states(ids, mask)
            ends = [(place, row.first, len(row.ids)) for place, row in enumerate(rows)]
            before = torch.cat([states[place, first - 1 : end - 1] for place, first, end in ends])
            tokens = torch.cat([ids[place, first:end] for place, first, end in ends])
            found = self._picked(before, tokens).cpu()
        if not found.isfinite().all():
            raise ValueError(f"{self.name!r} gave a log-probability that is not finite; is its dtype too small for it?")
        return [part.numpy() for part in found.split([end - first for _, first, end in ends])]

    def _states(self, ids: Any, mask: Any) -> Any:
        """What the head makes logits of; the logits themselves where there is more between them."""
        if self._head is None:
            return self.model(input_ids=ids, attention_mask=mask, use_cache=False).logits
        return self.model.base_model(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state

    def _picked(self, before: Any, tokens: Any) -> Any:
        """The log-probability of each token after the state before it, so many at a time that memory stays bounded."""
        import torch

        many = max(LOGITS // _vocabulary(self.model.config), 1)
        parts = zip(before.split(many), tokens.split(many), strict=True)
        return torch.cat([self._log_probability(states, chosen) for states, chosen in parts])

    def _log_probability(self, states: Any, tokens: Any) -> Any:
        logits = (states if self._head is None else self._head(states)).float()
        chosen = logits.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
        return (chosen - logits.logsumexp(-1)).clamp(max=0.0)

    def _joined(self, parts: list[tuple[int, Vector]]) -> Vector:
        """The windows of one text, in their order."""
        import numpy

        found = [part for _, part in sorted(parts, key=lambda part: part[0])]
        return numpy.concatenate(found) if found else numpy.zeros(0, dtype=numpy.float32)


def _groups(pairs: Sequence[Pair]) -> Iterator[list[Pair]]:
    """In their order, as many as are tokenized at once."""
    group: list[Pair] = []
    characters = 0
    for pair in pairs:
        group.append(pair)
        characters += len(pair[0]) + len(pair[1])
        if characters >= CHARACTERS:
            yield group
            group, characters = [], 0
    if group:
        yield group


def _windows(whose: int, given: Given, width: int, stride: int) -> Iterator[_Window]:
    """Those in which a token counts that no window before it has counted."""
    counted = given.first
    for begin in range(0, len(given.ids), stride):
        end = min(begin + width, len(given.ids))
        if end > counted:
            yield _Window(whose, given.ids[begin:end], counted - begin)
            counted = end
        if end == len(given.ids):
            return


def _batches(rows: Sequence[_Window], tokens: int) -> Iterator[list[int]]:
    """Places of windows that go together: of about one length, as many as fit, and at least one."""
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


def _padded(rows: Sequence[_Window], device: Any) -> tuple[Any, Any]:
    """Arrays of (windows, longest): tokens, padded on the right, and what is none; no mask where all are as long."""
    import torch

    longest = max(len(row.ids) for row in rows)
    ids = torch.zeros((len(rows), longest), dtype=torch.long)
    mask = torch.zeros((len(rows), longest), dtype=torch.long)
    for place, row in enumerate(rows):
        ids[place, : len(row.ids)] = torch.tensor(row.ids)
        mask[place, : len(row.ids)] = 1
    return ids.to(device), None if mask.all() else mask.to(device)


def _head(model: Any, name: str) -> Any:
    """The layer that makes logits of the last hidden states; None where logits are something else as well.

    Some models scale or cap them (Gemma 2, Cohere, Granite): both ways are tried on a few tokens. Raises `NoModel`
    where what comes later changes what was before, as in BERT.
    """
    import torch

    with torch.inference_mode():
        few = torch.tensor([[0, 1, 2, 0], [0, 1, 2, 1]], device=model.device)
        logits = model(input_ids=few, use_cache=False).logits
        if not torch.allclose(logits[0, :3], logits[1, :3], rtol=1e-3, atol=1e-3, equal_nan=True):
            raise NoModel(f"{name!r} is no causal language model: a token changes what is told of those before it")
        head, body = model.get_output_embeddings(), model.base_model
        if head is None or body is model:
            return None
        states = getattr(body(input_ids=few, use_cache=False), "last_hidden_state", None)
        return head if states is not None and torch.equal(head(states), logits) else None


def _context(config: Any) -> int | None:
    """Tokens that the model can read at once; None where it has no such bound."""
    found = getattr(config.get_text_config(), "max_position_embeddings", None)
    return int(found) if found else None


def _vocabulary(config: Any) -> int:
    return int(config.get_text_config().vocab_size)
