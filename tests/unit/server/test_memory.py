"""The memory check reads every limit there is and says which one refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from loaderd_protocol.errors import OutOfMemory
from loaderd_server.memory import Budget, Machine

MIB = 2**20


def machine(
    root: Path, *, total: int = 1000, available: int = 500, cgroup: str = "0::/\n"
) -> Machine:
    """A made-up /proc of a machine with so many MiB."""
    proc = root / "proc"
    (proc / "self").mkdir(parents=True)
    (proc / "meminfo").write_text(
        f"MemTotal:  {total * 1024} kB\nMemFree: 1 kB\nMemAvailable: {available * 1024} kB\n"
    )
    (proc / "self" / "cgroup").write_text(cgroup)
    (root / "cg").mkdir()
    return Machine(proc, root / "cg")


def group(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text + "\n")


def test_without_cgroups_the_machine_is_the_limit(tmp_path: Path) -> None:
    room = machine(tmp_path).available()
    assert room.size_bytes == 500 * MIB
    assert "MemAvailable" in room.by


def test_a_v2_group_counts_less_its_reclaimable_cache(tmp_path: Path) -> None:
    made = machine(tmp_path, cgroup="0::/a/b\n")
    group(
        made.cgroups / "a" / "b", memory__max=str(100 * MIB), memory__current=str(90 * MIB),
        memory__stat=f"anon 1\ninactive_file {30 * MIB}",
    )  # fmt: skip
    room = made.available()
    assert room.size_bytes == 40 * MIB
    assert room.by.endswith("a/b")


def test_every_ancestor_counts(tmp_path: Path) -> None:
    made = machine(tmp_path, cgroup="0::/a/b\n")
    group(made.cgroups / "a" / "b", memory__max="max", memory__current="5")
    group(made.cgroups / "a", memory__max=str(64 * MIB), memory__current=str(48 * MIB))
    assert made.available().size_bytes == 16 * MIB


def test_a_v1_group_counts(tmp_path: Path) -> None:
    made = machine(tmp_path, cgroup="3:cpu:/x\n5:memory:/docker/1\n")
    group(
        made.cgroups / "memory" / "docker" / "1", memory__limit_in_bytes=str(32 * MIB),
        memory__usage_in_bytes=str(12 * MIB), memory__stat=f"total_inactive_file {2 * MIB}",
    )  # fmt: skip
    assert made.available().size_bytes == 22 * MIB


def test_a_container_that_sees_only_its_own_root_counts(tmp_path: Path) -> None:
    made = machine(tmp_path, cgroup="0::/../outside/of/view\n")
    group(made.cgroups, memory__max=str(20 * MIB), memory__current="0")
    assert made.available().size_bytes == 20 * MIB


def test_a_hybrid_tree_reads_both(tmp_path: Path) -> None:
    made = machine(tmp_path, cgroup="1:memory:/\n0::/x\n")
    group(made.cgroups / "memory", memory__limit_in_bytes=str(50 * MIB), memory__usage_in_bytes="0")
    group(made.cgroups / "unified" / "x", memory__max=str(10 * MIB), memory__current="0")
    assert made.available().size_bytes == 10 * MIB


def test_a_budget_larger_than_the_machine_is_refused_with_the_numbers(tmp_path: Path) -> None:
    budget = Budget(2000 * MIB, 0, machine(tmp_path))
    with pytest.raises(OutOfMemory, match=r"memory: 1\.953 GiB is more than .*1000 MiB.*`memory`"):
        budget.check_machine()


def test_an_arena_over_the_budget_is_refused_with_the_numbers(tmp_path: Path) -> None:
    budget = Budget(16 * MIB, 0, machine(tmp_path))
    budget.take(10 * MIB, "stream a", "`slots`")
    with pytest.raises(OutOfMemory, match=r"stream b needs 8 MiB; .*6 MiB are left.*`slots`"):
        budget.take(8 * MIB, "stream b", "`slots`")
    budget.give_back(10 * MIB)
    budget.take(16 * MIB, "stream b", "`slots`")


def test_an_arena_over_what_the_machine_leaves_is_refused_with_the_limit(tmp_path: Path) -> None:
    budget = Budget(900 * MIB, 100 * MIB, machine(tmp_path))
    with pytest.raises(OutOfMemory, match=r"MemAvailable\) leaves 400 MiB \(after `reserve` 100"):
        budget.take(450 * MIB, "stream a", "`slots`")


def test_this_machine_can_be_read() -> None:
    found = Machine()
    assert 0 < found.available().size_bytes <= found.total_bytes()
