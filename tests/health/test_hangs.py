"""The verdict on a round that makes no progress: which rank the others wait for, and how certain that is."""

import tracemalloc
from dataclasses import replace

from hpcelastic.health.hangs import GroupReport, HangKind, RankReport, judge

C10D = "/venv/lib/python3.11/site-packages/torch/distributed"
ALL_REDUCE = (
    f"{C10D}/distributed_c10d.py:3000 in all_reduce",
    f"{C10D}/c10d_logger.py:83 in wrapper",
    "/home/me/train.py:20 in step",
    "/home/me/train.py:30 in <module>",
)
BROADCAST = (f"{C10D}/distributed_c10d.py:2800 in broadcast", *ALL_REDUCE[1:])
BACKWARD = ("/venv/lib/python3.11/site-packages/torch/autograd/graph.py:800 in _engine_run_backward", ALL_REDUCE[3])
READ = (
    "/usr/lib/python3.11/queue.py:171 in get",
    "/home/me/data.py:88 in read",
    "/home/me/train.py:18 in step",
    "/home/me/train.py:30 in <module>",
)


def group(begun: int, name: str = "0", description: str = "default_pg") -> GroupReport:
    return GroupReport(name, description, 4, begun)


def rank(number: int, frames: tuple[str, ...] = ALL_REDUCE, *groups: GroupReport) -> RankReport:
    return RankReport(number, f"n{number // 2}", "waiting", frames=frames, groups=groups)


def test_a_rank_that_has_begun_fewer_collectives_is_behind() -> None:
    verdict = judge([rank(0, ALL_REDUCE, group(7)), rank(1, READ, group(6)), rank(2, ALL_REDUCE, group(7))])
    assert (verdict.kind, verdict.ranks, verdict.certain) == (HangKind.BEHIND, (1,), True)
    assert verdict.text == (
        "rank 1 on n0 has not entered all_reduce #7, which 2 others wait in; "
        "rank 1 is at data.py:88 in read, in queue.py:171 in get"
    )


def test_the_memory_of_a_verdict_does_not_grow_with_the_pairs_of_ranks() -> None:
    count = 1000
    reports = [rank(number, ALL_REDUCE, group(7)) for number in range(count)]
    reports += [rank(number, READ, group(6)) for number in range(count, 2 * count)]
    tracemalloc.start()
    try:
        verdict = judge(reports)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert verdict.ranks == tuple(range(count, 2 * count))
    assert peak < 8 * count * count


def test_the_chain_of_waits_leads_to_the_first_rank() -> None:
    """Rank 3 waits for rank 0 in one group, rank 0 for rank 1 in another one, and rank 1 for rank 2."""
    reports = [
        rank(0, BACKWARD, group(5, "a"), group(3, "b")),
        rank(1, ALL_REDUCE, group(4, "a"), group(9, "c", "tensor")),
        rank(2, READ, group(8, "c", "tensor")),
        rank(3, BACKWARD, group(4, "b")),
    ]
    verdict = judge(reports)
    assert verdict.ranks == (2,) and verdict.certain
    assert "all_reduce #9 of tensor, which 1 other waits in" in verdict.text


def test_a_collective_that_was_begun_in_advance_does_not_make_a_rank_wait() -> None:
    """Rank 0 has begun a collective in advance in one group, then hangs; rank 1 waits for it in another one."""
    reports = [rank(0, READ, group(6, "a"), group(2, "b")), rank(1, ALL_REDUCE, group(5, "a"), group(3, "b"))]
    verdict = judge(reports)
    assert (verdict.kind, verdict.ranks, verdict.certain) == (HangKind.BEHIND, (0,), False)


def test_ranks_that_wait_for_each_other() -> None:
    reports = [rank(0, ALL_REDUCE, group(6, "a"), group(2, "b")), rank(1, BROADCAST, group(5, "a"), group(3, "b"))]
    verdict = judge(reports)
    assert (verdict.kind, verdict.ranks) == (HangKind.DEADLOCK, ())
    assert "ranks 0, 1 wait for each other: rank 0 is at train.py:20 in step, in distributed_c10d.py:3000" in (
        verdict.text
    )


def test_without_counts_the_stacks_decide() -> None:
    verdict = judge([rank(0), rank(1, READ), rank(2)])
    assert (verdict.kind, verdict.ranks, verdict.certain) == (HangKind.BEHIND, (1,), True)
    assert "has not entered all_reduce, which 2 others wait in" in verdict.text


def test_a_rank_without_stacks_is_only_suspected() -> None:
    verdict = judge([rank(0), rank(1, ()), rank(2)])
    assert (verdict.ranks, verdict.certain) == ((1,), False) and "at an unknown place (waiting)" in verdict.text


def test_different_collectives_at_the_same_place_of_one_group() -> None:
    verdict = judge([rank(i, BROADCAST if i == 2 else ALL_REDUCE, group(7)) for i in range(4)])
    assert (verdict.kind, verdict.ranks, verdict.certain) == (HangKind.MISMATCH, (2,), True)
    assert "ranks 0, 1, 3 in all_reduce, rank 2 in broadcast" in verdict.text
    tie = judge([rank(0, ALL_REDUCE, group(7)), rank(1, BROADCAST, group(7))])
    assert (tie.kind, tie.ranks, tie.certain) == (HangKind.MISMATCH, (), False)


def test_a_collective_that_did_not_wait_for_the_others() -> None:
    """Rank 0 has broadcast, which the root need not wait for, where the others call another collective."""
    verdict = judge([rank(0, ALL_REDUCE, group(8)), rank(1, ALL_REDUCE, group(7)), rank(2, ALL_REDUCE, group(7))])
    assert (verdict.kind, verdict.ranks, verdict.certain) == (HangKind.MISMATCH, (), False)
    assert verdict.text.startswith("the ranks wait in different collectives: rank 0 is at train.py:20 in step")


def test_a_rank_that_hangs_in_the_backward_pass_is_behind() -> None:
    """Its stack is that of the ranks that wait there for it."""
    verdict = judge([rank(0, BACKWARD, group(7)), rank(1, BACKWARD, group(6))])
    assert (verdict.kind, verdict.ranks, verdict.certain) == (HangKind.BEHIND, (1,), True)


def test_all_ranks_in_one_collective() -> None:
    verdict = judge([rank(i, ALL_REDUCE, group(7)) for i in range(3)])
    assert (verdict.kind, verdict.ranks) == (HangKind.CONNECTION, ())
    assert "all ranks wait in all_reduce" in verdict.text


def test_a_stopped_rank_precedes_all_else() -> None:
    stopped = replace(rank(1, (), group(6)), stopped=True, state="stopped by a signal")
    verdict = judge([rank(0, ALL_REDUCE, group(7)), stopped, rank(2, READ, group(6))])
    assert (verdict.kind, verdict.ranks, verdict.certain) == (HangKind.STOPPED, (1,), True)
    assert verdict.text == "rank 1 on n0 is stopped by a signal"


def test_a_rank_that_is_blocked_in_the_kernel_is_named_with_its_state() -> None:
    blocked = replace(rank(1, READ, group(6)), blocked=True, state="blocked in the kernel in nfs_wait")
    verdict = judge([rank(0, ALL_REDUCE, group(7)), blocked])
    assert verdict.ranks == (1,) and verdict.text.endswith("(blocked in the kernel in nfs_wait)")
    both = judge([rank(0, READ, group(6)), blocked])
    assert both.ranks == (1,) and not both.certain


def test_a_rank_that_works_hangs_not() -> None:
    reports = [rank(0, ALL_REDUCE, group(7)), replace(rank(1, READ, group(6)), works=True)]
    verdict = judge(reports)
    assert (verdict.kind, verdict.ranks) == (HangKind.PROGRESS, (1,)) and verdict.text.endswith("; rank 1 still works")
    waiting = judge([replace(reports[0], works=True), replace(reports[1], works=False)])
    assert waiting.kind is HangKind.BEHIND  # whether a rank that waits uses the processor does not matter


def test_a_round_of_which_any_rank_progresses_hangs_not() -> None:
    reports = [replace(rank(0, ALL_REDUCE, group(7)), progressed=True), rank(1, READ, group(6))]
    verdict = judge(reports)
    assert (verdict.kind, verdict.ranks) == (HangKind.PROGRESS, (0,))
    assert verdict.text == "rank 0 made progress meanwhile"


def test_if_no_rank_is_to_blame_none_may_work() -> None:
    reports = [rank(i, ALL_REDUCE, group(7)) for i in range(3)]
    assert judge(reports).kind is HangKind.CONNECTION
    assert judge([*reports[:2], replace(reports[2], works=True)]).kind is HangKind.PROGRESS


def test_a_data_loader_whose_processes_are_gone() -> None:
    frames = ("/venv/lib/python3.11/site-packages/torch/utils/data/dataloader.py:1400 in _try_get_data", READ[2])
    reports = [rank(0, ALL_REDUCE, group(7)), replace(rank(1, frames, group(6)), children=0)]
    assert "and its data loader processes have ended" in judge(reports).text


def test_nodes_that_have_not_reported_are_named() -> None:
    verdict = judge([rank(0, ALL_REDUCE, group(7)), rank(1, READ, group(6))], ["n5"])
    assert not verdict.certain and verdict.text.endswith("; n5 has not reported")


def test_a_single_rank() -> None:
    verdict = judge([rank(0, READ)])
    assert (verdict.ranks, verdict.certain) == ((0,), True)
    assert verdict.text == (
        "rank 0 on n0 has not entered its next step; rank 0 is at data.py:88 in read, in queue.py:171 in get"
    )
