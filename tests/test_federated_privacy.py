"""Protected replies: what clipping bounds, what noise there is, and an account that agrees with what is known exactly."""

import json
import math
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import root_scalar
from scipy.stats import kstest, norm

from metaprior import runs, training
from metaprior.cli import federate
from metaprior.federated import accountant, flower, holders, privacy, server
from metaprior.federated.accountant import Asked, spent
from metaprior.federated.privacy import Privacy, private, rehearsed_normal, secret_normal
from metaprior.federated.replies import USUAL, Refused, believed, named
from metaprior.federated.requests import answerer
from metaprior.federated.server import Rules
from metaprior.meta import Statistics
from metaprior.settings import Settings, assemble

SETTINGS = Settings(hidden=(6,), shots=4, queries=3, meta_batch=6, iterations=3, rate=1e-3)
RULES = Privacy(clip=0.5, noise=2.0)


def statistics(gradient, kept):
    number = jnp.zeros(())
    return Statistics(jnp.asarray(gradient), (), number, number, number + kept, number + 1)


# --- replies -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [1e-3, 0.49, 0.51, 1e6])
def test_whatever_a_clients_data_are_its_reply_moves_by_at_most_twice_the_limit(length):
    """Under the same noise; and the bound is reached by two clients that pull in opposite directions."""
    draws = np.random.default_rng(0).normal(size=(3, 40))
    one, other, noise = draws[0] / np.linalg.norm(draws[0]), draws[1] / np.linalg.norm(draws[1]), draws[2]
    told = lambda mean, kept: np.asarray(private(statistics(kept * mean, kept), RULES, noise).gradient)
    assert np.linalg.norm(told(length * one, 3) - told(1e3 * other, 50)) <= 2 * RULES.clip * (1 + 1e-12)
    apart = np.linalg.norm(told(length * one, 3) - told(-length * one, 4))
    assert apart == pytest.approx(2 * min(length, RULES.clip))
    np.testing.assert_allclose(told(length * one, 3) - 2.0 * 0.5 * noise, min(length, 0.5) * one, atol=1e-12)


def test_numbers_of_tasks_are_not_told():
    for kept in (0, 1, 17):
        found = private(statistics(np.zeros(5), kept), RULES, np.ones(5))
        assert (float(found.kept), float(found.left_out)) == (1.0, 0.0)
        np.testing.assert_allclose(found.gradient, 1.0)


def test_what_shares_an_optimisers_memory_is_refused():
    found = statistics(np.zeros(5), 2)._replace(memory=jnp.ones(3))
    with pytest.raises(ValueError, match="share an optimiser"):
        private(found, RULES, np.ones(5))


def test_secret_noise_is_standard_normal_and_never_the_same():
    draws = secret_normal(1, 20_001)
    assert kstest(draws, "norm").pvalue > 1e-6 and abs(np.corrcoef(draws[:10_000], draws[10_001:])[0, 1]) < 0.05
    assert not np.array_equal(draws, secret_normal(1, 20_001))
    repeated = rehearsed_normal(0, 1)
    np.testing.assert_array_equal(repeated(3, 8), repeated(3, 8))
    assert not np.array_equal(repeated(3, 8), repeated(4, 8))


@pytest.mark.parametrize(
    ("bad", "words"),
    [(Privacy(0.0, 1.0), "--clip"), (Privacy(1.0, math.nan), "--noise"), (Privacy(1, 1, 1), "--delta")],
)
def test_numbers_that_protect_nobody_are_refused(bad, words):
    with pytest.raises(ValueError, match=words):
        server.require_sound(Rules(privacy=bad))


# --- account -------------------------------------------------------------------------------------------------------------


def exact_epsilon(multiplier, delta):
    """Of the Gaussian mechanism (Balle and Wang 2018): δ(ε) = Φ(1/2z − εz) − e^ε Φ(−1/2z − εz)."""
    a = 1 / (2 * multiplier)
    curve = lambda eps: norm.cdf(a - eps * multiplier) - math.exp(eps + norm.logcdf(-a - eps * multiplier))
    return root_scalar(lambda eps: curve(eps) - delta, bracket=(0, 200)).root


@pytest.fixture(scope="module")
def dp():
    return pytest.importorskip("dp_accounting", reason="needs dp-accounting: pip install 'metaprior[federated]'")


@pytest.mark.parametrize(("noise", "rounds", "quorum"), [(4.0, 1, 1), (20.0, 100, 4), (60.0, 400, 9)])
def test_the_account_without_sampling_is_that_of_a_gaussian(dp, noise, rounds, quorum):
    """Rounds compose to one Gaussian with √rounds less noise, of which ε is known; the account is above it, by little."""
    asked = [Asked(("a", "b"), 2)] * rounds
    found = spent(Privacy(1.0, noise), asked, quorum)
    for epsilon, alone in ((found.server, noise / 2), (found.others, noise / 2 * math.sqrt(quorum))):
        exact = exact_epsilon(alone / math.sqrt(rounds), 1e-5)
        assert exact <= epsilon <= 1.12 * exact


def test_secret_sampling_helps_towards_others_and_not_towards_the_server(dp):
    rules = Privacy(1.0, 8.0)
    all_of_them = spent(rules, [Asked(tuple("abcdefghij"), 10)] * 50, 2)
    names = [f"{n}" for n in range(1000)]
    few = spent(rules, [Asked(tuple(names[10 * i : 10 * i + 10]), 1000) for i in range(50)], 2)
    same = spent(rules, [Asked(tuple(names[:10]), 1000)] * 50, 2)
    assert few.server < same.server == all_of_them.server  # each was asked once, and the server knows it
    assert same.others < all_of_them.others / 4
    assert few.others <= same.others
    assert spent(rules, [], 2) == (0.0, 0.0)


def test_less_noise_more_rounds_or_a_smaller_quorum_tell_more(dp):
    at = lambda noise, rounds, quorum: spent(Privacy(1.0, noise), [Asked(("a",), 1)] * rounds, quorum)
    usual = at(4.0, 10, 4)
    assert at(2.0, 10, 4).server > usual.server and at(4.0, 20, 4).server > usual.server
    assert at(4.0, 10, 1).others > usual.others and at(4.0, 10, 1).server == usual.server


def test_without_the_library_the_error_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(ValueError, match=r"pip install 'metaprior\[federated\]'"):
        spent(RULES, [Asked(("a",), 1)], 1)


def test_the_ledger_outlives_a_kill(tmp_path):
    first, second = Asked(("a", "b"), 5), Asked(("c",), 4)
    accountant.enter(tmp_path, first)
    with open(tmp_path / accountant.LEDGER, "a") as file:
        file.write('{"clients": ["x"')
    assert accountant.read(tmp_path) == [first]
    accountant.enter(tmp_path, second)
    assert accountant.read(tmp_path) == [first, second] and accountant.read(tmp_path / "none") == []


# --- rounds --------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def setup():
    return assemble(SETTINGS)


@pytest.fixture(scope="module")
def clients(setup):
    return {f"client-{i}": answerer(setup, holders.share(setup, i, 3), normal=rehearsed_normal(0, i)) for i in range(3)}


def begun(setup, folder, rules, *, resume=False):
    return server.taken_up(setup, training.create_run(setup, folder, resume=resume), rules)[0]


def test_every_round_records_what_has_been_spent(dp, setup, clients, tmp_path):
    rules = Rules(quorum=2, clients=2, privacy=RULES._replace(secret=False))
    federation = server.simulated(begun(setup, tmp_path / "run", rules), clients)
    rows = runs.read_metrics(federation.run)
    ledger = accountant.read(federation.run.folder)
    assert [asked.present for asked in ledger] == [3, 3, 3] and all(len(asked.clients) == 2 for asked in ledger)
    assert rows[-1]["epsilon"] == pytest.approx(spent(RULES, ledger, 2)._asdict())
    assert all(row["tasks"] == 2 and row["stepped"] for row in rows)  # each counts as one
    server_side = [row["epsilon"]["server"] for row in rows]
    assert server_side == sorted(server_side) and server_side[0] > 0
    runs.release(federation.run)


def test_what_was_asked_stays_spent_when_the_server_is_killed(dp, setup, clients, tmp_path):
    """Killed after it had asked, before it wrote anything else: the clients may have answered."""
    rules = Rules(quorum=3, privacy=RULES)
    federation = begun(setup, tmp_path / "run", rules)
    server.ask(federation, clients)
    runs.release(federation.run)
    federation = server.simulated(begun(setup, tmp_path / "run", rules, resume=True), clients)
    last = runs.read_metrics(federation.run)[-1]["epsilon"]
    assert last["server"] == pytest.approx(spent(RULES, [Asked(("a",), 1)] * 4, 3).server)
    runs.release(federation.run)


def test_whom_a_protected_round_asks_does_not_follow_from_the_seed(dp, setup, tmp_path):
    federation = begun(setup, tmp_path / "run", Rules(clients=5, privacy=RULES))
    names = [f"client-{i:02d}" for i in range(40)]
    chosen = {tuple(server.ask(federation, names)[0]) for _ in range(4)}
    assert len(chosen) == 4 and {len(set(some)) for some in chosen} == {5}
    runs.release(federation.run)


def test_protected_clients_send_the_clipped_mean_and_their_noise(dp, setup, clients, tmp_path):
    federation = begun(setup, tmp_path / "run", Rules(privacy=RULES))
    _, sent = server.ask(federation, clients)
    plain = server.ask(federation._replace(rules=Rules()), clients)[1]
    state, size = federation.state, sum(leaf.size for leaf in jax.tree.leaves(federation.state.prior))
    found, told = (believed(state, clients["client-0"](asked)) for asked in (plain, sent))
    noise = rehearsed_normal(0, 0)(sent.round, size)
    expected = privacy.clipped(np.asarray(found.gradient) / float(found.kept), 0.5) + 2.0 * 0.5 * noise
    np.testing.assert_allclose(told.gradient, expected, rtol=1e-12)
    assert float(found.kept) == 2 and float(told.kept) == 1
    assert "secret" not in sent.words and "privacy" not in json.loads(plain.words)
    runs.release(federation.run)


def test_a_protected_reply_that_is_too_long_or_counts_as_many_is_refused(setup):
    state = training.initial_state(setup)
    size = sum(leaf.size for leaf in jax.tree.leaves(state.prior))
    limits = privacy.limits(USUAL, RULES, size)
    noise = secret_normal(0, size)
    honest = private(statistics(np.full(size, 1e3), 4.0), RULES, noise)
    believed(state, named(state, honest), limits)
    with pytest.raises(Refused, match="norm"):
        believed(state, named(state, honest._replace(gradient=honest.gradient + 3.0)), limits)
    with pytest.raises(Refused, match="more than the 1"):
        believed(state, named(state, honest._replace(kept=jnp.full((), 2.0))), limits)
    assert privacy.limits(USUAL, None, size) == USUAL


def test_a_client_that_insists_on_noise_does_not_reply_with_less(setup):
    assert privacy.agreed({"clip": 1.0, "noise": 2.0}, 2.0) == Privacy(1.0, 2.0)
    for asked, given in (({"clip": 1.0, "noise": 1.9}, "1.9"), (None, "none")):
        with pytest.raises(ValueError, match=f"noise of 2 or more alone, and was asked for {given}"):
            privacy.agreed(asked, 2.0)


def test_protection_survives_the_way_to_another_process(tmp_path):
    flower.save_rules(tmp_path, Rules(privacy=RULES))
    assert flower.read_rules(tmp_path).privacy == RULES


def test_on_the_command_line(dp, tmp_path, capsys):
    flags = "sinusoid --hidden 6 --shots 4 --queries 3 --meta-batch 6 --iterations 2 --rate 0.001 --clients 3 --quorum 3".split()
    with pytest.raises(ValueError, match="--clip and --noise together"):
        federate.run(["simulate", *flags, "--clip", "1"])
    assert federate.run(["simulate", *flags, "--clip", "1", "--noise", "3", "--out", str(tmp_path / "run")]) == 0
    rows = runs.read_metrics(runs.open_run(tmp_path / "run"))
    expected = spent(Privacy(1.0, 3.0), [Asked(("a", "b", "c"), 3)] * 2, 3)
    assert rows[-1]["epsilon"] == pytest.approx(expected._asdict())
    assert f"ε {rows[0]['epsilon']['server']:.3g} (server)" in flower.in_words(
        server.Record(**{name: rows[0][name] for name in server.Record._fields})
    )
