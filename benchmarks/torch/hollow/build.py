"""Compiles ``runtime.c`` and ``driver.c``, and empty functions for all other symbols that PyTorch needs."""

import re
import subprocess
from collections.abc import Iterable
from pathlib import Path

HERE = Path(__file__).resolve().parent
_RUNTIME = re.compile(r"^(?:__)?(?:cuda|cublas|cudnn)[A-Z]\w+$")
_DRIVER = re.compile(r"^cu[A-Z]\w+$")
_DEFINED = re.compile(r"^(?:int|size_t|void \*\*|const char \*)\s*(\w+)\(", re.MULTILINE)
_MACROS = re.compile(r"^(?:HANDLE|CONVOLUTION)\((\w+)\)", re.MULTILINE)


def build(torch_folder: Path, out: Path) -> Path:
    """Compile both libraries into ``out``.

    Args:
        torch_folder: The installed package, a build with CUDA.
        out: An empty folder.

    Returns:
        The runtime, to be loaded before all others.

    Raises:
        subprocess.CalledProcessError: If ``nm`` or ``gcc`` fails.
    """
    libraries = torch_folder / "lib"
    names = wanted(p for p in libraries.glob("lib*.so") if "cuda" in p.name or p.name == "libtorch_python.so")
    loader = libraries / "libcaffe2_nvrtc.so"  # the one that is linked with the driver; others look functions up
    driver = wanted([loader]) | looked_up(libraries / "libc10_cuda.so")
    includes = [f"-I{path.parent}" for path in torch_folder.parent.glob("triton/**/nvidia/include/driver_types.h")]
    runtime = out / "libhollow.so"
    ours = {name for name in names if _RUNTIME.match(name)}
    _compile("runtime.c", ours, runtime, include=includes, link=["-ldl", "-lpthread"])
    ours = {name for name in driver if _DRIVER.match(name)}
    _compile("driver.c", ours, out / "libcuda.so.1", link=["-Wl,-soname,libcuda.so.1"])
    return runtime


def wanted(libraries: Iterable[Path]) -> set[str]:
    """Functions that ``libraries`` import from others."""
    found: set[str] = set()
    for library in libraries:
        command = ["nm", "-D", "--undefined-only", str(library)]
        listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        found |= {line.split()[-1].partition("@")[0] for line in listed.splitlines()}
    return found


def looked_up(library: Path) -> set[str]:
    """Texts in ``library`` that may be names of functions."""
    return {text.decode() for text in re.findall(rb"(?<=\0)cu[A-Z]\w{3,60}(?=\0)", library.read_bytes())}


def nothing(names: Iterable[str], source: str) -> str:
    """C functions that do nothing, for all ``names`` that ``source`` does not define."""
    known = set(_DEFINED.findall(source)) | set(_MACROS.findall(source))
    known |= {f"cudnnGetConvolution{n}{end}" for n in known for end in ("Algorithm_v7", "WorkspaceSize")}
    return "".join(f"int {name}(void) {{ return 0; }}\n" for name in sorted(set(names) - known))


def _compile(source: str, names: Iterable[str], to: Path, *, include: Iterable[str] = (), link: Iterable[str]) -> None:
    rest = to.with_suffix(".rest.c")
    rest.write_text(nothing(names, (HERE / source).read_text(encoding="utf-8")), encoding="utf-8")
    command = ["gcc", "-shared", "-fPIC", "-O1", "-w", *include, str(HERE / source), str(rest), "-o", str(to), *link]
    subprocess.run(command, check=True)
