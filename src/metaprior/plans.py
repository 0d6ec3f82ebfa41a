r"""What training would take past one device, from what one device takes: formulas, and nothing else.

A meta-step on n devices learns from b tasks on each, in the time $t_b$ that one device takes for b, and sums S bytes over all,

$$t = t_b + t_\Sigma, \qquad t_\Sigma = r(g, B_g, l_g) + r(h, B_h, l_h), \qquad
r(m, B, l) = 2\,\tfrac{m-1}{m}\,\tfrac{S}{B} + 2\lceil\log_2 m\rceil\, l,$$

with h hosts of g devices, bandwidth $B_g$ and latency $l_g$ between devices of a host, $B_h$ and $l_h$ between hosts: each of m
sends and receives $2(m-1)/m$ times the sum (a ring), and waits for as many turns as a tree has levels. S is a number for each
entry of the prior and four more, whatever the data and whatever the number of inner steps.

In a round of N phones each receives the prior, infers the posteriors of k tasks and sends the same bytes back,

$$t = \max\Big(t_0 + \tfrac{S}{d} + k\,t_1 + \tfrac{S}{u},\; \tfrac{N S}{B}\Big),$$

with $t_0$ to start, $t_1$ for a task, d down and u up of a phone, and B of the server, which sends to all and hears from all.
"""

import math
from typing import NamedTuple

MB, GB = 1e6, 1e9
EXTRA = 4  # numbers that are summed with the gradient: two reports, two counts


class Measured(NamedTuple):
    """What one device was found to do."""

    entries: int  # of the prior, and of what inference shares between tasks
    itemsize: int  # bytes of each
    tasks: int  # of a meta-batch
    seconds: float  # of a meta-step
    device: str

    @property
    def summed(self) -> float:
        """S: bytes that a meta-step sums over devices, and that a phone receives and sends."""
        return float((self.entries + EXTRA) * self.itemsize)


class Network(NamedTuple):
    """What connects devices. Bytes a second and seconds; assumed, not measured."""

    per_host: int = 8
    inside: float = 300 * GB
    inside_latency: float = 5e-6
    between: float = 25 * GB
    between_latency: float = 2e-5


class Phones(NamedTuple):
    """Clients of a federation, and their server. Bytes a second and seconds; assumed, not measured."""

    tasks: int = 10  # k, of each in a round
    slower: float = 10.0  # than the measured device, at one task; of a graphics card say 500
    start: float = 5.0
    down: float = 5 * MB
    up: float = 1 * MB
    server: float = 1.25 * GB


class Row(NamedTuple):
    """One line of a plan."""

    who: str
    tasks: int  # of a meta-step
    sent: float  # bytes that each of them sends a meta-step
    in_all: float  # bytes that all of them send
    communication: float  # seconds of a meta-step
    seconds: float  # of a meta-step
    bound: str  # by what

    @property
    def tasks_per_second(self) -> float:
        """That are learned from."""
        return self.tasks / self.seconds


def all_reduce(size: float, devices: int, network: Network) -> float:
    """t_Σ: seconds in which so many bytes are summed over devices.

    >>> all_reduce(1e9, 1, Network())
    0.0
    >>> round(all_reduce(1e9, 8, Network(inside=100e9, inside_latency=0.0)), 6)  # 2 · 7/8 · 1 GB / 100 GB/s
    0.0175
    """
    inside = min(devices, network.per_host)
    hosts = math.ceil(devices / network.per_host)
    return _ring(size, inside, network.inside, network.inside_latency) + _ring(
        size, hosts, network.between, network.between_latency
    )


def _ring(size: float, members: int, bandwidth: float, latency: float) -> float:
    return 2 * (members - 1) / members * size / bandwidth + 2 * math.ceil(math.log2(members)) * latency


def on_devices(measured: Measured, devices: int, network: Network) -> Row:
    """A meta-step on so many devices, each with as many tasks as the measured one had."""
    waiting = all_reduce(measured.summed, devices, network)
    sent = 2 * (devices - 1) / devices * measured.summed
    bound = "inference" if waiting < measured.seconds else "the all-reduce"
    return Row(
        "1 device" if devices == 1 else f"{devices:,} devices",
        measured.tasks * devices,
        sent,
        sent * devices,
        waiting,
        measured.seconds + waiting,
        bound,
    )


def on_phones(measured: Measured, count: int, phones: Phones) -> Row:
    """A round of so many phones."""
    size = measured.summed
    travelling = size / phones.down + size / phones.up
    working = phones.tasks * phones.slower * measured.seconds / measured.tasks
    serving = count * size / phones.server
    parts = {"inference": working, "the phones' connections": travelling, "starting": phones.start}
    alone = sum(parts.values())
    bound = "the server's connection" if serving > alone else max(parts, key=lambda part: parts[part])
    seconds = max(alone, serving)
    return Row(f"{count:,} phones", phones.tasks * count, size, size * count, seconds - working, seconds, bound)


DEVICES, PHONES = (1, 8, 64, 512), 10_000


def plan(measured: Measured, network: Network | None = None, phones: Phones | None = None) -> list[Row]:
    """One device, some hosts full of them, and ten thousand phones."""
    rows = [on_devices(measured, count, network or Network()) for count in DEVICES]
    return [*rows, on_phones(measured, PHONES, phones or Phones())]
