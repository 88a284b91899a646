"""How much the repetitions of one example differ."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Spread:
    """Scores of one example over its repetitions: count, mean, and the sum of squared differences (Welford)."""

    n: int = 0
    mean: float = 0.0
    squares: float = 0.0
    passed: int = 0
    judged: int = 0

    def add(self, score: float, passes: bool | None) -> None:
        """Count one more score."""
        self.n += 1
        step = score - self.mean
        self.mean += step / self.n
        self.squares += step * (score - self.mean)
        self.judged += passes is not None
        self.passed += bool(passes)

    @property
    def variance(self) -> float | None:
        """The sample variance; None with fewer than two scores."""
        return self.squares / (self.n - 1) if self.n > 1 else None

    @property
    def is_flaky(self) -> bool:
        """Whether it passed in some repetitions and failed in others; without a threshold, whether it varied."""
        if self.judged:
            return 0 < self.passed < self.judged
        return self.squares > 1e-18
