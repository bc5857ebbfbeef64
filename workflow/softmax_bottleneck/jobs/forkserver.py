"""A server that forks the steps of a workflow from a process that has imported their packages already.

Importing torch and this package takes two seconds, which is a large part of a small step. Therefore `reproduce` starts
one process that imports them once. A step that finds the server's address in its environment sends it its command line,
environment, working directory and standard files. A fork of the server then does the work. The process of the step only
waits: it passes signals on to the fork, and ends with its exit code. If it is killed, so is the fork.

A step does its own work if there is no server, or if a fork would compute with another interpreter, another number of
threads, older code or older files in config/. Every step imports this module first, so that it imports only the
standard library.
"""

import gc
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import BinaryIO, NoReturn

PACKAGE = Path(__file__).parents[1]
CONFIG = PACKAGE.parents[1] / "config"
VARIABLE = "SOFTMAX_BOTTLENECK_FORKSERVER"  # the hexadecimal address of the server
# Read when a library is loaded; Snakemake sets them for every step.
LIBRARIES = ("OMP_NUM", "OPENBLAS_NUM", "MKL_NUM", "GOTO_NUM", "VECLIB_MAXIMUM", "NUMEXPR_NUM")
COLLECT_AFTER = 5000  # objects; at the usual 700, the garbage collector makes importing torch a tenth slower
PROGRAM = "from softmax_bottleneck import __main__ as program; program.forkserver.serve({}, program.main)"
STEPS = ("train", "finetune", "dynamic", "fit", "measure")
MEASUREMENTS = ("evaluate", "spectrum", "wordsim")  # which `measure` imports when it takes them
ACCEPTED, GO = b"+", b"\0"
FAILED = 1  # exit code of a step whose fork raised an exception or was killed


def _conditions() -> str:
    """Return a text that is equal in two processes if the same command line has the same result in both."""
    threads = [os.environ.get(f"{name}_THREADS") for name in LIBRARIES]
    files = (*PACKAGE.rglob("*.py"), *CONFIG.rglob("*.yaml"))
    return json.dumps([sys.executable, threads, sorted((str(path), path.stat().st_mtime_ns) for path in files)])


def _is_own(peer: socket.socket) -> bool:
    """Return True if the process at the other end is this user's: any user can connect to an abstract address."""
    return bool(struct.unpack("3i", peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1] == os.getuid())


def run_in_fork(words: Sequence[str]) -> int | None:
    """Run a command line in a fork of the server; return its exit code, or None if this process has to run it."""
    if VARIABLE not in os.environ:
        return None
    with socket.socket(socket.AF_UNIX) as server:
        answer = b""
        with suppress(OSError):
            server.connect(bytes.fromhex(os.environ[VARIABLE]))
            if _is_own(server):
                socket.send_fds(server, [b" "], [0, 1, 2])
                server.sendall(json.dumps([_conditions(), words, str(Path.cwd()), dict(os.environ)]).encode() + b"\n")
                answer = server.recv(1)
        if answer != ACCEPTED:
            return None
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
            signal.signal(number, lambda number, _: server.sendall(bytes([number])))
        server.sendall(GO)
        code = server.recv(1)
        return code[0] if code else FAILED


# --- the server -----------------------------------------------------------------------------------------------------
@contextmanager
def started(threads: int, log: BinaryIO, preexec_fn: Callable[[], object] | None) -> Iterator[dict[str, str]]:
    """Run a server inside the context; yield the environment variable that tells steps its address.

    Only Linux has abstract addresses and descriptors of processes. On other systems, there is no server, and the dict
    is empty.

    Args:
        threads: number of threads of the steps that the server accepts.
        log: file for everything that the server prints.
        preexec_fn: function that the server's process calls before it starts.
    """
    if sys.platform != "linux":
        yield {}
        return
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(b"")  # the kernel chooses a free address
        listener.listen(128)
        number, address = listener.fileno(), listener.getsockname().hex()
        environment = os.environ | {f"{name}_THREADS": str(threads) for name in LIBRARIES}
        server = subprocess.Popen([sys.executable, "-c", PROGRAM.format(number)], env=environment, pass_fds=[number],
                                  stdout=log, stderr=log, start_new_session=True, preexec_fn=preexec_fn)  # fmt: skip
    try:
        yield {VARIABLE: address}
    finally:
        server.kill()
        server.wait()


def serve(descriptor: int, run: Callable[[list[str]], int]) -> NoReturn:
    """Fork a process for every step that connects to the socket with this descriptor; `run` runs its command line."""
    listener, conditions = socket.socket(fileno=descriptor), _conditions()
    gc.set_threshold(COLLECT_AFTER)
    _prepare()
    gc.freeze()  # else the garbage collectors of the forks would copy this memory
    signal.signal(signal.SIGCHLD, _reap)
    while True:
        with listener.accept()[0] as step:
            if not os.fork():
                _work(step, conditions, run)


def _prepare() -> None:
    """Import and cache what every fork needs, such as schemas and the declarations and fingerprints of heads."""
    from softmax_bottleneck.store.errors import ExpectedError
    from softmax_bottleneck.store.fingerprint import step_code
    from softmax_bottleneck.study import load_study

    for module in (*(f"steps.{step}" for step in STEPS), *(f"measuring.{name}" for name in MEASUREMENTS)):
        import_module(f"softmax_bottleneck.{module}")
    for step in STEPS:
        step_code(step)
    with suppress(ExpectedError):
        load_study(CONFIG / "demo.yaml")


def _reap(*_: object) -> None:
    """Let forks that have ended disappear; their CPU time counts as that of the server."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _work(step: socket.socket, conditions: str, run: Callable[[list[str]], int]) -> NoReturn:
    """Run the command line of a step in this fork, unless it has other conditions, and end this process."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _, descriptors, *_ = socket.recv_fds(step, 1, 3)
    theirs, words, folder, environment = json.loads(step.makefile().readline())
    if not _is_own(step) or not theirs == conditions == _conditions():
        os._exit(0)  # the step has not been accepted, and does its own work
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    del os.environ[VARIABLE]  # processes that this step starts inherit its open files
    step.sendall(ACCEPTED)
    step.recv(len(GO))  # from now on, the step passes signals on
    threading.Thread(target=_obey, args=(step,), daemon=True).start()
    try:
        code = run(words)
    except BaseException as error:  # left to propagate, it would close the socket, at which `_obey` kills this process
        sys.excepthook(type(error), error, error.__traceback__)
        code = FAILED
    sys.stdout.flush()
    step.sendall(bytes([code]))
    os._exit(code)


def _obey(step: socket.socket) -> None:
    """Send this process the signals that its step passes on; kill it if the step has been killed."""
    with suppress(OSError):
        while number := step.recv(1):
            os.kill(os.getpid(), number[0])
    os.kill(os.getpid(), signal.SIGKILL)
