"""Run one of three leases of a quarter of an hour on a GPU, rehearsed on a CPU (docs/gpu.md).

python benchmarks/gpu_programme.py pack --mirror FOLDER   # here: .lease, with wheels, tokens and word similarities
bash benchmarks/gpu_programme.sh A --out FOLDER           # there: results go to FOLDER as they come
bash benchmarks/gpu_programme.sh A --dry                  # here, on two cores, in small

A  the main paper at its size: a gate that measures, then Softmax (and LMS-PLIF beside it, if the gate allows) trained
   for as many epochs as fit; perplexities and ranks of what has ended; updates timed against the plain ones
B  the main job on a GPU (study, leases, a kill, the same command again), the updates of six heads in four precisions,
   spectra at both published sizes, then MoS
C  LMS-PLIF as in A

A lease stops itself before --seconds are over, training STOP_S earlier. The same command again on the same machine
resumes from results/lease and results/runs: parts that have ended are not repeated, and one that was cut off is.
"""

import argparse
import dataclasses
import functools
import json
import os
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
CARRIED = ROOT / ".lease"
STUDY = ROOT / "config" / "published-gpu.yaml"
# Packages of the lock that a GPU machine with PyTorch has, with what only they need; and tools of developers.
THERE = """torch numpy scipy pandas matplotlib pyarrow pillow seaborn contourpy cycler fonttools kiwisolver pyparsing
    python-dateutil pytz six packaging filelock fsspec jinja2 markupsafe mpmath networkx sympy setuptools pip wheel
    certifi charset-normalizer idna requests urllib3 triton cuda-bindings cuda-pathfinder"""
DEVELOPING = """mypy mypy-extensions ruff black shfmt-py snakefmt import-linter grimp playwright axe-playwright-python
    greenlet pandas-stubs scipy-stubs types-pyyaml optype numpy-typing-compat librt ast-serialize pytest pytest-xdist
    hypothesis execnet iniconfig pluggy sortedcontainers pytokens pathspec"""
WITHOUT_WHEEL = ("connection-pool",)  # built here, in pure Python
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64", "manylinux_2_26_x86_64")
PART_MIB = 15  # files that come back are smaller
GATE_UPDATES, PROFILED = 60, 20
SHARED_RATE = 0.7  # a second run is trained beside the first if the first keeps this share of its speed
AVERAGED_FROM = 0.2  # of all epochs, as published: 200 of 1,000
GATE_S = 45.0
STARTUP_S = 25.0  # of a training process: imports, and capturing every chunk length twice
STOP_S = 45.0  # before the end of a call: training stops and saves, and what has ended is measured and packed
MEASURE_S = 30.0  # the least time in which perplexities and ranks are begun
SAFETY = 0.97
# Shares of lease B's call that are left when it stops the main job, and when it stops timing: MoS has the second one.
AFTER_MAIN_JOB, AFTER_SPEED = 0.75, 0.5


@dataclass
class Lease:
    """The time and the folders of one call.

    Attributes:
        seconds: how long the call may take, from `began`.
        back: folder of the few files that come back: lease.tar.gz, and weights.
        dry: True to do everything in small on a CPU.
        study: the study that is trained.
        out: folder of logs, curves and timings, all of which are packed into lease.tar.gz; a later call reads them.
        paths: {model: path of its run} of the runs that are trained.
        faults: what did not end as it should; with any, the call ends with exit code 1.
    """

    seconds: float
    back: Path
    dry: bool
    study: Path
    began: float = field(default_factory=time.monotonic)
    paths: dict[str, str] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    def left_s(self) -> float:
        return self.seconds - (time.monotonic() - self.began)

    def log(self, line: str) -> None:
        print(f"[{time.monotonic() - self.began:6.1f} s] {line}", flush=True)

    def expect(self, holds: bool, fault: str) -> None:
        """Log a fault and remember it unless `holds` is true. The lease continues, because its time is scarce."""
        if not holds:
            self.faults.append(fault)
            self.log(f"fault: {fault}")

    def write(self, name: str, facts: Any) -> None:
        temporary = self.out.with_suffix(".tmp")
        temporary.write_text(json.dumps(facts, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        temporary.replace(self.out / name)

    def once(self, part: str, work: Callable[[], bool]) -> None:
        """Do a part unless a call has ended it before; `work` returns False if the next call must repeat it."""
        file = self.out / "ended.json"
        ended = json.loads(file.read_text()) if file.exists() else []
        if part in ended:
            self.log(f"skipped, ended before: {part}")
        elif work():
            self.write(file.name, [*ended, part])

    @property
    def out(self) -> Path:
        return ROOT / "results" / "lease" / ("dry" if self.dry else "out")

    @property
    def device(self) -> str:
        return "cpu" if self.dry else "cuda"


# --- before the lease -----------------------------------------------------------------------------------------------
def pack(mirror: Path) -> None:
    """Write .lease: wheels of what a GPU machine may lack (Python 3.12), tokens of ptb and the word similarities."""
    shutil.rmtree(CARRIED, ignore_errors=True)
    pip = [sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", "--no-deps",
           "--only-binary=:all:", "--python-version", "3.12", "--implementation", "cp"]  # fmt: skip
    pip += [word for platform in PLATFORMS for word in ("--platform", platform)]
    pins = [word for word in (ROOT / "envs" / "requirements.lock").read_text().split() if "==" in word]
    left_out = {*THERE.split(), *DEVELOPING.split()}
    wanted = [pin for pin in pins if pin.partition("==")[0] not in left_out]
    sources = [pin for pin in wanted if pin.partition("==")[0] in WITHOUT_WHEEL]
    subprocess.run([*pip, "-d", str(CARRIED / "wheels"), *(pin for pin in wanted if pin not in sources)], check=True)
    built = [sys.executable, "-m", "pip", "wheel", "-q", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*built, "-w", str(CARRIED / "wheels"), *sources], check=True)
    module = [sys.executable, "-m", "softmax_bottleneck"]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "workflow")}
    for step, dataset in (("download", "ptb"), ("tokenise", "ptb"), ("download", "word-sim")):
        options = ["--study", str(STUDY), "--dataset", dataset, "--set", f"mirror={mirror.resolve()}"]
        subprocess.run([*module, step, *options], check=True, env=environment, cwd=ROOT)
    for part in ("tokens/ptb", "corpora/word-sim"):
        shutil.copytree(ROOT / "results" / part, CARRIED / "results" / part)
    for file in (file for name in ("ptb", "word-sim") for file in sorted((mirror / name).iterdir())):
        target = CARRIED / "mirror" / file.parent.name / file.name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(file.read_bytes())
    size = sum(file.stat().st_size for file in CARRIED.rglob("*") if file.is_file()) / 2**20
    print(f"{CARRIED}: {size:.1f} MiB; name it in what is carried to the GPU machine")


def unpack(lease: Lease) -> None:
    """Copy the carried tokens to results/, or make those of the dry study."""
    if lease.dry:
        for step in ("download", "tokenise"):
            lease.expect(command(lease, step, "--dataset", "truth-nano") == 0, f"{step} failed")
        return
    shutil.copytree(CARRIED / "results", ROOT / "results", dirs_exist_ok=True)


DRY_STUDY = """extends: {study}
study: {name}-dry
datasets: [ptb, wikitext-2, truth-nano]
seeds: [1]
settings:
  - when: {{dataset: truth-nano}}
    body: {{embedding_size: 8, hidden_size: 12, layers: 2, context_size: null, dropout_input: 0.1, dropout_hidden: 0.1}}
    schedule: {{batch_size: 8, eval_batch_size: 8, bptt: 12, learning_rate: 5, precision: fp32}}
experiments:
  parthiban2021-table2: {{datasets: [truth-nano], models: [softmax, lms-plif, mos]}}
"""


# --- the gate -------------------------------------------------------------------------------------------------------
def build_trainer(model: str, precision: str, device: str, study_file: Path) -> Any:
    """Return a trainer of a model of the study at its first seed, on the carried text."""
    import torch
    from softmax_bottleneck.corpora import corpus
    from softmax_bottleneck.study import load_study
    from softmax_bottleneck.training.trainer import Trainer

    study = load_study(study_file)
    run = next(run for run in study.needed if run.model == model)
    schedule = dataclasses.replace(run.schedule, precision=precision, epochs=1000, switch_after_epoch=1000)
    run = dataclasses.replace(run, schedule=schedule)
    return Trainer(run, corpus.load_for(study, run), torch.device(device))


@contextmanager
def settled(trainer: Any) -> Iterator[None]:
    """Enter the numerics of a training step."""
    from softmax_bottleneck.jobs.numerics import numerics

    with numerics(trainer.run, trainer.device):
        yield


def wait(device: str) -> None:
    import torch

    if device == "cuda":
        torch.cuda.synchronize()


def losses_of(trainer: Any, updates: int) -> list[float]:
    """Do some updates and return their losses in nats."""
    found = []
    for _ in range(updates):
        before = trainer.tally.block_sum.item()
        trainer.update()
        found.append(trainer.tally.block_sum.item() - before)
    return found


def timed_updates(trainer: Any, updates: int, device: str) -> float:
    """Return seconds per update of the first chunks of the text, which have been captured already."""
    trainer.place = dataclasses.replace(trainer.place, chunk=0)
    wait(device)
    began = time.perf_counter()
    for _ in range(updates):
        trainer.update()
    wait(device)
    return (time.perf_counter() - began) / updates


def validation_s(trainer: Any) -> float:
    """Return the seconds of a validation as training does it, after one that warms up."""
    trainer.valid_loss()
    began = time.perf_counter()
    trainer.valid_loss()
    return time.perf_counter() - began


def profile(model: str, device: str, study: Path) -> None:
    """Print a table of the operations that take the most time in some updates, without graphs."""
    from torch.profiler import ProfilerActivity, profile

    trainer = build_trainer(model, "fp32" if device == "cpu" else "tf32", device, study)
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device == "cuda" else [])]
    with settled(trainer):
        trainer.replayed = None
        timed_updates(trainer, 4, device)
        with profile(activities=activities) as recorded:
            timed_updates(trainer, 4 if device == "cpu" else PROFILED, device)
    key = f"self_{device}_time_total"
    print(recorded.key_averages().table(sort_by=key, row_limit=30, max_name_column_width=70))


def solo(lease: Lease, model: str) -> dict[str, Any]:
    """Compare and time the updates of fp32 and TF32 with nothing else on the device; validation and a profile too."""
    updates, facts = (6 if lease.dry else GATE_UPDATES), {}
    for name, precision in (("fp32", "fp32"), ("tf32", "tf32"), ("tf32 again", "tf32")):
        trainer = build_trainer(model, "fp32" if lease.dry else precision, lease.device, lease.study)
        with settled(trainer):
            losses = losses_of(trainer, updates)
            row: dict[str, Any] = {"losses_nats": losses, "graphs_refused": trainer.graphs_refused}
            row["ms_per_update"] = 1e3 * timed_updates(trainer, updates, lease.device)
            if name == "tf32":
                row |= {"validation_s": validation_s(trainer), "updates_per_epoch": len(trainer.chunks)}
        facts[name] = row
        lease.log(f"gate: {model} {name}: {row['ms_per_update']:.2f} ms an update, last loss {losses[-1]:.4f}")
    first, second = facts["tf32"]["losses_nats"], facts["tf32 again"]["losses_nats"]
    gap = max(abs(a - b) for a, b in zip(facts["fp32"]["losses_nats"], first, strict=True))
    return facts | {"same_bits_twice": first == second, "largest_loss_difference_nats": gap}


def rate(model: str, folder: Path, device: str, study: Path, seconds: float) -> None:
    """Be one of several processes on the device: print seconds per update and per validation while all are at work."""
    until(folder / "build")
    trainer = build_trainer(model, "fp32" if device == "cpu" else "tf32", device, study)
    warm = 6 if device == "cpu" else GATE_UPDATES
    with settled(trainer):
        losses_of(trainer, warm)
        (folder / f"ready-{model}").touch()
        until(folder / "go")
        began, total, turns = time.perf_counter(), 0.0, 0
        while time.perf_counter() - began < seconds or not turns:
            total, turns = total + timed_updates(trainer, warm, device), turns + 1
        facts = {"s_per_update": total / turns, "validation_s": validation_s(trainer)}
        print(json.dumps(facts | {"updates_per_epoch": len(trainer.chunks)}))


def until(file: Path, seconds: float = 120.0) -> None:
    """Wait for a file."""
    end = time.monotonic() + seconds
    while not file.exists():
        if time.monotonic() > end:
            sys.exit(f"{file}: not there after {seconds:.0f} s")
        time.sleep(0.02)


def start(what: str, model: str, folder: Path, lease: Lease) -> subprocess.Popen[str]:
    """Start this script as `rate` or `profile` in a process of its own."""
    words = [what, "--model", model, "--folder", str(folder), "--study", str(lease.study)]
    words += ["--dry"] if lease.dry else []
    return subprocess.Popen([sys.executable, __file__, *words], stdout=subprocess.PIPE, text=True)


def together(lease: Lease, models: Sequence[str], folder: Path, processes: Sequence[subprocess.Popen[str]]) -> Any:
    """Return {model: rates} of processes that work on the device at the same time; a failed one is left out."""
    (folder / "build").touch()
    for model, process in zip(models, processes, strict=True):
        while not (folder / f"ready-{model}").exists() and process.poll() is None:
            time.sleep(0.05)
    (folder / "go").touch()
    found = {}
    for model, process in zip(models, processes, strict=True):
        answer, _ = process.communicate()
        if process.returncode == 0:
            found[model] = json.loads(answer.splitlines()[-1])
            lease.log(f"gate: {model} beside the others: {1e3 * found[model]['s_per_update']:.2f} ms an update")
    return found


def epoch_s(facts: dict[str, Any]) -> float:
    return float(facts["s_per_update"] * facts["updates_per_epoch"] + facts["validation_s"])


def gate(lease: Lease, models: Sequence[str]) -> dict[str, Any]:
    """Measure the first model alone and all together; return and store the epochs of each model to be trained.

    There are none if too little time is left. A later call gets the stored ones, because they are part of the run_id.
    """
    stored = lease.out / f"gate-{lease.study.stem}-{'-'.join(models)}.json"
    if stored.exists():
        lease.log("skipped, ended before: gate")
        return dict(json.loads(stored.read_text()))
    if lease.left_s() < GATE_S + STARTUP_S + STOP_S:
        lease.log("no time is left to measure and train")
        return {"epochs": {}}
    folder = lease.out.parent / "meet"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    processes = [start("rate", model, folder, lease) for model in models] if len(models) > 1 else []
    try:
        alone = solo(lease, models[0])
        shared = together(lease, models, folder, processes) if processes else {}
    finally:
        for process in processes:
            process.kill()
    single = {key: alone["tf32"][key] for key in ("updates_per_epoch", "validation_s")}
    single["s_per_update"] = alone["tf32"]["ms_per_update"] / 1e3
    kept = single["s_per_update"] / shared[models[0]]["s_per_update"] if models[0] in shared else None
    is_shared = len(shared) == len(models) and kept is not None and (kept >= SHARED_RATE or lease.dry)
    rates = shared if is_shared else {models[0]: single}
    for_training_s = lease.left_s() - STARTUP_S - STOP_S
    epochs = {model: max(5, int(SAFETY * for_training_s / epoch_s(facts))) for model, facts in rates.items()}
    if lease.dry:
        epochs = dict.fromkeys(epochs, 5)
    facts = {"alone": alone, "together": shared, "speed_kept_beside_the_others": kept, "epochs": epochs}
    facts["epoch_s"] = {model: epoch_s(rate) for model, rate in rates.items()}
    lease.write(stored.name, facts)
    lease.log(f"gate: epochs {epochs}; share of its speed that the first model keeps beside others: {kept}")
    return facts


def leased_study(lease: Lease, epochs: dict[str, int]) -> Path:
    """Write the study that is trained: the declared one with the epochs that the gate found."""
    layers = [
        f"  - when: {{model: {model}}}\n"
        f"    schedule: {{epochs: {count}, switch_after_epoch: {max(1, round(AVERAGED_FROM * count))}}}\n"
        for model, count in epochs.items()
    ]
    file = lease.study.with_name(f"{lease.study.stem}.lease.yaml")
    file.write_text(f"extends: {lease.study.name}\nstudy: {lease.study.stem}\nsettings:\n{''.join(layers)}")
    shutil.copy(file, lease.out)
    return file


# --- parts ----------------------------------------------------------------------------------------------------------
def command(lease: Lease, *words: str, study: Path | None = None) -> int:
    done = subprocess.run([sys.executable, "-m", "softmax_bottleneck", words[0], "--study", str(study or lease.study),
                           *words[1:]], cwd=ROOT)  # fmt: skip
    return done.returncode


def runs_of(study_file: Path, models: Sequence[str]) -> dict[str, str]:
    """Return {model: path of its run}."""
    from softmax_bottleneck.study import load_study

    return {run.model: run.path for run in load_study(study_file).needed if run.model in models}


def train(lease: Lease, study: Path) -> None:
    """Train the lease's runs at the same time on the one device; stop and save them STOP_S before the call's end."""
    paths = {model: path for model, path in lease.paths.items() if not (run_folder(path) / "done.json").exists()}
    if paths and lease.left_s() < STARTUP_S + STOP_S:
        lease.log("no time is left to train")
        return
    environment = os.environ | {"SOFTMAX_BOTTLENECK_GPU_IS_GIVEN": "1"}
    processes = {}
    for model, path in paths.items():
        log = (lease.out / f"train-{model}.log").open("a")
        words = ["train", "--study", str(study), "--run", path, "--diverged-ok"]
        processes[model] = subprocess.Popen([sys.executable, "-m", "softmax_bottleneck", *words], cwd=ROOT,
                                            env=environment, stdout=log, stderr=subprocess.STDOUT)  # fmt: skip
    while any(process.poll() is None for process in processes.values()) and lease.left_s() > STOP_S:
        time.sleep(1)
        copy_curves(lease)
    codes = {model: stopped(process, 20.0) for model, process in processes.items()}
    copy_curves(lease)
    lease.log(f"training ended with {codes or 'nothing to do'} (143: stopped and saved)")
    lease.expect(set(codes.values()) <= {0, 143}, f"training ended with {codes}")


def stopped(process: subprocess.Popen[Any], within_s: float) -> int:
    """Stop a process by SIGTERM, or by SIGKILL if it is still there after `within_s`; return its exit code."""
    process.terminate()
    try:
        return process.wait(timeout=within_s)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def run_folder(path: str) -> Path:
    return ROOT / "results" / "runs" / path


def copy_curves(lease: Lease) -> None:
    for model, path in lease.paths.items():
        file = run_folder(path) / "epochs.jsonl"
        if file.exists():
            (lease.out / f"epochs-{model}.jsonl").write_bytes(file.read_bytes())


def measure(lease: Lease, study: Path) -> None:
    """Take the perplexities and ranks of the runs that have ended, all at the same time."""
    environment = os.environ | {"SOFTMAX_BOTTLENECK_GPU_IS_GIVEN": "1", "OMP_NUM_THREADS": "6"}
    ended = [path for path in lease.paths.values() if (run_folder(path) / "done.json").exists()]
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "softmax_bottleneck", "measure", "--study", str(study), "--run", path],
            cwd=ROOT,
            env=environment,
        )
        for path in ended
    ]
    for process in processes:
        try:
            process.wait(timeout=max(5.0, lease.left_s() - 10))
        except subprocess.TimeoutExpired:
            process.terminate()
            lease.log("a measurement was stopped: no time is left")


def pack_records(lease: Lease) -> None:
    """Write lease.tar.gz: logs, timings, and the runs' folders without weights, hidden states and resume states."""
    heavy, target = {"hidden.npz", "model.safetensors"}, lease.back / "lease.tar.gz"
    with tarfile.open(target, "w:gz") as archive:
        archive.add(lease.out, "out")
        for path in lease.paths.values():
            for file in sorted(run_folder(path).rglob("*")):
                if file.is_file() and not heavy & {file.name, file.stem} and not file.name.startswith((".", "resume-")):
                    archive.add(file, file.relative_to(ROOT))
    lease.log(f"lease.tar.gz: {target.stat().st_size / 2**20:.2f} MiB")


def pack_weights(lease: Lease, model: str) -> None:
    """Write the weights of a run, if it has ended, in float16, in parts that are small enough to come back."""
    import safetensors.torch

    folder = run_folder(lease.paths[model])
    file = folder / "model.safetensors"
    if not file.exists() or not (folder / "done.json").exists():
        return
    tensors = {name: tensor.half().contiguous() for name, tensor in safetensors.torch.load_file(file).items()}
    data, size = safetensors.torch.save(tensors), PART_MIB * 2**20
    for number, begin in enumerate(range(0, len(data), size)):
        (lease.back / f"weights-{model}-{number}.part").write_bytes(data[begin : begin + size])
    lease.log(f"weights of {model} in float16: {len(data) / 2**20:.1f} MiB")


def speed(lease: Lease, names: Sequence[str], until_left_s: float = 8.0) -> None:
    """Time pieces of benchmarks/gpu.py, each kind in its own process, while there is time."""
    for name in names:
        lease.once(f"timed: {name}", functools.partial(timed, lease, name, until_left_s))


def timed(lease: Lease, name: str, until_left_s: float) -> bool:
    """Time the pieces whose names begin with `name`, except those that are timed; return True if all are."""
    seconds = lease.left_s() - until_left_s
    if seconds < 32:
        lease.log(f"not timed: {name}")
        return False
    words = [sys.executable, str(ROOT / "benchmarks" / "gpu.py"), "--only", name, "--quick", "--out", str(lease.out)]
    words += ["--dry"] if lease.dry else []
    try:
        code = subprocess.run(words, cwd=ROOT, timeout=seconds).returncode
    except subprocess.TimeoutExpired:
        lease.log(f"{name}: stopped, no time is left")
        return False
    lease.expect(code == 0, f"{name} ended with exit code {code}")
    return code == 0


@contextmanager
def shared_device(lease: Lease) -> Iterator[None]:
    """Let the kernels of several processes run at the same time (MPS), if the driver's service starts."""
    control = shutil.which("nvidia-cuda-mps-control")
    if lease.dry or control is None:
        lease.log("without MPS")
        yield
        return
    os.environ |= {"CUDA_MPS_PIPE_DIRECTORY": "/tmp/mps-pipe", "CUDA_MPS_LOG_DIRECTORY": "/tmp/mps-log"}
    for folder in ("/tmp/mps-pipe", "/tmp/mps-log"):
        Path(folder).mkdir(exist_ok=True)
    lease.log(f"MPS starts: exit code {subprocess.run([control, '-d']).returncode}")
    try:
        yield
    finally:
        try:
            subprocess.run([control], input="quit\n", text=True, timeout=5)
        except subprocess.TimeoutExpired:  # seen: it waits for ever after a client was killed
            subprocess.run(["pkill", "-9", "nvidia-cuda-mps"])


# --- leases ---------------------------------------------------------------------------------------------------------
def trained(lease: Lease, models: Sequence[str]) -> None:
    """Train models of the study for as many epochs as fit, pack the first one's weights, and measure what has ended.

    The models after the first are trained beside it if the gate allows.
    """
    with shared_device(lease):
        epochs = gate(lease, models)["epochs"]
        if not epochs:
            return
        study = leased_study(lease, epochs)
        lease.paths = runs_of(study, tuple(epochs))
        train(lease, study)
        pack_records(lease)
        if lease.left_s() > 8:
            pack_weights(lease, models[0])
        if lease.left_s() > MEASURE_S:
            measure(lease, study)


def lease_a(lease: Lease) -> None:
    """Train at the published size, as declared in config/published-gpu.yaml; then profile and time updates."""
    trained(lease, ("softmax", "lms-plif"))
    lease.once("profile", functools.partial(profiled, lease))
    speed(lease, ("step ptb/softmax", "step ptb/mos", "step wikitext-2/lms-plif"))


def profiled(lease: Lease) -> bool:
    """Write profile.txt if there is time; return True if it is written."""
    if lease.left_s() < 45:
        return False
    process = start("profile", "softmax", lease.out, lease)
    try:
        (lease.out / "profile.txt").write_text(process.communicate(timeout=40)[0])
    except subprocess.TimeoutExpired:
        process.kill()
        lease.log("the profile took too long")
    lease.expect(process.returncode in (None, 0), f"the profile ended with exit code {process.returncode}")
    return process.returncode == 0


def lease_b(lease: Lease) -> None:
    """Run the main job on the GPU and stop it once; time updates and spectra; train MoS in what is left.

    The timings need more than their share of the first call (docs/gpu.md): a second one ends them.
    """
    names = ("step ptb", "wavefront", "spectrum ptb", "step wikitext-2", "spectrum wikitext-2")
    lease.once("main job", functools.partial(main_job, lease))
    speed(lease, names, until_left_s=AFTER_SPEED * lease.seconds)
    trained(lease, ("mos",))
    speed(lease, names)


def lease_c(lease: Lease) -> None:
    """Train LMS-PLIF at the published size: its rank of 580 is the paper's most surprising number."""
    trained(lease, ("lms-plif",))


def main_job(lease: Lease) -> bool:
    """Run `reproduce` on a slice of Penn Treebank with three seeds a job, stop it by SIGTERM, and run it again.

    Writes main-job.json: the exit codes and seconds of both calls, and whether the report is there. Returns True if
    everything is as it should be.
    """
    mirror = CARRIED / "mirror"
    words = [sys.executable, "-m", "softmax_bottleneck", "reproduce", "--study", str(ROOT / "tests" / "nano-ptb.yaml")]
    words += ["--cores", "2" if lease.dry else "12", "--set", f"mirror={mirror}", f"device={lease.device}"]
    words += ["seeds=[1]"] if lease.dry else ["replicas_per_job=3", "seeds=[1, 2, 3]"]
    facts: dict[str, Any] = {}
    with shared_device(lease), (lease.out / "main-job.log").open("a") as log:
        for name, stopped_after_s in (("stopped", 12.0 if lease.dry else 20.0), ("resumed", None)):
            began = time.monotonic()
            process = subprocess.Popen(words, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT)
            try:
                code = process.wait(timeout=stopped_after_s or lease.left_s() - AFTER_MAIN_JOB * lease.seconds)
            except subprocess.TimeoutExpired:
                code = stopped(process, 60.0)
            facts[name] = {"exit_code": code, "s": round(time.monotonic() - began, 1)}
            lease.log(f"main job {name}: {facts[name]}")
    facts["report"] = (ROOT / "results" / "nano-ptb" / "report" / "index.html").exists()
    lease.write("main-job.json", facts)
    codes = [facts[name]["exit_code"] for name in ("stopped", "resumed")]
    is_done = codes[0] in (0, 143) and codes[1] == 0 and facts["report"]
    lease.expect(is_done, f"the main job ended with {codes}, report: {facts['report']} (is there a packed .lease?)")
    return is_done


LEASES: dict[str, Callable[[Lease], None]] = {"A": lease_a, "B": lease_b, "C": lease_c}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=["pack", "rate", "profile", *LEASES])
    parser.add_argument("--dry", action="store_true", help="in small, on a CPU")
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "lease" / "back", help="folder of the results")
    parser.add_argument("--seconds", type=float, default=590.0, help="how long the call may take")
    parser.add_argument("--mirror", type=Path, help="pack: folder with copies of the corpora")
    parser.add_argument("--study", type=Path, default=STUDY, help="the study to train")
    parser.add_argument("--model", help="rate: the model")
    parser.add_argument("--folder", type=Path, help="rate: where the processes meet")
    options = parser.parse_args()
    device = "cpu" if options.dry else "cuda"
    if options.what == "pack":
        return pack(options.mirror)
    if options.what == "rate":
        return rate(options.model, options.folder, device, options.study, 1.0 if options.dry else 8.0)
    if options.what == "profile":
        return profile(options.model, device, options.study)
    lease = Lease(options.seconds, options.out.resolve(), options.dry, options.study.resolve())
    for folder in (lease.back, lease.out):
        folder.mkdir(parents=True, exist_ok=True)
    if options.dry:
        lease.study = options.study.with_name(f"{options.study.stem}.dry.yaml")
        lease.study.write_text(DRY_STUDY.format(study=options.study.name, name=options.study.stem))
    try:
        unpack(lease)
        LEASES[options.what](lease)
    finally:
        pack_records(lease)
        for file in options.study.parent.glob(f"{options.study.stem}.dry*.yaml"):
            file.unlink()
    lease.log("end")
    sys.exit("; ".join(lease.faults) or None)


if __name__ == "__main__":
    main()
