"""configs/: every file loads, and reference.yaml tells every setting at its default."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from loaderd_server.config import (
    Config,
    MixtureConfig,
    OnErrorConfig,
    SourceConfig,
    StreamConfig,
    TargetConfig,
    WorkersConfig,
)
from loaderd_server.config_file import parse_config, read_config
from loaderd_server.plans import core_settings, dataset_plans

CONFIGS = Path(__file__).parents[3] / "configs"
REFERENCE = yaml.safe_load((CONFIGS / "reference.yaml").read_text())


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.name)
def test_every_shipped_configuration_loads(path: Path) -> None:
    config = read_config(path)
    assert core_settings(config).streams
    assert dataset_plans(config, path.parent)


@pytest.mark.parametrize(
    ("model", "shown"),
    [
        (Config, REFERENCE),
        (WorkersConfig, REFERENCE["workers"]),
        (TargetConfig, REFERENCE["datasets"]["photos"]),
        (StreamConfig, REFERENCE["streams"]["train"]),
        (OnErrorConfig, REFERENCE["streams"]["train"]["on_error"]),
        (MixtureConfig, REFERENCE["streams"]["mixed"]["dataset"]),
        (SourceConfig, REFERENCE["streams"]["mixed"]["dataset"]["mixture"][0]),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_the_reference_shows_every_setting_and_no_other(
    model: type[BaseModel], shown: dict[str, Any]
) -> None:
    assert set(shown) == set(model.model_fields)


@pytest.mark.parametrize(
    ("model", "place"),
    [
        (Config, ()),
        (WorkersConfig, ("workers",)),
        (StreamConfig, ("streams", "train")),
        (OnErrorConfig, ("streams", "train", "on_error")),
        (MixtureConfig, ("streams", "mixed", "dataset")),
        (SourceConfig, ("streams", "mixed", "dataset", "mixture", 0)),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_the_reference_shows_defaults(model: type[BaseModel], place: tuple[str | int, ...]) -> None:
    loaded: Any = parse_config(REFERENCE)
    for name in place:
        loaded = getattr(loaded, str(name)) if isinstance(loaded, BaseModel) else loaded[name]
    for name, field in model.model_fields.items():
        has_default = field.default is not PydanticUndefined
        if has_default and name not in ("datasets", "batch_size"):
            assert getattr(loaded, name) == field.get_default(), name
