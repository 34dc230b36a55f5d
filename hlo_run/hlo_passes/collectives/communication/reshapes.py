"""Dimensions that a reshape keeps as they are."""

from __future__ import annotations

from collections.abc import Sequence


def kept_dims(before: Sequence[int], after: Sequence[int]) -> list[tuple[int, int]]:
    """Return the pairs of a dimension before and the dimension after that has its elements, in order.

    Both sides are cut into the smallest pieces of equal sizes; a pair is a piece of one dimension on each side.
    """
    pairs: list[tuple[int, int]] = []
    one, two = 0, 0
    while one < len(before) or two < len(after):
        first = one, two
        left = right = 1
        while first == (one, two) or left != right:
            if first != (one, two) and (one == len(before) if left < right else two == len(after)):
                return pairs
            takes_left, takes_right = left < right, right < left
            if left == right:
                takes_left = one < len(before) and (two == len(after) or before[one] <= after[two])
                takes_right = two < len(after) and (one == len(before) or after[two] <= before[one])
            if takes_left:
                left, one = left * before[one], one + 1
            if takes_right:
                right, two = right * after[two], two + 1
        if (one, two) == (first[0] + 1, first[1] + 1):
            pairs.append(first)
    return pairs
