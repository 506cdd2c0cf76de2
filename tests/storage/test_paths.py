from pathlib import Path

import pytest

from hpcelastic.storage.paths import RunPaths, safe_name

PATHS = RunPaths(Path("/run"))

LAYOUT = {
    "config.json": PATHS.config,
    "filesystem.json": PATHS.filesystem,
    "submissions/0002": PATHS.submission(2),
    "rendezvous/versions": PATHS.register,
    "rendezvous/race": PATHS.race,
    "rendezvous/nodes": PATHS.leases,
    "incidents": PATHS.incidents,
    "rendezvous/store/round-0012": PATHS.store(12),
    "facts": PATHS.facts,
    "events/n1@0-ab.jsonl": PATHS.event_log("n1@0-ab"),
    "logs/round-0012/rank-00003.err": PATHS.log(12, 3, "err"),
    "logs/round-0012/rank-00003.error.json": PATHS.error_file(12, 3),
    "results/round-0012.rank-00003": PATHS.result(12, 3),
    "function.pkl": PATHS.function,
    "slurm/jobs.jsonl": PATHS.jobs,
}


@pytest.mark.parametrize(("expected", "path"), LAYOUT.items(), ids=LAYOUT.keys())
def test_the_layout_of_a_run(expected: str, path: Path) -> None:
    assert path == Path("/run") / expected


@pytest.mark.parametrize(
    ("name", "safe"),
    [
        ("node17", "node17"),
        ("n1.site.org", "n1.site.org"),
        ("a/b", "a-b"),
        ("../x", "..-x"),
        ("n1@2", "n1-2"),
        ("*?[ü] ", "------"),
        ("", "node"),
    ],
    ids=["plain", "dots", "slash", "parent", "incarnation", "glob", "empty"],
)
def test_a_node_name_fits_into_a_file_name(name: str, safe: str) -> None:
    assert safe_name(name) == safe
