"""Reading a configuration file: YAML, ``${ENV}``, the models, and errors that say what to do."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import BaseModel, ValidationError

from loaderd_server.config import Config, MixtureConfig, StreamConfig, TargetConfig

_VARIABLE = re.compile(r"\$(?:\$|\{([A-Za-z_]\w*)(?::-([^}]*))?\})")


class ConfigError(Exception):
    """The configuration cannot be used; each line of the text names a place and a remedy."""


def read_config(path: Path, environment: Mapping[str, str] = os.environ) -> Config:
    """The configuration in a file.

    Raises: ConfigError.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from None
    try:
        tree = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not YAML: {error}") from None
    except RecursionError:
        raise ConfigError(f"{path} is nested too deeply") from None
    if not isinstance(tree, dict):
        found = "nothing" if tree is None else f"a {type(tree).__name__}"
        raise ConfigError(
            f"{path} holds {found}; a configuration has at least the key 'streams' "
            f"(see configs/reference.yaml)"
        )
    return parse_config(tree, str(path), environment)


def parse_config(
    tree: dict[str, Any], source: str = "configuration", environment: Mapping[str, str] = os.environ
) -> Config:
    """The configuration in a tree of plain values.

    Raises: ConfigError.
    """
    try:
        expanded = _expand(tree, "", environment)
        config = Config.model_validate(expanded)
    except RecursionError:
        raise ConfigError(f"{source} is nested without end (a YAML anchor in itself?)") from None
    except ValidationError as error:
        lines = [f"  {line}" for line in _explain(error, expanded)]
        raise ConfigError("\n".join([f"{source} cannot be used:", *lines])) from None
    problems = cross_check(config)
    if problems:
        raise ConfigError("\n".join([f"{source} cannot be used:", *problems]))
    return config


def _expand(value: Any, path: str, environment: Mapping[str, str]) -> Any:
    if isinstance(value, str) and "$" in value:
        return _VARIABLE.sub(lambda match: _variable(match, path, environment), value)
    if isinstance(value, dict):
        return {
            key: _expand(item, f"{path}.{key}".lstrip("."), environment)
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [_expand(item, f"{path}[{i}]", environment) for i, item in enumerate(value)]
    return value


def _variable(match: re.Match[str], path: str, environment: Mapping[str, str]) -> str:
    name, default = match[1], match[2]
    if name is None:
        return "$"
    found = environment.get(name, default)
    if found is None:
        raise ConfigError(
            f"{path}: the environment has no variable {name}; set it, or write ${{{name}:-default}} "
            f"($$ is a plain dollar)"
        )
    return found


def _explain(error: ValidationError, tree: Any) -> list[str]:
    problems = error.errors()
    lines: dict[str, None] = {}
    for problem in problems:
        named = problem["type"] in ("missing", "extra_forbidden")
        place, value, is_key = _place(problem["loc"], tree, named)
        if not is_key and isinstance(value, dict) and _is_deeper(place, problem, problems, tree):
            continue
        message = problem["msg"].removeprefix("Value error, ")
        if problem["type"] == "extra_forbidden":
            message = f"unknown key{_nearest(str(problem['loc'][-1]), _known_keys(problem['loc']))}"
        elif problem["type"] == "string_pattern_mismatch":
            message = "a target is written 'package.module:name'"
        found = "" if named else f" (found {_short(value)})"
        lines[f"{place}: {message}{found}"] = None
    return list(lines)


def _place(location: tuple[int | str, ...], tree: Any, named: bool) -> tuple[str, Any, bool]:
    """The path in the file, the value there, and whether the location's last part is in the file.

    pydantic's names of union members are no part of the path. ``named``: the last part is a key
    that is missing or too many.
    """
    path, value, is_key = "", tree, True
    for position, part in enumerate(location):
        is_last = position == len(location) - 1
        is_key = True
        if isinstance(value, dict) and (part in value or (named and is_last)):
            path = f"{path}.{part}" if path else str(part)
            value = value.get(part)
        elif isinstance(value, list) and isinstance(part, int) and part < len(value):
            path = f"{path}[{part}]"
            value = value[part]
        else:
            is_key = False
    return path or "the file", value, is_key


def _is_deeper(place: str, problem: Any, problems: list[Any], tree: Any) -> bool:
    """Whether another problem lies inside ``place``: this one is of a union member not meant."""
    return any(
        other is not problem
        and _place(other["loc"], tree, other["type"] in ("missing", "extra_forbidden"))[
            0
        ].startswith(f"{place}.")
        for other in problems
    )


def _known_keys(location: tuple[int | str, ...]) -> list[str]:
    model: Any = Config
    for part in location[:-1]:
        model = _child(model, part)
    return list(model.model_fields) if _is_model(model) else []


def _child(model: Any, part: int | str) -> Any:
    if _is_model(model):
        if part in model.model_fields:
            return model.model_fields[part].annotation
        return model
    members = [model, *_flat(model)]
    named = [m for m in members if _is_model(m) and m.__name__ == part]
    if named:
        return named[0]
    models = [m for m in members if _is_model(m)]
    if len(models) == 1:
        return _child(models[0], part) if part in models[0].model_fields else models[0]
    return model


def _flat(annotation: Any) -> list[Any]:
    return [x for arg in get_args(annotation) for x in (arg, *_flat(arg))]


def _is_model(thing: Any) -> bool:
    return isinstance(thing, type) and issubclass(thing, BaseModel)


def cross_check(config: Config) -> list[str]:
    """What is wrong between settings that are each right, a line each."""
    problems = []
    least = config.workers.count + 2
    for name, stream in config.streams.items():
        problems += _unknown_datasets(f"streams.{name}.dataset", stream.dataset, config)
        if isinstance(stream.slots, int) and stream.slots < least:
            problems.append(
                f"  streams.{name}.slots: {stream.slots} is too few; {config.workers.count} workers "
                f"need at least {least} (workers.count + 2)"
            )
        problems += _slots_over_budget(name, stream, config)
    return problems


def _unknown_datasets(
    place: str, dataset: str | TargetConfig | MixtureConfig, config: Config
) -> list[str]:
    if isinstance(dataset, MixtureConfig):
        return [
            problem
            for number, source in enumerate(dataset.mixture)
            for problem in _unknown_datasets(
                f"{place}.mixture[{number}].dataset", source.dataset, config
            )
        ]
    if not isinstance(dataset, str) or dataset in config.datasets:
        return []
    nearest = _nearest(dataset, list(config.datasets))
    return [f"  {place}: there is no dataset {dataset!r}{nearest}"]


def _slots_over_budget(name: str, stream: StreamConfig, config: Config) -> list[str]:
    if not isinstance(stream.slot_bytes, int) or not isinstance(stream.slots, int):
        return []
    needed = stream.slot_bytes * stream.slots
    if needed <= config.memory:
        return []
    problem = (
        f"  streams.{name}: {stream.slots} slots of {stream.slot_bytes} bytes need {needed} bytes, "
        f"memory allows {config.memory}: raise memory, or lower slots or slot_bytes"
    )
    return [problem]


def _nearest(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; there is {', '.join(map(repr, known))}" if known else ""


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
