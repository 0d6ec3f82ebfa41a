"""The command line: `metaprior COMMAND …`. A command is a module with `run(argv) -> exit code`, imported when it is called."""

import importlib
import os
import sys
from collections.abc import Sequence

from metaprior.cli import exhausted
from metaprior.names import require_known

# Name -> (module, what it does). Modules stay unimported here: JAX takes longer to load than a help text may take.
COMMANDS = {
    "train": ("metaprior.cli.train", "learn a prior from many small tasks, into a run folder"),
    "evaluate": ("metaprior.cli.evaluate", "judge a learned prior on unseen tasks"),
    "adapt": (
        "metaprior.cli.adapt",
        "adapt a learned prior to points of a CSV file, a folder of photos, or an agent's goal",
    ),
    "federate": (
        "metaprior.cli.federate",
        "learn one prior from tasks of many clients that keep their data",
    ),
    "methods": ("metaprior.cli.methods", "list the methods and what each is made of"),
    "data": ("metaprior.cli.data", "look at a folder of images, or download Omniglot"),
    "bench": ("metaprior.cli.bench", "measure: memory of a meta-step, speed beside other libraries"),
    "plan": (
        "metaprior.cli.plan",
        "plan past one machine: bytes, seconds and tasks a second on many devices and phones",
    ),
    "reproduce": ("metaprior.cli.reproduce", "run experiments: results as JSON, table and figure"),
    "report": ("metaprior.cli.report", "rebuild the pages of results from the results files"),
    "quickstart": ("metaprior.cli.quickstart", "train, evaluate and draw, all in one, in about a minute"),
    "demo": (
        "metaprior.cli.demo",
        "open a page in the browser: watch a learned prior adapt to your points and drawings",
    ),
}

HELP = f"""usage: metaprior COMMAND …

Learn a prior over a model's weights from many small tasks; adapt it to a new one with a handful of points.

commands:
{chr(10).join(f"  {name:<10} {what}" for name, (_, what) in COMMANDS.items())}

examples:
  metaprior quickstart
  metaprior demo
  metaprior train sinusoid --method gem-bml+ --out runs/sine
  metaprior evaluate runs/sine
  metaprior adapt runs/sine points.csv --out adapted

options:
  -h, --help   this text; of a command: metaprior train --help
  --version    the version
  --debug      with any command: show the traceback of an error
"""

FAILED, BAD_INPUT, INTERRUPTED, PIPE_CLOSED = 1, 2, 130, 141


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code. Bad input is one line on stderr, never a traceback."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in arguments
    try:
        return _dispatch([argument for argument in arguments if argument != "--debug"])
    except SystemExit as exit:  # the parser has said what was wrong, or has printed its help
        return exit.code if isinstance(exit.code, int) else FAILED
    except KeyboardInterrupt as stop:
        return _complain(str(stop) or "interrupted", INTERRUPTED)
    except BrokenPipeError:  # `metaprior methods | head`: the reader has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED
    except Exception as error:
        code = exit_code(error)
        if debug or code is None:
            raise
        return _complain(str(error), code)


def exit_code(error: Exception) -> int | None:
    """2 for what was asked wrongly, 1 for what went wrong on the way, None for what should not happen at all."""
    if isinstance(error, ValueError | OSError):
        return BAD_INPUT if isinstance(error, ValueError) else FAILED
    from metaprior.training import Diverged  # here, because it takes JAX with it

    return FAILED if isinstance(error, Diverged) else None


def _dispatch(argv: list[str]) -> int:
    if not argv or argv[0] in ("-h", "--help"):
        print(HELP, end="")
        return 0
    if argv[0] == "--version":
        import metaprior

        print(f"metaprior {metaprior.__version__}")
        return 0
    name, *rest = argv
    require_known("command", name, COMMANDS)
    if name == "demo" or argv[:2] == ["bench", "page"]:
        # Threads of LAPACK wait for each other by spinning: for small matrices on a busy machine that costs twenty times the
        # work itself, and the page is to answer at once. Read when the library is loaded, so it is said before JAX is.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    with exhausted.explained(lambda: exhausted.of_command(argv)):
        return importlib.import_module(COMMANDS[name][0]).run(rest)


def _complain(message: str, code: int) -> int:
    print(f"metaprior: {' '.join(message.split())}", file=sys.stderr)
    return code
