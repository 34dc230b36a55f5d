"""Walks over any directed graph, without recursion: the graph is a function from a node to its successors."""

from __future__ import annotations

from collections.abc import Callable, Container, Hashable, Iterable, Iterator
from typing import TypeVar

Node = TypeVar("Node", bound=Hashable)


def post_order(start: Node, successors: Callable[[Node], Iterable[Node]]) -> list[Node]:
    """Return the nodes that `start` reaches, once each, after their successors, the first successor first; `start` is the last.

    In a cycle, the node that the walk enters first comes last.
    """
    return post_order_of_all([start], successors)


def post_order_of_all(starts: Iterable[Node], successors: Callable[[Node], Iterable[Node]]) -> list[Node]:
    """Return the starts and the nodes that they reach, once each: `post_order` of the first, then the rest of the second's."""
    order: list[Node] = []
    entered: set[Node] = set()
    for start in starts:
        if start in entered:
            continue
        entered.add(start)
        path: list[tuple[Node, Iterator[Node]]] = [(start, iter(successors(start)))]
        while path:
            node, rest = path[-1]
            following = next((other for other in rest if other not in entered), None)
            if following is None:
                path.pop()
                order.append(node)
            else:
                entered.add(following)
                path.append((following, iter(successors(following))))
    return order


def walk(starts: Iterable[Node], successors: Callable[[Node], Iterable[Node]]) -> Iterator[Node]:
    """Yield the starts and all nodes that they reach, each once, before its successors; the last start and successor first.

    `successors` is asked about a node after the node was yielded.
    """
    seen: set[Node] = set()
    waiting = list(starts)
    while waiting:
        node = waiting.pop()
        if node not in seen:
            seen.add(node)
            yield node
            waiting += successors(node)


def reaches(start: Node, goals: Container[Node], successors: Callable[[Node], Iterable[Node]]) -> bool:
    """Return True if `start` is a goal, or if a path leads from it to one."""
    return any(node in goals for node in walk([start], successors))
