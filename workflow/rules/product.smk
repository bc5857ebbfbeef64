# What the workflow makes, and what its rules need for it.


def product():
    """What the workflow makes: the study's page, and what its runs leave, which a page that is there must not hide."""
    return [f"{RESULTS}/report/index.html", *every_run()]


def every_run():
    """All that the runs of the study leave, declared."""
    return [
        *dict.fromkeys(done_file(run) for run in RUNS),
        *(run_file("done.json", run.path) for run in STUDY.finetuned),
        *(run_file("measured.json", run) for run in MODELS),
        *(run_file("dynamic.json", path) for path in EVALUATIONS),
    ]


def corpus_files(wildcards):
    """A corpus cut from another needs that one's tokens, any other its own files."""
    dataset = settings.load_dataset(wildcards.dataset, STUDY_FILE.resolve().parent)
    if dataset.base:
        return [tokens_file(dataset.base)]
    return [STORE.corpus_folder(dataset.name).joinpath("files.json").as_posix()]


def trained_by_job():
    """What a training job declares: the done.json of its run, or, of several runs, that it is through.

    Their done.json lie beside that undeclared: one that is finished stays when another fails. The declared file goes as
    soon as it was used; what counts afterwards are the done.json.
    """
    if STUDY.replicas_per_job == 1:
        return run_file("done.json", "{job}")
    return temp(STORE.job_file("{job}").as_posix())


def needed_by_job(wildcards):
    """Tokens, and that every configured run was built once, without memory; nothing when all runs are finished."""
    runs = JOBS[wildcards.job]
    if all(is_there(run.path, "done.json") for run in runs):
        return []
    return [tokens_file(runs[0].dataset), f"{RESULTS}/check.json"]


def benchmarks_of(wildcards):
    """What says that the benchmarks of this run's dataset are there; a language derives its own."""
    named = STUDY.datasets[MODELS[wildcards.run].dataset].wordsim
    return [] if named in {None, "self"} else [STORE.corpus_folder(named).joinpath("files.json").as_posix()]


def measure_settings(wildcards):
    """Return the settings of a run's dataset that its measurements depend on; they are no part of the run's id."""
    dataset = STUDY.datasets[MODELS[wildcards.run].dataset]
    return [dataset.contexts, dataset.rank_contexts, dataset.wordsim]


def of_workflow(*patterns):
    """Files of the workflow, by names that tell no place when it lies in the working directory."""
    home = WORKFLOW.parent
    below = home.relative_to(Path.cwd()) if home.is_relative_to(Path.cwd()) else home
    return [(below / path.relative_to(home)).as_posix() for one in patterns for path in sorted(home.glob(one))]


def shown(experiment, suffix):
    """A file of a table or figure, and where Snakemake's own report shows it, under which names."""
    labels = {"in the paper": experiment.artefact, "title": experiment.title, "as": suffix}
    return report(
        f"{RESULTS}/{experiment.kind}s/{experiment.id}.{suffix}",
        caption="../../report/captions/experiment.rst",
        category=f"{experiment.kind.capitalize()}s",
        subcategory=captions.label(experiment.source),
        labels={name: captions.label(words) for name, words in labels.items()},
    )
