"""Which groups a prior is learned from and which it is judged by: some held out, or, where groups are few, all in turn."""

from typing import NamedTuple

import jax
import numpy as np

from metaprior.types import Key

FEW = 20  # groups; with fewer, all are held out in turn: the few that can be spared tell too little of how sure one may be
FOLDS = 5  # turns
FEWEST = 10  # groups; with fewer, what they tell is doubtful however it is used


class Fold(NamedTuple):
    """Numbers of groups."""

    learned: np.ndarray
    held: np.ndarray


def folds(key: Key, count: int, share: float) -> list[Fold]:
    """One fold with a share of the groups held out; of few groups, five that hold out every group once.

    A share that leaves no group to hold out leaves one fold, in which the groups are judged that were learned from.
    """
    order = np.asarray(jax.random.permutation(key, count))
    held = round(share * count)
    if share > 0 and count < FEW:
        parts = np.array_split(order, min(FOLDS, count))
    elif held:
        parts = [order[:held]]
    else:
        return [Fold(np.arange(count), np.arange(count))]
    return [Fold(np.sort(np.setdiff1d(order, part)), np.sort(part)) for part in parts]


def trainings(count: int, share: float) -> int:
    """How often a prior is learned, one time after the other: in every turn, and then from all groups."""
    turns = min(FOLDS, count) if share > 0 and count < FEW else 1
    return turns if turns == 1 else turns + 1


def doubts(count: int, share: float) -> str | None:
    """What a user must know who learns from so few groups."""
    if not round(share * count) and not (share > 0 and count < FEW):
        return (
            f"none of {count} groups is held out: intervals are calibrated on the groups that were learned from, and likely "
            "much too narrow. Leave validation_fraction as it comes"
        )
    if count < FEWEST:
        return (
            f"there are only {count} groups, which tell little of how groups differ: each was held out in turn to calibrate "
            f"intervals, which are about right on average and may be off in a single table. Learn from {FEWEST} groups or more, "
            "better thirty, or take a mixed model"
        )
    return None


def require_groups(counts: np.ndarray) -> None:
    """Refuse tables from which nothing can be learned of how a group's rows tell of its others."""
    if len(counts) < 2:
        raise ValueError(
            "there is only one group, and nothing to learn from others: use AdaptedRegressor or AdaptedClassifier"
        )
    if counts.max() < 2:
        raise ValueError(
            f"every one of {len(counts)} groups has a single row, so that none can tell anything of another: is the column of "
            "groups a name of rows? Choose one whose values come again"
        )
