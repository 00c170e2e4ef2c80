"""The trees that brokers make matches over, from the overlay alone: everyone computes the same ones.

    shared       one minimum spanning tree for all
    per-source   from each broker its shortest paths

Both by the mean price of a link, or by price from the source.
"""

from ramify.errors import InputError
from ramify.network.graphs.overlay import Overlay
from ramify.network.trees.trees import Tree, minimum_spanning_tree, shortest_path_tree
from ramify.overlay.matchmaking.simulate import places_of_parents
from ramify.overlay.matchmaking.state import TreePlace

__all__ = ["PER_SOURCE", "SHARED", "TREES", "places_of_overlay"]

SHARED, PER_SOURCE = TREES = ("shared", "per-source")


def places_of_overlay(overlay: Overlay, trees: str) -> dict[str, TreePlace]:
    """The place of each broker. Raises `InputError` for other trees, `DisconnectedError`. O(n m log n)."""
    if trees not in TREES:
        raise InputError(f"trees are {trees[:40]!r}: give {' or '.join(TREES)}")
    overlay.require_connected()
    names = overlay.brokers
    made: list[Tree]
    if trees == SHARED:
        tree = minimum_spanning_tree(overlay, "mean_price")
        made = [tree.rerooted(root) for root in range(len(names))]
    else:
        made = [shortest_path_tree(overlay, root, "price") for root in range(len(names))]
    parents = {names[root]: _above(names, tree) for root, tree in enumerate(made)}
    return {place.name: place for place in places_of_parents(names, parents, shared=trees == SHARED)}


def _above(names: tuple[str, ...], tree: Tree) -> dict[str, str]:
    return {names[v]: names[above] for v, above in enumerate(tree.parent.tolist()) if above >= 0}
