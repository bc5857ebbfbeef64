"""Memory that is freed stays with the process once it is told so."""

import subprocess
import sys
from pathlib import Path

import pytest
from softmax_bottleneck.jobs import out_of_memory

HELD = """
import sys, torch
from pathlib import Path
from softmax_bottleneck.jobs import out_of_memory
def resident_mb():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 1e6
can = sys.argv[1] == "default" or out_of_memory.keep_freed()
torch.ones(1)
before = resident_mb()
del [torch.ones(5_000_000) for _ in range(5)][:]  # 20 MB each
print(resident_mb() - before if can else "cannot")
"""


def held_mb(how: str) -> str:
    """What a process still has of 100 MB that it has freed."""
    done = subprocess.run([sys.executable, "-c", HELD, how], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="this system does not tell what a process holds")
def test_what_is_freed_is_kept() -> None:
    kept = held_mb("kept")
    if kept == "cannot":
        pytest.skip("this C library cannot be told to keep memory")
    assert float(held_mb("default")) < 30 and float(kept) > 70


def test_where_the_library_has_no_such_switch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(out_of_memory.ctypes, "CDLL", lambda name: object())
    assert out_of_memory.keep_freed() is False
