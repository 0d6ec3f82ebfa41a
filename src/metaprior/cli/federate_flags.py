"""The flags of `metaprior federate simulate | server | client`."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from metaprior.cli.train import Choices
from metaprior.federated.privacy import Privacy
from metaprior.federated.requests import Work
from metaprior.federated.server import Rules

ROUNDS = 200


@dataclass(frozen=True)
class Rounds:
    """Of rounds: shared by simulate and server. --iterations is the number of steps that the server makes."""

    settings: Choices = dataclasses.field(default_factory=lambda: Choices(iterations=ROUNDS))
    out: Path | None = None
    """Folder of the run: new or empty, unless resuming."""
    resume: bool = False
    """Go on with the run in --out, with its settings; only --iterations may be given anew, and raised."""
    quorum: int = 1
    """Sound replies that a step needs; with fewer the prior stays as it is."""
    ask: int | None = None
    """Clients that a round asks, drawn by the seed; all if not given."""
    patience: int = 3
    """Rounds in a row without a step, after which the run ends."""
    local_steps: int = 1
    """Meta-steps that a client makes by itself before it replies: more save rounds."""
    local_rate: float = 1e-3
    """Of these steps."""
    clip: float | None = None
    """Protect clients: the longest that the mean meta-gradient of a client may be. Needs --noise."""
    noise: float | None = None
    """Protect clients: standard deviation of the noise that each adds to its reply, over --clip."""
    delta: float = 1e-5
    """Of the account of privacy: the probability beside epsilon."""
    quiet: bool = False
    """Show notes and errors only."""

    def rules(self, **more: Any) -> Rules:
        """As the library has them."""
        work = Work(self.local_steps, self.local_rate)
        return Rules(self.quorum, self.ask, patience=self.patience, work=work, privacy=self.privacy(), **more)

    def privacy(self) -> Privacy | None:
        """How replies are protected, if that is asked for."""
        if (self.clip is None) != (self.noise is None):
            raise ValueError("replies are protected by --clip and --noise together: give both, or neither")
        return None if self.clip is None or self.noise is None else Privacy(self.clip, self.noise, self.delta)


@dataclass(frozen=True)
class Simulate(Rounds):
    """The flags of `metaprior federate simulate`."""

    clients: int = 4
    """How many clients share the tasks of a meta-batch."""
    apart: bool = False
    """Of images: every client has classes of its own, of Omniglot whole alphabets."""
    checkpoint_every: int = 50
    """Rounds between checkpoints."""


@dataclass(frozen=True)
class Serve(Rounds):
    """The flags of `metaprior federate server`."""

    host: str = "127.0.0.1"
    """Where to listen."""
    port: int = 8000
    """Where to listen."""
    deadline: float = 600.0
    """Seconds that a round waits for enough clients, and then for their replies."""
    insecure: bool = False
    """Without TLS and keys: for trying it out on one machine."""
    ca: Path | None = None
    """Certificate of the authority that vouches for the server."""
    certificate: Path | None = None
    """Of the server."""
    key: Path | None = None
    """Private key of the certificate."""
    client_keys: Path | None = None
    """Folder of the public keys, *.pub, of the clients that may take part."""


@dataclass(frozen=True)
class Client:
    """The flags of `metaprior federate client`."""

    server: str = "127.0.0.1:8000"
    """HOST:PORT of the server."""
    table: Path | None = None
    """CSV file with a column of groups, each of which is a task; or a folder of CSV files, one for each task."""
    group_column: str | None = None
    """Of the table: which names the group of a row."""
    x_column: tuple[str, ...] = ("x",)
    """Of the table: the inputs, as many as the server's tasks have."""
    y_column: tuple[str, ...] = ("y",)
    """Of the table: the outputs, as many as the server's tasks have."""
    images: Path | None = None
    """Folder of pictures, with a folder for each class, of which tasks are made."""
    tasks: int | None = None
    """Of images: tasks a round; as many as the server's meta-batch has if not given."""
    client: int | None = None
    """Without tasks of its own: which client of a built-in task set this is, from 0."""
    clients: int | None = None
    """Without tasks of its own: how many there are."""
    name: str = ""
    """Of this client, so that its groups are not taken for those of another. It is not sent."""
    data_dir: Path | None = None
    """Where images are, if not where METAPRIOR_DATA says."""
    least_noise: float = 0.0
    """Reply only where the server asks for replies with at least so much --noise."""
    retries: int | None = None
    """How often in a row to try in vain, about once a second, while no server answers or knows us; for ever if not given."""
    insecure: bool = False
    """Without TLS and keys: for trying it out on one machine."""
    ca: Path | None = None
    """Certificate of the authority that vouches for the server."""
    client_key: Path | None = None
    """Private key that the server knows this client by."""
    certificate: Path | None = None
    """For this client's own local processes: of localhost, vouched for by the same authority."""
    key: Path | None = None
    """Private key of that certificate."""
