"""What connect is told: wrong arguments are errors before any daemon is asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import loaderd
from loaderd import arguments
from loaderd_protocol.errors import DaemonNotRunning


@pytest.mark.parametrize(
    ("wrong", "error", "says"),
    [
        ({"batch_size": 1.5}, TypeError, "batch_size is 1.5; it is a whole number"),
        ({"batch_size": True}, TypeError, "batch_size is True; it is a whole number"),
        ({"batch_size": "7"}, TypeError, "batch_size is '7'; it is a whole number"),
        ({"batch_size": 0}, ValueError, "batch_size is 0; it is 1 or more"),
        ({"batch_size": 2**70}, ValueError, "batch_size is 1180591620717411303424; it is 1 or"),
        ({"prefetch": 1.5}, TypeError, "prefetch is 1.5"),
        ({"prefetch": -1}, ValueError, "prefetch is -1; it is 0 or more"),
        ({"prefetch": None}, TypeError, "prefetch is None"),
        ({"seed": 2**70}, ValueError, "seed is 1180591620717411303424"),
        ({"drop_last": "yes"}, TypeError, "drop_last is 'yes'; it is True or False"),
        ({"start": (0, 2**70)}, ValueError, "start is"),
        ({"start": (0, True)}, ValueError, "start is"),
        ({"start": "middle"}, ValueError, "start is 'middle'"),
        ({"reconnect_s": float("nan")}, ValueError, "reconnect_s is nan; it is 0 or more seconds"),
        ({"reconnect_s": "5"}, TypeError, "reconnect_s is '5'; it is a number of seconds"),
        ({"timeout_s": -1}, ValueError, "timeout_s is -1; it is 0 or more seconds"),
        ({"rank": "0", "world_size": 2}, TypeError, "rank is '0'; it is a whole number"),
        ({"rank": 0, "world_size": 0}, ValueError, "world_size is 0; it is 1 or more"),
        ({"stream": 5}, TypeError, "stream is 5; it is the name of one"),
    ],
)
def test_a_wrong_argument_is_named_with_its_value(
    tmp_path: Path, wrong: dict[str, Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error) as caught:
        loaderd.connect(**{"stream": "train", "address": tmp_path, **wrong})
    assert says in str(caught.value)


def test_numpys_integers_are_whole_numbers(tmp_path: Path) -> None:
    assert type(arguments.whole("seed", np.int64(3))) is int
    with pytest.raises(DaemonNotRunning):
        loaderd.connect("train", address=tmp_path, batch_size=np.int32(7), seed=np.uint8(3))  # type: ignore[arg-type]
