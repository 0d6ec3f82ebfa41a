"""Downloads, from a real server on this machine: taken up where they broke off, and kept only if they are the right files."""

import fcntl
import hashlib
import http.server
import re
import socket
import threading
from dataclasses import dataclass, field

import numpy as np
import pytest

from metaprior.data import download
from metaprior.data.download import DownloadError, Published, get

DATA = {name: np.random.default_rng(seed).bytes(300_000 + seed) for seed, name in enumerate(("one.zip", "two.zip"))}
FILES = tuple(Published(name, len(data), hashlib.sha256(data).hexdigest()) for name, data in DATA.items())


@dataclass
class Server:
    """What it does, and what it was asked for."""

    url: str = ""
    data: dict[str, bytes] = field(default_factory=lambda: dict(DATA))
    ranges: bool = True
    cuts: list[int] = field(default_factory=list)  # after how many bytes the next connections break off
    length: bool = True  # is it announced?
    requests: list[tuple[str, str | None]] = field(default_factory=list)


@pytest.fixture(autouse=True)
def direct(monkeypatch):
    monkeypatch.setenv("no_proxy", "*")  # the server is on this machine


@pytest.fixture
def server():
    state = Server()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            name, asked = self.path.rpartition("/")[2], self.headers.get("Range")
            state.requests.append((name, asked))
            if name not in state.data:
                self.send_error(404)
                return
            body = state.data[name]
            start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked and state.ranges else 0
            if start and start >= len(body):
                self.send_error(416)
                return
            self.send_response(206 if start else 200)
            if start:
                self.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
            if state.length:
                self.send_header("Content-Length", str(len(body) - start))
            self.end_headers()
            end = start + state.cuts.pop(0) if state.cuts else len(body)
            self.wfile.write(body[start:end])

        def log_message(self, format, *args):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        state.url = f"http://127.0.0.1:{running.server_port}/files"
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield state
        running.shutdown()
        thread.join()


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def refused(words, *args, **options):
    with pytest.raises(DownloadError, match=words) as caught:
        get(*args, **options)
    assert "\n" not in str(caught.value)


def test_files_arrive_whole_and_only_once(server, tmp_path):
    folder, seen = tmp_path / "new" / "folder", {}
    progress = lambda file, done: seen.setdefault(file.name, []).append(done)
    assert get(folder, FILES, url=server.url + "/", on_progress=progress) == [folder / name for name in DATA]
    assert {name: (folder / name).read_bytes() for name in names(folder)} == DATA
    for name, counts in seen.items():
        assert counts == sorted(counts) and counts[0] == 0 and counts[-1] == len(DATA[name]) and len(counts) > 3
    assert get(folder, FILES, url=server.url) == []
    assert [name for name, _ in server.requests] == list(DATA)


def test_a_connection_that_breaks_off_is_taken_up_at_once(server, tmp_path):
    server.cuts = [100_000, 50_000]
    get(tmp_path, FILES, url=server.url)
    assert {name: (tmp_path / name).read_bytes() for name in names(tmp_path)} == DATA
    assert server.requests == [
        ("one.zip", None),
        ("one.zip", "bytes=100000-"),
        ("one.zip", "bytes=150000-"),
        ("two.zip", None),
    ]


def test_what_has_arrived_is_kept_for_the_next_call(server, tmp_path):
    server.cuts = [100_000]
    words = r"one\.zip broke off after 100,000 of 300,000 bytes .*: call again, it goes on from there"
    refused(words, tmp_path, FILES, url=server.url, connections=1)
    assert names(tmp_path) == ["one.zip.part"]
    first = []
    get(tmp_path, FILES, url=server.url, on_progress=lambda file, done: first.append(done))
    assert server.requests[1] == ("one.zip", "bytes=100000-") and first[0] == 100_000
    assert {name: (tmp_path / name).read_bytes() for name in names(tmp_path)} == DATA


@pytest.mark.parametrize("length", [True, False])
def test_a_server_without_ranges_starts_over(server, tmp_path, length):
    server.ranges, server.length, server.cuts = False, length, [100_000, 20_000]
    get(tmp_path, FILES, url=server.url)
    assert {name: (tmp_path / name).read_bytes() for name in names(tmp_path)} == DATA
    assert [asked for _, asked in server.requests] == [None, "bytes=100000-", "bytes=20000-", None]


def test_a_server_that_sends_nothing_is_not_asked_again_and_again(server, tmp_path):
    server.cuts = [1000, *[0] * 20]
    refused("broke off after 1,000 of 300,000 bytes", tmp_path, FILES, url=server.url)
    assert len(server.requests) == 2


@pytest.mark.parametrize("change", ["other", "shorter", "longer", "endless"])
def test_another_file_is_not_kept(server, tmp_path, change):
    data = DATA["one.zip"]
    others = {"other": b"x" + data[1:], "shorter": data[:-1], "longer": data + b"x", "endless": data * 50}
    server.data["one.zip"] = others[change]
    seen = []
    words = (
        "one.zip is not the published file .SHA-256 .* so nothing of it was kept: call again, or choose another --from"
    )
    refused(words, tmp_path, FILES, url=server.url, on_progress=lambda file, done: seen.append(done))
    assert names(tmp_path) == []
    assert max(seen) <= len(data) + 1, "no more is taken than it needs to know"


def test_a_stale_part_spoils_one_call_at_most(server, tmp_path):
    (tmp_path / "one.zip.part").write_bytes(b"something else")
    refused("is not the published file", tmp_path, FILES, url=server.url)
    assert names(tmp_path) == []
    get(tmp_path, FILES, url=server.url)
    assert names(tmp_path) == ["one.zip", "two.zip"]


def test_a_part_that_is_whole_needs_no_server(tmp_path):
    for name, data in DATA.items():
        (tmp_path / f"{name}.part").write_bytes(data)
    get(tmp_path, FILES, url="http://127.0.0.1:9/")
    assert names(tmp_path) == ["one.zip", "two.zip"]


def test_a_part_longer_than_the_file_of_the_server_is_given_up(server, tmp_path):
    server.data["one.zip"] = DATA["one.zip"][:1000]
    (tmp_path / "one.zip.part").write_bytes(DATA["one.zip"][:2000])
    refused("is not the published file", tmp_path, FILES, url=server.url)
    assert [asked for _, asked in server.requests] == ["bytes=2000-", None]


def test_a_file_the_server_has_not(server, tmp_path):
    del server.data["one.zip"]
    refused(r"one\.zip answers 404 Not Found: check --from", tmp_path, FILES, url=server.url)


def test_no_network(tmp_path, monkeypatch):
    words = (
        r"one\.zip cannot be reached \(.+\): check the network, or fetch one\.zip on another machine and put it into"
    )
    refused(words, tmp_path, FILES, url="http://127.0.0.1:9/files")

    def unknown(*args, **options):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    refused(words, tmp_path, FILES, url="https://example.org/files")


def test_a_server_that_falls_silent_is_given_up(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        refused("cannot be reached .*timed out", tmp_path, FILES, url=f"http://127.0.0.1:{port}", timeout=0.05)


def test_files_of_others_are_not_replaced(server, tmp_path):
    (tmp_path / "two.zip").write_bytes(b"mine")
    with pytest.raises(ValueError, match=r"two\.zip is not the published file: move it away, or choose another --out"):
        get(tmp_path, FILES, url=server.url)
    assert (tmp_path / "two.zip").read_bytes() == b"mine" and server.requests == []


def test_two_processes_do_not_write_one_file(server, tmp_path):
    with open(tmp_path / "one.zip.part", "ab") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        refused("another process is downloading", tmp_path, FILES, url=server.url)


@pytest.mark.parametrize("url", ["file:///etc", "ftp://example.org", "data"])
def test_only_the_web_is_asked(url, tmp_path):
    with pytest.raises(ValueError, match="is no web address: it must begin with https://"):
        get(tmp_path, FILES, url=url)


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="choose another --out"):
        get(tmp_path / "file" / "folder", FILES)


def test_omniglot_is_published_as_two_zip_files():
    assert [file.name for file in download.OMNIGLOT] == ["images_background.zip", "images_evaluation.zip"]
    assert all(re.fullmatch("[0-9a-f]{64}", file.sha256) for file in download.OMNIGLOT)
    assert download.OMNIGLOT_URL.startswith("https://")
