"""SummaC's two ways to make one score of what an NLI model says of each sentence of a text beside each of a summary.

Laban et al., "SummaC: Re-Visiting NLI-based Models for Inconsistency Detection in Summarization" (TACL 2022). ZS takes
maxima and a mean. Conv counts, for each sentence of the summary, the probabilities of entailment by bins, and weighs
the counts with what was learned: 23 numbers and a bias, then two classes of three features, in a file of its authors.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from spanwise.evaluators.models._find import EXTRA, NoModel

if TYPE_CHECKING:
    import numpy

    Numbers = numpy.ndarray[Any, numpy.dtype[numpy.float64]]

# Where the authors' bins ("percentile") begin and end; their other way is 50 even ones.
_LOW = (0.0, 0.01, 0.02, 0.03, 0.04, 0.07, 0.13, 0.37)
_HIGH = (0.90, 0.91, 0.92, 0.93, 0.94, 0.95, 0.955, 0.96, 0.965, 0.97, 0.975, 0.98, 0.985, 0.99, 0.995, 1.0)
PERCENTILES = (*_LOW, *_HIGH)
ROWS = 10  # sentences of the summary that Conv looks at
MOST = 1 << 20  # bytes of a file with weights; the authors' has 2 kB
_SHAPES = {"mlp.weight": (1, None), "mlp.bias": (1,), "layer_final.weight": (2, 3), "layer_final.bias": (2,)}


def zero_shot(entailment: Numbers, contradiction: Numbers) -> float:
    """ZS, in [-1, 1]. Both are arrays of (sentences of the text, sentences of the summary).

    The mean, over the sentences of the summary, of the greatest entailment less the greatest contradiction.
    """
    return float(supported(entailment, contradiction).mean())


def supported(entailment: Numbers, contradiction: Numbers) -> Numbers:
    """Of each sentence of the summary the greatest entailment less the greatest contradiction."""
    return cast("Numbers", entailment.max(axis=0) - contradiction.max(axis=0))


@dataclass(frozen=True, slots=True)
class Conv:
    """The learned weights, from a file: safetensors, or the authors' `.bin`, a pickle, with `pickle=True`.

    Raises `NoModel` where there is no such file, or it is no file of these weights.
    """

    file: str
    pickle: bool = False
    digest: str = field(init=False)

    def __post_init__(self) -> None:
        path = Path(self.file).expanduser()
        if not path.is_file():
            raise NoModel(f"there is no file {self.file!r} with the weights of SummaC-Conv")
        if path.stat().st_size > MOST:
            raise NoModel(f"{self.file!r} has {path.stat().st_size:,} bytes: the weights of SummaC-Conv are 2 kB")
        if path.suffix != ".safetensors" and not self.pickle:
            raise NoModel(
                f"{self.file!r} is no .safetensors, so that it may be a pickle, which may run code when it is loaded; "
                "if you trust it, say so with pickle=True"
            )
        object.__setattr__(self, "digest", hashlib.sha256(path.read_bytes()).hexdigest()[:12])

    def score(self, entailment: Numbers) -> float:
        """In [0, 1], of an array of (sentences of the text, sentences of the summary); ten of the latter count."""
        import numpy

        weights = _weights(self.file, self.digest)
        edges = _edges(weights["mlp.weight"].shape[1])
        counts = [numpy.histogram(column, bins=edges)[0] for column in entailment.T[:ROWS]]
        learned = numpy.asarray(counts) @ weights["mlp.weight"][0] + weights["mlp.bias"]
        classes = weights["layer_final.weight"] @ numpy.full(3, learned.mean()) + weights["layer_final.bias"]
        return float(1 / (1 + numpy.exp(classes[0] - classes[1])))


def _edges(bins: int) -> list[float]:
    return list(PERCENTILES) if bins == len(PERCENTILES) - 1 else [place / bins for place in range(bins + 1)]


@lru_cache(maxsize=8)
def _weights(file: str, digest: str) -> dict[str, Numbers]:
    """Raises `NoModel` for a file that has no such weights; `digest` stands for what is in it."""
    path = Path(file).expanduser()
    try:
        read = _safe(path) if path.suffix == ".safetensors" else _pickled(path)
        found = {name: read[name].astype("float64") for name in _SHAPES}
    except ModuleNotFoundError as error:
        raise NoModel(f"the weights of SummaC-Conv need {error.name!r}, which is not installed: {EXTRA}") from None
    except Exception as error:
        said = " ".join(f"{type(error).__name__}: {error}".split())
        raise NoModel(f"{file!r} has no weights of SummaC-Conv ({', '.join(_SHAPES)}): {said:.200}") from None
    for name, shape in _SHAPES.items():
        _check(file, name, found[name].shape, shape)
    return found


def _safe(path: Path) -> Any:
    from safetensors.numpy import load_file

    return load_file(path)


def _pickled(path: Path) -> Any:
    import torch

    held = torch.load(path, map_location="cpu", weights_only=True)
    return {name: value.float().numpy() for name, value in held.items()}


def _check(file: str, name: str, found: tuple[int, ...], wanted: tuple[int | None, ...]) -> None:
    sizes = (len(PERCENTILES) - 1, 50)
    fits = len(found) == len(wanted) and all(
        size == want or (want is None and size in sizes) for size, want in zip(found, wanted, strict=True)
    )
    if not fits:
        raise NoModel(f"{file!r} has {name} of {found}: SummaC-Conv's are {str(wanted).replace('None', '23 or 50')}")
