"""Places the nodes of a graph in layers, users below operands, for a drawing."""

from __future__ import annotations

from collections.abc import Sequence

_SWEEPS = 4


def place(operands: Sequence[Sequence[int]]) -> list[tuple[int, float]]:
    """Return (layer, column) of every node; `operands` has the numbers of each node's operands, all smaller than its own.

    A node without operands is in the layer above its first user. Columns of a layer are at least 1 apart; the smallest is 0.
    """
    layers = _layers(operands)
    rows: list[list[int]] = [[] for _ in range(max(layers, default=-1) + 1)]
    for node, layer in enumerate(layers):
        rows[layer].append(node)
    users: list[list[int]] = [[] for _ in operands]
    for node, sources in enumerate(operands):
        for source in sources:
            users[source].append(node)
    column = [0.0] * len(operands)
    for row in rows:
        for number, node in enumerate(row):
            column[node] = float(number)
    for sweep in range(_SWEEPS):
        down = sweep % 2 == 0
        neighbours = operands if down else users
        for row in rows if down else reversed(rows):
            _arrange(row, neighbours, column)
    least = min(column, default=0.0)
    return [(layer, round(x - least, 2)) for layer, x in zip(layers, column, strict=True)]


def _layers(operands: Sequence[Sequence[int]]) -> list[int]:
    layers: list[int] = []
    for sources in operands:
        layers.append(max((layers[source] + 1 for source in sources), default=0))
    first_user: dict[int, int] = {}
    for node, sources in enumerate(operands):
        for source in sources:
            first_user[source] = min(first_user.get(source, layers[node]), layers[node])
    return [first_user[node] - 1 if not sources and node in first_user else layers[node] for node, sources in enumerate(operands)]


def _arrange(row: list[int], neighbours: Sequence[Sequence[int]], column: list[float]) -> None:
    """Sort a layer by the mean column of neighbours, and move its nodes there as far as they have room."""
    wanted = {
        node: sum(column[other] for other in neighbours[node]) / len(neighbours[node]) if neighbours[node] else column[node]
        for node in row
    }
    row.sort(key=lambda node: wanted[node])
    right = float("-inf")
    for node in row:
        right = max(right + 1, wanted[node])
        column[node] = right
    # Nodes were only pushed to the right: the mean shift is taken back.
    shift = sum(column[node] - wanted[node] for node in row) / len(row)
    for node in row:
        column[node] -= shift
