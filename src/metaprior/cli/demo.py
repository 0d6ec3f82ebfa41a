"""`metaprior demo`: a page in the browser where a learned prior adapts to points and drawings of one's own."""

import contextlib
import importlib.util
import webbrowser
from dataclasses import dataclass
from typing import Annotated

import tyro

from metaprior.cli import console
from metaprior.cli.arguments import parse

HELP = """Open a page in the browser: click points and see a learned prior adapt, step by step, method beside method; or draw
two to five characters once each, and another, and see which one it is taken for, and how surely.

examples:
  metaprior demo
  metaprior demo --port 0 --no-browser
  metaprior demo --host 0.0.0.0 --open-to-network --name my-laptop.local

Only this machine can reach the page, unless told otherwise. Points and drawings stay in the browser, the server keeps none. It
needs starlette and uvicorn: pip install -e '.[demo]' in a copy of the project. The priors come with the package, no data set is
needed."""

NEEDED = ("starlette", "uvicorn")


@dataclass(frozen=True)
class Demo:
    """The flags of `metaprior demo`."""

    host: str = "127.0.0.1"
    """Address to listen at."""
    port: int = 8421
    """Port to listen at; 0 takes any that is free."""
    no_browser: bool = False
    """Do not open a browser: only print the address."""
    open_to_network: bool = False
    """Allow a --host that other machines can reach. Nobody is asked for a password: use it in networks you trust."""
    name: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME ...")] = ()
    """Further names of this machine under which browsers may ask for the page."""


def run(argv: list[str]) -> int:
    """The command."""
    asked = parse(Demo, argv, prog="metaprior demo", help=HELP)
    require_extra()
    from metaprior.page import app, server  # here, because they need the extra

    if not server.is_loopback(asked.host) and not asked.open_to_network:
        raise ValueError(f"other machines could reach the page at {asked.host}: say --open-to-network if they shall")
    with contextlib.closing(server.bound(asked.host, asked.port)) as place:
        with console.waiting("compiling; this takes about half a minute"):
            page = app.application(app.engine(), hosts=server.names(asked.host, asked.name))
        # Only now: whoever opens it does not wait for a compiler, and who is quicker than the server waits in line.
        place.listen()
        print(f"the page is at {server.address(place)} (Ctrl-C ends it)", flush=True)
        if not asked.no_browser:
            webbrowser.open(server.address(place))
        with contextlib.suppress(KeyboardInterrupt):
            server.serve(page, place)
    return 0


def require_extra() -> None:
    """Say what is missing before anything is imported that needs it."""
    if missing := [name for name in NEEDED if importlib.util.find_spec(name) is None]:
        raise ValueError(f"the page needs {' and '.join(missing)}: pip install {' '.join(missing)}")
