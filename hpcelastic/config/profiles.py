"""The user's file of profiles: the default settings of jobs on a cluster.

::

    default_profile: small
    profiles:
      small: {slurm: {partition: gpu}}
      large: {cluster: jade, slurm: {partition: long, account: a1}}
"""

import difflib
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from hpcelastic.config.document import Document, KeyPath, raise_problems
from hpcelastic.config.files import exists, read_document
from hpcelastic.errors import ConfigError

NONE = "none"
"""Disables the profile that would be selected."""

_KEYS = ("profiles", "default_profile")


def choose_profile(name: str | None, environ: Mapping[str, str]) -> Document | None:
    """Return the settings of the profile ``name``, else of the profile of this cluster, else of the default profile.

    Returns None if there is no such profile. Raises ConfigError if the file is not valid, or has no profile ``name``.
    """
    if name == NONE:
        return None
    path = _path(environ)
    if path is None:
        if name is not None:
            raise ConfigError(f"profile {name}: there is no file of profiles; create {_default_path(environ)}")
        return None
    document = read_document(path)
    profiles = _checked(document)
    chosen = name or _for_this_cluster(document, path, environ) or document.value.get("default_profile")
    if chosen is None:
        return None
    if chosen not in profiles:
        close = difflib.get_close_matches(chosen, profiles, 1)
        remedy = f"did you mean {close[0]}?" if close else f"the profiles are {', '.join(profiles) or 'none'}"
        raise ConfigError(f"{path}: there is no profile {chosen}; {remedy}")
    return _settings(document, chosen)


def cluster_name(environ: Mapping[str, str]) -> str | None:
    """Return the name of the SLURM cluster of this machine; None if no readable slurm.conf contains it."""
    try:
        text = Path(environ.get("SLURM_CONF") or "/etc/slurm/slurm.conf").read_text(errors="replace")
    except OSError:
        return None
    found = re.search(r"^\s*ClusterName\s*=\s*([^\s#]+)", text, re.MULTILINE | re.IGNORECASE)
    return found[1] if found else None


def _path(environ: Mapping[str, str]) -> Path | None:
    """Return the file in HPCELASTIC_CONFIG, or None if the variable is empty. Else the default file, if it exists.

    There is none in a home directory that this user cannot enter.
    """
    if (named := environ.get("HPCELASTIC_CONFIG")) is not None:
        return Path(named) if named else None
    default = _default_path(environ)
    return default if exists(default) else None


def _default_path(environ: Mapping[str, str]) -> Path:
    home = environ.get("XDG_CONFIG_HOME") or Path(environ.get("HOME", "")) / ".config"
    return Path(home) / "hpcelastic" / "config.yaml"


def _checked(document: Document) -> dict[str, Any]:
    """Return the profiles of a file. Raises ConfigError with a line for each problem."""
    document.value = {} if document.value is None else document.value
    if not isinstance(document.value, dict):
        document.add_problem((), "contains no keys; write profiles: {NAME: {KEY: VALUE}}")
        raise_problems(document)
    for key in [key for key in document.value if key not in _KEYS]:
        document.add_problem(
            (key,), f"no such key; the keys here are {', '.join(_KEYS)}; write the keys of a job in a profile"
        )
    profiles = document.value["profiles"] = document.value.get("profiles") or {}
    if isinstance(profiles, dict):
        for name, profile in profiles.items():
            _check(("profiles", name), profile, document)
    else:
        document.add_problem(("profiles",), "contains no profiles; write profiles: {NAME: {KEY: VALUE}}")
    default = document.value.get("default_profile")
    if default is not None and isinstance(profiles, dict) and default not in [*profiles]:  # it may not be hashable
        document.add_problem(
            ("default_profile",), f"there is no profile {default!r}; the profiles are {', '.join(profiles) or 'none'}"
        )
    raise_problems(document)
    return profiles


def _check(path: KeyPath, profile: Any, document: Document) -> None:
    if not isinstance(profile or {}, dict):
        document.add_problem(path, "contains no keys; write keys of a job file below it")
    elif profile and not isinstance(profile.get("cluster", ""), str):
        document.add_problem((*path, "cluster"), "is not text; write the ClusterName of slurm.conf")


def _for_this_cluster(document: Document, path: Path, environ: Mapping[str, str]) -> str | None:
    """Return the profile of the cluster of this machine, or the default profile if several match."""
    default = document.value.get("default_profile")
    clusters = {name: (profile or {}).get("cluster") for name, profile in document.value["profiles"].items()}
    here = cluster_name(environ) if any(clusters.values()) else None
    ours = [name for name, cluster in clusters.items() if here and cluster and cluster.casefold() == here.casefold()]
    if len(ours) > 1 and default not in ours:
        raise ConfigError(
            f"{path}: the profiles {', '.join(ours)} all match the cluster {here}; "
            "choose one with --profile or default_profile"
        )
    return default if default in ours else next(iter(ours), None)


def _settings(document: Document, name: str) -> Document:
    """Return the job keys of a profile as a document, with marks that name the profile."""
    value = {key: item for key, item in (document.value["profiles"][name] or {}).items() if key != "cluster"}
    top = ("profiles", name)
    marks = {
        path[2:]: replace(mark, origin=f"profile {name}, {mark.origin}")
        for path, mark in document.marks.items()
        if path[:2] == top
    }
    return Document(value, marks)
