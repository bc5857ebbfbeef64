"""The step `check`: it finds errors in a study before its first job, and writes the cost of every run.

The step checks the options of every table and figure, and builds every model without allocating its weights.
"""

from softmax_bottleneck.report.views import check_options
from softmax_bottleneck.store import artefacts, progress, provenance
from softmax_bottleneck.study import Study
from softmax_bottleneck.study.costs import fit_hours
from softmax_bottleneck.training import feasibility


def check(study: Study, say: progress.Say) -> None:
    """Check a study and this machine, and write check.json: parameters and cost of every run (`feasibility.facts`).

    `say` is called with the number of runs and their hours, and with every missing source of natural distributions, and
    with the models whose weights `et-asgd` never averages.

    Raises:
        UserError: an option of a table or figure is invalid, the options of a model do not fit together, the machine or
            a text is too small for a run, or dynamic evaluation is planned for a stateless body.
    """
    check_options(study)
    planned = feasibility.costs(study)
    feasibility.check_limits(study, planned)
    feasibility.check_stages(study)
    written = feasibility.facts(study, planned) | {"provenance": provenance.block()}
    artefacts.write_json(study.store.study_folder(study.name) / "check.json", written)
    hours = sum(run["cpu_h"] for run in written["runs"].values()) + sum(fit_hours(unit, "cpu") for unit in study.units)
    say(f"{study.name}: {len(written['runs'])} runs can be built; about {hours:.1f} CPU core hours if none is done")
    if models := feasibility.never_averaged(study):
        problem = f"et-asgd averages no weights of {', '.join(models)}: training ends at this epoch or before"
        say(f"warning: {study.file}: schedule.switch_after_epoch: {problem}")
    for truth, model in study.absent_truths.items():
        say(f"{study.file}: fits.{truth}: no model at {model}; its fits are left out (`make models` brings SmolLM2)")
