"""Figures show the numbers they are given: curves, points and band edges are read back from what was drawn."""

import struct

import jax.numpy as jnp
import numpy as np
import pytest
from matplotlib.collections import PolyCollection
from scipy.stats import norm

from metaprior import figures
from metaprior.predict import Predictive
from metaprior.types import Data

X = np.linspace(-2.0, 3.0, 7)
MEAN, STD = np.sin(X), 0.5 + X**2
SUPPORT = Data(jnp.array([[-1.0], [2.0]]), jnp.array([[0.3], [-0.4]]))


def gaussian(num_functions=3):
    functions = jnp.asarray(MEAN[None] + np.arange(num_functions)[:, None])[..., None]
    return Predictive(jnp.asarray(MEAN)[None, :, None], jnp.asarray(STD)[None, :, None], functions)


def lines(axes):
    return {line.get_label(): np.stack(line.get_data()) for line in axes.get_lines()}


def band_edges(axes):
    """Lower and upper edge of each band, from the outline of what was filled."""
    found = {}
    for band in [child for child in axes.collections if isinstance(child, PolyCollection)]:
        outline = np.unique(band.get_paths()[0].vertices, axis=0)
        ys = [outline[np.isclose(outline[:, 0], x), 1] for x in X]
        found[band.get_label()] = np.array([y.min() for y in ys]), np.array([y.max() for y in ys])
    return found


def png_size(path):
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    return struct.unpack(">II", data[16:24])


def test_bands_are_the_quantiles_of_the_predictive():
    figure = figures.prediction_figure(figures.panel(X, gaussian(), SUPPORT), title="t")
    found = band_edges(figure.axes[0])
    assert set(found) == {"90 % band", "50 % band"}
    for level, (low, high) in ((0.9, found["90 % band"]), (0.5, found["50 % band"])):
        half = norm.ppf((1 + level) / 2) * STD
        np.testing.assert_allclose(low, MEAN - half, rtol=1e-6)
        np.testing.assert_allclose(high, MEAN + half, rtol=1e-6)


def test_curves_and_points_are_where_they_belong():
    panel = figures.panel(X, gaussian(), SUPPORT, truth=2 * X, num_functions=2)
    figure = figures.prediction_figure(panel, title="two points", x_label="time", y_label="volts")
    axes = figure.axes[0]
    drawn = lines(axes)
    np.testing.assert_allclose(drawn["mean"], [X, MEAN])
    np.testing.assert_allclose(drawn["truth"], [X, 2 * X])
    np.testing.assert_allclose(drawn["support points"], [[-1.0, 2.0], [0.3, -0.4]])
    np.testing.assert_allclose(drawn["sampled functions"], [X, MEAN])
    curves = [np.asarray(line.get_ydata()) for line in axes.get_lines()]
    shifts = [np.round(curve - MEAN, 9) for curve in curves if curve.shape == X.shape]
    assert sorted(shift[0] for shift in shifts if np.ptp(shift) == 0) == [0, 0, 1]  # the mean and two draws of three
    assert (axes.get_title(), axes.get_xlabel(), axes.get_ylabel()) == ("two points", "time", "volts")
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert legend == ["90 % band", "50 % band", "sampled functions", "truth", "mean", "support points"]


def test_no_support_points_leave_no_trace():
    nothing = Data(jnp.zeros((0, 1)), jnp.zeros((0, 1)))
    figure = figures.prediction_figure(figures.panel(X, gaussian(0), nothing), title="t")
    assert set(lines(figure.axes[0])) == {"mean"}


def test_a_mixture_is_drawn_by_its_mean_and_its_own_quantiles():
    mean = jnp.stack([jnp.full((7, 1), -3.0), jnp.full((7, 1), 3.0)])
    drawn = figures.panel(X, Predictive(mean, jnp.full_like(mean, 1e-3), mean), SUPPORT)
    np.testing.assert_allclose(drawn.mean, 0.0, atol=1e-12)
    np.testing.assert_allclose(drawn.bands[0.5][0], -3.0, atol=1e-2)
    np.testing.assert_allclose(drawn.bands[0.9][1], 3.0, atol=1e-2)


def test_quickstart_figure_has_a_row_per_task_and_a_column_per_number_of_steps(tmp_path):
    shifted = lambda shift: figures.panel(X, gaussian(0), SUPPORT, truth=X + shift)
    tasks = [[shifted(100 * row + column) for column in range(3)] for row in range(2)]
    history = figures.History(np.array([10.0, 20.0]), np.array([3.0, 1.0]))
    figure = figures.quickstart_figure(tasks, steps=(0, 1, 10), title="a prior", history=history)
    *panels, curve = figure.axes
    assert [axes.get_title() for axes in panels[:3]] == ["before adaptation", "after 1 step", "after 10 steps"]
    assert [axes.get_ylabel() for axes in panels] == ["unseen task 1", "", "", "unseen task 2", "", ""]
    for place, axes in enumerate(panels):
        np.testing.assert_allclose(lines(axes)["truth"], [X, X + 100 * (place // 3) + place % 3])
    assert panels[0].get_ylim() == panels[2].get_ylim() != panels[3].get_ylim()
    np.testing.assert_allclose(np.stack(curve.get_lines()[0].get_data()), history)
    assert figure.get_suptitle() == "a prior"
    figures.save(figure, tmp_path / "figure.png", dpi=50)
    width, height = png_size(tmp_path / "figure.png")
    assert (width, height) == tuple(int(50 * inches) for inches in figure.get_size_inches())


def test_saving_replaces_a_file_wholly_or_not_at_all(tmp_path):
    path = tmp_path / "prediction.png"
    path.write_bytes(b"old")
    figure = figures.prediction_figure(figures.panel(X, gaussian(), SUPPORT), title="t")
    figures.save(figure, path)
    assert png_size(path) == (1200, 750)
    assert [entry.name for entry in tmp_path.iterdir()] == ["prediction.png"]
    with pytest.raises(OSError, match="No such file"):
        figures.save(figure, tmp_path / "missing" / "prediction.png")
