"""Models on this machine, behind four seams: texts to vectors, pairs to scores, text to likelihoods, text to labels.

Nothing here is loaded before it is asked for: `torch`, `transformers` and `sentence-transformers` come with the extra
`models`. A model is loaded once per process and shared by all that name it.
"""

from spanwise.evaluators.models._classes import TextClassifier, text_classifier
from spanwise.evaluators.models._embedder import Embedder, embedder
from spanwise.evaluators.models._find import NoModel
from spanwise.evaluators.models._likelihood import LikelihoodModel, likelihood_model
from spanwise.evaluators.models._pairs import Inference, PairScorer, pair_scorer
from spanwise.evaluators.models._presets import DEFAULT, PRESETS, Preset

__all__ = [  # noqa: RUF022 (in plain order, as everywhere)
    "DEFAULT",
    "Embedder",
    "Inference",
    "LikelihoodModel",
    "NoModel",
    "PRESETS",
    "PairScorer",
    "Preset",
    "TextClassifier",
    "embedder",
    "likelihood_model",
    "pair_scorer",
    "text_classifier",
]
