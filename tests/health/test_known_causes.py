"""The knowledge base of causes."""

import re

import pytest

from hpcelastic.agent.report import describe
from hpcelastic.health.known_causes import CAUSES, Blame, Certainty, KnownCause, explain
from hpcelastic.health.known_causes.cause import necessary_words
from hpcelastic.protocol.state import Failure
from tests.accounting.test_log_tails import tails
from tests.health.known_failures import NEAR_MISSES, SAMPLES

BY_ID = {cause.id: cause for cause in CAUSES}


def test_each_cause_has_samples_and_near_misses() -> None:
    assert len(CAUSES) == len(BY_ID) >= 80
    assert {*SAMPLES} == {*NEAR_MISSES} == {*BY_ID}


@pytest.mark.parametrize(("id", "text"), [(id, text) for id, texts in SAMPLES.items() for text in texts])
def test_a_sample_has_its_cause(id: str, text: str) -> None:
    found = explain(text)
    assert found is not None and found.id == id
    around = f"step 3: loss 0.31\n{text}\n[rank1]: exited with 1"
    assert explain("exit status 1", around) is found


@pytest.mark.parametrize(("id", "text"), [(id, text) for id, texts in NEAR_MISSES.items() for text in texts])
def test_a_near_miss_has_another_cause_or_none(id: str, text: str) -> None:
    assert not BY_ID[id].matches(text)


@pytest.mark.parametrize("cause", CAUSES, ids=lambda cause: cause.id)
def test_a_cause_is_described(cause: KnownCause) -> None:
    assert re.fullmatch(r"[a-z0-9-]+", cause.id)
    assert re.fullmatch(r"[A-Z].*\.", cause.text), "a sentence"
    assert cause.remedy and not cause.remedy.endswith(".")
    assert cause.source
    if cause.certainty is Certainty.ECHO:
        assert cause.blame is Blame.UNKNOWN, "an echo blames nothing here"


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        (r"no space left|ENOSPC", ("no space left", "enospc")),
        (r"\bGPU\d+ is lost", (" is lost",)),
        (r"colou?r \(a\.b\)", ("r (a.b)",)),
        (r"errors*|er{2}or", ("error", "or")),
        (r"[abc]lost|(?:x|y) gone\b|(?:x|(?:y|z))", ("lost", " gone", "")),
        (r"a[|(]longer text", ("longer text",)),
    ],
)
def test_the_words_without_which_a_pattern_is_not_found(pattern: str, words: tuple[str, ...]) -> None:
    assert necessary_words(pattern) == words


def test_the_words_exclude_no_match() -> None:
    texts = [text for texts in (*SAMPLES.values(), *NEAR_MISSES.values()) for text in texts]
    texts += [tail["text"] for tail in tails()[::5]]
    for cause in CAUSES:
        compiled, words = re.compile(cause.pattern, re.IGNORECASE), necessary_words(cause.pattern)
        found = [text for text in texts if compiled.search(text)]
        assert all(any(word in text.lower() for word in words) for text in found), cause.id


def test_a_fault_comes_before_its_echo() -> None:
    text = "NCCL WARN Call to ibv_poll_cq failed\nncclRemoteError: remote process exited or there was a network error"
    found = explain(text)
    assert found is not None and found.id == "infiniband"


def test_the_message_comes_before_the_traceback() -> None:
    found = explain("RuntimeError: CUDA out of memory", "ConnectionResetError\nDuring handling\nModuleNotFoundError")
    assert found is not None and found.id == "cuda-out-of-memory"


def test_a_message_without_its_middle_is_read_in_the_traceback() -> None:
    message = "RuntimeError: fs.NewServer: create file system: Open…lab-data: no such file or directory"
    whole = message.replace("…", "Bucket: Unknown bucket ")
    for traceback in (f"Traceback:\n{whole}\n", f"[rank2]: Traceback:\n[rank2]: {whole}\n"):
        found = explain(message, traceback)
        assert found is not None and found.id == "bucket"
    other = explain(message, "Traceback:\nRuntimeError: another one")
    assert other is not None and other.id == "missing-file"


def test_unknown_is_an_answer() -> None:
    assert explain("ValueError: the recipe has no salt") is None
    assert explain("killed by SIGKILL") is None
    assert explain("") is None


def test_the_description_of_a_root_cause_has_cause_and_remedy() -> None:
    failure = Failure(
        3, "n1@a", 5, 1, 1, "OSError: [Errno 122] Disk quota exceeded: '/home/a'", "Traceback\n  line", "/l"
    )
    assert describe(failure, full=True).splitlines() == [
        "root cause: rank 5 on n1 in round 3: OSError: [Errno 122] Disk quota exceeded: '/home/a'",
        "  log: /l",
        "  cause: The quota of the user or the project is used up.",
        "  remedy: remove files, or ask for a greater quota",
        "  | Traceback",
        "  |   line",
    ]
    assert "cause:" not in describe(failure, full=False)
