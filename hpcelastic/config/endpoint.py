"""The endpoint of a rendezvous: a directory or a server."""

import os


def is_bare_name(text: str) -> bool:
    """True if ``text`` can be a host or a new directory: ``node1``, if no such path exists."""
    return not {"/", ":"} & set(text) and not os.path.exists(os.path.expanduser(text))


def bare_name_error(what: str, text: str) -> str:
    """Return a message about the bare name ``text``, which is the value of ``what``."""
    return (
        f"{what} is {text!r}, but there is no such directory; write ./{text} for a new directory, or HOST:PORT and the "
        "backend of that server"
    )
