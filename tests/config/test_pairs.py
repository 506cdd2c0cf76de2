"""Settings in ``KEY=VALUE,...`` on the command line."""

import pytest

from hpcelastic.agent.settings import HangSettings, StragglerSettings
from hpcelastic.config.pairs import read_settings, split_pairs


def test_words_and_numbers_are_read() -> None:
    found = read_settings(StragglerSettings, split_pairs("action=exclude, threshold=1.5,steps=20"))
    assert found == StragglerSettings("exclude", 1.5, 20)
    assert read_settings(HangSettings, {}) == HangSettings()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("colour=green", "'colour' is not a known key; the keys are action, threshold, steps"),
        ("action=shoot", "action is 'shoot'; write ignore, report or exclude"),
        ("threshold=much", "threshold is 'much', which is not a number"),
        ("steps=1.5", "steps is '1.5', which is not a whole number"),
        ("steps", "steps is '', which is not a whole number"),
        ("threshold=1", "stragglers.threshold is 1.0; it must be a factor, 1.05 or more"),
        ("steps=0", "stragglers.steps is 0; it must be 1 or more"),
    ],
)
def test_a_wrong_value_is_an_error(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message.replace('.', '[.]')}$"):
        read_settings(StragglerSettings, split_pairs(text))
