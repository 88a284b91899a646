"""Vectara's hallucination model (HHEM-2.1-Open): how consistent a text is with another, in [0, 1].

Its weights are a token classifier on FLAN-T5, loaded here as that: the code that lies beside them on the hub is not
run. The prompt, the first token's logits and the second of their two classes are those of the model's documentation.
The tokenizer and the shape of the network come with google/flan-t5-base, or with what `foundation` of the model's
config.json names, which may be a folder.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from spanwise.evaluators.models._find import NoModel, check_whole

if TYPE_CHECKING:
    import numpy

    Column = numpy.ndarray[tuple[int], numpy.dtype[numpy.float32]]

KIND = "HHEMv2"  # the `model_type` of its config.json
FOUNDATION = "google/flan-t5-base"
PROMPT = "<pad> Determine if the hypothesis is true given the premise?\n\nPremise: {text1}\n\nHypothesis: {text2}"
WINDOW = 2048  # tokens; it has no limit of its own, and its documentation speaks of inputs of 2k tokens
_AT_ONCE = 1 << 22  # squared tokens, which bounds the memory of attention


class Consistency:
    """The model and its tokenizer, with the method of a cross-encoder that pairs need."""

    num_labels = 1

    def __init__(self, network: Any, tokenizer: Any, prompt: str = PROMPT) -> None:
        self.network, self.tokenizer, self.prompt = network, tokenizer, prompt
        self.config = network.config

    @classmethod
    def load(cls, where: str, described: dict[str, Any], device: str, **options: Any) -> Consistency:
        """`options` are those of transformers' `from_pretrained`; raises what that raises."""
        from transformers import T5ForTokenClassification

        shape, tokenizer = _built_on(str(described.get("foundation") or FOUNDATION), options)
        network, told = cast(Any, T5ForTokenClassification.from_pretrained)(
            where, config=shape, key_mapping={r"^t5\.": ""}, output_loading_info=True, **options
        )
        check_whole(told, where, "model of Vectara's")
        return cls(network.to(device).eval(), tokenizer, described.get("prompt") or PROMPT)

    def parameters(self) -> Any:
        """Those of the network."""
        return self.network.parameters()

    def predict(self, pairs: Sequence[tuple[str, str]], *, batch_size: int) -> Column:
        """The probability that the second text of each pair is consistent with the first."""
        import numpy

        texts = [self.prompt.format(text1=one, text2=other) for one, other in pairs]
        tokens = self.tokenizer(texts, verbose=False)["input_ids"]
        order = sorted(range(len(texts)), key=lambda place: -len(tokens[place]))
        scores = numpy.empty(len(texts), dtype=numpy.float32)
        while order:
            rows = max(1, min(batch_size, _AT_ONCE // len(tokens[order[0]]) ** 2))
            now, order = order[:rows], order[rows:]
            scores[now] = self._consistent([texts[place] for place in now])
        return scores

    def _consistent(self, texts: list[str]) -> Any:
        import torch

        given = self.tokenizer(texts, return_tensors="pt", padding=True, verbose=False).to(self.network.device)
        with torch.inference_mode():
            logits = self.network(**given).logits[:, 0, :]
        return logits.float().softmax(-1)[:, 1].cpu().numpy()


def _built_on(foundation: str, options: dict[str, Any]) -> tuple[Any, Any]:
    """The shape of the network, and its tokenizer. Raises `NoModel` where they are not here."""
    from transformers import AutoConfig, AutoTokenizer

    options = {name: value for name, value in options.items() if name != "use_safetensors"}
    try:
        return AutoConfig.from_pretrained(foundation, **options), AutoTokenizer.from_pretrained(foundation, **options)
    except (OSError, ValueError) as error:
        said = " ".join(str(error).split())
        raise NoModel(
            f"Vectara's model is built on {foundation!r}, whose shape and tokenizer are not here: where there is a "
            f"network run `hf download {foundation} --include '*.json' 'spiece.model'`, or write the name of a folder "
            f'that has them as "foundation" into the model\'s config.json; {said:.200}'
        ) from error
