"""A step prints its result to standard output and its progress to standard error, and no library adds to either."""

import subprocess
import sys
from pathlib import Path

NANO = Path(__file__).with_name("nano.yaml").resolve()


def test_nothing_but_the_step_writes_to_stderr(tmp_path: Path) -> None:
    """Triton once listed sixty leaked objects there when the process ended. A step's own lines begin with the study."""
    call = [sys.executable, "-m", "softmax_bottleneck", "check", "--study", str(NANO)]
    done = subprocess.run(call, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout or done.stderr
    assert [line for line in done.stderr.splitlines() if not line.startswith("nano:")] == []
