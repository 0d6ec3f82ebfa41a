"""What the study of clients found is what was promised, and its remarks take their numbers from the results."""

import json

import numpy as np

from experiments import federated, study


def value(results, tasks, who, metric):
    return federated._value(results, tasks, who, metric)[0]


def test_real_clients_learn_sinusoids_as_well_as_one_machine():
    """A test error below 0.5 after ten steps, and within 5 % of one machine's with the same seed."""
    results = study.load("federated")
    clients = value(results, "sinusoid", federated.REAL, federated.MSE)
    central = np.mean(results["curves"][f"sinusoid {federated.ONE}"]["tasks"][0])
    assert clients < 0.5 and abs(clients / central - 1) < 0.05


def test_clients_with_alphabets_of_their_own_come_within_a_point():
    results = study.load("federated")
    above, _ = federated.gap(results, "omniglot")
    assert len(results["curves"][f"omniglot {federated.APART}"]["tasks"]) == 3  # seeds
    assert above > -0.01 and value(results, "omniglot", federated.ONE, federated.ACCURACY) > 0.8


def test_remarks_and_figure_are_made_from_results():
    made = lambda who, tasks, metric, mean: study.row(setting=tasks, method=who, metric=metric, mean=mean, ci95=0.01)
    scores = {
        ("sinusoid", federated.ONE): [[0.40, 0.40], [0.9, 0.9]],
        ("sinusoid", federated.REAL): [[0.40, 0.42]],
        ("omniglot", federated.ONE): [[0.95, 0.97], [0.93, 0.95]],
        ("omniglot", federated.APART): [[0.93, 0.95], [0.92, 0.92]],
    }
    metric = lambda tasks: federated.ACCURACY if tasks == "omniglot" else federated.MSE
    rows = [made(who, tasks, metric(tasks), float(np.mean(found))) for (tasks, who), found in scores.items()]
    curves = {f"{tasks} {who}": {"tasks": found, "seconds a round": [5.0]} for (tasks, who), found in scores.items()}
    results = json.loads(json.dumps({"rows": rows, "curves": curves, "settings": {}}))
    said = " ".join(federated.remarks(results))
    assert "+2.50%" in said and "5.0 s a round" in said
    assert "-2.00 ±" in said and "(-2.00, -2.00)" in said  # (93 + 95 + 92 + 92 - 95 - 97 - 93 - 95) / 4
    assert len(federated.figure(results).axes) == 2
