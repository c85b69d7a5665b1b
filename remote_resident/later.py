"""Modules that somebody else imports and that mostly nobody uses."""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any


class _Later(ModuleType):
    """Stands for a module until something of it is asked for."""

    def __getattr__(self, name: str) -> Any:
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        real = import_module(self.__name__)
        self.__dict__.update(real.__dict__)
        return getattr(real, name)


def load(name: str) -> None:
    """Let a module be loaded when something of it is asked for, not when imported."""
    if name not in sys.modules:
        sys.modules[name] = _Later(name)
