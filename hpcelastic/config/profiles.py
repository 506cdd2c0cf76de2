"""A person's own file: profiles of clusters, each with settings that lie under every job there.

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
from hpcelastic.config.files import read_document
from hpcelastic.errors import ConfigError

NONE = "none"
"""Asks for no profile, where one would be chosen."""

_KEYS = ("profiles", "default_profile")


def choose_profile(name: str | None, environ: Mapping[str, str]) -> Document | None:
    """The job settings of profile ``name``; without a name of the one for this cluster, else of the default one.

    Raises ConfigError where the file makes no sense, or has no such profile.
    """
    if name == NONE:
        return None
    path = _path(environ)
    if path is None:
        if name is not None:
            raise ConfigError(f"profile {name}: there is no file of profiles; write {_usual_path(environ)}")
        return None
    document = read_document(path)
    profiles = _checked(document)
    chosen = name or _for_this_cluster(document, path, environ) or document.value.get("default_profile")
    if chosen is None:
        return None
    if chosen not in profiles:
        close = difflib.get_close_matches(chosen, profiles, 1)
        remedy = f"did you mean {close[0]}?" if close else f"it has {', '.join(profiles) or 'none'}"
        raise ConfigError(f"{path}: there is no profile {chosen}; {remedy}")
    return _settings(document, chosen)


def cluster_name(environ: Mapping[str, str]) -> str | None:
    """The name of the SLURM cluster that commands here speak to; None if no readable slurm.conf tells it."""
    try:
        text = Path(environ.get("SLURM_CONF") or "/etc/slurm/slurm.conf").read_text(errors="replace")
    except OSError:
        return None
    found = re.search(r"^\s*ClusterName\s*=\s*([^\s#]+)", text, re.MULTILINE | re.IGNORECASE)
    return found[1] if found else None


def _path(environ: Mapping[str, str]) -> Path | None:
    """The file that HPCELASTIC_CONFIG names, none if that is empty; else the usual one, if it is there."""
    if (named := environ.get("HPCELASTIC_CONFIG")) is not None:
        return Path(named) if named else None
    usual = _usual_path(environ)
    return usual if usual.exists() else None


def _usual_path(environ: Mapping[str, str]) -> Path:
    home = environ.get("XDG_CONFIG_HOME") or Path(environ.get("HOME", "")) / ".config"
    return Path(home) / "hpcelastic" / "config.yaml"


def _checked(document: Document) -> dict[str, Any]:
    """The profiles of a file; raises ConfigError with a line for each problem."""
    document.value = {} if document.value is None else document.value
    if not isinstance(document.value, dict):
        document.complain((), "holds no keys; write profiles: {NAME: {KEY: VALUE}}")
        raise_problems(document)
    for key in [key for key in document.value if key not in _KEYS]:
        document.complain((key,), f"no such key; the keys here are {', '.join(_KEYS)}, and those of a job in a profile")
    profiles = document.value["profiles"] = document.value.get("profiles") or {}
    if isinstance(profiles, dict):
        for name, profile in profiles.items():
            _check(("profiles", name), profile, document)
    else:
        document.complain(("profiles",), "holds no profiles; write profiles: {NAME: {KEY: VALUE}}")
    default = document.value.get("default_profile")
    if default is not None and isinstance(profiles, dict) and default not in profiles:
        document.complain(
            ("default_profile",), f"there is no profile {default!r}; it has {', '.join(profiles) or 'none'}"
        )
    raise_problems(document)
    return profiles


def _check(path: KeyPath, profile: Any, document: Document) -> None:
    if not isinstance(profile or {}, dict):
        document.complain(path, "holds no keys; write those of a job file below it")
    elif profile and not isinstance(profile.get("cluster", ""), str):
        document.complain((*path, "cluster"), "is no text; write the ClusterName of slurm.conf")


def _for_this_cluster(document: Document, path: Path, environ: Mapping[str, str]) -> str | None:
    """The profile of the cluster that we are on, the default one if it has several."""
    default = document.value.get("default_profile")
    clusters = {name: (profile or {}).get("cluster") for name, profile in document.value["profiles"].items()}
    here = cluster_name(environ) if any(clusters.values()) else None
    ours = [name for name, cluster in clusters.items() if here and cluster and cluster.casefold() == here.casefold()]
    if len(ours) > 1 and default not in ours:
        raise ConfigError(
            f"{path}: {', '.join(ours)} are all for the cluster {here}; choose with --profile, or set default_profile"
        )
    return default if default in ours else next(iter(ours), None)


def _settings(document: Document, name: str) -> Document:
    """The job keys of a profile as a document of their own, whose marks say that they are of it."""
    value = {key: item for key, item in (document.value["profiles"][name] or {}).items() if key != "cluster"}
    top = ("profiles", name)
    marks = {
        path[2:]: replace(mark, origin=f"profile {name}, {mark.origin}")
        for path, mark in document.marks.items()
        if path[:2] == top
    }
    return Document(value, marks)
