"""Made-up traffic for benchmarks: traces of five spans of a RAG application, about 1.8 KB each on the wire.

Twenty conversations of about eight traces go on at any time. Words are drawn anew for every trace (the frequent ones often, as in natural text), ids are random: texts that repeat
would flatter compression, ids in order would flatter the database.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from spanwise.collector.records import Document, Run, Usage

SYLLABLES = ("ba co di fe gra hu in jo ka lo me nor op pre qui ra se ti un vo we xe ya zo ter al men ist").split()
MODELS = ("gpt-4o-mini", "gpt-4o", "claude-sonnet-4", "llama-3.1-70b")
NAMES = ("RagPipeline", "SupportAgent", "DocsQA", "Summarise")
RESOURCE = {
    "service.name": "rag-demo",
    "service.version": "1.4.2",
    "deployment.environment.name": "bench",
    "telemetry.sdk.name": "opentelemetry",
    "telemetry.sdk.language": "python",
    "telemetry.sdk.version": "1.45.0",
    "openinference.project.name": "bench",
    "host.name": "bench-host",
}
SCOPE = {"otel.scope.name": "openinference.instrumentation.langchain", "otel.scope.version": "0.1.50"}
MS = 1_000_000


def _vocabulary() -> list[str]:
    """The same words for every seed."""
    pick = random.Random(1)
    words = sorted({"".join(pick.choices(SYLLABLES, k=1 + n % 4)) for n in range(6000)})
    pick.shuffle(words)
    return words


class Traffic:
    """Traces one after the other, `gap_ns` apart, beginning at `start_ns`. The same seed makes the same traffic."""

    def __init__(self, seed: int = 1, start_ns: int = 1_750_000_000 * 10**9, gap_ns: int = 50 * MS) -> None:
        self._random = random.Random(seed)
        self._now, self._gap = start_ns, gap_ns
        self.words = _vocabulary()  # the frequent ones first
        size = len(self.words)
        weights = [((n + 1) / size) ** (1 / 3) - (n / size) ** (1 / 3) for n in range(size)]
        self._cumulative = [sum(weights[: n + 1]) for n in range(size)]

    def requests(self, spans: int, size: int = 100) -> Iterator[list[Run]]:
        """Lists of `size` runs (a multiple of five), `spans` in all."""
        for _ in range(spans // size):
            yield [run for _ in range(size // 5) for run in self.trace()]

    def text(self, characters: int) -> str:
        """Words that together are about so long."""
        chosen = self._random.choices(self.words, cum_weights=self._cumulative, k=characters // 5)
        return " ".join(chosen)[:characters]

    def trace(self) -> list[Run]:
        """Root, retriever, model call, tool and parser."""
        self._now += self._gap
        pick, start = self._random, self._now
        trace_id, ids = f"{pick.getrandbits(128):032x}", [f"{pick.getrandbits(64):016x}" for _ in range(5)]
        question = f"{self.text(120)} [ref{pick.getrandbits(48):012x}]"
        answer, model = self.text(500), pick.choice(MODELS)
        failed = pick.random() < 0.05
        common = {
            "trace_id": trace_id,
            "resource": RESOURCE,
            "project": "bench",
            "environment": "bench",
            "status": "ok",
            "session_id": f"sess-{self._now // self._gap // 160 * 20 + pick.randrange(20)}",
            "user_id": f"user-{pick.randrange(500):04d}",
        }
        below = {**common, "parent_id": ids[0]}
        tenant = {"tenant": f"t{pick.randrange(20)}", "variant": pick.choice("AB")}
        return [
            Run(
                **common,
                span_id=ids[0],
                name=pick.choice(NAMES),
                start_ns=start,
                end_ns=start + (2400 + pick.randrange(1000)) * MS,
                inputs=question,
                outputs=answer,
                attributes=SCOPE,
                metadata=tenant,
            ),
            Run(
                **below,
                span_id=ids[1],
                name="VectorStoreRetriever",
                kind="retriever",
                start_ns=start + MS,
                end_ns=start + 180 * MS,
                inputs=question,
                documents=self._documents(),
                attributes={"gen_ai.operation.name": "retrieval", "retriever.top_k": 5, **SCOPE},
            ),
            Run(
                **below,
                span_id=ids[2],
                name=f"chat {model}",
                kind="llm",
                start_ns=start + 200 * MS,
                end_ns=start + 2000 * MS,
                model=model,
                usage=Usage(pick.randint(300, 480), pick.randint(90, 150)),
                inputs=[
                    {"role": "system", "content": self.text(400)},
                    {"role": "user", "content": f"{self.text(960)} {question}"},
                ],
                outputs=[{"role": "assistant", "content": answer}],
                attributes=self._call(model),
            ),
            Run(
                **{**below, "status": "error" if failed else "ok"},
                span_id=ids[3],
                name="lookup_order",
                kind="tool",
                start_ns=start + 2000 * MS,
                end_ns=start + 2090 * MS,
                error="TimeoutError: tool timed out after 30 s" if failed else None,
                inputs={"order_id": pick.randrange(10**6), "verbose": True},
                outputs=self.text(200),
                attributes={"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "lookup_order", **SCOPE},
            ),
            Run(
                **below,
                span_id=ids[4],
                name="OutputParser",
                start_ns=start + 2300 * MS,
                end_ns=start + 2303 * MS,
                inputs=answer,
                outputs={"answer": answer[:200], "confidence": 0.87},
                attributes=SCOPE,
            ),
        ]

    def _documents(self) -> tuple[Document, ...]:
        pick = self._random
        return tuple(
            Document(self.text(400), f"doc-{pick.randrange(10**4):05d}", round(0.95 - 0.07 * n - pick.random() / 20, 4))
            for n in range(5)
        )

    def _call(self, model: str) -> dict[str, str | float]:
        return {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": "openai",
            "gen_ai.system": "openai",
            "gen_ai.response.model": f"{model}-2026-01-01",
            "gen_ai.response.finish_reasons": "stop",
            "gen_ai.response.id": f"chatcmpl-{self._random.getrandbits(64):016x}",
            "gen_ai.request.temperature": 0.2,
            "gen_ai.request.max_tokens": 512,
            "llm.invocation_parameters": '{"temperature": 0.2, "max_tokens": 512}',
            **SCOPE,
        }
