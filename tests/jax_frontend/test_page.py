"""The page on JAX: its script, exported, solved, run and trained by plan, prints what the page says."""

import os
import subprocess
import sys

from docs.docs_pages import DOCS, ROOT, blocks, commands_of, fits

PAGE = blocks(DOCS / "jax.md")


def test_the_commands_of_the_page_run_and_print_what_it_says(tmp_path):
    [script] = [block.text for block in PAGE if block.language == "python"]
    (tmp_path / "train.py").write_text(script, encoding="utf-8")
    for name, code in (("remat", '-c "from remat_cli.cli.main import main; main()"'), ("python", "")):
        wrapper = tmp_path / "bin" / name
        wrapper.parent.mkdir(exist_ok=True)
        wrapper.write_text(f'#!/bin/sh\nexec {sys.executable} {code} "$@"\n', encoding="utf-8")
        wrapper.chmod(0o755)
    environment = os.environ | {"PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin", "PYTHONPATH": str(ROOT), "COLUMNS": "100"}
    printed = {}
    for command, told in [told for block in PAGE if block.language == "console" for told in commands_of(block)]:
        done = subprocess.run(
            command, shell=True, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"$ {command}\n{done.stderr}"
        printed[command] = done.stdout + done.stderr
        lines = [line for line in told.split("\n") if line.endswith("...") and line != "..."]
        if lines:
            assert all(line.removesuffix("...") in printed[command] for line in lines)
        else:
            assert fits(printed[command], told), f"$ {command}\n{printed[command]}"
    planned = next(text for command, text in printed.items() if command.startswith("python train.py"))
    plain = subprocess.run(
        [sys.executable, "train.py"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    assert len(planned.splitlines()) == 5
    for mine, other in zip(planned.splitlines(), plain.stdout.splitlines(), strict=True):
        assert abs(float(mine.split()[1]) - float(other.split()[1])) <= 2e-5
