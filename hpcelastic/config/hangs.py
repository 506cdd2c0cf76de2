"""Read ``--hangs`` of `hpcelastic agent`. Pure."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, get_args, get_type_hints

from hpcelastic.agent.settings import HangSettings


def read_hangs(pairs: Mapping[str, str]) -> HangSettings:
    """Return the settings with these values; raises ValueError for an unknown key and for an invalid value.

    Examples:
        >>> read_hangs({"action": "report", "min_limit": "60"}).min_limit
        60.0
    """
    given: dict[str, Any] = {}
    actions = get_args(get_type_hints(HangSettings)["action"])
    for name, value in pairs.items():
        if name not in (known := [field.name for field in fields(HangSettings)]):
            raise ValueError(f"{name!r} is not a known key; the keys are {', '.join(known)}")
        if name == "action":
            if value not in actions:
                raise ValueError(f"action is {value!r}; write {', '.join(actions[:-1])} or {actions[-1]}")
            given[name] = value
            continue
        try:
            given[name] = float(value)
        except ValueError:
            raise ValueError(f"{name} is {value!r}, which is not a number") from None
    return HangSettings(**given)
