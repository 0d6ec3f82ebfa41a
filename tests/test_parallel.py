"""Four devices learn what one learns, from the same tasks, and send each other sums alone."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

from metaprior import layers, parallel
from metaprior.cli import main
from metaprior.methods import METHODS
from metaprior.rl import rows
from metaprior.settings import Settings, assemble
from metaprior.training import initial_state

ROOT = Path(__file__).parents[1]
NAMED = ("gem-bml", "gem-bml+", "maml")
QUICK = (*NAMED, "uneven", "poisoned", "shared-adam", "rl", "draws", "by-layer:gem-bml+")
NOTHING = dict.fromkeys(
    ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute", "collective-broadcast"), 0
)


def on_four_devices(*names, x64):
    flags = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=4"
    environment = os.environ | {
        "XLA_FLAGS": flags,
        "JAX_ENABLE_X64": "1" if x64 else "0",
        "JAX_NUMPY_RANK_PROMOTION": "raise",
        "JAX_COMPILATION_CACHE_DIR": str(ROOT / ".cache" / "jax"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.1",
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]),
    }
    command = [sys.executable, "-W", "error", str(ROOT / "tests" / "four_devices.py"), *names]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def found():
    return on_four_devices(*QUICK, x64=True)


@pytest.fixture(scope="module")
def found_in_single_precision():
    return on_four_devices(*NAMED, x64=False)


@pytest.mark.parametrize("name", [*NAMED, "uneven", "poisoned", "shared-adam"])
def test_four_devices_end_where_one_does(found, name):
    assert found[name]["float"] == "float64"
    assert found[name]["moved"] > 1e-2  # in a hundred meta-steps there was something to go wrong
    assert found[name]["difference"] < 1e-10 and found[name]["report"] < 1e-9


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMED)
def test_so_they_do_in_single_precision(found_in_single_precision, name):
    assert found_in_single_precision[name]["float"] == "float32"
    assert found_in_single_precision[name]["moved"] > 1e-2
    assert found_in_single_precision[name]["difference"] < 1e-4


def test_tasks_that_are_left_out_are_the_same_ones(found):
    alone, spread = found["poisoned"]["left_out"]
    assert alone == spread > 100  # of six hundred, a third


@pytest.mark.parametrize("name", [*NAMED, "uneven", "shared-adam", "rl"])
def test_a_meta_step_is_one_all_reduce_and_nothing_is_gathered(found, name):
    assert found[name]["collectives"]["loops"] == NOTHING | {"all-reduce": 1}
    assert found[name]["collectives"]["entry"] == NOTHING


@pytest.mark.parametrize("name", [*NAMED, "rl"])
def test_what_is_summed_is_a_number_for_each_entry_of_the_prior_and_four_more(found, name):
    assert found[name]["summed"] == [found[name]["entries"] + 4]


def test_agents_meet_the_same_goals_and_take_the_same_first_step(found):
    assert found["draws"] == {"same": [True], "different_goals": 6}
    assert found["rl"]["moved"] > 1e-4 and found["rl"]["difference"] < 1e-5


@pytest.mark.slow
def test_a_trust_region_is_the_same_around_tasks_of_four_devices():
    found = on_four_devices("rl-trpo", x64=True)["rl-trpo"]
    assert found["moved"] > 1e-3 and found["difference"] < 1e-5 * found["moved"]
    assert found["collectives"]["loops"]["all-gather"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("method", ["gem-bml+", "maml"])
def test_four_devices_draw_the_same_images_and_end_where_one_does(method):
    """Five tasks, so that shares are unequal, in three meta-steps."""
    found = on_four_devices(f"images:{method}", x64=True)[f"images:{method}"]
    # A meta-step is as long as the rates are.
    assert found["moved"] > 1e-5 and found["difference"] < 1e-8 * found["moved"] and found["report"] < 1e-9


ALL = [f"row:{method.name}" for method in METHODS] + [f"row:rl/{name}" for name in rows.ROWS]


@pytest.mark.slow
@pytest.mark.parametrize("some", [ALL[i::4] for i in range(4)], ids=" ".join)
def test_every_row_of_the_table_goes_over_devices_unchanged(some):
    """Curves and agents; and by layer, wherever priors are independent from weight to weight, which few are not."""
    found = on_four_devices(*some, x64=True)
    for name in some:
        # A meta-step is as long as the rates are, and rollouts and trust regions pass rounding on.
        assert found[name]["moved"] > 1e-5, name
        bound = 1e-5 * found[name]["moved"] if "rl/" in name else 1e-10
        assert found[name]["difference"] < bound and found[name].get("by_layer", 0.0) < bound, (name, found[name])
    assert sum("by_layer" in found[name] for name in some) > len(some) // 3


def test_by_layer_the_result_is_the_same(found):
    found = found["by-layer:gem-bml+"]
    assert found["moved"] > 1e-2 and found["difference"] < 1e-10 and found["report"] < 1e-9


def test_by_layer_every_device_holds_whole_layers_and_no_others(found):
    sizes = 8 + 8, 8 * 8 + 8, 8 + 1  # of a network 1-8-8-1
    assert sorted(found["by-layer:gem-bml+"]["kept"]) == sorted([*sizes, 0])
    assert found["by-layer:gem-bml+"]["held"] == [max(sizes)] * 4


def test_by_layer_sums_are_scattered_the_prior_is_gathered_and_the_update_sends_nothing(found):
    found = found["by-layer:gem-bml+"]
    assert found["collectives"]["loops"] == NOTHING | {"reduce-scatter": 1, "all-gather": 1}
    assert found["update"] == {"loops": NOTHING, "entry": NOTHING}


# --- in this process, which has one device ------------------------------------------------------------------------------


def test_shares_of_a_meta_batch_are_all_of_it_once():
    """Whatever the number of devices, also where some get nothing to do."""
    for tasks, devices in ((8, 4), (5, 4), (2, 4), (7, 3), (1, 1)):
        mesh = Mesh(np.array(jax.devices() * devices), (parallel.AXIS,))
        rows = jax.vmap(lambda _, mesh=mesh, tasks=tasks: _numbers(tasks, mesh), axis_name=parallel.AXIS)(
            jnp.arange(devices)
        )
        numbers, counted = (np.asarray(row).reshape(-1) for row in rows)
        assert numbers[counted].tolist() == list(range(tasks))
        assert (~counted).sum() == parallel.idle(tasks, mesh)


def _numbers(tasks, mesh):
    share = parallel.share(tasks, mesh)
    return share.numbers, jnp.ones_like(share.numbers, bool) if share.counted is None else share.counted


def test_whole_numbers_are_not_summed():
    summed = jax.vmap(parallel.total, axis_name=parallel.AXIS)({"a": jnp.arange(3.0), "count": jnp.full(3, 5)})
    assert summed["a"].tolist() == [3.0, 3.0, 3.0] and summed["count"].tolist() == [5, 5, 5]


def test_layers_are_what_share_all_but_the_last_name():
    weights = {"b": {"weight": jnp.zeros((2, 3)), "bias": jnp.zeros(3)}, "scale": jnp.zeros(1), "shift": jnp.zeros(2)}
    assert sorted(map(len, layers.layer_groups(weights))) == [1, 2, 9]


def test_the_example_of_the_docs_runs():
    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "scale.md").read_text(), flags=re.S)
    names: dict = {}
    exec(example.replace(", 100)", ", 2)"), names)
    assert names["infos"].finite.tolist() == [True, True] and names["prior"].dist.mean.layers[0].bias.shape == (8,)


@pytest.mark.parametrize("changes", [dict(method="reptile", optimizer="shared-adam"), dict(method="bmaml")])
def test_what_is_not_independent_from_layer_to_layer_is_refused(changes):
    setup = assemble(Settings(hidden=(8,), **changes))
    with pytest.raises(ValueError, match="leave out --by-layer"):
        layers.layout(setup.learner, initial_state(setup), parallel.task_mesh(1))


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--devices", "2"], "2 devices were asked for and there are 1"),
        (["--devices", "0"], "ask for 1 to 1"),
        (["--devices", "many"], "--devices is a number or all"),
        (["--by-layer"], "say which, --devices all"),
        (["--processes", "2"], "need all of --coordinator"),
        (["--coordinator", "here", "--processes", "2", "--process-id", "0"], "HOST:PORT"),
        (["--coordinator", "here:1", "--processes", "2", "--process-id", "2"], "0 to N"),
        (["--devices", "1", "--estimate"], "leave out --devices"),
    ],
)
def test_flags_that_cannot_be_are_refused_in_a_line(tmp_path, capsys, flags, words):
    assert main(["train", "sinusoid", "--out", str(tmp_path / "run"), *flags]) == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
