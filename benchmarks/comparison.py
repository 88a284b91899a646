"""Do the intervals, conclusions and promises of a comparison hold what they say? Enumeration and simulation.

    python benchmarks/comparison.py                    # all tables, 2,000 rounds per cell
    python benchmarks/comparison.py scores --rounds 500 # one table, faster

Every figure comes from the product's own functions. Booleans without clusters are enumerated exactly: over all counts
of discordant pairs, weighted with their probabilities. Everything else is simulated with a fixed seed. A cell that
breaks its limit is marked with `!`, and the exit status is then 1. Limits allow one point for simulation error.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import product
from math import exp, lgamma, log, sqrt

import numpy

from spanwise.collector.statistics import Contrast, KeyRule, KeyScores, compare_scores, wilson_interval
from spanwise.collector.statistics.intervals import paired_proportions_interval

Array = numpy.ndarray
SIZES = (10, 15, 20, 30, 60, 100, 200, 400)
SHARES = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98)
CORRELATIONS = (0.0, 0.2, 0.4, 0.6, 0.8)
NEGLIGIBLE = 1e-10  # probability of a cell that is left out
SIMULATION_ERROR = 0.01
KEYS = 10  # keys of a family

missed = 0


def check(value: float, limit: float, *, least: bool = False, allowance: float = 0.0) -> str:
    """Return the value as text, marked if it breaks the limit."""
    global missed
    broken = value < limit - allowance if least else value > limit + allowance
    missed += broken
    return f"{value:.3f}{'!' if broken else ''}"


# --- booleans, exactly ------------------------------------------------------------------------------------------------


def discordant(first: float, second: float, correlation: float) -> tuple[float, float] | None:
    """Return the probabilities of a loss and of a win; None if no such pair of proportions exists."""
    both = first * second + correlation * sqrt(first * (1 - first) * second * (1 - second))
    loss, win = first - both, second - both
    return (loss, win) if min(loss, win, both, 1 - both - loss - win) >= -1e-12 else None


def iterate_counts(n: int, loss: float, win: float) -> Iterator[tuple[int, int, float]]:
    """Yield (losses, wins, probability) of the trinomial distribution."""
    loss, win = max(loss, 0.0), max(win, 0.0)
    same = max(0.0, 1 - loss - win)
    logs = [log(share) if share > 0 else -numpy.inf for share in (loss, win, same)]
    most = [min(n, int(n * share + 9 * sqrt(n * share * (1 - share)) + 12)) for share in (loss, win)]
    for losses in range(most[0] + 1):
        for wins in range(min(most[1], n - losses) + 1):
            terms = zip((losses, wins, n - losses - wins), logs, strict=True)
            exponent = sum(count * each for count, each in terms if count)
            exponent += lgamma(n + 1) - lgamma(losses + 1) - lgamma(wins + 1) - lgamma(n - losses - wins + 1)
            if (probability := exp(exponent)) > NEGLIGIBLE:
                yield losses, wins, probability


@cache
def boolean_interval(losses: int, wins: int, n: int) -> tuple[float, float]:
    """Return the interval of a difference of proportions."""
    return paired_proportions_interval(losses, wins, n)


@cache
def boolean_word(losses: int, wins: int, n: int, family: int, margin: float | None) -> str:
    """Return the conclusion about n pairs of booleans."""
    steps = [-1.0] * losses + [1.0] * wins + [0.0] * (n - losses - wins)
    return make_contrast(steps, "boolean", family, margin).word


def make_contrast(
    differences: Sequence[float], kind: str = "score", family: int = 1, margin: float | None = None
) -> Contrast:
    """Return the contrast of one key with these differences."""
    return Contrast(
        key="k",
        kind=kind,  # type: ignore[arg-type]
        differences=dict(enumerate(differences)),  # type: ignore[arg-type]
        before=0.0,
        after=0.0,
        rule=KeyRule(rising=True, margin=margin),
        family=family,
    )


def booleans(rounds: int) -> None:
    """Coverage and width of intervals, and false conclusions, of paired booleans."""
    print("\n## Booleans: coverage of the 95 % interval of a difference, over all shares and correlations (exact)\n")
    print("| n | least coverage | at (shares, correlation) | least if shares ≤ .9 | mean width at .95/.95, r .4 |")
    print("|---|---|---|---|---|")
    for n in SIZES:
        cells = []
        for first, second, correlation in product(SHARES, SHARES, CORRELATIONS):
            if first < second or (shares := discordant(first, second, correlation)) is None:
                continue
            covered = total = 0.0
            for losses, wins, probability in iterate_counts(n, *shares):
                low, high = boolean_interval(losses, wins, n)
                total += probability
                covered += probability * (low <= second - first <= high)
            cells.append((covered / total, first, second, correlation))
        worst = min(cells)
        usual = min(cell for cell in cells if cell[1] <= 0.9)
        shares = discordant(0.95, 0.95, 0.4)
        assert shares is not None
        width = sum(
            probability * (boolean_interval(losses, wins, n)[1] - boolean_interval(losses, wins, n)[0])
            for losses, wins, probability in iterate_counts(n, *shares)
        )
        at = f".{worst[1] * 100:.0f}/.{worst[2] * 100:.0f}, r {worst[3]:.1f}"
        print(f"| {n} | {check(worst[0], 0.93, least=True)} | {at} | {usual[0]:.3f} | {width:.3f} |")

    print("\n## Booleans: pairs without a difference that are called better or worse (exact)\n")
    print(f"| n | most, one key | most, {KEYS} independent keys together |\n|---|---|---|")
    for n in SIZES:
        rates = dict.fromkeys((1, KEYS), 0.0)
        for share, correlation in product(SHARES, CORRELATIONS):
            shares = discordant(share, share, correlation)
            if shares is None:
                continue
            counts = list(iterate_counts(n, *shares))
            for family in rates:
                false = sum(
                    probability
                    for losses, wins, probability in counts
                    if boolean_word(losses, wins, n, family, None) in ("better", "worse")
                )
                rates[family] = max(rates[family], 1 - (1 - false) ** family)
        print(f"| {n} | {check(rates[1], 0.05)} | {check(rates[KEYS], 0.05)} |")

    print("\n## Booleans: equivalent or non-inferior although the true difference is the margin (exact)\n")
    print("| n | margin | most, equivalent | most, non-inferior |\n|---|---|---|---|")
    for n, margin in product((20, 40, 100, 200), (0.05, 0.1, 0.2)):
        most = {"equivalent": 0.0, "non-inferior": 0.0}
        for first, correlation in product(SHARES, CORRELATIONS):
            shares = discordant(first, first - margin, correlation)
            if first - margin <= 0 or shares is None:
                continue
            counts = list(iterate_counts(n, *shares))
            for word in most:
                words = ("equivalent",) if word == "equivalent" else ("equivalent", "non-inferior")
                false = sum(
                    probability
                    for losses, wins, probability in counts
                    if boolean_word(losses, wins, n, 1, margin) in words
                )
                most[word] = max(most[word], false)
        equivalent, non_inferior = (check(most[word], 0.05, allowance=SIMULATION_ERROR) for word in most)
        print(f"| {n} | {margin} | {equivalent} | {non_inferior} |")


# --- scores, simulated ------------------------------------------------------------------------------------------------

Draw = Callable[[numpy.random.Generator, int], Array]
GRADES = numpy.array([1.0, 2, 3, 4, 5])
GRADE_SHARES = numpy.array([0.1, 0.2, 0.4, 0.2, 0.1])


def grades(random: numpy.random.Generator, n: int) -> Array:
    """Return differences of grades from 1 to 5."""
    return random.choice(GRADES, n, p=GRADE_SHARES) - random.choice(GRADES, n, p=GRADE_SHARES)


def averaged(random: numpy.random.Generator, n: int) -> Array:
    """Return differences of booleans that were averaged over two repetitions, of a share of .93."""
    return (random.binomial(2, 0.93, n) - random.binomial(2, 0.93, n)) / 2


def outlier(random: numpy.random.Generator, n: int) -> Array:
    """Return symmetric differences, one of them ten times as large."""
    values = random.normal(size=n)
    values[0] *= 10
    return values


def mostly_zero(share: float, draw: Draw) -> Draw:
    """Return a distribution of which only a share differs from 0."""
    return lambda random, n: (random.random(n) < share) * draw(random, n)


def normal(random: numpy.random.Generator, n: int) -> Array:
    """Return normal differences."""
    return random.normal(size=n)


def exponential(random: numpy.random.Generator, n: int) -> Array:
    """Return exponential differences with the mean 0."""
    return random.exponential(size=n) - 1


def lognormal(random: numpy.random.Generator, n: int) -> Array:
    """Return lognormal differences with the mean 0."""
    return random.lognormal(size=n) - exp(0.5)


def one_sided(random: numpy.random.Generator, n: int) -> Array:
    """Return differences from .1 to .9."""
    return random.uniform(0.1, 0.9, n)


def raw_exponential(random: numpy.random.Generator, n: int) -> Array:
    """Return exponential differences with the mean 1."""
    return random.exponential(size=n)


# name: distribution, its mean, and the smallest n from which the interval must cover .92 (skewed) or .93
SCORES: dict[str, tuple[Draw, float, float, int]] = {
    "normal": (normal, 0.0, 0.93, 10),
    "grades 1–5": (grades, 0.0, 0.93, 10),
    "booleans of two repetitions, .93": (averaged, 0.0, 0.93, 10),
    "one outlier": (outlier, 0.0, 0.93, 10),
    "30 % differ, normal": (mostly_zero(0.3, normal), 0.0, 0.93, 10),
    "10 % differ, normal": (mostly_zero(0.1, normal), 0.0, 0.93, 10),
    "3 % differ, normal": (mostly_zero(0.03, normal), 0.0, 0.93, 10),
    "10 % differ, all up": (mostly_zero(0.1, one_sided), 0.05, 0.93, 10),
    "10 % differ, exponential": (mostly_zero(0.1, raw_exponential), 0.1, 0.92, 10),
    "exponential": (exponential, 0.0, 0.92, 10),
    "lognormal": (lognormal, 0.0, 0.92, 30),
}
RARE = 0.05  # share of rounds with an interval below which its coverage is not judged


def scores(rounds: int) -> None:
    """Coverage of the interval of a mean difference, and the share of rounds that have one."""
    print(
        f"\n## Scores: coverage of the 95 % interval ({rounds:,} rounds; in brackets the share that has an interval)\n"
    )
    print("| differences | " + " | ".join(f"n = {n}" for n in SIZES) + " |\n|---|" + "---|" * len(SIZES))
    for name, (draw, mean, least, start) in SCORES.items():
        random, cells = numpy.random.default_rng(1), []
        for n in SIZES:
            shown = covered = 0
            for _ in range(rounds):
                interval = make_contrast(draw(random, n).tolist()).interval
                shown += interval is not None
                covered += interval is not None and interval[0] <= mean <= interval[1]
            if shown < RARE * rounds:
                cells.append(f"too few ({shown / rounds:.2f})")
                continue
            limit = least if n >= start else 0.0
            tolerance = 2.6 * sqrt(0.95 * 0.05 / shown)  # 99 % of simulations
            text = check(covered / shown, limit, least=True, allowance=min(SIMULATION_ERROR, tolerance))
            cells.append(text + (f" ({shown / rounds:.2f})" if shown < rounds else ""))
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


NULLS: dict[str, tuple[Draw, float, float]] = {
    "normal": (normal, 0.05, 0.05),
    "grades 1–5": (grades, 0.05, 0.05),
    "booleans of two repetitions, .93": (averaged, 0.05, 0.05),
    "one outlier": (outlier, 0.05, 0.05),
    "10 % differ, normal": (mostly_zero(0.1, normal), 0.05, 0.05),
    "exponential": (exponential, 0.06, 0.07),
    "lognormal": (lognormal, 0.07, 0.15),
}


def nulls(rounds: int) -> None:
    """Pairs without a true difference that are called better or worse."""
    sizes = (10, 20, 30, 60, 100, 400)
    print(f"\n## Scores without a difference that are called better or worse ({rounds:,} rounds; ten keys: n = 30)\n")
    print("| differences | " + " | ".join(f"n = {n}" for n in sizes) + f" | {KEYS} keys together |")
    print("|---|" + "---|" * (len(sizes) + 1))
    for name, (draw, one, together) in NULLS.items():
        random, cells = numpy.random.default_rng(2), []
        for n in sizes:
            false = sum(make_contrast(draw(random, n).tolist()).word in ("better", "worse") for _ in range(rounds))
            limit = 1.0 if name == "lognormal" and n < 30 else one
            cells.append(check(false / rounds, limit, allowance=SIMULATION_ERROR))
        families = rounds * KEYS
        false = sum(
            make_contrast(draw(random, 30).tolist(), family=KEYS).word in ("better", "worse") for _ in range(families)
        )
        joint = 1 - (1 - false / families) ** KEYS
        cells.append(check(joint, together, allowance=SIMULATION_ERROR))
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


def clusters(rounds: int) -> None:
    """Coverage and false conclusions with examples in clusters, which are counted once."""
    print(f"\n## Clusters of three examples with a common effect ({rounds:,} rounds)\n")
    print(
        "| values | clusters | coverage | called better or worse | the same without clusters |\n|---|---|---|---|---|"
    )
    for kind, count in product(("normal", "booleans"), (10, 20, 60)):
        random = numpy.random.default_rng(3)
        shown = covered = false = naive = 0
        names = {str(n): f"c{n // 3}" for n in range(3 * count)}
        for _ in range(rounds):
            effects = numpy.repeat(random.normal(size=(2, count)), 3, axis=1)
            values = effects + 0.5 * random.normal(size=effects.shape)
            if kind == "booleans":
                values = (values < 1).astype(float)
            sides = [{"k": KeyScores({str(n): value for n, value in enumerate(side)})} for side in values.tolist()]
            rules = {"k": KeyRule(rising=True)}
            contrast = compare_scores(sides, [(0, 1)], rules, clusters=names)[0]["k"]
            interval = contrast.interval
            shown += interval is not None
            covered += interval is not None and interval[0] <= 0 <= interval[1]
            false += contrast.word in ("better", "worse")
            naive += compare_scores(sides, [(0, 1)], rules)[0]["k"].word in ("better", "worse")
        coverage = check(covered / shown, 0.93, least=True, allowance=SIMULATION_ERROR)
        wrong = check(false / rounds, 0.05, allowance=SIMULATION_ERROR)
        print(f"| {kind} | {count} | {coverage} | {wrong} | {naive / rounds:.3f} |", flush=True)


def equivalence(rounds: int) -> None:
    """Scores that are called equivalent although the true difference is the margin."""
    print(f"\n## Scores that are called equivalent although the true difference is the margin ({rounds:,} rounds)\n")
    print("| differences | n | margin .3 | .5 | 1 |\n|---|---|---|---|---|")
    limits = {"normal": 0.05, "grades 1–5": 0.05, "exponential": 0.07, "lognormal": 0.11}
    for name, n in product(limits, (30, 100)):
        draw, random, cells = SCORES[name][0], numpy.random.default_rng(4), []
        for margin in (0.3, 0.5, 1.0):
            false = 0
            for sign in (1, -1):
                for _ in range(rounds):
                    differences = (draw(random, n) + sign * margin).tolist()
                    false += make_contrast(differences, margin=margin).word == "equivalent"
            cells.append(check(false / (2 * rounds), limits[name], allowance=SIMULATION_ERROR))
        print(f"| {name} | {n} | " + " | ".join(cells) + " |", flush=True)


def promises(rounds: int) -> None:
    """Share of rounds in which the promised number of further examples gives an interval of the promised width."""
    print(f"\n## Further examples: how often the interval then has the promised width ({rounds:,} rounds)\n")
    print("| differences | first n | margin | mean further | kept |\n|---|---|---|---|---|")
    cases: list[tuple[str, Draw, str, float]] = [
        ("normal", normal, "score", 0.15),
        ("grades 1–5", grades, "score", 0.2),
        ("exponential", exponential, "score", 0.15),
        ("booleans .95/.95", lambda r, n: booleans_of(r, n, 0.05), "boolean", 0.04),
        ("booleans .8/.8", lambda r, n: booleans_of(r, n, 0.16), "boolean", 0.06),
    ]
    for (name, draw, kind, margin), n in product(cases, (20, 40, 80)):
        random = numpy.random.default_rng(5)
        kept = promised = further = 0
        while promised < rounds:
            first = draw(random, n)
            more = make_contrast(first.tolist(), kind, margin=margin).further_examples
            if not more:
                if more is None:
                    continue
                more = 0
            promised += 1
            further += more
            both = numpy.concatenate([first, draw(random, more)]).tolist()
            interval = make_contrast(both, kind, margin=margin).equivalence_interval
            assert interval is not None
            kept += interval[1] - interval[0] <= 2 * margin + 1e-12
        limit = 0.8 if name != "exponential" or n >= 80 else 0.0
        text = check(kept / promised, limit, least=True, allowance=SIMULATION_ERROR)
        print(f"| {name} | {n} | {margin} | {further / promised:.0f} | {text} |", flush=True)


def booleans_of(random: numpy.random.Generator, n: int, discordance: float) -> Array:
    """Return differences of booleans, of which this share is a loss and as many are a win."""
    return random.choice([-1.0, 0.0, 1.0], n, p=[discordance, 1 - 2 * discordance, discordance])


def means(rounds: int) -> None:
    """Coverage of Wilson's interval of one experiment's rate (exact)."""
    print("\n## Rates of one experiment: mean coverage of Wilson's 95 % interval (exact)\n")
    print("| share | " + " | ".join(f"n = {n}" for n in SIZES) + " |\n|---|" + "---|" * len(SIZES))
    for share in SHARES:
        cells = []
        for n in SIZES:
            covered = 0.0
            for successes in range(n + 1):
                low, high = wilson_interval(successes, n)
                if low <= share <= high:
                    combinations = lgamma(n + 1) - lgamma(successes + 1) - lgamma(n - successes + 1)
                    covered += exp(combinations + successes * log(share) + (n - successes) * log(1 - share))
            cells.append(f"{covered:.3f}")
        print(f"| {share} | " + " | ".join(cells) + " |")


TABLES = {table.__name__: table for table in (booleans, scores, nulls, clusters, equivalence, promises, means)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="*", default=[], help="some of the tables; default: all")
    parser.add_argument("--rounds", type=int, default=2_000, help="rounds per cell")
    options = parser.parse_args()
    for name in options.tables or TABLES:
        TABLES[name](options.rounds)
    print(f"\n{missed} cells break their limit" if missed else "\nall limits hold")
    sys.exit(bool(missed))


if __name__ == "__main__":
    main()
