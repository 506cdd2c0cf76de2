"""Which memory a worker uses for its next snapshot."""

import errno
import os

import pytest

from hpcelastic.training import slots as module
from hpcelastic.training.slots import SLOTS, Slot, Slots

SIZE = 4096


def take(slots: Slots, size: int = SIZE) -> Slot:
    found = slots.take(size)
    assert isinstance(found, Slot)
    assert len(found.memory) == size and os.fstat(found.fd).st_size == size
    assert slots.get(found.number) is found
    return found


def use(slots: Slots, size: int = SIZE, *, publish: bool = False, copy: bool = False) -> Slot:
    """Take a slot for a new snapshot, which the agent still publishes or copies."""
    assert slots.has_room()
    slot = take(slots, size)
    slot.published, slot.copied = not publish, not copy
    slots.newest = slot
    return slot


def test_snapshots_alternate_between_two_slots() -> None:
    slots = Slots()
    assert [use(slots).number for _ in range(5)] == [0, 1, 0, 1, 0]
    assert slots.get(2) is None


def test_the_same_memory_is_used_again() -> None:
    slots = Slots()
    first, _, third = (use(slots) for _ in range(3))
    assert third is first


def test_memory_of_another_size_is_allocated_anew() -> None:
    slots = Slots()
    first = use(slots)
    first_memory = first.memory
    use(slots)
    before = len(os.listdir("/proc/self/fd"))
    third = use(slots, 2 * SIZE)
    assert third is not first and third.number == first.number
    assert first_memory.closed
    assert len(os.listdir("/proc/self/fd")) <= before


def test_a_free_slot_of_the_same_size_is_preferred() -> None:
    slots = Slots()
    use(slots)
    second = use(slots, 2 * SIZE, publish=True)
    use(slots)
    second.published = True
    assert use(slots, 2 * SIZE) is second


def test_memory_in_use_by_a_tensor_stays() -> None:
    slots = Slots()
    first = use(slots)
    view = memoryview(first.memory)
    use(slots)
    assert use(slots, 2 * SIZE).number == first.number
    assert len(view) == SIZE and bytes(view) == bytes(SIZE)
    view.release()


@pytest.mark.parametrize("flag", ["publish", "copy"])
def test_memory_that_the_agent_reads_is_not_used(flag: str) -> None:
    slots = Slots()
    busy = use(slots, **{flag: True})
    others = [use(slots) for _ in range(4)]
    assert busy not in others
    assert {slot.number for slot in others} == {1, 2}
    busy.published = busy.copied = True
    assert take(slots) is busy


def test_there_are_three_slots_at_most() -> None:
    slots = Slots()
    first, second, newest = (use(slots, publish=True) for _ in range(SLOTS))
    assert not slots.has_room() and slots.is_publishing()
    newest.published = True
    assert not slots.has_room(), "the newest is never overwritten"
    second.published = True
    assert slots.has_room() and take(slots) is second
    first.published = True
    assert not slots.is_publishing()


def test_the_newest_is_kept_once_the_agent_has_said_so() -> None:
    slots = Slots()
    assert slots.newest_is_kept() and not slots.is_copying()
    slot = use(slots, copy=True)
    assert not slots.newest_is_kept() and slots.is_copying()
    slot.copied = True
    assert not slots.newest_is_kept() and not slots.is_copying(), "the agent has refused it"
    slot.kept = True
    assert slots.newest_is_kept()


def test_too_little_memory_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(size: int) -> int:
        raise OSError(errno.ENOMEM, "it needs 9 MiB of memory")

    slots = Slots()
    use(slots)
    before = os.listdir("/proc/self/fd")
    with monkeypatch.context() as short:
        short.setattr(module, "allocate_shared", refuse)
        assert slots.take(SIZE) == "it needs 9 MiB of memory"
    assert set(os.listdir("/proc/self/fd")) <= set(before)
    assert slots.has_room() and use(slots).number == 1


def test_memory_that_cannot_be_mapped_is_released(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(fd: int, size: int) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    slots = Slots()
    before = os.listdir("/proc/self/fd")
    monkeypatch.setattr(module.mmap, "mmap", refuse)
    assert slots.take(SIZE) == "Cannot allocate memory"
    assert set(os.listdir("/proc/self/fd")) <= set(before)
