"""What the study of clients found is what was promised, and its remarks take their numbers from the results."""

import json

from experiments import federated, study


def value(results, tasks, who, metric):
    return federated._value(results, tasks, who, metric)[0]


def test_real_clients_learn_sinusoids_as_well_as_one_machine():
    """A test error below 0.5 after ten steps, and within 5 % of one machine's."""
    results = study.load("federated")
    central, clients = (value(results, "sinusoid", who, federated.MSE) for who in (federated.ONE, federated.REAL))
    assert clients < 0.5 and abs(clients / central - 1) < 0.05


def test_clients_with_alphabets_of_their_own_come_within_a_point():
    results = study.load("federated")
    central, clients = (value(results, "omniglot", who, federated.ACCURACY) for who in (federated.ONE, federated.APART))
    assert clients > central - 0.01 and central > 0.5


def test_remarks_and_figure_are_made_from_rows():
    made = lambda who, tasks, metric, mean: study.row(setting=tasks, method=who, metric=metric, mean=mean, ci95=0.01)
    rows = [
        made(federated.ONE, "sinusoid", federated.MSE, 0.40),
        made(federated.REAL, "sinusoid", federated.MSE, 0.41),
        made(federated.REAL, "sinusoid", "seconds a round", 5.0),
        made(federated.ONE, "omniglot", federated.ACCURACY, 0.95),
        made(federated.APART, "omniglot", federated.ACCURACY, 0.93),
    ]
    results = json.loads(json.dumps({"rows": rows, "curves": {}, "settings": {}}))
    said = " ".join(federated.remarks(results))
    assert "+2.50%" in said and "-2.00 points" in said and "5.0 s a round" in said
    assert len(federated.figure(results).axes) == 2
