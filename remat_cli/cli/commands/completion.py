"""``remat completion``: print the shell's completion script."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from remat_cli.cli import params
from remat_cli.cli.output import Output
from remat_cli.files import require_writable

_EPILOG = """\b
To use it, add this line to your shell's start file:
  bash  ~/.bashrc                      eval "$(remat completion bash)"
  zsh   ~/.zshrc                       eval "$(remat completion zsh)"
  fish  ~/.config/fish/config.fish     remat completion fish | source"""


@click.command("completion", epilog=_EPILOG)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@params.output_option
@params.quiet_option
def command(shell: str, output: str, quiet: bool) -> None:
    """Print the completion script for a shell."""
    import remat_cli.cli.completion  # noqa: F401 - for Click, which knows it from then on
    from remat_cli.cli.main import COMPLETION, cli

    found = get_completion_class(shell)
    assert found is not None, shell
    require_writable(output)
    Output(quiet=quiet, file=output).report(f"{found(cli, {}, 'remat', COMPLETION).source()}\n")
