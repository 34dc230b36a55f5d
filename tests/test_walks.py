"""Walks over directed graphs."""

from hlo_run.walks import post_order, reaches

GRAPH = {"a": "bc", "b": "d", "c": "de", "d": "", "e": "c", "f": "a"}


def test_a_node_comes_after_its_successors_and_the_first_successor_is_first():
    assert post_order("a", GRAPH.__getitem__) == ["d", "b", "e", "c", "a"]


def test_a_walk_needs_no_recursion():
    assert post_order(0, lambda n: [n + 1] if n < 100_000 else []) == list(range(100_000, -1, -1))


def test_a_node_reaches_itself_and_what_follows_it():
    assert reaches("e", {"d"}, GRAPH.__getitem__)
    assert reaches("d", "d", GRAPH.__getitem__)
    assert not reaches("a", {"f"}, GRAPH.__getitem__)
