"""Walks over directed graphs."""

from hlo_run.walks import post_order, post_order_of_all, reaches, walk

GRAPH = {"a": "bc", "b": "d", "c": "de", "d": "", "e": "c", "f": "a"}


def test_a_node_comes_after_its_successors_and_the_first_successor_is_first():
    assert post_order("a", GRAPH.__getitem__) == ["d", "b", "e", "c", "a"]


def test_a_second_start_adds_what_the_first_does_not_reach():
    assert post_order_of_all("cfc", GRAPH.__getitem__) == ["d", "e", "c", "b", "a", "f"]


def test_a_walk_needs_no_recursion():
    assert post_order(0, lambda n: [n + 1] if n < 100_000 else []) == list(range(100_000, -1, -1))


def test_a_node_reaches_itself_and_what_follows_it():
    assert reaches("e", {"d"}, GRAPH.__getitem__)
    assert reaches("d", "d", GRAPH.__getitem__)
    assert not reaches("a", {"f"}, GRAPH.__getitem__)


def test_a_walk_yields_each_node_once_before_its_successors_the_last_first():
    assert list(walk("a", GRAPH.__getitem__)) == ["a", "c", "e", "d", "b"]
    assert list(walk("bf", GRAPH.__getitem__)) == ["f", "a", "c", "e", "d", "b"]


def test_a_walk_asks_only_about_the_nodes_that_are_taken():
    asked: list[str] = []

    def successors(node: str) -> str:
        asked.append(node)
        return GRAPH[node]

    steps = walk("a", successors)
    assert [next(steps), next(steps)] == ["a", "c"]
    assert asked == ["a"]
