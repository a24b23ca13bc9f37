"""Run a command on a hollow GPU: ``python -m benchmarks.torch.hollow python -m benchmarks.torch.gpu ...``.

Run it with the Python of an environment that has a CUDA build of PyTorch, on a machine with ``gcc`` and ``nm``.
The host side of PyTorch runs unchanged: dispatch, shapes, the caching allocator and its statistics, the state of the
random generator. Kernels do nothing, so numbers in tensors and times mean nothing. Workspace is 0 bytes, or
``HOLLOW_WORKSPACE`` for every convolution. ``HOLLOW_DEVICES`` is the number of devices.
"""

import os
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

from benchmarks.torch.hollow.build import build


def main() -> int:
    """Build the libraries, and run the command with them in place of the CUDA runtime and driver."""
    if len(sys.argv) < 2:
        print((__doc__ or "").strip(), file=sys.stderr)
        return 2
    found = find_spec("torch")
    if found is None or found.origin is None:
        print("PyTorch is not installed here", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="remat-hollow-") as folder:
        runtime = build(Path(found.origin).parent, Path(folder))
        paths = [folder, os.environ.get("LD_LIBRARY_PATH", "")]
        changed = {"LD_PRELOAD": str(runtime), "LD_LIBRARY_PATH": ":".join(filter(None, paths))}
        # The newer interface of cuDNN needs engines, which the stub does not have.
        return subprocess.run(sys.argv[1:], env=os.environ | changed | {"TORCH_CUDNN_V8_API_DISABLED": "1"}).returncode


if __name__ == "__main__":
    sys.exit(main())
