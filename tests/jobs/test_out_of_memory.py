"""Messages of GPU libraries that mean too little memory, and cuBLAS set to be deterministic before it starts."""

import os
from pathlib import Path

import pytest
import torch
from softmax_bottleneck.jobs import out_of_memory
from softmax_bottleneck.jobs.numerics import numerics
from softmax_bottleneck.store.errors import UserError
from softmax_bottleneck.study import studies as config
from softmax_bottleneck.study.fits import Unit


@pytest.mark.parametrize("words", [
    "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
    "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
    "cusolver error: CUSOLVER_STATUS_ALLOC_FAILED, when calling `cusolverDnCreate(handle)`",
    "CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported",
    "CUDA driver error: CUDA_ERROR_OUT_OF_MEMORY",
])  # fmt: skip
def test_out_of_memory_messages_of_gpu_libraries_are_recognised(words: str) -> None:
    """Trying again with more of the machine's memory would not help: it is for a person to mend."""
    error = out_of_memory.as_out_of_memory_error(RuntimeError(words), "train")
    assert type(error) is UserError and "the GPU's memory is too small" in str(error)


def test_other_errors_of_a_gpu_are_no_lack_of_memory() -> None:
    for words in ("CUDA error: an illegal memory access was encountered", "cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"):
        assert out_of_memory.as_out_of_memory_error(RuntimeError(words), "train") is None


def test_cublas_is_configured_as_deterministic_before_it_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the environment of every step of a workflow, and of a step that is called by hand."""
    for variable in ("CUBLAS_WORKSPACE_CONFIG", config.STUDY_VARIABLE, config.SET_VARIABLE, "PYTHONPATH", "PATH"):
        monkeypatch.setenv(variable, os.environ.get(variable, ""))
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")
    with numerics(Unit("plan", "language", "n", "", {}, 1, 0, True, 1, 1.0, False, ()), torch.device("cuda")):
        assert os.environ.pop("CUBLAS_WORKSPACE_CONFIG") == ":4096:8"
        assert not torch.backends.cuda.matmul.allow_tf32 and not torch.backends.cudnn.allow_tf32
    config.export(Path("study.yaml"), {}, Path("workflow"))
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
