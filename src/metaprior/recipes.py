"""What the rows of the table change on a task set.

The table itself (`methods`) holds defaults for sinusoids. A recipe is a set of fields of a row; options given by hand go over it.
Rates that won the search on validation classes (the study `image-search`, as many trainings for every method) are taken from it,
and a test holds them to it; those it has not come to yet are places to start from, taken from the literature and from
short trials.
"""

from typing import Any

# Inner rates are in units of the mean loss over a task's images; σ₀² = α as in the table, so that Gradient-EM's step is the sum
# of the second stage's gradients.
_OMNIGLOT: dict[str, dict[str, Any]] = {
    "gem-bml+": {"rate": 1.0, "std": 1.0, "steps": (5, 1), "second_stage": "sequential", "draw_steps": False, "meta_rate": 1e-2,
                 "meta_batch": 16},
    "gem-bml": {"rate": 1.0, "std": 1.0, "steps": (5, 5), "meta_rate": 1e-2, "meta_batch": 16},
    "gem-bml+last-layer": {"std": 1.0, "options": {"noise_std": 0.1}, "meta_rate": 1e-2, "meta_batch": 16},
    "kl-chaser": {"rate": 0.036, "meta_rate": 1e-2, "meta_batch": 16},
    "amortized-bml": {"rate": 0.12, "meta_rate": 1e-2, "meta_batch": 16},
    "maml": {"rate": 0.3, "steps": (5, 0), "meta_rate": 3e-3, "meta_batch": 16, "clip": 10.0},
    "fomaml": {"rate": 0.4, "steps": (5, 0), "meta_rate": 1e-2, "meta_batch": 16, "clip": 10.0},
    "imaml": {"rate": 0.1, "steps": (16, 0), "temperature": 1.0, "std": 0.7, "options": {"damping": 1.0}, "meta_rate": 1e-2,
              "meta_batch": 16, "clip": 10.0},
    "reptile": {"rate": 0.9, "steps": (5, 5), "meta_rate": 1e-2, "meta_batch": 16, "clip": 10.0},
    "bmaml": {"rate": 0.9, "steps": (1, 1), "meta_rate": 1e-2, "meta_batch": 8, "clip": 10.0},
    "pretrain": {"meta_rate": 1e-3, "meta_batch": 16},
}  # fmt: skip
_PHOTOS: dict[str, dict[str, Any]] = {
    name: {**recipe, "meta_batch": 4, **({"rate": 0.1} if recipe.get("rate", 0) > 0.1 else {})}
    for name, recipe in _OMNIGLOT.items()
}
_PHOTOS["gem-bml+"] |= {"rate": 0.03, "meta_rate": 1e-3}
_PHOTOS["maml"] |= {"rate": 0.03, "meta_rate": 3e-3}
_PHOTOS["fomaml"] |= {"rate": 0.03, "meta_rate": 1e-3}
_PHOTOS["reptile"] |= {"rate": 0.03, "meta_rate": 1e-3}
_PHOTOS["imaml"] |= {"rate": 0.03, "meta_rate": 3e-3}
_PHOTOS["amortized-bml"] |= {"rate": 0.03, "meta_rate": 1e-2}
# Not searched yet: rates as the search chose them for the methods next to these, or smaller ones of their own.
_PHOTOS["gem-bml"] |= {"rate": 0.03, "meta_rate": 1e-3}
_PHOTOS["kl-chaser"] |= {"rate": 0.03, "meta_rate": 1e-3}
_PHOTOS["gem-bml+last-layer"] = {**_OMNIGLOT["gem-bml+last-layer"], "options": {"noise_std": 0.2}, "meta_batch": 6}
# Meta-rates of agents that the study `rl-navigation` chose on validation tasks. Those of half-cheetah are the rows' own or near.
_NAVIGATION: dict[str, dict[str, Any]] = {
    name: {"meta_rate": rate}
    for rate, names in {
        3e-3: ("gem-bml+", "gem-bml", "maml", "fomaml", "pretrain", "gem-bml+late", "maml-two", "gem-bml+rates"),
        1e-2: ("reptile", "gem-bml+two"),
    }.items()
    for name in names
}
RECIPES: dict[str, dict[str, dict[str, Any]]] = {
    "omniglot": _OMNIGLOT, "miniimagenet": _PHOTOS, "images": _PHOTOS, "rl-navigation": _NAVIGATION,
}  # fmt: skip


# The largest meta-rate of a deeper network: the search found it for the exact head on photographs, the others take it, too.
DEEPER = {"resnet12": 1e-3}


def recipe(tasks: str, method: str, network: str | None = None) -> dict[str, Any]:
    """The fields of the row that this task set changes, and a network other than the usual one.

    >>> [recipe("miniimagenet", "maml", network)["meta_rate"] for network in (None, "resnet12")]
    [0.003, 0.001]
    """
    fields = RECIPES.get(tasks, {}).get(method, {})
    if network not in DEEPER:
        return fields
    return {**fields, "meta_rate": min(fields.get("meta_rate", 1.0), DEEPER[network])}
