"""The command `dataprep completion`, which prints a completion script for a shell."""

from __future__ import annotations

import click

from . import output
from .command import COMPLETE_VARIABLE, EPILOG_START, SectionedCommand

__all__ = ["command"]


@click.command(
    "completion",
    cls=SectionedCommand,
    library=None,
    epilog=f"""{EPILOG_START}
  dataprep completion bash >> ~/.bashrc
  dataprep completion zsh >> ~/.zshrc
  dataprep completion fish > ~/.config/fish/completions/dataprep.fish""",
)
@click.argument("shell", metavar="bash|zsh|fish", type=click.Choice(["bash", "zsh", "fish"]))
@click.option("--debug", is_flag=True, expose_value=False, help="Show tracebacks of errors.")
@click.pass_context
def command(ctx: click.Context, shell: str) -> None:
    """Print a script that makes a shell complete dataprep commands."""
    from click.shell_completion import get_completion_class

    script = get_completion_class(shell)
    if script is None:
        raise click.UsageError(f"this release of click does not know {shell}", ctx)
    program = ctx.find_root().command
    output.result(script(program, {}, "dataprep", COMPLETE_VARIABLE).source().rstrip())
