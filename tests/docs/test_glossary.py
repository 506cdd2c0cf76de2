"""The glossary is complete and in order, and the pages use its terms instead of older ones."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GLOSSARY = (ROOT / "docs" / "glossary.md").read_text()
ENTRIES = re.findall(r"^- \*\*(.+?)\*\*: (.+)$", GLOSSARY, re.MULTILINE)
TERMS = [term for term, _ in ENTRIES]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])

REQUIRED = """
agent, allocation, assignment, backend, barrier, batch script, batch system, checkpoint, claim, control page, departure,
drain, element (of a pool), external agent session, fencing, fencing token, fork server, grace period, guard, heartbeat,
incarnation, incident, last call, leader, lease, link, local rank, margin, mark, member, neighbour, newcomer, node, node
check, node state, notification, observer, peer failure detector, phase, poll schedule, pool, preemption, progress,
rank, register, rendezvous, requeue, restart budget, revision, round, run, run directory, seat, spare, standby, state,
store of a round, store of a run, store server, topology, version, wait list, warning, worker, worker group, world size,
zombie
"""

OLD_WORDS = [
    "aftermath",
    "outlet",
    "say goodbye",
    "sign of life",
    "successor",
    "surroundings",
    "tenancy",
    "vigil",
    "warm parent",
    "witness",
]


def required() -> list[str]:
    return [" ".join(term.split()) for term in REQUIRED.split(",")]


def plain(page: Path) -> str:
    """Return the text of a page in one line, without the targets of its links."""
    return " ".join(re.sub(r"\]\([^)]*\)", "]", page.read_text()).split()).lower()


def test_every_line_of_the_list_is_an_entry() -> None:
    assert len(ENTRIES) == len(re.findall(r"^\s*[-*] ", GLOSSARY, re.MULTILINE)) > 0


def test_the_terms_are_in_alphabetical_order() -> None:
    assert sorted(TERMS, key=str.lower) == TERMS


def test_each_term_is_defined_once() -> None:
    assert len({term.lower() for term in TERMS}) == len(TERMS)


@pytest.mark.parametrize("term", required())
def test_the_term_is_defined(term: str) -> None:
    assert term in TERMS


@pytest.mark.parametrize(("term", "definition"), ENTRIES, ids=TERMS)
def test_a_definition_has_one_or_two_sentences(term: str, definition: str) -> None:
    assert definition.endswith(".")
    assert 1 <= len(re.findall(r"\.(?= [A-Z`]|$)", definition)) <= 2


@pytest.mark.parametrize("page", ["README.md", "docs/architecture.md"])
def test_the_page_links_to_the_glossary(page: str) -> None:
    assert re.search(r"\]\((docs/)?glossary\.md\)", (ROOT / page).read_text())


@pytest.mark.parametrize("word", OLD_WORDS)
def test_no_page_uses_the_old_word(word: str) -> None:
    assert [page.relative_to(ROOT).as_posix() for page in PAGES if word in plain(page)] == []


def test_doorbell_is_only_named_as_an_alias() -> None:
    """The word is in a code span, as the alias of an option, on a line that calls it so."""
    found = []
    for page in PAGES:
        for line in page.read_text().splitlines():
            outside = re.sub(r"`[^`]*`|\]\([^)]*\)", "", line)
            if "doorbell" in outside.lower() or ("doorbell" in line.lower() and "alias" not in line.lower()):
                found.append(f"{page.relative_to(ROOT).as_posix()}: {line}")
    assert found == []
