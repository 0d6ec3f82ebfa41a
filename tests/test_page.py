"""The page without a browser: what it answers is what the library computes, and what it is asked wrongly it refuses in words."""

import json
from functools import cache

import asgi
import hostile
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import traced
from asgi import HOST, JSON, call, post

from metaprior import labelled
from metaprior.data.drawings import SIDE, shrink
from metaprior.learned import Learned
from metaprior.page import app, asked, bands, curves, guard, padded, priors, server, strokes
from metaprior.page.curves import GRID, Truth
from metaprior.predict import Calibration
from metaprior.training import Trained

pytestmark = pytest.mark.usefixtures("quick_compile_here")

POINTS = [(-3.0, 1.0), (0.5, -0.4), (2.0, 2.0)]
TRUTH = Truth(2.0, 1.0, 0.4)


@pytest.fixture(scope="module")
def engine():
    return app.engine()


@pytest.fixture(scope="module")
def page(engine):
    return app.application(engine, hosts=server.names("127.0.0.1", ("my-laptop.local",)))


# --- curves -----------------------------------------------------------------------------------------------------------


@cache
def learned(tasks, method, count):
    small = priors.load(priors.curve_name(tasks, method))
    calibration = bands.at(bands.of_card(small.card["calibration"]), count)
    return Learned(Trained(small.setup, small.state, calibration, []))


def by_the_library(tasks, method, points, steps):
    """The slow twin: a support of as many points as there are."""
    x, y = np.array(points, float).reshape(-1, 2).T
    return learned(tasks, method, len(points)).adapt(x, y).predict(GRID, steps=steps, num_functions=curves.FUNCTIONS)


slow = lambda *case: pytest.param(*case, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    ("method", "points", "steps"),
    [
        ("gem-bml+", POINTS, 4),
        ("gem-bml+last-layer", POINTS, 1),
        *(slow(method, points, steps) for method in priors.METHODS for points, steps in (
            (POINTS, 10), (POINTS[:1], 10), (POINTS, 0), ([], 10), (POINTS * 5 + POINTS[:1], 7))),
    ],
)  # fmt: skip
def test_points_that_are_not_there_change_nothing(engine, method, points, steps):
    found = engine.curves.answer("sinusoid", method, points, steps, TRUTH)
    expected = by_the_library("sinusoid", method, points, steps)
    low, high = expected.interval(0.9)
    truth = 2.0 * np.sin(GRID + 0.4)
    np.testing.assert_allclose(found["mean"], expected.moments()[0][:, 0], atol=2e-5)
    np.testing.assert_allclose(found["low90"], low[:, 0], atol=2e-4)
    np.testing.assert_allclose(found["high90"], high[:, 0], atol=2e-4)
    np.testing.assert_allclose(found["functions"], expected.functions[:, :, 0], atol=2e-3)
    np.testing.assert_allclose(found["nll"], -np.asarray(expected.log_density(truth)).mean(), rtol=1e-3)
    assert found["coverage"] == pytest.approx(
        float(((truth >= np.asarray(low)[:, 0]) & (truth <= np.asarray(high)[:, 0])).mean()), abs=1e-5
    )


def test_size_of_the_support_is_that_of_the_points_present():
    from metaprior.predict import log_size
    from metaprior.types import Data

    points = curves.placed(POINTS)
    calibration = Calibration(*(jnp.asarray(value) for value in (0.3, -1.0, 0.7, 0.1, 1.0)))
    y = jnp.asarray(POINTS)[:, 1:]
    wide = padded.support(points, averaged=False)
    expected = 0.3 + 0.7 * log_size(Data(y, y))
    assert padded.sized(calibration, points).log_width + 0.7 * log_size(wide) == pytest.approx(float(expected))


def test_every_point_narrows_the_band_where_it_is(engine):
    x = int(np.argmin(np.abs(GRID - 2.0)))
    width = lambda points: np.subtract(
        *(
            engine.curves.answer("sinusoid", "gem-bml+last-layer", points, 10, TRUTH)[name][x]
            for name in ("high90", "low90")
        )
    )
    assert width(POINTS) < 0.5 * width([]) and width(POINTS) <= width(POINTS[:2])


def test_any_number_of_points_and_steps_is_one_program(engine):
    before = {method: program._cache_size() for method, program in engine.curves.programs.items()}
    for points, steps in (([], 0), (POINTS, 3), (POINTS * 5, 10)):
        for tasks in priors.CURVES:
            engine.curves.answer(tasks, "maml", points, steps, TRUTH)
    assert {method: program._cache_size() for method, program in engine.curves.programs.items()} == before
    assert set(before.values()) == {1}


def test_functions_of_the_same_noise_move_and_do_not_jump(engine):
    """The symmetric root is continuous: a point moved by a thousandth moves no function by more than a little."""
    at = lambda x: np.array(engine.curves.answer("sinusoid", "maml", [(x, 1.0), (2.0, -1.0)], 10, TRUTH)["functions"])
    assert np.abs(at(-1.0) - at(-1.001)).max() < 0.05 < np.ptp(at(-1.0), axis=0).max()


def test_a_method_that_runs_away_is_told_as_null():
    assert curves.plain(jnp.array([1.0, jnp.nan, jnp.inf])) == [1.0, None, None]


# --- characters -------------------------------------------------------------------------------------------------------

SQUARE = [[(0.2, 0.2), (0.8, 0.2), (0.8, 0.8), (0.2, 0.8), (0.2, 0.2)]]
CROSS = [[(0.2, 0.2), (0.8, 0.8)], [(0.8, 0.2), (0.2, 0.8)]]
BAR = [[(0.5, 0.1), (0.5, 0.9)]]
HOOK = [[(0.3, 0.1), (0.3, 0.9), (0.7, 0.9)]]
WAVE = [[(x / 20, 0.5 + 0.3 * float(np.sin(x))) for x in range(2, 19)]]
SHAPES = [SQUARE, CROSS, BAR, HOOK, WAVE]


def shifted(drawing, by):
    return [[(x + by, y - by / 2) for x, y in stroke] for stroke in drawing]


@pytest.mark.parametrize("classes", [2, slow(3), slow(4), 5])
def test_probabilities_are_those_of_the_library(engine, classes):
    seen = [strokes.pixels(drawing) for drawing in (*SHAPES[:classes], shifted(HOOK, 0.05))]
    small = engine.characters.small
    _, calibration, sure_from = engine.characters.by_classes[classes]
    both = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), calibration)
    trained = Trained(small.setup, small.state, both, [], both)
    expected = labelled.adapt(trained, np.stack(seen[:-1]), np.arange(classes), steps=1).predict(seen[-1][None])
    found = engine.characters.answer(seen[:-1], seen[-1])
    np.testing.assert_allclose(found["probabilities"], expected.probabilities[0], atol=1e-4)
    assert found["sure"] == (expected.probabilities.max() >= sure_from)


@pytest.mark.parametrize("classes", range(2, 6))
def test_simple_shapes_are_recognised_by_one_example(engine, classes):
    examples = [strokes.pixels(drawing) for drawing in SHAPES[:classes]]
    for number, drawing in enumerate(SHAPES[:classes]):
        smaller = [[(0.5 + 0.9 * (x - 0.5), 0.45 + 0.8 * (y - 0.5)) for x, y in stroke] for stroke in drawing]
        assert engine.characters.answer(examples, strokes.pixels(smaller))["best"] == number


def test_doubt_is_said(engine):
    """Between two equal examples there is nothing to be sure of."""
    same = [strokes.pixels(SQUARE)] * 2
    found = engine.characters.answer(same, strokes.pixels(SQUARE))
    assert found["probabilities"] == pytest.approx([0.5, 0.5], abs=1e-3) and not found["sure"]


def test_where_a_drawing_is_does_not_matter_and_size_within_reason_does():
    corner = [[(0.05 + 0.5 * x, 0.02 + 0.5 * y) for x, y in stroke] for stroke in CROSS]
    middle = [[(0.4 + 0.5 * x, 0.4 + 0.5 * y) for x, y in stroke] for stroke in CROSS]
    difference = np.abs(strokes.pixels(corner).astype(int) - strokes.pixels(middle)).mean()
    assert difference < 2
    sides = lambda drawing: np.ptp(np.concatenate(strokes.fitted(drawing)), axis=0).max()
    tiny = [[(0.1 * x, 0.1 * y) for x, y in stroke] for stroke in CROSS]
    huge = [[(0.5 + 1.6 * (x - 0.5), 0.5 + 1.6 * (y - 0.5)) for x, y in stroke] for stroke in CROSS]
    assert sides(CROSS) == pytest.approx(0.6 * SIDE)  # as it is
    assert sides(huge) == pytest.approx(strokes.LARGEST)
    assert sides([[(0.5, 0.5), (0.501, 0.5)]]) < 1 and sides(tiny) < strokes.A_DOT  # dots stay dots
    assert sides([[(0.3, 0.5), (0.5, 0.5)]]) == pytest.approx(strokes.SMALLEST)


def test_the_pen_is_as_wide_as_omniglots():
    down = strokes.ink(strokes.fitted(BAR))
    assert set(down[40:60].sum(axis=1)) == {strokes.PEN}
    dot = strokes.pixels([[(0.5, 0.5)]])
    assert 15 <= dot.astype(float).sum() / 255 * (105 / 28) ** 2 <= 25  # of the 5 × 5 pixels


@pytest.fixture(scope="module")
def omniglot():
    if (drawn := traced.unseen_characters(60, seed=3)) is None:
        pytest.skip("METAPRIOR_DATA does not name a folder with Omniglot's bitmaps")
    return drawn


def test_strokes_leave_the_ink_that_omniglots_drawers_left(omniglot):
    """Real bitmaps thinned to strokes and drawn again: the same ink, and in the same places."""
    again = np.stack([strokes.ink([SIDE * np.array(s) for s in traced.strokes(one[0])]) for one in omniglot[:20]])
    real = omniglot[:20, 0]
    assert again.sum() == pytest.approx(real.sum(), rel=0.08)
    assert (again & real).sum() / (again | real).sum() > 0.84


@pytest.mark.slow
def test_drawn_again_characters_are_recognised_as_well_as_their_bitmaps(engine, omniglot, capsys):
    """Twelve tasks of five characters by five drawers each: what the way through strokes costs."""
    drawn = [lambda bitmap: shrink(bitmap[None])[0], lambda bitmap: strokes.pixels(traced.strokes(bitmap))]
    right = np.zeros((2, 12, 5, 5))
    for way, seen in enumerate(drawn):
        for task in range(12):
            classes = omniglot[5 * task : 5 * task + 5]
            examples = [seen(one[0]) for one in classes]
            for number, one in enumerate(classes):
                for drawer in range(5):
                    right[way, task, number, drawer] = (
                        engine.characters.answer(examples, seen(one[5 + drawer]))["best"] == number
                    )
    bitmaps, again = right.mean(axis=(1, 2, 3))
    with capsys.disabled():
        print(f"right: bitmaps {bitmaps:.3f}, drawn again {again:.3f} of {right[0].size}")
    assert again > bitmaps - 0.04 and again > 0.9


# --- priors that come with it -----------------------------------------------------------------------------------------


def test_shipped_priors_are_small_and_say_where_they_come_from():
    names = [
        *(priors.curve_name(tasks, method) for tasks in priors.CURVES for method in priors.METHODS),
        priors.CHARACTERS,
    ]
    assert {path.stem for path in priors.FOLDER.iterdir()} == set(names)
    for name in names:
        card = json.loads((priors.FOLDER / f"{name}.json").read_text())
        assert (priors.FOLDER / f"{name}.safetensors").stat().st_size < 400_000
        assert {"command", "hardware", "commit", "seed", "iterations"} <= set(card["origin"])
        assert card["settings"]["tasks"] in (*priors.CURVES, "omniglot") and card["settings"]["data_dir"] is None


def test_the_reliability_that_is_shown_adds_up(engine):
    """ECE, accuracy and counts of the card are those of its own table."""
    for known in engine.characters.small.card["classes"].values():
        test = known["test"]
        table = {name: np.array(column) for name, column in test["reliability"].items()}
        share = table["count"] / table["count"].sum()
        assert table["count"].sum() == test["predictions"]
        assert (share * table["accuracy"]).sum() == pytest.approx(test["accuracy"], abs=1e-4)
        assert (share * np.abs(table["accuracy"] - table["confidence"])).sum() == pytest.approx(test["ece"], abs=5e-3)
        assert test["accuracy"] > 0.9 and test["accuracy_where_sure"] > 0.97  # worth showing


def test_a_prior_that_does_not_fit_its_card_is_refused(tmp_path):
    name = priors.curve_name("sinusoid", "maml")
    card = json.loads((priors.FOLDER / f"{name}.json").read_text())
    (tmp_path / f"{name}.safetensors").write_bytes((priors.FOLDER / f"{name}.safetensors").read_bytes())
    with pytest.raises(ValueError, match="is missing from"):
        priors.load(name, tmp_path)
    card["settings"]["hidden"] = [40, 41]
    (tmp_path / f"{name}.json").write_text(json.dumps(card))
    with pytest.raises(ValueError, match="wrong shape"):
        priors.load(name, tmp_path)


# --- the application --------------------------------------------------------------------------------------------------


def test_the_page_and_its_files_come_from_here_alone(page):
    reply = call(page, "GET", "/")
    assert reply.status == 200 and reply.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in reply.headers["content-security-policy"]
    for name in app.FILES:
        assert call(page, "GET", f"/static/{name}").status == 200
    whole = "".join(path.read_text() for path in app.FILES.values()).replace("http://www.w3.org/", "")
    assert "http://" not in whole and "https://" not in whole and "//cdn" not in whole


def test_a_question_about_points(page, engine):
    reply = post(page, "/api/curve", hostile.CURVE | {"methods": ["maml", "gem-bml+"]})
    assert reply.status == 200 and list(reply.json()["answers"]) == ["maml", "gem-bml+"]
    expected = engine.curves.answer("sinusoid", "maml", [(0.0, 1.0), (2.0, -1.5)], 3, Truth(2.0, 1.0, 0.3))
    assert reply.json()["answers"]["maml"] == expected


def test_a_question_about_a_drawing(page):
    reply = post(page, "/api/drawing", hostile.DRAWING)
    found = reply.json()
    assert reply.status == 200 and sum(found["probabilities"]) == pytest.approx(1, abs=1e-4)
    assert found["best"] == 1 and len(found["seen"]) == 3


def test_nothing_is_kept_between_two_questions(page):
    """The same question has the same answer whatever others asked in between."""
    first = post(page, "/api/curve", hostile.CURVE).body
    post(page, "/api/curve", hostile.CURVE | {"points": [[1.0, 5.0]] * 10})
    post(page, "/api/drawing", hostile.DRAWING)
    assert post(page, "/api/curve", hostile.CURVE).body == first


def test_what_the_page_knows_beforehand(page):
    known = call(page, "GET", "/api/about").json()
    assert [method["name"] for method in known["methods"]] == list(priors.METHODS)
    assert set(known["classes"]) == {"2", "3", "4", "5"} and len(known["grid"]) == len(GRID)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"steps": 11}, "steps: a whole number from 0 to 10"),
        ({"steps": True}, "steps: a whole number"),
        ({"points": [[0, 0]] * 17}, "at most 16; remove one"),
        ({"points": [[6, 0]]}, "points[0], x: a number from -5 to 5"),
        ({"points": [[0, 10**400]]}, "points[0], y: a number from -20 to 20"),
        ({"methods": []}, "methods: a list of 1 to 4"),
        ({"methods": ["maml", "maml"]}, "name each method once"),
        ({"tasks": "miniimagenet"}, "choose from sinusoid, sinusoid-challenging"),
        ({"truth": None}, "truth: a JSON object with amplitude"),
        ({"more": 1}, "has 'more', which is unknown"),
    ],
)
def test_wrong_questions_are_answered_in_words(page, change, words):
    reply = post(page, "/api/curve", hostile.CURVE | change)
    assert reply.status == 422 and words in reply.text and "Traceback" not in reply.text


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"examples": [hostile.LINE]}, "examples: a list of 2 to 5"),
        ({"new": []}, "new is empty: draw something"),
        ({"new": [[]]}, "a stroke of new: a list of 1 to"),
        ({"new": [[[0.5, 1.5]]]}, "a number from 0 to 1"),
        ({"new": [[[0.5, 0.5]] * 2000] * 2}, "at most 3000 points"),
    ],
)
def test_wrong_drawings_are_answered_in_words(page, change, words):
    reply = post(page, "/api/drawing", hostile.DRAWING | change)
    assert reply.status == 422 and words in reply.text


def test_other_hosts_and_other_pages_are_not_answered(page):
    body = json.dumps(hostile.CURVE).encode()
    ask = lambda *headers: call(page, "POST", "/api/curve", body=body, headers=(JSON, *headers)).status
    assert ask(("host", "127.0.0.1:8421")) == ask(("host", "[::1]")) == ask(("host", "my-laptop.local:80")) == 200
    assert ask(("host", "evil.example")) == ask() == ask(HOST, ("host", "evil.example")) == 421
    assert ask(HOST, ("origin", "http://localhost:8421")) == 200
    assert ask(HOST, ("origin", "http://evil.example")) == ask(HOST, ("origin", "null")) == 421
    assert ask(HOST, ("origin", "http://localhost:9999")) == 421  # another server on this machine


def test_large_and_strange_bodies_are_refused(page):
    part = b"0," * 40_000
    reply = call(page, "POST", "/api/curve", body=[b"[", *[part] * 10], headers=(HOST, JSON))
    assert reply.status == 413 and "larger than 256 KiB" in reply.text
    assert call(page, "POST", "/api/curve", body=b"{}", headers=(HOST,)).status == 415
    deep = call(page, "POST", "/api/curve", body=b"[" * 100_000, headers=(HOST, JSON))
    assert deep.status == 422 and "nested more than 8 deep" in deep.text
    assert call(page, "GET", "/api/curve").status == 405 and call(page, "GET", "/static/app.py").status == 404


def test_a_body_that_does_not_arrive_is_not_waited_for(page, monkeypatch):
    import asyncio

    monkeypatch.setattr(guard, "PATIENCE", 0.05)

    async def never():
        await asyncio.sleep(60)

    assert asgi.exchange(page, "POST", "/api/curve", receive=never, headers=(HOST, JSON)).status == 408


def test_questions_beyond_what_can_wait_are_turned_away(engine, monkeypatch):
    monkeypatch.setattr(app, "MOST_WAITING", 0)
    page = app.application(engine, hosts=server.LOOPBACK)
    assert post(page, "/api/curve", hostile.CURVE).status == 429


def test_a_few_hundred_hostile_requests(page):
    statuses: dict[int, int] = {}
    for method, path, headers, body in hostile.requests(300):
        reply = call(page, method, path, headers=headers, body=body)
        assert reply.status == 200 or 400 <= reply.status < 500, (method, path, body[:200], reply.text)
        assert b"Traceback" not in reply.body and len(reply.body) < (10_000 if reply.status != 200 else 200_000)
        statuses[reply.status] = statuses.get(reply.status, 0) + 1
    assert statuses.pop(200, 0) < 30 and {404, 405, 413, 415, 421, 422} <= set(statuses)


def test_questions_that_are_still_questions_are_read_as_they_are():
    question = asked.curve(json.dumps(hostile.CURVE).encode())
    assert question == asked.CurveAsked("sinusoid", ("gem-bml+",), [(0.0, 1.0), (2.0, -1.5)], 3, Truth(2.0, 1.0, 0.3))
    strokes_read = asked.drawing(json.dumps(hostile.DRAWING).encode()).new
    assert [list(map(list, stroke)) for stroke in strokes_read] == hostile.CORNER
