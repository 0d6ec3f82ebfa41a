"""Speed on images: what is timed does what is said of it, both sides compute the same, and what cannot be timed is named."""

import json
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from metaprior.benchmarks import images, images_beside, images_maml, images_programs, images_torch
from metaprior.benchmarks.images_compiled import calls, products
from metaprior.benchmarks.images_problem import QUERY_STEPS, SETTINGS, STEPS, pool, random_pool, set_up
from metaprior.benchmarks.images_record import BESIDE, record
from metaprior.cli import main
from metaprior.inference.base import infer, mean_loss
from metaprior.training import initial_state
from metaprior.types import Data, Episode

TINY = SETTINGS["omniglot-5w1s"]._replace(ways=2, queries=2, meta_batch=2, filters=2)
FEW = random_pool("omniglot", 3, 4)


# --- what is timed ----------------------------------------------------------------------------------------------------


def test_the_settings_are_the_ones_that_are_stated(monkeypatch):
    monkeypatch.delenv("METAPRIOR_DATA", raising=False)
    counts = {name: (one.support, one.query, one.meta_batch, one.target) for name, one in SETTINGS.items()}
    assert counts == {
        "omniglot-5w1s": (160, 800, 32, 1.2),
        "omniglot-20w1s": (320, 1600, 16, 1.2),
        "miniimagenet-5w1s": (20, 300, 4, 1.4),
        "miniimagenet-5w1s, 16 tasks": (80, 1200, 16, None),
    }
    method = set_up(SETTINGS["omniglot-5w1s"], "gem-bml+", precision=None).learner.method
    assert (method.posterior, method.inference, method.second_stage) == ("delta", "preconditioned", "sequential")
    assert method.steps == (STEPS, QUERY_STEPS) == (5, 1) and method.meta_batch == 32
    assert set_up(TINY, "maml", precision=None).learner.method.steps == (5, 0)
    (pixels, members), words = pool(SETTINGS["omniglot-20w1s"])
    assert pixels.shape == (24_000, 28, 28, 1) and members.shape == (1200, 20) and words.startswith("random bytes")


@pytest.mark.usefixtures("quick_compile")
@pytest.mark.parametrize("how", images_programs.FLOORS.values())
def test_the_floor_is_the_gradients_of_passes_by_hand(how):
    """The plain gradient with one set of weights over the images of all tasks together."""
    setup = set_up(TINY, "gem-bml+", precision=None)
    keys = jax.vmap(lambda index: jax.random.fold_in(jax.random.key(0), index))(jnp.arange(TINY.meta_batch))
    episodes = jax.jit(jax.vmap(lambda key: setup.tasks.sample(key, *FEW)))(keys)

    @jax.jit
    def wanted(params, data):
        x, y = (jnp.concatenate(part) for part in data)
        return jax.grad(lambda params: cross_entropy(setup.model.apply(params, x), y))(params)

    params = setup.model.init(jax.random.key(0))
    program = images_programs._floor(TINY, FEW, how, None, iterations=2)()
    for found, data in zip(program.advance(program.carry), episodes, strict=True):
        for mine, reference in zip(*map(jax.tree.leaves, (found, wanted(params, data))), strict=True):
            np.testing.assert_allclose(mine, reference, rtol=1e-9, atol=1e-12)


def cross_entropy(logits, labels):
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], axis=1).mean()


@pytest.fixture(scope="module")
def arithmetic():
    """Of a compiled program; and of one image's forward and backward pass, by which the others are measured."""
    # What is computed is settled before machine code is optimised.
    options: dict[str, str | bool] = {"xla_backend_optimization_level": "0"}

    def of(function, *arguments):
        return products(str(jax.jit(function).lower(*arguments).compile(compiler_options=options).as_text()))

    setup = set_up(TINY, "gem-bml+", precision=None)
    loss = lambda params, data: mean_loss(setup.likelihood, params, data)
    params = jax.eval_shape(setup.model.init, jax.random.key(0))
    return setup, params, loss, of, of(jax.grad(loss), params, batch(8)) / 8


def batch(*count) -> Data:
    return jax.eval_shape(lambda: Data(jnp.zeros((*count, 28, 28, 1)), jnp.zeros(count, int)))


IMAGES = STEPS * TINY.support + QUERY_STEPS * TINY.query  # passed through the network in an iteration


def test_no_pass_of_the_floor_is_left_out_or_done_once_for_all(arithmetic):
    _, params, loss, of, one_image = arithmetic
    chunk = images_programs.floor_passes(loss, 3)
    carry = images_programs.Gradients(params, params)
    found = of(chunk, carry, params, batch(TINY.support), batch(TINY.query))
    np.testing.assert_allclose(found, 3 * IMAGES * one_image, rtol=1e-9)


def test_a_meta_step_makes_no_product_that_the_floor_does_not(arithmetic):
    """Between two reports: no gradient in the pixels, no second look at the data, no pass for a value that nobody sees."""
    setup, _, _, of, one_image = arithmetic
    state = jax.eval_shape(lambda: initial_state(setup))
    keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), TINY.meta_batch))
    episodes = Episode(batch(TINY.meta_batch, TINY.ways * TINY.shots), batch(TINY.meta_batch, TINY.ways * TINY.queries))
    np.testing.assert_allclose(of(setup.learner.step, state, keys, episodes), IMAGES * one_image, rtol=1e-9)


def test_rates_stay_shared_by_tasks_that_take_different_numbers_of_steps():
    """`vmap` hands out an array without an axis of tasks only if there is none: a copy for each task would be an error."""
    setup = set_up(TINY, "gem-bml+", precision=None)
    prior = initial_state(setup).prior
    family, inference = setup.learner.cell.family, setup.learner.cell.inference
    inference = inference._replace(recall=lambda state: state.rates, posterior=lambda *given: ())
    support = setup.tasks.sample(jax.random.key(0), *FEW).support
    several = lambda active: infer(
        inference, jax.random.key(1), prior, family.start(prior.dist), support, 2, active=active
    )
    _, rates = jax.eval_shape(jax.vmap(several, out_axes=(0, None)), jnp.array([1, 2]))
    assert jax.tree.map(jnp.shape, rates) == jax.tree.map(jnp.shape, prior.dist.mean)


PROGRAM = """HloModule m

%fused (p: f32[2,3], q: f32[3,4]) -> f32[2,4] {
  %p = f32[2,3]{1,0} parameter(0)
  %q = f32[3,4]{1,0} parameter(1)
  ROOT %d = f32[2,4]{1,0} dot(%p, %q), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}

%body (t: (s32[], f32[2,3])) -> (s32[], f32[2,3]) {
  %t = (s32[], f32[2,3]{1,0}) parameter(0)
  %x = f32[2,3]{1,0} get-tuple-element(%t), index=1
  %f = f32[2,4]{1,0} fusion(%x, %x), kind=kCustom, calls=%fused
  %c = f32[2,3]{1,0} copy(%x)
  ROOT %r = (s32[], f32[2,3]{1,0}) tuple(%c, %c)
}

%seldom (t: f32[2,3]) -> f32[2,3] {
  ROOT %n = f32[2,3]{1,0} negate(%t)
}

ENTRY %main (a: f32[2,3], b: f32[3,4]) -> f32[2,4] {
  %a = f32[2,3]{1,0} parameter(0)
  %b = f32[3,4]{1,0} parameter(1)
  %w = (s32[], f32[2,3]{1,0}) while(%a), condition=%cond, body=%body, backend_config={"known_trip_count":{"n":"5"}}
  %k = f32[2,3]{1,0} conditional(%a, %a), branch_computations={%seldom, %seldom}
  ROOT %z = f32[2,4]{1,0} dot(%a, %b), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}
"""


def test_calls_and_products_of_a_program_that_is_known():
    """Five times (a product in a fusion, a copy), then a product: 2·2·3·4 operations each; a branch does not count."""
    assert calls(PROGRAM) == 5 * 2 + 1
    assert products(PROGRAM) == 6 * 48


# --- ours and theirs --------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.usefixtures("quick_compile")
def test_ours_is_second_order_maml_by_hand():
    """The first loss and Adam's first step, which is the sign of the meta-gradient, from a loop over tasks."""
    given = images_maml.problem(TINY, FEW, 1)
    runner = images_maml.ours(TINY, 1, precision=None, watch_every=1)
    state, losses = runner.train(runner.begin(given.weights), runner.load(given.episodes))
    apply = set_up(TINY, "maml", precision=None).model.apply

    def task_loss(params, support, query):
        grads = jax.grad(lambda params: cross_entropy(apply(params, support.x), support.y))(params)
        adapted = jax.tree.map(lambda w, g: w - images_maml.INNER_RATE * g, params, grads)
        return cross_entropy(apply(adapted, query.x), query.y)

    @jax.jit
    @jax.value_and_grad
    def meta_loss(params, episodes):
        tasks = [jax.tree.map(lambda leaf, task=task: leaf[0, task], episodes) for task in range(TINY.meta_batch)]
        return sum(task_loss(params, *task) for task in tasks) / TINY.meta_batch

    value, grads = meta_loss(given.weights, given.episodes)
    np.testing.assert_allclose(losses, [value], rtol=1e-10)
    for before, after, grad in zip(*map(jax.tree.leaves, (given.weights, runner.weights(state), grads)), strict=True):
        clear = np.abs(grad) > 1e-5  # beside Adam's ε
        np.testing.assert_allclose((after - before)[clear], -images_maml.META_RATE * np.sign(grad)[clear], rtol=2e-3)


@pytest.mark.parametrize("steps", [1, pytest.param(5, marks=pytest.mark.slow)])
def test_torch_func_computes_the_same(steps):
    """Losses and weights over iterations, in doubles: every second derivative is in them."""
    pytest.importorskip("torch", reason="comes with pip install 'metaprior[bench]'")
    given = images_maml.problem(TINY, FEW, 3)
    ours = images_maml.ours(TINY, steps, precision=None, watch_every=1)
    theirs = images_torch.runner(given.weights, steps)
    (state, mine), (peer, reference) = (
        runner.train(runner.begin(given.weights), runner.load(given.episodes)) for runner in (ours, theirs)
    )
    np.testing.assert_allclose(mine, reference, rtol=images_maml.TOLERANCES["float64"])
    weights, found = images_torch.named_arrays(ours.weights(state)), theirs.weights(peer)
    assert weights.keys() == found.keys()
    for name, array in weights.items():
        # Biases before a normalisation are idle: Adam makes steps of rounding errors there.
        np.testing.assert_allclose(array, found[name], rtol=1e-7, atol=1e-7, err_msg=name)


def test_margins_are_those_of_our_convolutions():
    """SAME at stride two: as JAX pads."""
    for size in (28, 14, 7, 4, 5):
        assert images_torch._margins(size) == jax.lax.padtype_to_pads((size,), (3,), (2,), "SAME")[0]


def pretended(loss, seconds):
    """A runner that learns nothing, and moves the clock."""

    def train(state, batches):
        clock["now"] += seconds * batches.support.x.shape[0]
        return state + 1, np.full(batches.support.x.shape[0], loss)

    return images_maml.Runner(
        load=lambda episodes: episodes, begin=lambda weights: 0, train=train, weights=lambda state: state
    )


clock = {"now": 0.0}


def test_both_are_timed_on_the_same_and_their_losses_compared(monkeypatch):
    monkeypatch.setattr(images_maml, "ours", lambda *given, **options: pretended(2.0, 0.01))
    monkeypatch.setattr(images_torch, "runner", lambda *given, **options: pretended(2.5, 0.05))
    monkeypatch.setattr(images_beside, "find_spec", lambda package: "there")
    monkeypatch.setattr(images_beside.time, "perf_counter", lambda: clock["now"])
    beside = lambda: images_beside.beside(TINY, FEW, steps=1, precision="float32", rounds=3, iterations=4)
    found = beside()
    assert found["iterations/s"] == pytest.approx({"metaprior": 100.0, "torch.func": 20.0})
    assert found["ratio"] == pytest.approx({"torch.func": 5.0})
    assert (
        found["largest difference"] == {"torch.func": 0.25} and found["tolerance"] == 1e-8
    )  # the tests are in doubles
    assert found["losses"]["torch.func"] == [2.5] * images_maml.COMPARED
    monkeypatch.setattr(images_beside, "find_spec", lambda package: None)
    alone = beside()
    assert list(alone["iterations/s"]) == ["metaprior"] and alone["ratio"] == {} == alone["largest difference"]
    assert alone["left out"] == {"torch.func": "needs torch: pip install 'metaprior[bench]'"}


def test_the_benchmark_loads_no_torch():
    code = "import sys; from metaprior.benchmarks import images; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "torch" not in loaded and "tyro" not in loaded  # it must run where there is no command line


# --- the measurement --------------------------------------------------------------------------------------------------


def test_ratios_are_to_the_faster_floor_and_medians_count(monkeypatch):
    """By a clock of our own, on which programs take what we say; the second round is a slow one."""
    now = 0.0

    def program(milliseconds):
        turns = iter([1.0, 1.0, 50.0, 1.0])  # the first is not timed

        def advance(carry):
            nonlocal now
            now += 10 * milliseconds * next(turns) / 1e3
            return carry + 1

        return lambda: images_programs.Program(advance, 0, 5_000_000, 12.0, 0.1)

    made = {
        "gem-bml+": program(3.0),
        "floor (convolution)": program(4.0),
        "floor (patches)": program(2.0),
        "maml": program(8.0),
    }
    monkeypatch.setattr(images, "programs", lambda *given, **options: made)
    monkeypatch.setattr(images.time, "perf_counter", lambda: now)
    found = images.costs(TINY, FEW, precision="tf32", rounds=3, iterations=10)
    assert found["milliseconds"] == pytest.approx(
        {"gem-bml+": 3.0, "floor (convolution)": 4.0, "floor (patches)": 2.0, "maml": 8.0}
    )
    assert found["rounds"]["maml"] == pytest.approx([8.0, 400.0, 8.0])
    assert found["floor"] == "floor (patches)" and found["ratio"] == pytest.approx({"gem-bml+": 1.5, "maml": 4.0})


@pytest.mark.usefixtures("quick_compile")
def test_the_command_measures_and_writes(tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("METAPRIOR_DATA", raising=False)
    path = tmp_path / "results" / "bench-images.json"
    argv = ["--setting", "omniglot-5w1s", "--only", "fomaml", *images_programs.FLOORS, "--precision", "float32"]
    sizes = ["--filters", "2", "--meta-batch", "1", "--queries", "1", "--rounds", "2", "--iterations", "2"]
    assert main(["bench", "images", *argv, *sizes, "--json", "--out", str(path)]) == 0
    out, err = capsys.readouterr()
    found = json.loads(out)
    piece = found["settings"]["omniglot-5w1s"]["float32"]
    assert set(piece["milliseconds"]) == {"fomaml", *images_programs.FLOORS} and min(piece["milliseconds"].values()) > 0
    assert piece["ratio"]["fomaml"] == piece["milliseconds"]["fomaml"] / piece["milliseconds"][piece["floor"]]
    assert found["settings"]["omniglot-5w1s"]["passes"] == "5 passes over 5 support images and 1 over 5 query images"
    assert found["images"]["omniglot"].startswith("random bytes") and "note: random bytes" in err
    assert found[BESIDE] == {}  # torch was not asked for
    rows = json.loads(path.read_text())["rows"]
    assert {row["metric"] for row in rows} == {"ms of an iteration", "in floors"}
    assert {row["setting"] for row in rows} == {"omniglot-5w1s, float32"}
    assert rows[0]["command"].startswith("metaprior bench images --setting omniglot-5w1s")


PIECE = {
    "milliseconds": {"gem-bml+": 2.4, "floor (patches)": 2.0},
    "floor": "floor (patches)",
    "ratio": {"gem-bml+": 1.2},
    "bytes": {"gem-bml+": 250_000_000, "floor (patches)": None},
    "calls of an iteration": {"gem-bml+": 501.0, "floor (patches)": 514.0},
    "seconds to compile": {"gem-bml+": 20.0, "floor (patches)": 5.0},
    "rounds": {"gem-bml+": [2.4] * 9, "floor (patches)": [2.0] * 9},
}
PAIR = {
    "iterations/s": {"metaprior": 300.0, "torch.func": 25.0},
    "ratio": {"torch.func": 12.0},
    "losses": {"metaprior": [1.6, 1.5], "torch.func": [1.6, 1.5]},
    "largest difference": {"torch.func": 2e-7},
    "tolerance": 1e-3,
    "left out": {"torch.func compiled": "no working compiler"},
    "rounds": {"metaprior": [300.0] * 9, "torch.func": [25.0] * 9},
}
FOUND = {
    "counted": "this and that",
    "settings": {"omniglot-5w1s": {"passes": "six", "target": 1.2, "tf32": PIECE}},
    BESIDE: {"5 inner steps": {"tf32": PAIR}},
    "images": {"omniglot": "the training images of omniglot"},
    "iterations": 50,
    "repeats": 9,
    "hardware": "a machine",
    "versions": {"jax": "0.10"},
    "seconds": 61.23,
}


def test_table_for_people_and_disagreement(monkeypatch, capsys):
    asked = {}
    monkeypatch.setattr(images, "measure", lambda **flags: asked.update(flags) or FOUND)
    assert main(["bench", "images", "--queries", "3"]) == 0
    out, err = capsys.readouterr()
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert "omniglot-5w1s, tf32 gem-bml+ 2.4 × 1.2 × 1.2 501 250 MB" in lines
    assert "omniglot-5w1s, tf32 floor (patches) 2 514" in lines
    assert "5 inner steps, tf32 torch.func 25.0 × 12 1.600000" in lines
    assert err == "note: torch.func compiled, 5 inner steps, tf32, is left out: no working compiler\n"
    assert asked["settings"] == tuple(SETTINGS) and asked["sizes"] == {"queries": 3} and asked["rounds"] == 9
    for apart, words in ((0.2, "losses differ by 0.2 of themselves"), (None, "losses are not finite")):
        monkeypatch.setitem(PAIR["largest difference"], "torch.func", apart)
        assert main(["bench", "images", "--json"]) == 1
        assert f"note: speeds say nothing: torch.func, 5 inner steps, tf32: {words}" in capsys.readouterr().err


def test_rows_of_the_results_file():
    rows = record(FOUND, "metaprior bench images")["rows"]
    numbers = {(row["setting"], row["method"], row["metric"]): (row["mean"], row["ci95"]) for row in rows}
    assert numbers == {
        ("omniglot-5w1s, tf32", "gem-bml+", "ms of an iteration"): (2.4, 0.0),
        ("omniglot-5w1s, tf32", "floor (patches)", "ms of an iteration"): (2.0, 0.0),
        ("omniglot-5w1s, tf32", "gem-bml+", "in floors"): (1.2, None),
        ("maml, 5 inner steps, tf32", "metaprior", "iterations/s"): (300.0, 0.0),
        ("maml, 5 inner steps, tf32", "metaprior", "loss of the first iteration"): (1.6, None),
        ("maml, 5 inner steps, tf32", "torch.func", "iterations/s"): (25.0, 0.0),
        ("maml, 5 inner steps, tf32", "torch.func", "loss of the first iteration"): (1.6, None),
    }
    assert rows[0]["experiment"] == "bench-images" and rows[0]["seconds"] == 61.2


def test_help_teaches(capsys):
    assert main(["bench"]) == 0
    assert "metaprior bench images" in capsys.readouterr().out
    assert main(["bench", "images", "--help"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("usage: metaprior bench images") and out.count("\n  metaprior bench images") == 3
    assert all(name in " ".join(out.split()) for name in SETTINGS)


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--setting", "omniglot"], ["unknown setting 'omniglot'", "omniglot-5w1s"]),
        (["--only", "gem-bml"], ["unknown implementation 'gem-bml'", "did you mean gem-bml+"]),
        (["--precision", "fp32"], ["unknown precision 'fp32'"]),
        (["--rounds", "0"], ["rounds must be at least 1, got 0"]),
    ],
)
def test_bad_input_is_one_line(argv, words, capsys):
    assert main(["bench", "images", *argv]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("metaprior: ") and err.count("\n") == 1
    assert all(word in err for word in words), err
