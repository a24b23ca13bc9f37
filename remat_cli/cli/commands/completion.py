"""``remat completion``: print the shell's completion script.

That for bash is our own, because bash divides ``zoo:vgg16`` and ``--strategy=auto`` into words of their own.
"""

import os
from typing import Any

import click
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    add_completion_class,
    get_completion_class,
    split_arg_string,
)

from remat_cli.cli import params
from remat_cli.cli.output import Output
from remat_cli.cli.session import COMPLETION
from remat_cli.files import require_writable

_SOURCE = """\
%(complete_func)s() {
    local response kind value
    response=$(env COMP_LINE="${COMP_LINE:0:COMP_POINT}" COMP_WORD="${COMP_WORDS[COMP_CWORD]}" \\
        COMP_WORDBREAKS="$COMP_WORDBREAKS" %(complete_var)s=bash_complete "$1")
    COMPREPLY=()
    while IFS=, read -r kind value; do
        case $kind in
            dir) compopt -o dirnames ;;
            file) compopt -o default ;;
            plain) COMPREPLY+=("$value") ;;
        esac
    done <<< "$response"
}
complete -o nosort -F %(complete_func)s %(prog_name)s
"""
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
    kind = get_completion_class(shell)
    assert kind is not None, shell
    require_writable(output)
    remat = click.get_current_context().find_root().command
    Output(quiet=quiet, file=output).report(f"{kind(remat, {}, 'remat', COMPLETION).source()}\n")


@add_completion_class
class Bash(BashComplete):
    """Completion from the whole line, in place of Click's, which trusts the words of bash."""

    source_template = _SOURCE

    def get_completion_args(self) -> tuple[list[str], str]:
        """The words after ``remat``, and the one that is incomplete."""
        line = os.environ["COMP_LINE"]
        words = split_arg_string(line)[1:]
        return (words, "") if line[-1:].isspace() else (words[:-1], words[-1])

    def format_completion(self, item: CompletionItem[Any]) -> str:
        """The part of the word that bash replaces: after the last of its word breaks, unless a quote is open."""
        breaks, quoted = os.environ["COMP_WORDBREAKS"], os.environ["COMP_WORD"].startswith(("'", '"'))
        word = self.get_completion_args()[1]
        typed = 0 if quoted else 1 + max((k for k, letter in enumerate(word) if letter in breaks), default=-1)
        return f"{item.type},{item.value.removeprefix(word[:typed])}"
