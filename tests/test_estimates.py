"""What a run will take: bytes that can be counted by hand, time by a clock of our own, and words where memory is short."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
import tiny_photos
from tiny_images import SIDE, image_set

from metaprior import estimates, evaluation, methods, training
from metaprior.cli import main, train
from metaprior.settings import Settings, assemble
from metaprior.tasks.images import image_tasks
from metaprior.training import initial_state
from metaprior.types import Data

SETTINGS = Settings(method="maml", hidden=(4,), iterations=1000)
MEMORY = Path("/proc/meminfo")
FIRST = "memory.limit_in_bytes"  # as the first version of control groups calls it
TO_LOWER = (
    "lower --meta-batch (5), --queries (10), --shots (10), --hidden (4), --steps (5: maml keeps every inner step)"
)


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


def of_machine():
    told = MEMORY.read_text().splitlines()
    return 1024 * int(next(line for line in told if line.startswith("MemTotal")).split()[1])


@pytest.mark.skipif(not MEMORY.exists(), reason=f"there is no {MEMORY} here to compare with")
@pytest.mark.parametrize(("allowed", "there"), [([], of_machine), ([2**62], of_machine), ([2**62, 5000], lambda: 5000)])
def test_a_processor_has_the_memory_of_its_machine_or_as_much_as_it_may_take(monkeypatch, setup, allowed, there):
    monkeypatch.setattr(estimates, "_limits", lambda: iter(allowed))
    assert estimates.memory(setup).device == there()


@pytest.mark.parametrize(
    ("membership", "files", "limits"),
    [
        ("0::/\n", {"memory.max": "8000000\n"}, [8_000_000]),  # a container, by the second version
        ("0::/\n", {"memory.max": "max\n"}, []),
        ("0::/jobs/7/step\n", {"jobs/7/step/memory.max": "max", "jobs/7/memory.max": "5", "memory.max": "9"}, [5, 9]),
        ("9:name=systemd:/\n4:memory:/a\n0::/\n", {f"memory/a/{FIRST}": "7", f"memory/b/{FIRST}": "1"}, [7]),
        ("4:memory:/docker/3f\n", {f"memory/{FIRST}": "6"}, [6]),  # a container, which sees nothing above itself
        ("", {"memory.max": "1"}, []),
    ],
)  # fmt: skip
def test_limits_are_those_of_the_groups_that_the_process_is_in(tmp_path, monkeypatch, membership, files, limits):
    (tmp_path / "cgroup").write_text(membership)
    for name, text in files.items():
        (tmp_path / "groups" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "groups" / name).write_text(text)
    monkeypatch.setattr(estimates, "MEMBERSHIP", tmp_path / "cgroup")
    monkeypatch.setattr(estimates, "GROUPS", tmp_path / "groups")
    assert list(estimates._limits()) == limits
    monkeypatch.setattr(estimates, "MEMBERSHIP", tmp_path / "not Linux")
    assert list(estimates._limits()) == []


def test_judging_keeps_all_tasks_of_a_batch(setup):
    """As many tasks again at a time take twice the memory; tasks beyond a batch take their place one batch after another."""
    one, two, batch, more = (
        estimates.of_evaluation(setup, steps=1, num_tasks=count).temporaries
        for count in (5, 10, evaluation.TOGETHER, 4 * evaluation.TOGETHER)
    )
    assert 1.7 * one < two < 2.3 * one and batch < more < 2 * batch


def test_judging_images_has_them_at_hand():
    setup = tiny_photos.setup(method="gem-bml+last-layer")
    found = estimates.of_evaluation(setup, steps=1, num_tasks=1)
    images = 6 * tiny_photos.PER_CLASS * (tiny_photos.SIDE**2 + 4)  # of the test split, and their numbers
    assert found.pool == images and images < found.arguments < found.total


def test_adapting_keeps_the_covariances_of_the_support(setup):
    """Conditioning on n points takes n × n numbers, more than all else here, and their factors."""
    column: Any = lambda rows: jax.ShapeDtypeStruct((rows, 1), float)
    bytes_of = lambda rows: (
        estimates.of_adaptation(setup, Data(column(rows), column(rows)), column(3), steps=1).temporaries
    )
    assert 8 * 1000**2 < bytes_of(1000) < 8 * 8 * 1000**2
    assert 3 < bytes_of(2000) / bytes_of(1000) < 4.1


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
    assert f"too much {TO_LOWER}" in out


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
    assert err.endswith(f": {TO_LOWER}\n")


def test_other_errors_are_left_alone(setup):
    with pytest.raises(jax.errors.JaxRuntimeError, match="INTERNAL"), estimates.explained(setup):
        raise jax.errors.JaxRuntimeError("INTERNAL: something else")
    with pytest.raises(KeyError), estimates.explained(setup):
        raise KeyError("x")


def test_where_not_even_compiling_works_what_was_asked_for_is_told(monkeypatch, setup):
    def no_memory(setup):
        raise exhausted()

    monkeypatch.setattr(estimates, "memory", no_memory)
    said = estimates.advice(setup, exhausted())
    assert said == f"out of memory (137 GB were asked for in one piece): {TO_LOWER}"
    assert estimates.advice(setup, ValueError("?")) == f"out of memory: {TO_LOWER}"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("RESOURCE_EXHAUSTED: Out of memory allocating 512 bytes.", "512 B"),  # as processors say it
        ("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 12.50GiB.", "13.4 GB"),
        ("1 of 4 cells failed; first: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 3.0KiB", "3.07 kB"),
    ],
)
def test_what_was_asked_for(words, told):
    assert estimates.asked_for(RuntimeError(words)) == f" ({told} were asked for in one piece)"
    wrapped = ValueError("a cell failed")
    wrapped.__cause__ = RuntimeError(words)
    assert estimates.asked_for(wrapped) == estimates.asked_for(RuntimeError(words))


def test_images_have_filters_to_lower():
    settings = Settings(tasks="omniglot", method="gem-bml+", filters=32, meta_batch=16, queries=3, shots=5)
    named = lambda **changes: estimates.knobs(assemble(dataclasses.replace(settings, **changes)))
    assert named() == ["--meta-batch (16)", "--queries (3)", "--shots (5)", "--ways (5)", "--filters (32)"]
    assert named(shots=1)[2:] == ["--ways (5)", "--filters (32)"]  # which cannot be fewer
    more = named(filters=None, train_ways=20, train_shots=2)
    assert more[2:] == ["--train-shots (2)", "--train-ways (20)", "--filters"]


def test_processors_save_no_memory_by_a_shorter_precision():
    """So that it is named on cards alone; in single precision, as users compute."""
    with jax.enable_x64(False):
        needs = lambda precision: estimates.memory(tiny_photos.setup(method="maml", precision=precision)).total
        assert needs("bf16") == pytest.approx(needs("float32"), rel=0.1)


@pytest.mark.parametrize(
    ("backend", "tasks", "precision", "named"),
    [
        ("gpu", "omniglot", None, True), ("gpu", "omniglot", "float32", True), ("gpu", "omniglot", "bf16", False),
        ("cpu", "omniglot", None, False), ("gpu", "sinusoid", None, False),
    ],
)  # fmt: skip
def test_cards_have_a_shorter_precision(monkeypatch, backend, tasks, precision, named):
    setup = assemble(Settings(tasks=tasks, method="gem-bml+", precision=precision))
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    assert estimates.less(setup).endswith(", or take --precision bf16") is named
    assert ("--precision" in estimates.less(setup)) is named


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
