r"""What the width of actions costs half-cheetah, whatever else it does: motors are paid for, also where they only tremble.

An action $a \sim \mathcal N(0, \sigma^2)$ is cut off at ±1, and .05 a² is charged for each of six motors at every step.
"""

from math import erf, exp, pi, sqrt

import numpy as np

from experiments import study
from experiments.rl_settings import SCRATCH
from metaprior.rl.cheetah import ACTION_SIZE, CONTROL_COST, HORIZON


def mean_square(std: float) -> float:
    r"""$E\,\mathrm{clip}(a, -1, 1)^2$ of $a \sim \mathcal N(0, \sigma^2)$.

    >>> f"{mean_square(0.1):.4f}, {mean_square(1e6):.4f}"  # nothing is cut off; all is
    '0.0100, 1.0000'
    """
    inside = erf(1 / (std * sqrt(2)))
    return std**2 * (inside - sqrt(2 / pi) / std * exp(-1 / (2 * std**2))) + 1 - inside


def cost(std: float, steps: int) -> float:
    """Of a trajectory whose actions are drawn around zero."""
    return CONTROL_COST * ACTION_SIZE * steps * mean_square(std)


def remark(results: study.Results) -> list[str]:
    """The widths of all methods with what they cost, the narrowest first; of half-cheetah alone, which pays for motors."""
    settings = results["settings"]
    if "cheetah" not in settings["environment"]:
        return []
    steps = settings["horizon"] or HORIZON
    known = {name: curve for name, curve in results["curves"].items() if name != SCRATCH and curve.get("log_std")}
    widths = {name: float(np.exp(np.asarray(curve["log_std"], float)).mean()) for name, curve in known.items()}
    told = [
        f"{name} {std:.2f} ({cost(std, steps):.0f})" for name, std in sorted(widths.items(), key=lambda each: each[1])
    ]
    if not told:
        return []
    return [
        "Standard deviation of the actions of the learned priors, and in brackets what motors alone would cost in a trajectory "
        f"whose actions were drawn around zero with it: {', '.join(told)}."
    ]
