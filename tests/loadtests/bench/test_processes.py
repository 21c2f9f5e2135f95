"""Reading a process tree's cost from /proc, and ending what was started."""

import os
from pathlib import Path

import pytest

from loadtests.bench.processes import (
    PAGE_BYTES,
    TICKS_PER_S,
    Process,
    cpu_ns,
    idle_s,
    is_running,
    pinned,
    rss_bytes,
    run_ns,
    tree,
)

STAT = "cpu  9 9 9 9 9 9 9 9 9 9\ncpu0 100 1 50 800 20 2 3 4 0 0\ncpu1 5 0 5 90 0 0 0 0 0 0\nintr 1 2 3\n"


def write_proc(folder: Path, pid: int, threads: dict[int, int], *, children: str = "", pages: int = 0) -> None:
    """Lay out one process as the kernel does: threads are their ids and run times in nanoseconds."""
    for thread, ran in threads.items():
        task = folder / str(pid) / "task" / str(thread)
        task.mkdir(parents=True)
        (task / "schedstat").write_text(f"{ran} 777 42\n")
        (task / "children").write_text(children if thread == pid else "")
    (folder / str(pid) / "statm").write_text(f"99999 {pages} 12 1 0 8 0\n")


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """A parent 10 of two threads, its child 20 and grandchild 30."""
    write_proc(tmp_path, 10, {10: 1_000, 11: 200}, children="20 ", pages=3)
    write_proc(tmp_path, 20, {20: 30}, children="30 ", pages=2)
    write_proc(tmp_path, 30, {30: 4}, pages=1)
    write_proc(tmp_path, 40, {40: 500_000}, pages=100)
    return tmp_path


def test_run_time_is_the_first_field_and_waiting_is_not_counted() -> None:
    assert run_ns("123456789 987654321 55\n") == 123_456_789


def test_a_tree_is_a_process_and_all_its_descendants(proc: Path) -> None:
    assert tree(10, proc) == [10, 20, 30]


def test_a_process_that_waits_to_be_reaped_has_ended(proc: Path) -> None:
    (proc / "10" / "stat").write_text("10 (odd) name) S 1 10 10 0 -1\n")
    (proc / "20" / "stat").write_text("20 (sleep) Z 10 10 10 0 -1\n")
    assert [is_running(pid, proc) for pid in (10, 20, 30)] == [True, False, False]


def test_cpu_is_summed_over_every_thread_of_the_tree(proc: Path) -> None:
    assert cpu_ns(10, proc) == 1_234


def test_memory_is_summed_over_the_tree_in_bytes(proc: Path) -> None:
    assert rss_bytes(10, proc) == 6 * PAGE_BYTES


def test_a_process_that_is_gone_costs_nothing(proc: Path) -> None:
    assert (tree(99, proc), cpu_ns(99, proc), rss_bytes(99, proc)) == ([], 0, 0)


def test_a_child_that_ends_while_it_is_read_is_left_out(proc: Path) -> None:
    (proc / "30" / "task" / "30" / "schedstat").unlink()
    (proc / "30" / "statm").unlink()
    assert cpu_ns(10, proc) == 1_230
    assert rss_bytes(10, proc) == 5 * PAGE_BYTES


def test_a_core_that_waits_for_disks_is_idle() -> None:
    assert idle_s(0, STAT) == 820 / TICKS_PER_S
    assert idle_s(1, STAT) == 90 / TICKS_PER_S


def test_pinning_is_undone_after() -> None:
    before = os.sched_getaffinity(0)
    with pinned(min(before)):
        assert os.sched_getaffinity(0) == {min(before)}
    assert os.sched_getaffinity(0) == before


def test_a_process_is_gone_with_its_children_on_the_way_out(tmp_path: Path) -> None:
    core = min(os.sched_getaffinity(0))
    with Process(["sh", "-c", "sleep 60 & echo started; wait"], core=core, log=tmp_path / "log") as parent:
        while parent.last_words() != "started":  # said after the child is there
            assert not parent.has_ended()
        members = tree(parent.pid)
        assert len(members) == 2
        assert os.sched_getaffinity(members[1]) == {core}
    assert not any(is_running(member) for member in members)
