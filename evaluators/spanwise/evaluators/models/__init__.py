"""Local models and embedding endpoints, and the evaluators that use them. Models are loaded on first use.

Modules, in the order in which data flows:

- `model_resolution`: Model resolution: presets, folders, GGUF files, hub cache, endpoint addresses and loading
  errors.
- `disk_cache`: SQLite cache files in the user's cache directory, and the cache of embedding vectors.
- `inference_batching`: Inference batching, and models in memory: coalescing, windows over long texts, one instance
  per process.
- `embedding_model`: Embedding models: Embedder, sentence-transformers, OpenAI-compatible endpoints, user functions.
- `onnx_embeddings`: Embeddings by ONNX Runtime: tokenization, batching, pooling and normalization without torch.
- `cross_encoder`: Cross-encoders and text classifiers: probabilities of labels, scores of pairs, inference, HHEM.
- `causal_model`: Causal language models: log-probabilities of given tokens, in strided windows.
- `batched_evaluator`: Base classes of evaluators that query a model for a batch of cases and isolate failing cases.
- `similarity`: Similarity of texts: cosine of vectors, bi- and cross-encoder comparison, alignment of steps.
- `embedding_metrics`: Embedding evaluators: semantic similarity, groundedness, context relevancy.
- `likelihood_metrics`: Likelihood evaluators: perplexity and GPTScore.
- `factual_consistency`: Factual consistency evaluators: hallucination, NLI faithfulness, SummaC summarization.
- `content_safety`: Content safety evaluators: toxicity, bias and profanity by text classifiers.
"""

from spanwise.evaluators.models.causal_model import LikelihoodModel, likelihood_model
from spanwise.evaluators.models.cross_encoder import Inference, PairScorer, TextClassifier, pair_scorer, text_classifier
from spanwise.evaluators.models.embedding_model import Embedder, embedder
from spanwise.evaluators.models.model_resolution import DEFAULT, PRESETS, NoModel, Preset

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

# Modules that other packages may import; the others are internal
SHARED_MODULES = [
    "batched_evaluator",
    "content_safety",
    "cross_encoder",
    "disk_cache",
    "embedding_model",
    "inference_batching",
    "model_resolution",
    "similarity",
]
