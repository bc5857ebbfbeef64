# The files that the workflow produces, and functions that return inputs and outputs of its rules.


def product():
    """Return the targets: the report and the files of all runs. An existing report alone would hide missing runs."""
    return [f"{RESULTS}/report/index.html", every_run]


def every_run(_wildcards):
    """Return the declared files of all runs planned by now, and of all choices, also those that are not made yet.

    Snakemake calls this function again after every choice, because `choose` is a checkpoint.
    """
    plan_runs(STUDY.updated())
    return [
        *(STUDY.choice_file(path).as_posix() for path in STUDY.rounds),
        *dict.fromkeys(done_file(run) for run in RUNS),
        *(run_file("done.json", run.path) for run in STUDY.finetuned),
        *(run_file("measured.json", run) for run in MODELS),
        *(run_file("dynamic.json", path) for path in EVALUATIONS),
    ]


def corpus_files(wildcards):
    """Return the input of `tokenise`: the tokens of the base corpus for an excerpt, else the corpus files."""
    dataset = settings.load_dataset(wildcards.dataset, STUDY_FILE.resolve().parent)
    if dataset.base:
        return [tokens_file(dataset.base)]
    return [STORE.corpus_folder(dataset.name).joinpath("files.json").as_posix()]


def trained_by_job():
    """Return the output of a training job: done.json of its run or, for several runs, a temporary file of the job.

    With several runs, each done.json is undeclared, so that it stays if another run fails. Snakemake deletes the
    temporary file once it is used; later calls find the done.json files.
    """
    if STUDY.replicas_per_job == 1:
        return run_file("done.json", "{job}")
    return temp(STORE.job_file("{job}").as_posix())


def needed_by_job(wildcards):
    """Return the tokens and the result of `check`, or nothing if all runs of the job are finished."""
    runs = JOBS[wildcards.job]
    if all(is_there(run.path, "done.json") for run in runs):
        return []
    return [tokens_file(runs[0].dataset), f"{RESULTS}/check.json"]


def benchmarks_of(wildcards):
    """Return the word-similarity benchmarks of a run's dataset; a synthetic language derives its own."""
    named = STUDY.datasets[MODELS[wildcards.run].dataset].wordsim
    return [] if named in {None, "self"} else [STORE.corpus_folder(named).joinpath("files.json").as_posix()]


def measure_settings(wildcards):
    """Return what affects a run's measurements but not its run_id: published contexts, and settings of its dataset."""
    dataset = STUDY.datasets[MODELS[wildcards.run].dataset]
    contexts = contexts_file(STUDY, dataset.name)
    return [contexts and artefacts.sha256_file(contexts), dataset.rank_contexts, dataset.wordsim]


def of_workflow(*patterns):
    """Return the workflow's files that match glob patterns, as relative paths if possible."""
    home = WORKFLOW.parent
    below = home.relative_to(Path.cwd()) if home.is_relative_to(Path.cwd()) else home
    return [(below / path.relative_to(home)).as_posix() for one in patterns for path in sorted(home.glob(one))]


def shown(experiment, suffix):
    """Return a file of a table or figure with its place and labels in Snakemake's own report."""
    labels = {"in the paper": experiment.artefact, "title": experiment.title, "as": suffix}
    return report(
        f"{RESULTS}/{experiment.kind}s/{experiment.id}.{suffix}",
        caption="../../report/captions/experiment.rst",
        category=f"{experiment.kind.capitalize()}s",
        subcategory=numbers.label(experiment.source),
        labels={name: numbers.label(words) for name, words in labels.items()},
    )
