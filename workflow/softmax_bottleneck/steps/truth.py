"""The step `truth`: it computes natural next-word distributions (`own_model.natural`), to which `fit` fits heads."""

import numpy as np

from softmax_bottleneck.own_model import natural
from softmax_bottleneck.store import artefacts, errors, progress, provenance
from softmax_bottleneck.study import Study
from softmax_bottleneck.study.truths import ARRAYS, FILE


def truth(study: Study, path: str, say: progress.Say) -> None:
    """Compute natural next-word distributions, and write them to truth.npz and their facts to truth.json.

    truth.npz has the arrays `p_NM` (float32 probabilities, rows sum to one) and `token_M` (numbers of the kept tokens
    in their source). truth.json has `facts` (`kept_mass`, the mean probability of the kept tokens before the division,
    and `tokens`, their number in the source) and the provenance.

    Args:
        study: the study.
        path: path of the distributions (`Truth.path`).
        say: prints a line of progress.

    Raises:
        UserError: the source has fewer tokens than are to be kept, or the saved model cannot be used.
        DataError: a file is missing or damaged, or the test text is shorter than a window.
    """
    wanted = study.truth(path)
    p_NV = np.exp(natural.log_probs(study, wanted))
    if p_NV.shape[1] < wanted.words:
        problem = f"fits: words: {wanted.name} has {p_NV.shape[1]} tokens (got {wanted.words})"
        raise errors.UserError(f"{study.file}: {problem}")
    token_M = np.argsort(-p_NV.mean(0, dtype=np.float64), kind="stable")[: wanted.words]
    kept_NM = p_NV[:, token_M].astype(np.float64)
    mass_N = kept_NM.sum(1)
    arrays = {"p_NM": (kept_NM / mass_N[:, None]).astype(np.float32), "token_M": token_M}
    folder = study.store.fits_folder(f"truths/{path}")
    parents = {ARRAYS: artefacts.write_npz(folder / ARRAYS, **arrays), **wanted.inputs}
    facts = {"kept_mass": float(mass_N.mean()), "tokens": p_NV.shape[1]}
    artefacts.write_json(folder / FILE, {"status": "ok", "facts": facts, "provenance": provenance.block(parents)})
    say(f"{path}: {len(kept_NM)} contexts; {wanted.words} of {p_NV.shape[1]} tokens have {facts['kept_mass']:.1%}")
