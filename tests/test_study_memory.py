"""Memory and time against inner steps: what is counted is what the compiler says, and words follow the numbers."""

import jax
import numpy as np
import pytest
from matplotlib.figure import Figure

from experiments import compute_memory, study
from metaprior.training import initial_state

TINY = compute_memory.Settings(
    seeds=(0,), ways=2, queries=1, meta_batch=1, filters=2, methods=("gem-bml+", "maml"), steps=(2, 6), repeats=0
)
OTHERS = [name for name in compute_memory.Settings().methods if name != "gem-bml+"]


@pytest.mark.usefixtures("quick_compile")
@pytest.mark.parametrize("name", ["gem-bml+", *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)])
def test_who_is_flat_and_who_is_not(name):
    few, many = (compute_memory.cost(TINY, name, steps)[0]["total"] for steps in TINY.steps)
    assert many <= compute_memory.ALLOWED * few if name in compute_memory.FLAT else many > 1.5 * few


def test_both_stages_take_the_steps_where_there_are_two():
    assert compute_memory.set_up(TINY, "gem-bml+", 6).learner.method.steps == (6, 6)
    assert compute_memory.set_up(TINY, "maml", 6).learner.method.steps == (6, 0)
    assert {"gem-bml", "gem-bml+", "fomaml", "reptile", "imaml", "maml", "amortized-bml"} < set(
        compute_memory.Settings().methods
    )
    assert {2, 50} <= set(compute_memory.Settings().steps)


def test_time_is_not_that_of_an_iteration_that_is_reported_on():
    """Iterations that are reported on make forward passes of their own."""
    from metaprior.settings import WATCH_EVERY

    setup = compute_memory.set_up(TINY, "maml", 2)
    state, keys, episodes = compute_memory._arguments(setup, 0)
    assert int(state.iteration) % WATCH_EVERY != 0
    assert keys.shape == (1,) and episodes.support.x.shape == (1, 2, 28, 28, 1)
    assert jax.tree.structure(state) == jax.tree.structure(initial_state(setup))


def results(sizes, seconds=((0.1,), (0.2,), (0.9,))):
    """As a run leaves them, with these bytes."""
    steps = [1, 2, 10]
    curves = {
        f"{name}/{count}": {"memory": {"total": size}, "seconds": list(second)}
        for name, mine in sizes.items()
        for count, size, second in zip(steps, mine, seconds, strict=True)
    }
    rows = [
        study.row(setting=f"{count} steps", method=name, metric=compute_memory.BYTES, mean=size)
        for name, mine in sizes.items()
        for count, size in zip(steps, mine, strict=True)
    ]
    told = {"methods": list(sizes), "steps": steps, "tasks": "omniglot", "ways": 5, "shots": 1, "queries": 5}
    return {"settings": {**told, "meta_batch": 32, "filters": 64}, "rows": rows, "curves": curves}


def test_remarks_say_what_holds_and_what_does_not():
    given = results({"gem-bml+": (8e6, 10e6, 10.2e6), "reptile": (8e6, 10e6, 12e6), "maml": (10e6, 12e6, 28e6)})
    said = compute_memory.remarks(given)
    assert said[0] == "gem-bml+: memory changes by +2.0 % from 2 to 10 steps, as the paper says."
    assert said[1].startswith("reptile: memory changes by +20.0 % from 2 to 10 steps, which is more than")
    assert "maml: memory changes by +133.3 % from 2 to 10 steps, 2 MB a step;" in said[2]
    assert "Milliseconds of a meta-step with 1 and 10 steps in each stage: gem-bml+ 100 to 900" in said[3]
    assert "32 tasks of omniglot, 5-way 1-shot, 5 queries a class, conv4 with 64 filters" in said[4]


def test_a_line_is_told_from_what_bends():
    slope, apart = compute_memory.per_step(results({"maml": (10e6, 12e6, 28e6)}), "maml")
    assert slope == pytest.approx(2e6) and apart < 1e-9
    _, apart = compute_memory.per_step(results({"maml": (10e6, 12e6, 100e6)}), "maml")
    assert apart > 0.02


def test_figure_shows_every_method_and_no_time_where_there_is_none():
    given = results({"gem-bml+": (8e6, 10e6, 10.2e6), "maml": (10e6, 12e6, 28e6)})
    drawn = compute_memory.figure(given)
    assert isinstance(drawn, Figure)
    memory, seconds = drawn.axes
    assert [line.get_label() for line in memory.lines] == ["gem-bml+", "maml"] and len(seconds.lines) == 2
    np.testing.assert_allclose(np.asarray(memory.lines[1].get_ydata(), float), [10.0, 12.0, 28.0])
    untimed = results({"maml": (10e6, 12e6, 28e6)}, seconds=((), (), ()))
    assert len(compute_memory.figure(untimed).axes[1].lines) == 0
    assert not any("Milliseconds" in sentence for sentence in compute_memory.remarks(untimed))
    assert {row["setting"] for row in compute_memory.shown(given)} == {"1 steps", "10 steps"}


def test_cells_that_are_missing_are_left_out():
    """Whose ends are measured is judged; one number of steps alone says nothing of growth."""
    given = results({"gem-bml+": (8e6, 10e6, 10.2e6), "reptile": (8e6, 10e6, 12e6), "maml": (10e6, 12e6, 28e6)})
    for gone in ("gem-bml+/10", "reptile/1", "reptile/10", "maml/1"):
        del given["curves"][gone]
    said = compute_memory.remarks(given)
    assert said[0].startswith("gem-bml+: memory changes by +25.0 % from 1 to 2 steps")
    assert said[1].startswith("maml: memory changes by +133.3 % from 2 to 10 steps, 2 MB a step;")
    assert len(said) == 3 and "32 tasks" in said[2], "nobody has the seconds of both ends"
    drawn = compute_memory.figure(given)
    assert [len(np.asarray(line.get_xdata())) for line in drawn.axes[0].lines] == [2, 1, 2]
    assert drawn.get_suptitle() == "Memory from 2 to 10 inner steps: the same for none;\ngrows for maml ×2.3"


def test_nothing_measured_is_a_figure_without_lines():
    given = results({"maml": (10e6, 12e6, 28e6)}) | {"rows": [], "curves": {}}
    assert not compute_memory.figure(given).axes[0].lines and len(compute_memory.remarks(given)) == 1
