"""How the channels of a plan change with a revision: trees grow and are pruned, channels open and close.

Owns what such a change may be, and making it. Channel numbers never change their meaning: an opened channel
comes last, a closed one keeps its number and carries nothing. A tree only gains branches and loses branches
that serve nobody, so the way from its root to a broker that stays on it stays the same. Brokers that hold
different revisions for a moment then still bring every event once to whoever both revisions serve
(`overlay.router` has the other half of the rule: an event is taken from the parent on the tree alone).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from ramify.errors import InputError, OverlayError
from ramify.planning.layout import rooted_tree
from ramify.planning.plan import (
    Admission,
    Cells,
    Channel,
    ChannelTree,
    Entry,
    Holds,
    Match,
    Pruning,
    Serves,
    Some,
)

__all__ = ["NO_GROWTH", "Growth", "Links", "Opened", "changed_channels", "flows_down", "serving_broker"]

Links: TypeAlias = tuple[tuple[int, int], ...]
"""Logical links (above, below) of a tree."""


@dataclass(frozen=True, slots=True)
class Opened:
    """A channel for events that match any of some classes. They enter at the root of its tree."""

    name: str
    root: int
    links: Links
    classes: tuple[int, ...]
    pruning: Pruning = Pruning.NONE


@dataclass(frozen=True, slots=True)
class Growth:
    """See the module. `grown` and `pruned` are (channel, links)."""

    grown: tuple[tuple[int, Links], ...] = ()
    pruned: tuple[tuple[int, Links], ...] = ()
    opened: tuple[Opened, ...] = ()
    closed: tuple[int, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.grown or self.pruned or self.opened or self.closed)


NO_GROWTH = Growth()


def changed_channels(channels: Sequence[Channel], growth: Growth, brokers: int) -> tuple[Channel, ...]:
    """The channels after a growth. Opened ones serve nobody yet.

    Raises `InputError` for one that is none of theirs: an unknown channel or link, a tree that is no tree
    afterwards.
    """
    made = list(channels)
    for c, links in growth.grown:
        made[c] = _with_links(_known(made, c), links, ())
    for c, links in growth.pruned:
        made[c] = _with_links(_known(made, c), (), links)
    for c in growth.closed:
        made[c] = _closed(_known(made, c))
    for new in growth.opened:
        tree = ChannelTree(np.array(new.links, dtype=np.int32).reshape(-1, 2), new.root)
        content = Holds(Match(new.classes))
        nobody = Serves(*(np.zeros(0, dtype=np.int32) for _ in range(3)))
        made.append(
            Channel(new.name, Admission(content), nobody, new.pruning, tree, Entry.to(new.root, brokers))
        )
    touched = {c for c, _ in (*growth.grown, *growth.pruned)} | set(range(len(channels), len(made)))
    for c in sorted(touched):
        try:
            rooted_tree(made[c], brokers)
        except (OverlayError, IndexError) as error:
            raise InputError(f"channel {made[c].name} has no tree after a change: {error}") from None
    return tuple(made)


def flows_down(channel: Channel) -> bool:
    """Whether events come down a channel's tree from its root alone, so that it may grow."""
    tree, targets = channel.tree, channel.entry.targets
    return (
        tree is not None
        and tree.root is not None
        and targets is not None
        and channel.pruning in (Pruning.NONE, Pruning.FILTER)
        and bool((targets == tree.root).all())
    )


def serving_broker(channel: Channel, host: int) -> int:
    """The broker that serves a class at `host` which joins a channel later.

    Where channels divide the content space, events of a broker enter by its proxy: it gets them from there
    too. Else the host itself.
    """
    return channel.entry.target(host) if isinstance(channel.admits.content, Cells) else host


def _known(channels: Sequence[Channel], c: int) -> Channel:
    if not 0 <= c < len(channels):
        raise InputError(f"a change of channel {c}, and there are {len(channels)}")
    return channels[c]


def _with_links(channel: Channel, more: Links, less: Links) -> Channel:
    if channel.tree is None or channel.tree.root is None:
        raise InputError(f"channel {channel.name} has no tree with a root: it cannot grow")
    links = [(int(u), int(v)) for u, v in channel.tree.links.tolist()]
    gone = {frozenset(link) for link in less}
    kept = [link for link in links if frozenset(link) not in gone]
    if len(kept) != len(links) - len(gone):
        raise InputError(f"channel {channel.name} has not all the links that a change takes away")
    both = np.array([*kept, *more], dtype=np.int32).reshape(-1, 2)
    tree = ChannelTree(both, channel.tree.root)
    return replace(channel, tree=tree, serves=_on_tree(channel.serves, tree) if less else channel.serves)


def _on_tree(serves: Serves, tree: ChannelTree) -> Serves:
    """The entries of brokers that are on a tree: vacant classes go with their branch."""
    here = np.isin(serves.at, tree.brokers)
    return Serves(serves.classes[here], serves.at[here], serves.region[here])


def _closed(channel: Channel) -> Channel:
    if channel.tree is None or channel.tree.root is None:
        raise InputError(f"channel {channel.name} has no tree with a root: it cannot close")
    nobody = Serves(*(np.zeros(0, dtype=np.int32) for _ in range(3)))
    alone = ChannelTree(np.zeros((0, 2), dtype=np.int32), channel.tree.root)
    never = replace(channel.admits, content=Holds(Some(())))
    return replace(channel, admits=never, serves=nobody, tree=alone)
