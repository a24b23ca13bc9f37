"""The script and the commands of docs/tensorflow.md."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "tensorflow.md"
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_the_complete_example_runs_and_trains_the_same(tmp_path):
    blocks = FENCE.findall(PAGE.read_text(encoding="utf-8"))
    script = next(text for language, text in blocks if language == "python")
    commands = next(text for language, text in blocks if language == "bash" and "remat export" in text)
    (tmp_path / "train.py").write_text(script, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(PAGE.parents[1])}

    def run(*command):
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=environment, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    printed = ""
    for line in commands.splitlines():
        program, *arguments = shlex.split(line)
        printed = run(sys.executable, *(["-m", "remat_cli"] if program == "remat" else []), *arguments)
        if arguments[0] == "run":
            assert "identical" in printed
    planned = json.loads(printed)  # a list of two losses
    eager = (
        "import keras; original = keras.Model.compile\n"
        "keras.Model.compile = lambda self, **kw: original(self, **kw, run_eagerly=True)\n"
        "import runpy, sys; sys.argv = ['train.py']; runpy.run_path('train.py', run_name='__main__')"
    )
    assert planned == json.loads(run(sys.executable, "-c", eager))
    assert len(planned) == 2
