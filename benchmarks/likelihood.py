"""Log-probabilities of given texts: batches beside one text at a time, and the memory of a text of 5,000 words.

    python benchmarks/likelihood.py [--model NAME] [--device cpu] [--dtype float32] [--texts 64]

Each of the rounds reads the same texts of 5 to 120 words once in batches of `--tokens` and once one by one, in turn; a
figure is the median. `held` is the largest difference of one log-probability between the two. Memory is the growth of
the process while 5,000 words are read (of a GPU: what torch had allocated at most), beside what whole logits of one
window would take.
"""

import argparse
import random
import statistics
import threading
import time
from pathlib import Path

import torch

from spanwise.evaluators.models import LikelihoodModel

WORDS = (
    "the a mountain lake is was high deep near Alps of in and with stands lies blue old which people call it".split()
)


def main() -> None:
    given = _arguments()
    if given.threads:
        torch.set_num_threads(given.threads)
    options = {"device": given.device, "dtype": given.dtype}
    causal = LikelihoodModel(given.model, **options)
    causal.load()
    held = causal._loaded()
    print(f"{held.name} on {held.device}, {held.parameters_bytes / 2**20:.0f} MB of weights, {torch.__version__}")
    _throughput(held.model, given)
    _memory(held.model, held.device, given)


def _throughput(model, given) -> None:
    texts = _texts(given.texts)
    together, alone, ratios, held = [], [], [], 0.0
    for _ in range(given.rounds):
        batched, seconds = _timed(model, texts, given.tokens)
        single, one_by_one = _timed(model, texts, 1)
        together.append(seconds)
        alone.append(one_by_one)
        ratios.append(one_by_one / seconds)
        held = max(held, *(float(abs(a - b).max()) for a, b in zip(batched, single, strict=True)))
    tokens = sum(map(len, batched))
    for name, times in (("batches", together), ("one by one", alone)):
        print(
            f"{name}: {tokens / statistics.median(times):,.0f} tokens/s, {len(texts) / statistics.median(times):.1f} texts/s"
        )
    print(f"ratio {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}); held to {held:.1e}")


def _memory(model, device, given) -> None:
    text = " ".join(random.Random(1).choices(WORDS, k=5000))
    if device.startswith("cuda"):
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        [found], seconds = _timed(model, [("", text)], given.tokens)
        grown = torch.cuda.max_memory_allocated() - before
    else:
        with _Peak() as peak:
            [found], seconds = _timed(model, [("", text)], given.tokens)
        grown = peak.grown
    width, _ = model.window_size(_reading(given.tokens))
    whole = 4 * width * model.model.config.get_text_config().vocab_size
    print(
        f"5,000 words: {len(found)} tokens in {seconds:.1f} s, {grown / 2**20:.0f} MB more at most; the logits of one "
        f"window of {width} tokens: {whole / 2**20:.0f} MB"
    )


class _Peak:
    """How much the process grows meanwhile, in bytes."""

    def __enter__(self):
        self.start = self.top = _resident()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._over.set()
        self._thread.join()

    def _watch(self):
        while not self._over.wait(0.005):
            self.top = max(self.top, _resident())

    @property
    def grown(self):
        return self.top - self.start


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def _timed(model, pairs, tokens):
    began = time.perf_counter()
    found = model.log_probabilities(pairs, _reading(tokens))
    return found, time.perf_counter() - began


def _reading(tokens):
    from spanwise.evaluators.models.causal_model import ReadingSettings

    return ReadingSettings(batch_tokens=tokens)


def _texts(number):
    chance = random.Random(0)
    return [("", " ".join(chance.choices(WORDS, k=chance.randint(5, 120)))) for _ in range(number)]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="SmolLM2-135M-Instruct", help="a folder, a hub name, a preset, a GGUF file")
    parser.add_argument("--device", help="cuda, mps or cpu; the first that there is")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--texts", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=4096, help="of a batch")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, help="of torch on the CPU")
    return parser.parse_args()


if __name__ == "__main__":
    main()
