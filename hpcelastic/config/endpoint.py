"""What an endpoint of a rendezvous names: a directory or a server."""

from pathlib import Path


def is_bare_name(text: str) -> bool:
    """Whether ``text`` may be meant as a host as well as a new directory: ``node1``, where nothing has that name."""
    return not {"/", ":"} & set(text) and not Path(text).expanduser().exists()


def bare_name_refused(what: str, text: str) -> str:
    """A message about the bare name ``text`` that ``what`` has."""
    return (
        f"{what} is {text!r}, which is no directory here; write ./{text} for a new one, or HOST:PORT and the backend "
        "that serves there"
    )
