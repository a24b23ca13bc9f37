"""The runtime that only keeps account of memory: what is written for it, without a build of PyTorch with CUDA."""

import sys

from benchmarks.torch.hollow import __main__ as hollow
from benchmarks.torch.hollow.build import HERE, looked_up, nothing


def test_functions_that_do_nothing_are_those_that_nobody_wrote():
    source = (HERE / "runtime.c").read_text(encoding="utf-8")
    written = nothing(
        {
            "cudaMalloc",
            "__cudaRegisterFatBinary",
            "cudnnCreate",
            "cudnnGetConvolutionForwardAlgorithm_v7",
            "cudnnGetConvolutionBackwardDataWorkspaceSize",
            "cudaProfilerStop",
            "cudaProfilerStart",
        },
        source,
    )
    assert written == "int cudaProfilerStart(void) { return 0; }\nint cudaProfilerStop(void) { return 0; }\n"


def test_functions_of_the_driver_that_are_looked_up_by_name_are_found(tmp_path):
    library = tmp_path / "lib.so"
    library.write_bytes(b"\x7fELF\0cuMemMap\0cuMemCreate\0curious\0not cuMemUnmap\0")
    assert looked_up(library) == {"cuMemMap", "cuMemCreate"}


def test_without_a_command_it_says_what_it_is_for(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["hollow"])
    assert hollow.main() == 2
    assert "Kernels do nothing" in capsys.readouterr().err
