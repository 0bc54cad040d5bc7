"""From names and text to a method object: aliases, presets, backbones, `key=value` settings."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from fedrec.errors import FedrecError, unknown
from fedrec.experiment.config import RunConfig, plain
from fedrec.federation.contract import Method
from fedrec.methods import method_class, methods, register
from fedrec.methods.kinds import backbones_of, choose_kind, hint_at_studies, kinds_of, variants_of
from fedrec.schema import kind_of


def build_method(
    name: str | type[Method],
    *,
    backbone: str | None = None,
    preset: str | None = None,
    params: Mapping[str, Any] | None = None,
    rounds: int | None = None,
) -> Method:
    """The method with its parameters: defaults < those of the backbone < alias, preset < params < rounds."""
    usual, implied = method_class(name)
    wanted = backbone or (params or {}).get("backbone") or implied.get("backbone")
    cls = choose_kind(usual, None if wanted is None else str(wanted), preset, params or {})
    values: dict[str, Any] = dict(implied)
    if preset is not None:
        if preset not in cls.info.presets:
            raise _unknown_preset(cls, preset)
        values |= cls.info.presets[preset]
    try:
        values |= {key: convert(cls, key, value) for key, value in (params or {}).items()}
    except FedrecError as error:
        hint = hint_at_studies(cls)
        raise FedrecError(f"{error}; {hint}") if hint else error from None
    if backbone is not None:
        values["backbone"] = backbone
    if rounds is not None:
        values["rounds"] = rounds
    chosen = values.get("backbone")
    if chosen is not None and chosen not in cls.info.backbones:
        known = backbones_of(usual) or ["(none: it has a model of its own)"]
        raise unknown(f"backbone of {cls.info.name}", str(chosen), known)
    return cls(**{**cls.info.backbones.get(str(chosen), {}), **values})


def _unknown_preset(cls: type[Method], preset: str) -> FedrecError:
    if hint := hint_at_studies(cls):
        return FedrecError(f"unknown preset of {cls.info.name} '{preset}'; {hint}")
    if cls.info.presets:
        return unknown(f"preset of {cls.info.name}", preset, cls.info.presets)
    return FedrecError(f"{cls.info.name} has no presets; leave --preset out")


def method_of(config: RunConfig) -> Method:
    """The method that a config names, with its settings."""
    return build_method(
        config.method, backbone=config.backbone, preset=config.preset, params=config.params, rounds=config.rounds
    )


def parse_settings(settings: Iterable[str], flag: str = "--set") -> dict[str, str]:
    """`["lr=0.1", "dim=16"]` as a dictionary of text."""
    values = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals or not key.strip():
            raise FedrecError(f"{flag} {setting}: write key=value")
        if key.strip() in values:
            raise FedrecError(f"{flag} {key.strip()} is given twice; keep one")
        values[key.strip()] = value.strip()
    return values


def adopt_method(method: Method | type[Method], values: dict[str, Any]) -> Method:
    """A method given as an object or class, with further settings; `values` is updated to name it and its settings."""
    own = {name: values.pop(name, None) for name in ("backbone", "preset", "rounds")}
    require_method(method if isinstance(method, type) else type(method))
    if isinstance(method, type):
        made = build_method(method, **own, params=values["params"])
    elif own.pop("preset") is not None:
        # An object has values for everything, and a preset could not tell which of them were chosen.
        raise FedrecError("a method object already has its settings: give its class, or leave preset out")
    else:
        changes = values["params"] | {name: value for name, value in own.items() if value is not None}
        made = dataclasses.replace(
            method, **{name: convert(type(method), name, value) for name, value in changes.items()}
        )
    known = methods().get(made.info.name)
    if known is None or type(made) not in (*kinds_of(known), *variants_of(known)):
        register(type(made))
    settings = {item.name: getattr(made, item.name) for item in dataclasses.fields(made)}
    values |= {"method": made.info.name, "rounds": settings.pop("rounds"), "params": settings}
    return made


def require_method(cls: type[Any]) -> None:
    """A class that somebody wrote: what it must be before anything can be asked of it."""
    if not issubclass(cls, Method):
        raise FedrecError(
            f"{cls.__name__} is not a method: derive it from LocalMethod, or from Method, as in CONTRIBUTING.md"
        )
    if not (isinstance(cls.info.name, str) and cls.info.name):
        raise FedrecError(f"{cls.__name__} has no name; write info: ClassVar[MethodInfo] = MethodInfo(name, ...) in it")
    hints = {name: hint for name, hint in vars(cls).get("__annotations__", {}).items() if "ClassVar" not in str(hint)}
    # Without the decorator a field is silently an attribute of the class, and settings would not reach it.
    for name in hints.keys() - {field.name for field in dataclasses.fields(cls)}:
        raise FedrecError(f"{cls.__name__}.{name} is no parameter yet: put @dataclass(frozen=True) above the class")


def defaults_of(method: Method) -> dict[str, Any]:
    """What its class has by itself with its backbone, as a config would say it."""
    chosen = getattr(method, "backbone", None)
    usual = build_method(type(method), backbone=chosen if chosen in backbones_of(type(method)) else None)
    return {item.name: plain(getattr(usual, item.name)) for item in dataclasses.fields(usual)}


def parameters(cls: Any) -> Mapping[str, Any]:
    """Names and types of the settings of a method, or of any dataclass."""
    return _parameters(cls)


# Type hints are evaluated anew at each call otherwise, for every trial of a study.
@cache
def _parameters(cls: Any) -> Mapping[str, Any]:
    hints = typing.get_type_hints(cls)
    return {f.name: hints[f.name] for f in dataclasses.fields(cls)}


def convert(cls: type[Method], key: str, value: Any) -> Any:
    """A value of a method's parameter, from text or TOML, as the type that the parameter declares."""
    return parse_fields(cls, cls.info.name, key, value)


def parse_fields(cls: type[Any], name: str, key: str, value: Any) -> Any:
    """The same for any dataclass with settings; `name` is used in messages."""
    known = parameters(cls)
    if key not in known:
        raise unknown(f"parameter of {name}", key, known)
    kind = kind_of(known[key])
    try:
        return kind.parse(value)
    except ValueError:
        # Infinity is a number to Python, so the usual words would not say what is wrong.
        endless = str(value).lower().lstrip("+-") in ("nan", "inf", "infinity")
        wanted = "finite" if endless else kind.words
        raise FedrecError(f"{key}={value} does not fit {name}: it should be {wanted}") from None
