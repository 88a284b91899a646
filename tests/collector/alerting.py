"""Alerts on scored traffic, with a clock that the test sets."""

import random
import time

from collector.scoring import KEY, make_run, score_traces
from spanwise.collector.alerts import AlertRunner
from spanwise.collector.records import Alert, Rule

HOUR_NS = 3_600_000_000_000
RULE = Rule(name="support", version="1", evaluators=({"function": "f", "source": "s"},))
BELOW = Alert(name="grounded", rule="support", key=KEY, below=0.8, to=("ops",))
DROP = Alert(name="fall", rule="support", key=KEY, drop=0.05)
NOW = time.time_ns() // HOUR_NS * HOUR_NS  # the end of the windows


class Traffic:
    """Scored traffic, and an alert runner whose clock the test sets."""

    def __init__(self, store):
        self.store, self.now, self.numbers = store, NOW, 0
        self.runner = AlertRunner(store, now=lambda: self.now)

    def score(self, scores, *, since_h=24, until_h=0, probability=1.0, now=None, rule=RULE, **fields):
        """Spread scores evenly over some hours before now."""
        start, end = (self.now if now is None else now) - since_h * HOUR_NS, -until_h * HOUR_NS
        span = end + since_h * HOUR_NS
        traces = []
        for place, score in enumerate(scores):
            self.numbers += 1
            given = {name: value(place) if callable(value) else value for name, value in fields.items()}
            at = start + span * (2 * place + 1) // (2 * len(scores))
            traces.append((make_run(self.numbers, at, **given), score, probability))
        for first in range(0, len(traces), 500):
            score_traces(self.store, rule, traces[first : first + 500])

    def look(self, hours=0):
        """Advance the clock and perform the looks that are due."""
        self.now += int(hours * HOUR_NS)
        return self.runner.step()

    def looks(self, count, hours=1):
        for _ in range(count):
            assert self.look(hours) == 1

    @property
    def groups(self):
        return {group.group: group for group in self.store.alert_groups()}

    @property
    def status(self):
        return self.groups[None].status

    @property
    def history(self):
        return [(event.before, event.after) for event in reversed(self.store.alert_events().items)]

    @property
    def notified(self):
        return [one.notification for one in reversed(self.store.notifications().items)]


def shares(good, count=480):
    """Return zeros and ones with this share of ones, in random order."""
    ones = round(good * count)
    scores = [1] * ones + [0] * (count - ones)
    random.Random(1).shuffle(scores)
    return scores
