"""The step `download`: it fetches the files of a dataset, or samples the text of a synthetic language."""

from softmax_bottleneck.corpora import archives, language, sources
from softmax_bottleneck.store import artefacts, errors, progress, provenance
from softmax_bottleneck.study import Study


def download(study: Study, name: str, say: progress.Say) -> None:
    """Fetch the files of the dataset `name`, or sample its synthetic language, into the folder of the corpus.

    Then write files.json into this folder, with the hash of each .txt and .npz file. `say` prints a line of progress.

    Raises:
        UserError: the dataset is cut from another one, or a synthetic language cannot be sampled (see
            `language.write_language`).
        DataError: a file cannot be fetched, has another hash, or is in a damaged archive.
    """
    dataset = study.dataset(name)
    if dataset.base:
        fix = f"Fix: download {dataset.base}, then tokenise both"
        raise errors.UserError(f"{name}: it is cut from {dataset.base} and has no files. {fix}")
    folder = study.store.corpus_folder(name)
    artefacts.sweep(folder)
    if dataset.language:
        say(f"{name}: sampling the synthetic language")
        language.write_language(dataset.language, folder)
    elif not dataset.repeat:  # the step `tokenise` makes repeated tokens from their settings
        mirror = study.mirror / dataset.mirror if study.mirror and dataset.mirror else None
        if mirror and not mirror.is_dir():
            say(f"{name}: mirror: there is no folder {mirror}; correct `mirror`, or let the files be downloaded")
        say(f"{name}: {len(dataset.files)} files, from {'the mirror folder first' if mirror else 'their addresses'}")
        fetched = sources.sources(dataset)
        sources.fetch(fetched, folder, mirror)
        for source in fetched:
            if source.members:
                archives.extract(folder / source.name, folder, source.members)
    texts = sorted(path for path in folder.glob("*") if path.suffix in (".txt", ".npz"))
    hashes = {path.name: artefacts.sha256_file(path) for path in texts}
    artefacts.write_json(folder / "files.json", {"files": hashes, "provenance": provenance.block()})
