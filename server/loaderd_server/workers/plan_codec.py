"""A DatasetPlan as bytes, for the process that is to carry it out."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import msgpack

from loaderd_server.core.settings import ErrorPolicy, Mode
from loaderd_server.workers.plan import (
    DatasetPlan,
    ProcessPlan,
    SamplerPlan,
    StreamPlan,
    Target,
)


def encode_plan(plan: DatasetPlan) -> bytes:
    """The plan in msgpack: enums by value, records by name."""
    packed = msgpack.packb(asdict(plan), default=lambda enum: enum.value)
    assert isinstance(packed, bytes)
    return packed


def decode_plan(data: bytes) -> DatasetPlan:
    """The plan that ``encode_plan`` packed."""
    fields = msgpack.unpackb(data, strict_map_key=False)
    return DatasetPlan(
        name=fields["name"],
        dataset=Target(**fields["dataset"]),
        python_path=tuple(fields["python_path"]),
        streams=tuple(_stream(stream) for stream in fields["streams"]),
        process=ProcessPlan(**fields["process"]),
    )


def _stream(fields: dict[str, Any]) -> StreamPlan:
    collate = fields.pop("collate")
    return StreamPlan(
        mode=Mode(fields.pop("mode")),
        sampler=SamplerPlan(**fields.pop("sampler")),
        transforms=tuple(Target(**target) for target in fields.pop("transforms")),
        collate=None if collate is None else Target(**collate),
        on_error=ErrorPolicy(fields.pop("on_error")),
        **fields,
    )
