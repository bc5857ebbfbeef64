"""The step `fit`: it fits output heads of several widths to the same known distributions (see `training.fitting`)."""

from softmax_bottleneck.jobs.resumable import Options
from softmax_bottleneck.store.progress import Say
from softmax_bottleneck.study import Study
from softmax_bottleneck.training.fitting import fit_unit


def fit(study: Study, path: str, say: Say, restart: bool = False) -> None:
    """Fit output heads with free context vectors to the known distributions of one seed, or resume the fits.

    `path` is the path of the unit, such as `<plan>/rank32/1-<unit_id>` for the distributions `rank32` and seed 1 (see
    `Unit.path`). `say` prints a line of progress. If `restart` is true, earlier results of the unit's fits are
    discarded, also those that other units share.
    """
    unit = study.unit(path)
    law_folder = study.store.fits_folder(f"laws/{unit.law_path}")
    record = fit_unit(unit, study.store.fits_folder(path), law_folder, Options.of(study, say, restart), study.store)
    say(f"{path}: {len(unit.fits)} fits ({record['wall_s']:.0f} s)")
