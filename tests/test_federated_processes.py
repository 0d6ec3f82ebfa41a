"""Real processes of Flower on this machine: what they learn, who is let in, and what happens when one of them is killed."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest
from PIL import Image

import metaprior
from metaprior import runs, training
from metaprior.federated import holders, server, tables
from metaprior.federated.launch import free_port
from metaprior.federated.requests import answerer
from metaprior.meta import task_keys
from metaprior.settings import Settings, assemble

pytest.importorskip("flwr", reason="needs Flower: pip install 'metaprior[federated]'")

ROOT = Path(__file__).parents[1]
SETTINGS = Settings(hidden=(8, 8), meta_batch=16, meta_rate=0.02, iterations=4, rate=1e-3)
FLAGS = "sinusoid --hidden 8 8 --meta-batch 16 --meta-rate 0.02 --rate 0.001".split()


def start(part, *flags, before=()):
    environment = os.environ | {
        "JAX_ENABLE_X64": "1",
        "JAX_PLATFORMS": "cpu",
        "JAX_COMPILATION_CACHE_DIR": str(ROOT / ".cache" / "jax"),
        "PYTHONPATH": os.pathsep.join([*map(str, before), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]),
    }
    command = [sys.executable, "-m", "metaprior", "federate", part, *map(str, flags)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def serve(folder, port, *flags, iterations=4, secure=("--insecure",)):
    settings = [] if "--resume" in flags else FLAGS
    return start("server", *settings, "--iterations", iterations, "--port", port, "--out", folder, *secure, *flags)


def client(port, number, *, host="127.0.0.1", secure=("--insecure",), retries=300, before=()):
    return client_of(port, "--client", number, "--clients", 2, host=host, secure=secure, retries=retries, before=before)


def client_of(port, *tasks, host="127.0.0.1", secure=("--insecure",), retries=300, before=()):
    return start("client", "--server", f"{host}:{port}", "--retries", retries, *tasks, *secure, before=before)


@contextlib.contextmanager
def all_ended(*processes):
    """Nothing of it outlives the block: neither these nor what they started, which have the port in their words."""
    try:
        yield processes
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=20)
            process.kill()
            process.communicate()


def of_flower(*words):
    """Processes of this machine whose command has one of these words."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            command = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if "flwr" in command or "flower" in command or "metaprior" in command:
                found += [command] if any(str(word) in command for word in words) else []
    return found


def wait_for(condition, seconds, what):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, f"no {what} within {seconds} s"
        time.sleep(0.2)


def assert_nothing_left(*words):
    wait_for(lambda: not of_flower(*words), 15, f"end of {of_flower(*words)}")


def query_nll(setup, state):
    episodes = jax.vmap(setup.tasks.sample)(task_keys(jax.random.key(99), 50))
    each = lambda key, episode: setup.learner.gradient(key, state.prior, state.memory, episode)[2][0]
    return float(np.mean(jax.jit(jax.vmap(each))(task_keys(jax.random.key(98), 50), episodes)))


def assert_same_prior(folder, setup):
    """As training on one machine, with the same draws."""
    _, state, _ = training.open_state(folder)
    central = training.train(setup, None)
    for ours, theirs in zip(jax.tree.leaves(state.prior), jax.tree.leaves(central.prior), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-9)
    return state


def test_two_real_clients_learn_what_one_machine_does_and_leave_nothing_running(tmp_path):
    """One round, which takes most of a minute; more of them are in the slow tests."""
    setup, port, folder = assemble(replace(SETTINGS, iterations=1)), free_port(), tmp_path / "run"
    serving = serve(folder, port, "--quorum", 2, "--deadline", 60, iterations=1)
    with all_ended(serving, client(port, 0), client(port, 1)):
        told, _ = serving.communicate(timeout=120)
    assert serving.returncode == 0, told
    state = assert_same_prior(folder, setup)
    assert query_nll(setup, state) < query_nll(setup, training.initial_state(setup))
    records = runs.read_metrics(runs.open_run(folder))
    assert [row["round"] for row in records] == [1] and all(row["tasks"] == 16 for row in records)
    assert_nothing_left(port, folder)


@pytest.mark.slow
def test_a_killed_server_goes_on_where_it_was(tmp_path):
    """Its own process is killed, and with it go those of Flower; the clients stay and find the new one."""
    setup, port, folder = assemble(SETTINGS), free_port(), tmp_path / "run"
    flags = ["--quorum", 2, "--deadline", 30]
    rows = lambda: runs.read_metrics(runs.open_run(folder)) if (folder / "settings.json").exists() else []
    clients = [client(port, number) for number in range(2)]
    with all_ended(serve(folder, port, *flags), *clients) as [first, *_]:
        wait_for(lambda: len(rows()) >= 2, 120, "second round")
        first.send_signal(signal.SIGKILL)
        first.wait()
        wait_for(lambda: not of_flower(folder, f"--port {port}"), 15, "end of the server")
        before = len(rows())
        with all_ended(serve(folder, port, *flags, "--resume")) as [second]:
            told, _ = second.communicate(timeout=180)
    assert second.returncode == 0 and before < 4, told
    assert_same_prior(folder, setup)
    assert [row["round"] for row in rows() if row["stepped"]] == [1, 2, 3, 4]
    assert_nothing_left(port, folder)


# Runs in every Python process of a client as it starts: does its worst in the one that answers messages.
FAULT = """
import os, sys, threading, time
def watch():
    while "metaprior.federated.requests" not in sys.modules or "metaprior_federation.client" not in sys.modules:
        time.sleep(0.01)
    {worst}
threading.Thread(target=watch, daemon=True).start()
"""
WORST = {
    "raises": "import metaprior.federated.flower as flower; flower._client = lambda *words: 1 / 0",
    "exits hard": "os._exit(3)",
}


@pytest.mark.slow
@pytest.mark.parametrize("what", WORST)
def test_beside_a_client_that_fails_in_every_round_the_others_learn_as_without_it(tmp_path, what):
    port, folder, fault = free_port(), tmp_path / "run", tmp_path / "fault"
    fault.mkdir()
    (fault / "sitecustomize.py").write_text(FAULT.format(worst=WORST[what]))
    setup = assemble(replace(SETTINGS, iterations=2))
    serving = serve(folder, port, "--quorum", 1, "--ask", 2, "--deadline", 40, iterations=2)
    with all_ended(serving, client(port, 0), client(port, 1, before=[fault])):
        told, _ = serving.communicate(timeout=400)
    assert serving.returncode == 0, told
    records = runs.read_metrics(runs.open_run(folder))
    # Whoever comes first makes the first rounds: what counts is that the one that fails is never in them, and is named.
    assert all(len(row["replied"]) == 1 and row["tasks"] == 8 for row in records if row["stepped"]), records
    assert len([row for row in records if row["stepped"]]) == 2
    assert any(row["refused"] or row["missing"] for row in records), records
    if what == "raises":
        assert any("the client failed" in reason for row in records for reason in row["refused"].values()), records
    alone = {"alone": answerer(setup, holders.share(setup, 0, 2))}
    run = training.create_run(setup, tmp_path / "alone", resume=False)
    expected = server.simulated(server.taken_up(setup, run, server.Rules())[0], alone).state.prior
    runs.release(run)
    _, state, _ = training.open_state(folder)
    for ours, theirs in zip(jax.tree.leaves(state.prior), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-9)
    assert_nothing_left(port, folder)


@pytest.mark.slow
def test_beside_a_killed_client_the_rounds_go_on(tmp_path):
    port, folder = free_port(), tmp_path / "run"
    flags = ["--quorum", 1, "--deadline", 15]
    with all_ended(serve(folder, port, *flags, iterations=8), client(port, 0), client(port, 1)) as started:
        rows = lambda: runs.read_metrics(runs.open_run(folder)) if (folder / "settings.json").exists() else []
        wait_for(lambda: len(rows()) >= 2, 120, "second round")
        started[2].send_signal(signal.SIGKILL)
        told, _ = started[0].communicate(timeout=240)
    assert started[0].returncode == 0, told
    assert all(row["stepped"] for row in rows()) and len(rows()) == 8
    # Asked once more perhaps, and missing then; in the last rounds the other is alone.
    assert all(len(row["replied"]) == 1 for row in rows()[-2:]), rows()
    assert_nothing_left(port, folder)


def pictures(folder):
    for shade in range(3):
        (folder / f"class-{shade}").mkdir(parents=True)
        for number in range(3):
            Image.new("RGB", (84, 84), (40 + 60 * shade, 20 * number, 90)).save(
                folder / f"class-{shade}" / f"{number}.png"
            )
    settings = Settings(
        "images", "gem-bml+last-layer", ways=2, shots=1, queries=2, filters=2, meta_batch=3, iterations=2
    )
    words = "images --method gem-bml+last-layer --ways 2 --shots 1 --queries 2 --filters 2 --meta-batch 3".split()
    setup = assemble(settings)
    return setup, words, ["--images", folder], holders.own_images(setup, folder, name="anna")


def rows_of_two_inputs(folder):
    draw = np.random.default_rng(0)
    lines = [f"{who},{x1!r},{x2!r},{x1 - x2!r}" for who in "abc" for x1, x2 in draw.normal(size=(9, 2)).tolist()]
    folder.mkdir()
    (folder / "t.csv").write_text("patient,age,dose,pulse\n" + "\n".join(lines) + "\n")
    names = {"inputs": ("age", "dose"), "outputs": ("pulse",)}
    settings = Settings("tables", shots=4, queries=3, hidden=(6,), rate=1e-3, iterations=2, **names)
    words = "tables --inputs age dose --outputs pulse --shots 4 --queries 3 --hidden 6 --rate 0.001".split()
    flags = ["--table", folder / "t.csv", *"--group-column patient --x-column age dose --y-column pulse".split()]
    groups = tables.read_groups(folder / "t.csv", group="patient", x=["age", "dose"], y=["pulse"])
    return (setup := assemble(settings)), words, flags, tables.grouped(setup, groups, name="anna")


@pytest.mark.slow
@pytest.mark.parametrize("make", [pictures, rows_of_two_inputs])
def test_a_client_learns_from_data_of_its_own_as_in_this_process(tmp_path, make):
    setup, words, flags, holder = make(tmp_path / "mine")
    port, folder = free_port(), tmp_path / "run"
    rounds = ["--iterations", 2, "--port", port, "--out", folder, "--quorum", 1, "--deadline", 60, "--insecure"]
    serving = start("server", *words, *rounds)
    with all_ended(serving, client_of(port, *flags, "--name", "anna")):
        told, _ = serving.communicate(timeout=240)
    assert serving.returncode == 0, told
    run = training.create_run(setup, tmp_path / "here", resume=False)
    here = server.simulated(server.taken_up(setup, run, server.Rules())[0], {"anna": answerer(setup, holder)})
    runs.release(run)
    _, state, _ = training.open_state(folder)
    for ours, theirs in zip(jax.tree.leaves(state.prior), jax.tree.leaves(here.state.prior), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-9)
    assert len(metaprior.load(folder).trained.notes) == 1  # nothing here to calibrate on
    assert_nothing_left(port, folder)


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    """An authority, a certificate of this machine, and keys of two clients and of a stranger; and another authority."""
    folder = tmp_path_factory.mktemp("keys")
    openssl = lambda *words: subprocess.run(["openssl", *map(str, words)], check=True, capture_output=True, cwd=folder)
    for name in ("ca", "other"):
        openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={name}",
                "-keyout", f"{name}.key", "-out", f"{name}.crt")  # fmt: skip
    (folder / "san").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
    openssl("req", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost", "-keyout", "tls.key", "-out", "tls.csr")
    openssl("x509", "-req", "-in", "tls.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2",
            "-extfile", "san", "-out", "tls.crt")  # fmt: skip
    (folder / "known").mkdir()
    for name in ("known/anna", "known/ben", "stranger"):
        _key_pair(folder / name)
    return folder


def _key_pair(path):
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP384R1())
    ssh = serialization.PrivateFormat.OpenSSH
    path.write_bytes(key.private_bytes(serialization.Encoding.PEM, ssh, serialization.NoEncryption()))
    path.chmod(0o600)
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    path.with_suffix(".pub").write_bytes(public + b"\n")


@pytest.mark.slow
def test_with_tls_and_keys_strangers_are_kept_out(authority, tmp_path):
    setup, port, folder = assemble(SETTINGS), free_port(), tmp_path / "run"
    tls = ["--ca", authority / "ca.crt", "--certificate", authority / "tls.crt", "--key", authority / "tls.key"]
    keys = lambda key, ca="ca.crt": (
        *["--ca", authority / ca, "--client-key", authority / key],
        *["--certificate", authority / "tls.crt", "--key", authority / "tls.key"],
    )
    serving = serve(folder, port, "--quorum", 2, "--deadline", 90, secure=(*tls, "--client-keys", authority / "known"))
    strangers = [
        client(port, 0, secure=keys("stranger"), retries=40),
        client(port, 0, secure=keys("known/anna", "other.crt"), retries=3),
        client(port, 0, secure=("--insecure",), retries=3),
    ]
    friends = [client(port, number, secure=keys(f"known/{name}")) for number, name in enumerate(("anna", "ben"))]
    with all_ended(serving, *strangers, *friends):
        told, _ = serving.communicate(timeout=240)
    assert serving.returncode == 0, told
    assert_same_prior(folder, setup)
    records = runs.read_metrics(runs.open_run(folder))
    assert len({name for row in records for name in (*row["replied"], *row["refused"], *row["missing"])}) == 2, records
    assert_nothing_left(port, folder)


def test_without_keys_a_federation_stays_on_one_machine(tmp_path):
    for flags in (["--host", "0.0.0.0"], []):
        secure = ("--insecure",) if flags else ()
        process = serve(tmp_path / "run", free_port(), *flags, secure=secure)
        told, _ = process.communicate(timeout=60)
        assert process.returncode == 2 and "TLS" in told
    assert not (tmp_path / "run").exists()
