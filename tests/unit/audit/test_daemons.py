"""The configuration of a private daemon: the same but for the number of workers."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from loaderd_server.audit.daemons import changed
from loaderd_server.config_file import ConfigError, parse_config

TEXT = """
python_path: [code, /abs/$$olute]
memory: ${AUDIT_MEMORY:-1GiB}
workers: {count: 2, timeout_s: 5}
datasets: {a: {target: "m:a"}, b: {target: "m:b"}}
streams:
  train: {dataset: a, batch_size: 4}
  other: {dataset: b, batch_size: 4}
"""


def test_only_workers_and_the_other_streams_differ(tmp_path: Path) -> None:
    file = tmp_path / "cfg.yaml"
    file.write_text(TEXT)
    written = changed(file, "train", 7)
    assert "${AUDIT_MEMORY:-1GiB}" in written
    config = parse_config(yaml.safe_load(written))
    assert (config.workers.count, config.workers.timeout_s) == (7, 5)
    assert list(config.streams) == ["train"]
    assert config.memory == 2**30


def test_paths_count_from_the_original_files_folder(tmp_path: Path) -> None:
    file = tmp_path / "cfg.yaml"
    file.write_text(TEXT)
    config = parse_config(yaml.safe_load(changed(file, "train", 1)))
    assert config.python_path == [str(tmp_path / "code"), "/abs/$olute"]


def test_a_file_without_workers_gets_them(tmp_path: Path) -> None:
    file = tmp_path / "cfg.yaml"
    file.write_text("streams: {train: {dataset: {target: 'm:a'}, batch_size: 4}}")
    config = parse_config(yaml.safe_load(changed(file, "train", 3)))
    assert config.workers.count == 3
    assert config.python_path == [str(tmp_path)]


def test_slots_that_are_too_few_for_the_workers_are_a_configuration_error(tmp_path: Path) -> None:
    file = tmp_path / "cfg.yaml"
    file.write_text("streams: {train: {dataset: {target: 'm:a'}, batch_size: 4, slots: 4}}")
    with pytest.raises(ConfigError, match="workers"):
        parse_config(yaml.safe_load(changed(file, "train", 3)))
