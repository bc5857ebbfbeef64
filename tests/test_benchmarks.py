"""The baselines of the benchmarks are our mathematics: losses, gradients and updates; and the scripts run."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from softmax_bottleneck.__main__ import main

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import aims  # noqa: E402
import batched_seeds  # noqa: E402
import cases  # noqa: E402
import cpu  # noqa: E402
import dag  # noqa: E402
import figures  # noqa: E402
import gpu  # noqa: E402
import gpu_runs  # noqa: E402
import plain  # noqa: E402
import rank_engine  # noqa: E402
import small_sizes  # noqa: E402
import timing  # noqa: E402

NAMES = tuple(cases.cases())


def small(name: str) -> cases.Case:
    torch.manual_seed(5)
    case = cases.shrunk(cases.cases()[name])
    return cases.dataclasses.replace(case, dropouts=plain.Dropouts())


def assert_alike(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    """In norm: literal formulas in float32 round differently."""
    assert (ours - theirs).norm() <= 2e-4 * theirs.norm() + 1e-7


@pytest.mark.parametrize("name", NAMES)
def test_baseline_heads_have_our_losses_and_gradients(name: str) -> None:
    case = small(name)
    if case.head == "lms-plif":  # few cells: in many, rounding of the logits moves some into another
        case = cases.dataclasses.replace(case, options=(("knots", 40),))
    theirs = cases.plain_head(case)
    ours = cases.our_head(case, theirs).train()
    h_TBD = torch.randn(case.bptt, case.batch, case.context)
    target_N = torch.randint(case.words, (case.tokens,))
    contexts, gradients = [h_TBD.clone().requires_grad_() for _ in range(2)], []
    losses = [ours.mean_nll(contexts[0], target_N), theirs.loss(contexts[1], target_N, statistics=True)]
    torch.testing.assert_close(*losses, rtol=1e-5, atol=1e-6)
    for loss, context, head in zip(losses, contexts, (ours, theirs), strict=True):
        loss.backward()
        named = {key.removeprefix("pointwise."): value.grad for key, value in head.named_parameters()}
        gradients.append({"h": context.grad, **named})
    assert gradients[0].keys() == gradients[1].keys()
    for key in gradients[0]:
        assert_alike(gradients[0][key], gradients[1][key])


@pytest.mark.parametrize("name", ["ptb/softmax", "ptb/gss", "ptb/mos"])
def test_baseline_steps_are_our_updates(name: str) -> None:
    """Two updates from the same weights on the same text, dropout off: forward, penalties, clip, SGD."""
    case = small(name)
    trainer = cases.trainer(case)
    model = plain.PlainModel(cases.plain_head(case), case.widths, case.dropouts)
    ours = dict(trainer.model.named_parameters())
    places = {"head.": "head.", "lstms.": "body.layers."}
    for key, parameter in model.named_parameters():
        mine = next(key.replace(old, new, 1) for old, new in places.items() if key.startswith(old))
        parameter.data.copy_(ours[mine] if mine in ours else ours["body.embedding.weight"])
    step = plain.PlainStep(model, case.learning_rate * case.bptt / 70 * 70 / case.bptt, habits=True)
    state = model.state(case.batch)
    for chunk in trainer.chunks[:2]:
        trainer.update()
        step.learning_rate = case.learning_rate * 70 / case.bptt  # the plain one divides by the published 70
        state = step(trainer.train_LB[chunk.start : chunk.start + chunk.length + 1], state)
    for key, parameter in model.named_parameters():
        mine = next(key.replace(old, new, 1) for old, new in places.items() if key.startswith(old))
        assert_alike(ours[mine] if mine in ours else ours["body.embedding.weight"], parameter)


def test_flops_of_the_published_sizes() -> None:
    """Softmax on Penn Treebank by hand: 3 x 2 x 1400 x 400 x 10,000, and three LSTM layers."""
    case = cases.cases()["ptb/softmax"]
    assert case.head_flops() == 3 * 2 * 1400 * 400 * 10_000
    units = 1150 * (400 + 1150) + 1150 * (1150 + 1150) + 400 * (1150 + 400)
    assert case.step_flops() == case.head_flops() + 3 * 2 * 4 * 1400 * units


def test_a_race_takes_turns() -> None:
    order: list[str] = []
    timings = timing.race({name: lambda name=name: order.append(name) for name in "AB"}, 2)
    assert order == ["A", "B", "A", "B", "B", "A"]
    assert timings["A"].repetitions == 2 and timings["A"].low <= timings["A"].median <= timings["A"].high


def test_a_peak_is_seen_and_what_is_kept_is_not_counted() -> None:
    kept: list[torch.Tensor] = []

    def run() -> None:
        torch.zeros(64 * timing.MIB // 4).fill_(1.0)
        kept.append(torch.ones(16 * timing.MIB // 4))

    assert 40 < timing.peak_mib(run, 16 * timing.MIB) < 90


def test_the_table_has_a_row_per_head() -> None:
    rows: list[dict[str, Any]] = [
        {"corpus": "ptb", "head": "gss", "variant": v, "ms": ms, "peak_mib": ms, "of_products": 0.5}
        for v, ms in (("A", 400.0), ("B", 200.0), ("ours", 100.0))
    ]
    assert cpu.table({"heads": rows}).splitlines()[-1] == (
        "| head, ptb, gss | 400 | 200 | 100 | 4.00 | 2.00 | 200 -> 100 | 50% |"
    )


def script(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=BENCHMARKS, env=environment, capture_output=True, text=True, timeout=500)


@pytest.mark.tier2
def test_a_quick_run_measures_everything_and_writes_nothing() -> None:
    before = cpu.RESULTS.read_bytes() if cpu.RESULTS.exists() else None
    done = script("cpu.py", "--quick", "--busy")
    assert done.returncode == 0, done.stderr
    assert "step, ptb, softmax" in done.stdout
    assert (cpu.RESULTS.read_bytes() if cpu.RESULTS.exists() else None) == before


class Here:
    """A timer of a step in this process."""

    def __init__(self, _script: str, _serve: str, name: str, variant: str, *_: str) -> None:
        self.step = cpu.STEPS[variant](small(name))

    def __call__(self) -> float:
        return timing.seconds_of(self.step)

    def close(self) -> None:
        pass


def test_steps_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "Served", Here)
    monkeypatch.setattr(cpu.out_of_memory, "keep_freed", lambda: None)
    monkeypatch.setattr(cpu, "chosen", lambda quick: {"ptb/gss": cases.shrunk(cases.cases()["ptb/gss"])})
    monkeypatch.setattr(cpu, "square_rate", lambda: {"native": 1.0})
    rows = cpu.steps_part(quick=True)
    assert [row["variant"] for row in rows] == ["A", "B", "ours"]
    assert all(row["ms"] > 0 and row["of_rate"] > 0 for row in rows)
    assert cpu.table({"steps": rows}).count("step, ptb, gss") == 1


def test_ranks_of_all_methods_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_engine, "elsewhere", lambda *_: {"peak_mib": 0.0})
    rows = rank_engine.measure(quick=True)
    assert len({row["rank"] for row in rows if row["head"] == "general"}) == 1
    assert {row["rank"] for row in rows if row["head"] == "softmax"} == {rank_engine.WIDTH + 1}


def test_the_profile_of_a_small_update_adds_up() -> None:
    parts = {row["part"]: row["ms"] for row in small_sizes.profile(updates=5)}
    assert parts["LSTM kernels"] > 0 and parts["matrix products"] > 0 and parts["limit"] > 0


def test_full_ranks_of_some_methods_leave_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_engine, "elsewhere", lambda *_: {"ms": 7, "rank": 3, "peak_mib": 1.0})
    known = [{"method": "numpy", "ms": 5}, {"method": "ours", "ms": 6}]
    some = {row["method"]: row["ms"] for row in rank_engine.full(["ours"], known)}
    assert some == {"numpy": 5, "ours": 7}
    assert {row["ms"] for row in rank_engine.full([], known)} == {7}


def test_seeds_at_once_are_the_same_lstms() -> None:
    """Two seeds by batched products beside two `nn.LSTM`."""
    case = cases.shrunk(small_sizes.case_of("softmax"))
    lstms = [torch.nn.LSTM(7, 5) for _ in range(2)]
    x_STBI = torch.randn(2, case.bptt, case.batch, 7)
    together_TSBH = batched_seeds.BatchedLSTM(lstms, case)(x_STBI)
    for seed, lstm in enumerate(lstms):
        torch.testing.assert_close(together_TSBH[:, seed], lstm(x_STBI[seed])[0].detach())
    rows = batched_seeds.measure(case, 1)
    assert [row["layers"].split()[0] for row in rows] == ["oneDNN,", "3", "8"] and all(row["ms"] > 0 for row in rows)


def test_a_timer_in_a_process_of_its_own() -> None:
    served = timing.Served("cpu.py", "--serve", "ptb/softmax", "ours", "--quick")
    seconds = [served(), served()]
    served.close()
    assert all(0 < one < 60 for one in seconds)


def test_a_timer_that_died_is_told() -> None:
    served = timing.Served("no-such-script.py")
    with pytest.raises(RuntimeError, match="exit code 2"):
        served()


def test_a_dry_run_of_a_study_is_timed() -> None:
    seconds, jobs = dag.dry_run(2)
    assert seconds > 0 and jobs > 12


def test_memory_is_measured_in_a_process_of_its_own() -> None:
    """An N x V matrix more is seen: 700 x 20,000 float32 are 53 MiB."""
    sizes = ("--quick", "--sizes", "700", "20000", "1")
    peaks = [script("cpu.py", "--peak", "ptb/softmax", v, *sizes) for v in ("B", "ours")]
    plain_mib, ours_mib = (json.loads(one.stdout) for one in peaks)
    assert plain_mib > 100 > 70 > ours_mib


def test_the_gpu_pieces_run_in_small_on_a_cpu() -> None:
    """One of each kind; a failure would be in the piece's own words, so that the next one begins."""
    place = gpu.Place(dry=True)
    kinds = {name.split()[0]: name for name in gpu.pieces()}
    for name in kinds.values():
        if not name.startswith("streams"):
            result = gpu.measured(gpu.pieces()[name], place)
            assert result["problem"] is None and result["rows"], (name, result)


def test_gpu_pieces_time_what_ships_in_blocks() -> None:
    """Deterministic while they are timed, and not beyond; the clock is not looked at after every update."""
    asked: list[bool] = []
    gpu.Place(dry=True).as_shipped(lambda: asked.append(torch.are_deterministic_algorithms_enabled()))()
    assert asked == [True, True] and not torch.are_deterministic_algorithms_enabled()
    assert gpu.BLOCK >= 20


def test_what_the_gpu_pieces_import_is_listed() -> None:
    """A GPU's image has torch and NumPy, and perhaps nothing else; what else is asked for is in the help."""
    code = "import gpu, sys, softmax_bottleneck.training.train, softmax_bottleneck.measuring.spectrum\n"
    code += "from importlib import metadata\nnames = metadata.packages_distributions()\n"
    code += "print(*{d.lower() for m in sys.modules for d in names.get(m.partition('.')[0], [])})"
    needed = set(script("-c", code).stdout.replace("_", "-").split())
    from_torch = {"torch", "setuptools", "charset-normalizer", "tqdm", "softmax-bottleneck"}  # some only where they are
    assert needed - from_torch <= set((gpu.__doc__ or "").replace(".", " ").split())


@pytest.mark.pipeline
def test_complete_runs_of_a_gpu_in_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trained, measured, ranked, written as evidence."""

    def step(name: str, file: Path, *words: str) -> dict[str, Any]:
        return {"exit": main([name, "--study", str(file), *words]), "said": ""}

    monkeypatch.setattr(gpu_runs, "step", step)  # here, and not in a process of its own
    monkeypatch.setattr(gpu_runs, "finished", dict)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SOFTMAX_BOTTLENECK_RUNS_PER_GPU", "1")
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "")
    found = gpu_runs.work(3, tmp_path / "out", 5.0, None, dry=True)
    (entry,) = found["runs"].values()
    assert [entry[name]["exit"] for name in ("train", "measure", "spectrum")] == [0, 0, 0]
    assert entry["done.json"]["epochs"] == 3 and entry["rank.json"]["metrics"]["rank_press"] > 1
    written = {path.name for path in (tmp_path / "out").iterdir()}
    assert written == {"part-3.json", *(f"{path.replace('/', '-')}.json" for path in found["runs"])}
    assert "exit 0" in gpu_runs.summary(found)


def test_the_parts_are_the_published_runs() -> None:
    file, runs = gpu_runs.runs_of(2, dry=False)
    assert file.name == "paper.yaml" and [run.model for run in runs] == list(gpu_runs.TRANSFORMERS)
    assert {(run.dataset, run.schedule.epochs, run.body.kind) for run in runs} == {("ptb", 50, "transformer")}
    assert [run.model for run in gpu_runs.runs_of(3, dry=False)[1]] == ["transformer-mos", "transformer-lms-plif"]


def test_gpu_processes_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "start", lambda *_, **__: None)
    monkeypatch.setattr(gpu, "finish", lambda _: 10.0)
    rows = gpu.streams(gpu.Place(dry=True), "ptb/softmax")
    assert [(row["processes"], row["tokens_per_s"]) for row in rows] == [(1, 10), (2, 20)]


def test_gpu_pieces_are_taken_up_where_they_were_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file after every piece, a failed piece with its message, and nothing measured twice."""
    begun: list[str] = []

    def piece(name: str) -> Any:
        def run(place: gpu.Place) -> list[dict[str, Any]]:
            begun.append(name)
            if name == "b":
                raise RuntimeError("CUDA out of memory\nlong story")
            return [{"ms": 1.0}]

        return run

    monkeypatch.setattr(gpu, "pieces", lambda: {name: piece(name) for name in "abc"})
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Some GPU")
    monkeypatch.setattr(gpu, "provenance", lambda **facts: facts)
    place = gpu.Place(dry=True)
    place.dry = False
    options = argparse.Namespace(only="", list=False, minutes=0.0, out=tmp_path)
    assert gpu.work(options, place) == 3 and not begun
    options.minutes = 1.0
    assert gpu.work(options, place) == 0 and gpu.work(options, place) == 0
    assert begun == ["a", "b", "c"]
    found = json.loads((tmp_path / "some-gpu.json").read_text(encoding="utf-8"))
    assert found["pieces"]["b"] == {"rows": [], "problem": "RuntimeError: CUDA out of memory",
                                    "s": found["pieces"]["b"]["s"]}  # fmt: skip
    assert found["provenance"]["gpu"] == "Some GPU"


def test_without_a_gpu_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["gpu.py"])
    with pytest.raises(SystemExit, match="sees no GPU"):
        gpu.main()


def test_scaling_is_drawn_and_its_powers_are_told(tmp_path: Path) -> None:
    """Times that grow as the square of every size."""
    found = {
        "scaling": [
            {"axis": axis, "variant": variant, "value": value, "ms": value**2, "peak_mib": value}
            for axis in figures.AXES
            for variant in ("B", "ours")
            for value in (1.0, 2.0, 4.0)
        ],
        "dag": [{"runs": 9, "s": 1.0}, {"runs": 90, "s": 2.0}],
    }
    figures.draw(found, tmp_path / "scaling.svg")
    assert (tmp_path / "scaling.svg").stat().st_size > 10_000
    assert figures.slopes(found) == dict.fromkeys(figures.AXES, 2.0)


def test_results_are_kept_as_json_and_as_tables_in_the_readme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    readme = tmp_path / "README.md"
    readme.write_text(cpu.README.read_text(encoding="utf-8"), encoding="utf-8")
    monkeypatch.setattr(cpu, "README", readme)
    monkeypatch.setattr(cpu, "RESULTS", tmp_path / "results" / "cpu.json")
    rank_row = {"head": "general", "m": 9000, "n": 2, "method": "ours", "ms": 1500.0, "rank": 2, "peak_mib": 1.0}
    rates = [{"head": "gss", "variant": name, "tokens_per_s": n} for name, n in (("ours", 300), ("plain", 100))]
    found = {"provenance": {"rank": timing.provenance(gflops={"native": 1.0})}, "rank": [rank_row], "small": rates}
    for _ in range(2):  # again in place of the first
        cpu.keep(found)
    text = readme.read_text(encoding="utf-8")
    assert text.count("| general | 9,000 x 2 | ours | 1.5 | 1.0 | 2 |") == 1
    assert text.count("| gss | 300 | 100 | 3.00 |") == 1
    assert json.loads(cpu.RESULTS.read_text(encoding="utf-8")) == found
    assert text.count(cpu.END) == 1 and text.index("What decides them") > text.index(cpu.END)


def test_aims_are_judged_on_the_numbers_measured() -> None:
    """Ratios by hand: 300 / 100 = 3 where 1.8 and 3.5 are asked for; limits are those ratios over the share."""
    times = {"A": 250.0, "B": 300.0, "ours": 100.0}
    heads = [
        {"corpus": "ptb", "head": head, "variant": name, "ms": ms, "of_products": 0.75}
        for head in ("softmax", "gss")
        for name, ms in times.items()
    ]
    small = [{"head": "mos", "variant": name, "tokens_per_s": n} for name, n in (("ours", 250), ("plain", 100))]
    ranks = [
        {"method": name, "m": 90, "n": 10, "ms": ms, "peak_mib": mib}
        for name, ms, mib in (("ours", 100, 10), ("numpy", 390, 80), ("torch", 200, 80), ("factors", 5, 3))
    ]
    lines = aims.aims_table({"heads": heads, "small": small, "full_rank": ranks}).splitlines()
    assert lines[2] == "| head, ptb, x B | **3.00** / 1.8 / 4.00 |  | 3.00 / 3.5 / 4.00 |  |  |  |"
    assert next(line for line in lines if "demo sizes" in line).endswith("|  | 2.50 / 3 |")
    assert "numpy / ours 3.90 / 4; seconds, torch / ours **2.00** / 1.7; memory, numpy / ours **8.00** / 7" in lines[-1]
    assert "**78.00** / 40, in 3 MiB" in lines[-1]
    assert aims.rank_sentence(ranks[:2]) == ""
