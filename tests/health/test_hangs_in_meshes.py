"""The verdict on a hang in a mesh of process groups. The tables of `test_hangs` also run on simulated modules."""

import random

import pytest

from hpcelastic.health.hangs import GroupReport, HangKind, judge
from tests.health.test_hangs import ALL_REDUCE, READ, rank


@pytest.mark.parametrize("seed", range(200))
def test_random_meshes(seed: int) -> None:
    """A mesh of tensor and data parallel groups. One rank hangs, and the others run on until they wait for it."""
    chance = random.Random(seed)
    rows, columns = chance.randint(1, 4), chance.randint(2, 4)
    ranks = range(rows * columns)
    groups = {f"tensor{r}": [r * columns + c for c in range(columns)] for r in range(rows)}
    groups |= {f"data{c}": [r * columns + c for r in range(rows)] for c in range(columns)}
    program = [chance.choice(["tensor", "data"]) for _ in range(30)]
    hung, at = chance.choice(ranks), chance.randrange(20)
    place = dict.fromkeys(ranks, 0)
    begun = {(name, rank): 0 for name, members in groups.items() for rank in members}
    entered = dict.fromkeys(ranks, False)
    moved = True
    while moved:
        moved = False
        for each in ranks:
            name = next(n for n, m in groups.items() if n.startswith(program[place[each]]) and each in m)
            if not entered[each]:
                if each == hung and place[each] == at:
                    continue
                entered[each], moved = True, True
                begun[name, each] += 1
            if all(begun[name, other] >= begun[name, each] for other in groups[name]):
                place[each], entered[each], moved = place[each] + 1, False, True
            if place[each] == len(program):
                return  # no other rank waits for this one
    reports = [
        rank(
            each,
            ALL_REDUCE if entered[each] else READ,
            *(GroupReport(name, "", len(m), begun[name, each]) for name, m in groups.items() if each in m),
        )
        for each in ranks
    ]
    verdict = judge(reports)
    assert (verdict.kind, verdict.ranks) == (HangKind.BEHIND, (hung,))
