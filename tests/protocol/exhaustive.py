"""Searches the model of a run breadth first: every interleaving of its steps, up to a depth or completely.

``python -m tests.protocol.exhaustive --nodes 3 --depth 40`` searches deeper than the tests do.
"""

import argparse
import sys
import time
from array import array
from dataclasses import dataclass, replace

from tests.protocol.model import Broken, Global, Model, Rules


@dataclass(frozen=True)
class Searched:
    """The result of a search."""

    states: int
    depth: int
    complete: bool
    """True if all states were explored."""

    broken: str = ""
    """The violated property with the shortest history that violates it; empty if there is none."""

    def __str__(self) -> str:
        return f"{self.states:,} states to depth {self.depth}{', complete' if self.complete else ''}"


class Search:
    """A search of all states that a run of ``rules`` can reach."""

    def __init__(self, rules: Rules) -> None:
        self.model = Model(rules)
        self._numbers: dict[Global, int] = {}
        self._before = array("l")
        """By state: the state from which it was found."""

        self._after = array("l")
        """For each state in turn, the next states without a fault; -1 ends its list."""

    def run(self, depth: int | None = None, limit: int | None = None) -> Searched:
        """Search to ``depth`` steps or ``limit`` states if given, else completely."""
        first = self.model.first()
        self._add(first, 0)
        level, reached = [first], 0
        try:
            while level and reached != depth and (limit is None or len(self._numbers) < limit):
                level = self._next(level)
                reached += bool(level)
            self._judge_progress(len(level))
        except Broken as broken:
            return Searched(len(self._numbers), reached, False, str(broken))
        return Searched(len(self._numbers), reached, not level)

    def _add(self, state: Global, before: int) -> int:
        number = self._numbers[state] = len(self._before)
        self._before.append(before)
        return number

    def _next(self, level: list[Global]) -> list[Global]:
        """Return all states that are found one step beyond ``level``."""
        found, numbers = [], self._numbers
        for state in level:
            number = at = numbers[state]
            try:
                for after, fault in self.model.steps(state):
                    known = numbers.get(after)
                    if known is None:
                        known = at = self._add(after, number)
                        found.append(after)
                        self.model.judge(after)
                        at = number
                    if not fault:
                        self._after.append(known)
                self._after.append(-1)
            except AssertionError as broken:
                raise Broken(f"{broken}\n{self._history(at)}") from None
        return found

    def _judge_progress(self, unexplored: int) -> None:
        """Check that the end can be reached from every explored state without a fault."""
        good = bytearray(self.model.final(state) for state in self._numbers)
        good[len(good) - unexplored :] = b"\1" * unexplored
        edges = [[] for _ in good]
        number = 0
        for after in self._after:
            if after < 0:
                number += 1
            elif not good[number]:
                edges[after].append(number)
        reached = [number for number, end in enumerate(good) if end]
        while reached:
            for before in edges[reached.pop()]:
                if not good[before]:
                    good[before] = 1
                    reached.append(before)
        stuck = good.find(0)
        if stuck >= 0:
            raise Broken(f"the run can't end any more\n{self._history(stuck)}")

    def _history(self, number: int) -> str:
        """Return the steps that lead to a state, one for each line."""
        states = list(self._numbers)
        steps = []
        while number > 0:
            steps.append(self.model.story(states[self._before[number]], states[number]))
            number = self._before[number]
        return "\n".join(reversed(steps))


def main() -> int:
    """Search as the command line says. The exit status is 1 if a property is violated."""
    parser = argparse.ArgumentParser(prog="python -m tests.protocol.exhaustive", description=__doc__)
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--depth", type=int, help="maximum number of steps; unlimited if not given")
    parser.add_argument("--min", type=int, default=1)
    parser.add_argument("--max", type=int, default=3)
    parser.add_argument("--multiple", type=int, default=1)
    parser.add_argument("--restarts", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3, help="the search ends after more rounds")
    parser.add_argument("--faults", nargs="*", default=["crash=1", "fail=1"], help="for example crash=1 fail=2 come=1")
    parser.add_argument("--lag", action="store_true")
    parser.add_argument("--unsettled", action="store_true")
    parser.add_argument("--polls", action="store_true", help="the workers poll for requests to stop")
    parser.add_argument("--limit", type=int, help="states")
    args = parser.parse_args()
    faults = tuple((kind, int(count)) for kind, _, count in (fault.partition("=") for fault in args.faults))
    rules = Rules(args.nodes, args.min, args.max, args.multiple, args.restarts, faults, args.rounds)
    rules = replace(rules, lag=args.lag, settled=not args.unsettled, polls=args.polls)
    began = time.monotonic()
    searched = Search(rules).run(args.depth, args.limit)
    print(f"{searched.broken}\n{searched}; {time.monotonic() - began:.0f} s".strip())
    return bool(searched.broken)


if __name__ == "__main__":
    sys.exit(main())
