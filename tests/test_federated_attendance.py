"""A client outlives its server: the SuperNode, here any process, is started anew when the server comes back."""

import contextlib
import socket
import subprocess
import sys
import threading
import time

import pytest

from metaprior.federated import attendance
from metaprior.federated.attendance import attended
from metaprior.federated.launch import Failed, free_port


@pytest.fixture(autouse=True)
def quickly(monkeypatch):
    monkeypatch.setattr(attendance, "LOOK", 0.05)
    monkeypatch.setattr(attendance, "PAUSE", 0.05)


def listening(port):
    server = socket.socket()
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.bind(("127.0.0.1", port))
    server.listen(128)
    return server


class Nodes:
    """Processes in the place of SuperNodes: the first ones sleep until they are ended, the last ends by itself."""

    def __init__(self, *codes):
        self.codes, self.started, self.running = codes, 0, threading.Event()

    @contextlib.contextmanager
    def __call__(self):
        code = self.codes[min(self.started, len(self.codes) - 1)]
        words = "import time; time.sleep(60)" if code is None else f"raise SystemExit({code})"
        process = subprocess.Popen([sys.executable, "-S", "-c", words])
        self.started += 1
        self.running.set()
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def test_a_server_that_comes_back_is_found_again():
    port, nodes = free_port(), Nodes(None, 0)
    server, told = listening(port), []
    ended = []
    client = threading.Thread(
        target=lambda: ended.append(attended(nodes, "127.0.0.1", port, tell=told.append)), daemon=True
    )
    client.start()
    assert nodes.running.wait(10)
    server.close()
    until = time.monotonic() + 10
    while not told and time.monotonic() < until:
        time.sleep(0.02)
    assert "nobody listens" in told[0] and nodes.started == 1  # none is started where there is no server
    server = listening(port)
    client.join(20)
    server.close()
    assert ended == [0] and nodes.started == 2


def test_one_that_is_sent_away_comes_again_and_gives_up_in_words():
    port, nodes, told = free_port(), Nodes(3), []
    with contextlib.closing(listening(port)), pytest.raises(Failed, match="does not know this client: gave up"):
        attended(nodes, "127.0.0.1", port, retries=2, tell=told.append)
    assert nodes.started == 3 and all("exit code 3" in words for words in told)


def test_where_nobody_ever_listens_it_gives_up():
    with pytest.raises(Failed, match="no server answers"):
        attended(Nodes(0), "127.0.0.1", free_port(), retries=3)
