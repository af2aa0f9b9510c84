"""Which public methods were called, and which exceptions met."""

from __future__ import annotations

import functools
import inspect
from typing import Any, Callable, Dict, List, Set, Tuple, Type

import wakeful
from wakeful import errors

Method = Tuple[str, str]
CALLED: Set[Method] = set()
MET: Dict[str, Set[Type[BaseException]]] = {"async": set(), "sync": set()}


def clients() -> List[type]:
    """The public classes that do something: those of both sides."""
    listed = [getattr(wakeful, name) for name in wakeful.__all__]
    return [one for one in listed if inspect.isclass(one) and ("._async." in one.__module__ or "._sync." in one.__module__)]


def public() -> Set[Method]:
    """Their methods."""
    found: Set[Method] = set()
    for one in clients():
        for name, value in vars(one).items():
            kept = name in ("__aenter__", "__enter__", "__aiter__", "__iter__", "__repr__")
            if (kept or not name.startswith("_")) and (callable(value) or isinstance(value, (staticmethod, property))):
                found.add((one.__name__, name))
    return found


def wrap() -> None:
    """Has every call recorded."""
    for class_name, name in public():
        one: Any = getattr(wakeful, class_name)
        value: Any = one.__dict__[name]
        if type(value) is staticmethod:
            setattr(one, name, staticmethod(_recorded((class_name, name), getattr(one, name))))
        elif isinstance(value, property):
            assert value.fget is not None
            setattr(one, name, property(_recorded((class_name, name), value.fget)))
        else:
            setattr(one, name, _recorded((class_name, name), value))


def _recorded(method: Method, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        CALLED.add(method)
        return function(*arguments, **options)

    return call


def exceptions() -> Set[Type[BaseException]]:
    """Those that must be met as they are; the two bases are met in others."""
    named: Set[Type[BaseException]] = {
        value for value in vars(errors).values() if inspect.isclass(value) and issubclass(value, errors.WakefulError)
    }
    return named - {errors.WakefulError, errors.ApiError}
