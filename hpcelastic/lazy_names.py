"""Names of a package that are imported at their first use, so that importing the package costs little."""

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def lazy_names(package: str, modules: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the functions ``__getattr__`` and ``__dir__`` of a package.

    ``modules`` has the module of each name, relative to the package. A name must not be that of a module of the
    package, because the import of this module would set the attribute.

    Examples:
        >>> __getattr__, __dir__ = lazy_names("hpcelastic", {"submit": ".api"})
        >>> __getattr__("submit").__name__
        'submit'
    """

    def load(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(modules[name], package), name)

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *modules})

    return load, names
