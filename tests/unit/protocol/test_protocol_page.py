"""PROTOCOL.md and the table in code tell the same."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

from loaderd_protocol.errors import ErrorCode
from loaderd_protocol.messages import PROTOCOL_VERSION
from loaderd_protocol.rules import RULES

PAGE = (Path(__file__).parents[3] / "protocol" / "PROTOCOL.md").read_text()


def test_every_message_is_a_row_with_its_code_sender_channel_and_fields() -> None:
    rows = re.findall(r"^\| (\d+) \| `(\w+)` \| (\w+) \| (\w+) \| (.*?) \|", PAGE, re.MULTILINE)
    in_code = [
        (
            str(rule.code),
            rule.message.__name__,
            rule.sender.value,
            rule.channel.value,
            " ".join(field.name for field in dataclasses.fields(rule.message)),
        )
        for rule in RULES
    ]
    assert rows == in_code


def test_every_error_code_is_in_the_page() -> None:
    rows = re.findall(r"^\| (\d+) \| ([A-Z_]+) \|", PAGE, re.MULTILINE)
    assert rows == [(str(code.value), code.name) for code in ErrorCode]


def test_the_page_is_for_this_version() -> None:
    assert f"version {PROTOCOL_VERSION}" in PAGE.splitlines()[0]
