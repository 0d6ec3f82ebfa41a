"""Figure 2a, challenging setting: random frequency, all phases, noise.

metaprior reproduce sinusoid-challenging --scale full
"""

from experiments import figure_2a, study

STUDY = figure_2a.make(
    "sinusoid-challenging",
    "sinusoid-challenging",
    "Sinusoids, challenging setting (Figure 2a)",
    "Bayesian methods (GEM-BML, GEM-BML+, BMAML, Amortized BML) still learn, MAML and Reptile fail to learn, and GEM keeps "
    "improving with more steps; the figure's numbers are not given in the text.",
)


def run(settings: figure_2a.Settings) -> study.Results:
    """The whole study."""
    return study.run(STUDY, settings)
