"""What a run will take: bytes that can be counted by hand, time by a clock of our own, and words where memory is short."""

import dataclasses
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from tiny_images import SIDE, image_set

from metaprior import estimates, methods, training
from metaprior.cli import main, train
from metaprior.settings import Settings, assemble
from metaprior.tasks.images import image_tasks
from metaprior.training import initial_state

SETTINGS = Settings(method="maml", hidden=(4,), iterations=1000)
MEMORY = Path("/proc/meminfo")


@pytest.fixture(scope="module")
def setup():
    return assemble(SETTINGS)


def with_images(setup):
    """The same learner, whose tasks have a pool of images beside them, as large as can be counted."""
    tasks = image_tasks("tiny", "by heart", lambda: image_set(8), shape=(SIDE, SIDE, 1), eval_queries=2)
    sample = lambda key, pixels, members: setup.tasks.sample(jax.random.fold_in(key, pixels[members[0, 0], 0, 0, 0]))
    return setup._replace(tasks=setup.tasks._replace(pool=tasks.pool, sample=sample))


def exhausted():
    return jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 137438953472 bytes.")


# --- bytes ------------------------------------------------------------------------------------------------------------


def test_bytes_of_a_program_that_is_known():
    """(a b) c of 64×64 doubles needs one 64×64 temporary beside three arguments and a result."""
    square = jax.ShapeDtypeStruct((64, 64), float)
    compiled = jax.jit(lambda a, b, c: (a @ b) @ c).lower(square, square, square).compile()
    found, one = estimates._memory(compiled, ()), 64 * 64 * 8
    assert (found.arguments, found.results, found.pool) == (3 * one, one, 0)
    assert one <= found.temporaries < 1.1 * one
    assert found.total == found.arguments + found.results + found.temporaries


def test_arguments_are_the_state_and_the_pool(setup):
    state = jax.eval_shape(lambda: initial_state(setup))
    held = sum(jax.dtypes.itemsize_bits(leaf.dtype) // 8 * leaf.size for leaf in _raw(state))
    whole, with_pool = estimates.memory(setup), estimates.memory(with_images(setup))
    assert whole.pool == 0 and whole.arguments == held
    images = 96 * SIDE * SIDE + 12 * 8 * 4  # bytes of 12 classes × 8 images, and their numbers
    assert with_pool.pool == images and with_pool.arguments == held + images
    assert whole.temporaries > 0


def _raw(state):
    """Leaves as they lie in memory: a typed key is two words."""
    is_key = lambda leaf: jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    words = jax.ShapeDtypeStruct((2,), jnp.uint32)
    return [words if is_key(leaf) else leaf for leaf in jax.tree.leaves(state)]


def test_more_tasks_need_more(setup):
    twice = assemble(dataclasses.replace(SETTINGS, meta_batch=2 * setup.learner.method.meta_batch))
    assert estimates.memory(twice).temporaries > 1.5 * estimates.memory(setup).temporaries


def test_memory_of_the_device_is_told_where_it_is_known(monkeypatch, setup):
    class Card:
        def memory_stats(self):
            return {"bytes_limit": 2**20, "bytes_in_use": 7}

    monkeypatch.setattr(jax, "local_devices", lambda: [Card()])
    assert estimates.memory(setup).device == 2**20


@pytest.mark.skipif(not MEMORY.exists(), reason=f"there is no {MEMORY} here to compare with")
def test_a_processor_has_the_memory_of_its_machine(setup):
    told = MEMORY.read_text().splitlines()
    kilobytes = int(next(line for line in told if line.startswith("MemTotal")).split()[1])
    assert estimates.memory(setup).device == 1024 * kilobytes


def test_what_does_not_fit_is_not_begun(monkeypatch, setup):
    """The second reading of the clock is the last: compiled, not run. Nobody is killed, and the way out is named."""
    clock = iter([0.0, 6.0])
    monkeypatch.setattr(estimates.time, "perf_counter", lambda: next(clock))
    monkeypatch.setattr(estimates, "_of_machine", lambda: 1000)
    with pytest.raises(estimates.OutOfMemory, match=r"needs .* the device has 1 kB\): lower --meta-batch"):
        estimates.estimate(setup)


# --- time -------------------------------------------------------------------------------------------------------------


def test_time_is_that_of_the_second_call(monkeypatch, setup):
    """By a clock of our own: 6 s to compile, 50 s for the first call, 2 s for the second, of 200 iterations."""
    clock = iter([0.0, 6.0, 56.0, 58.0])
    monkeypatch.setattr(estimates.time, "perf_counter", lambda: next(clock))
    found = estimates.estimate(setup)
    assert found.seconds_to_compile == 6.0 and found.seconds_of_iteration == pytest.approx(2.0 / 200)
    assert found.iterations == 1000 and found.seconds == pytest.approx(6.0 + 1000 * 0.01)


def test_the_command_prints_and_makes_no_folder(tmp_path, monkeypatch, capsys):
    argv = ["train", "sinusoid", "--method", "maml", "--hidden", "4", "--iterations", "1000", "--estimate"]
    monkeypatch.chdir(tmp_path)
    assert main([*argv, "--out", str(tmp_path / "run")]) == 0
    lines = [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()]
    assert [words[0] for words in lines] == ["memory", "arguments", "temporaries", "results", "device", "time"]
    assert "for 1,000 iterations of" in lines[-1][1] and list(tmp_path.iterdir()) == []
    monkeypatch.setattr(estimates, "estimate", lambda setup, iterations: _card(iterations))
    assert main(argv) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "memory 12.5 GB" in out and "arguments 2 GB, 1.5 GB of it images" in out and "device 8 GB in all" in out
    assert "time 1.5 h for 1,000 iterations of 5.4 s (10 s to compile)" in out
    assert (
        "too much lower --meta-batch (5), --queries (10), --hidden (4), --steps (5: maml keeps every inner step)" in out
    )


def _card(iterations):
    memory = estimates.Memory(2_000_000_000, 1_500_000_000, 500_000_000, 10_000_000_000, 8_000_000_000)
    return estimates.Estimate(memory, iterations, 5.4, 10.0)


def test_a_resumed_run_is_asked_for_what_is_left(tmp_path, monkeypatch, capsys):
    folder = str(tmp_path / "run")
    monkeypatch.setattr(training, "finish", lambda *given: pytest.fail("not reached"))
    monkeypatch.setattr(train, "train_into", lambda setup, run, **options: training.train(setup, run))
    short = ["train", "sinusoid", "--method", "maml", "--hidden", "4", "--iterations", "20"]
    assert main([*short, "--out", folder]) == 0
    asked = {}
    monkeypatch.setattr(
        estimates, "estimate", lambda setup, iterations: asked.update(it=iterations) or _card(iterations)
    )
    assert main(["train", "--resume", "--out", folder, "--iterations", "50", "--estimate"]) == 0
    assert asked == {"it": 30}
    assert json.loads((tmp_path / "run" / "settings.json").read_text())["iterations"] == 20  # nothing was begun


# --- out of memory ----------------------------------------------------------------------------------------------------


def test_out_of_memory_is_one_line_with_bytes_and_knobs(tmp_path, monkeypatch, capsys):
    def train(*given, **options):
        raise exhausted()

    monkeypatch.setattr(training, "train", train)
    argv = [
        "train",
        "sinusoid",
        "--method",
        "maml",
        "--hidden",
        "4",
        "--iterations",
        "10",
        "--out",
        str(tmp_path / "run"),
    ]
    assert main(argv) == 1
    out, err = capsys.readouterr()
    total = estimates.size(estimates.memory(assemble(dataclasses.replace(SETTINGS, iterations=10))).total)
    assert out == "" and err.count("\n") == 1
    assert err.startswith(f"metaprior: out of memory (a compiled chunk needs {total}, ")
    assert err.endswith(
        ": lower --meta-batch (5), --queries (10), --hidden (4), --steps (5: maml keeps every inner step)\n"
    )


def test_other_errors_are_left_alone(setup):
    with pytest.raises(jax.errors.JaxRuntimeError, match="INTERNAL"), estimates.explained(setup):
        raise jax.errors.JaxRuntimeError("INTERNAL: something else")
    with pytest.raises(KeyError), estimates.explained(setup):
        raise KeyError("x")


def test_advice_without_bytes_where_not_even_compiling_works(monkeypatch, setup):
    def no_memory(setup):
        raise exhausted()

    monkeypatch.setattr(estimates, "memory", no_memory)
    assert estimates.advice(setup).startswith("out of memory: lower --meta-batch (5), ")


def test_images_have_filters_to_lower():
    setup = assemble(Settings(tasks="omniglot", method="gem-bml+", filters=32, meta_batch=16, queries=3))
    assert estimates.knobs(setup) == ["--meta-batch (16)", "--queries (3)", "--filters (32)"]


@pytest.mark.parametrize(
    ("name", "keeps"),
    [
        ("maml", True), ("amortized-bml", True), ("kl-chaser", True), ("bmaml", True), ("pmaml", True), ("llama", True),
        ("gem-bml", False), ("gem-bml+", False), ("fomaml", False), ("reptile", False), ("imaml", False), ("pretrain", False),
        ("gem-bml+last-layer", False),
    ],
)  # fmt: skip
def test_who_keeps_steps(name, keeps):
    """As `compute-memory` measures it."""
    assert estimates.keeps_steps(methods.get(name)) is keeps
