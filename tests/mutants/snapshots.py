"""Possible faults of snapshots. Each is one edit of the source, which the tests of a module find."""

from tests.protocol.under_test import KEPT_SNAPSHOTS, SLOTS, SNAPSHOT_COPIES, SNAPSHOT_WRITER, SNAPSHOTS, Patch

MUTANTS = {
    # writer
    "a snapshot of a round that has ended is published": Patch(
        SNAPSHOTS, "        if not self._may_act(snapshot):", "        if False:"
    ),
    "the memory of a snapshot is given back before it is published": Patch(
        SNAPSHOT_WRITER,
        "            error = self._publish_if_needed(job)\n",
        "            job.ended('')\n            error = self._publish_if_needed(job)\n",
    ),
    "the draft of a revoked writer is published": Patch(
        SNAPSHOT_WRITER, "Fence(run_nonce(self._paths), job.round)", "Fence(run_nonce(self._paths), job.round + 1)"
    ),
    "the checksum of a snapshot covers its first part": Patch(
        SNAPSHOT_WRITER, "checksum = crc32(chunk, checksum)", "checksum = checksum or crc32(chunk)"
    ),
    "an older snapshot follows a newer one": Patch(
        SNAPSHOT_WRITER, "older = self._pending.pop(job.place, None)", "older = None"
    ),
    "memory that a worker has overwritten is published": Patch(
        SNAPSHOT_WRITER, "if job.final and os.pread", "if False and os.pread"
    ),
    "a snapshot that is on disk is published again": Patch(
        SNAPSHOT_WRITER, "if job.final and self._is_old(job):", "if False:"
    ),
    # memory of the agent
    "an older round's copy is taken for the newest": Patch(
        KEPT_SNAPSHOTS,
        "sorted({each.generation for each in of_directory})",
        "sorted({each.generation for each in of_directory}, key=lambda generation: generation[1])",
    ),
    "a snapshot is listed before it is sealed": Patch(
        KEPT_SNAPSHOTS,
        "            if sealed:\n                self._sealed.add(kept)",
        "            self._sealed.add(kept)",
    ),
    "only one generation is kept": Patch(KEPT_SNAPSHOTS, "_GENERATIONS = 2", "_GENERATIONS = 1"),
    "memory that may shrink is kept": Patch(SNAPSHOTS, "if has_fixed_size(kept.fd, kept.size):", "if True:"),
    "memory stays when it is about to be overwritten": Patch(
        SNAPSHOTS, "self.kept.drop((channel, message.slot))", "pass"
    ),
    "the snapshots of other checkpoints stay": Patch(
        SNAPSHOTS, "self.kept.keep_only(message.directory, CheckpointName.parse(message.file))", "pass"
    ),
    # copies
    "the checksum of a copy is not checked": Patch(SNAPSHOT_COPIES, "if not copy.is_whole():", "if False:"),
    "another snapshot is taken for the one that was asked for": Patch(
        SNAPSHOT_COPIES, "if (snapshot.directory, sent) != (directory, name):", "if False:"
    ),
    # memory of the worker
    "a slot is used again while the agent publishes it": Patch(
        SLOTS, "slot.published and slot.copied and", "slot.copied and"
    ),
    "a slot is used again while the agent copies it": Patch(
        SLOTS, "slot.published and slot.copied and", "slot.published and"
    ),
    "the newest snapshot is overwritten": Patch(SLOTS, "slot.copied and slot is not self.newest", "slot.copied"),
}

_WRITER = "tests/agent/test_snapshot_writer.py"
_AGENT = "tests/agent/test_snapshots.py"
_KEPT = "tests/agent/test_kept_snapshots.py"
_SLOTS = "tests/training/test_slots.py"

BY_TESTS = {
    "a snapshot of a round that has ended is published": _WRITER,
    "the memory of a snapshot is given back before it is published": _WRITER,
    "the draft of a revoked writer is published": _WRITER,
    "the checksum of a snapshot covers its first part": _WRITER,
    "an older snapshot follows a newer one": _WRITER,
    "memory that a worker has overwritten is published": _AGENT,
    "a snapshot that is on disk is published again": _AGENT,
    "an older round's copy is taken for the newest": _KEPT,
    "a snapshot is listed before it is sealed": _KEPT,
    "only one generation is kept": _KEPT,
    "memory that may shrink is kept": _AGENT,
    "memory stays when it is about to be overwritten": _AGENT,
    "the snapshots of other checkpoints stay": _AGENT,
    "the checksum of a copy is not checked": "tests/agent/test_snapshot_copies.py",
    "another snapshot is taken for the one that was asked for": "tests/agent/test_snapshot_requests.py",
    "a slot is used again while the agent publishes it": _SLOTS,
    "a slot is used again while the agent copies it": _SLOTS,
    "the newest snapshot is overwritten": _SLOTS,
}
"""The tests of a module that find each mutant. The simulator has no snapshots."""
