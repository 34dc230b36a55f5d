"""An instruction that is used at one index is emitted with its user; one that is used at two is a separate function."""

from __future__ import annotations

from emitting import read_fusion

from hlo_run.analysis.tiling.computation_partitioner import function_name, partition


def partitioned(text: str, *forced: str) -> str:
    computation = read_fusion(text)[1].fused_computation
    return str(partition(computation, [i for i in computation.instructions if i.name in forced]))


def test_chain_is_one_function_called_as_its_computation_and_root() -> None:
    text = "f { p = f32[4] parameter(0) a = f32[4] abs(p) ROOT r = f32[4] add(a, p) }"
    assert partitioned(text) == "f_r: p, a, r"


def test_log_transpose_add_are_two_functions() -> None:
    text = """f { p = f32[8,8] parameter(0) l = f32[8,8] log(p) t = f32[8,8] transpose(l), dimensions={1,0}
      ROOT a = f32[8,8] add(l, t) }"""
    assert partitioned(text) == "f_a: t, a\nf_l: p, l"


def test_index_maps_that_agree_in_the_end_do_not_split() -> None:
    text = """f { p = f32[8,8] parameter(0) l = f32[8,8] log(p) t = f32[8,8] transpose(l), dimensions={1,0}
      u = f32[8,8] transpose(t), dimensions={1,0} ROOT a = f32[8,8] add(l, u) }"""
    assert partitioned(text) == "f_a: p, l, t, u, a"


def test_slice_and_pad_of_one_value_split() -> None:
    text = """f { p = f32[8] parameter(0) z = f32[] constant(0) a = f32[8] add(p, p) s = f32[4] slice(a), slice={[2:6]}
      d = f32[12] pad(a, z), padding=2_2 b = f32[12] pad(s, z), padding=4_4 ROOT r = f32[12] multiply(b, d) }"""
    assert partitioned(text) == "f_r: s, z, b, d, r\nf_a: p, a"


def test_concatenate_of_one_value_twice_splits() -> None:
    text = "f { p = f32[8] parameter(0) e = f32[8] exponential(p) ROOT c = f32[16] concatenate(e, e), dimensions={0} }"
    assert partitioned(text) == "f_c: c\nf_e: p, e"


def test_users_in_two_functions_split() -> None:
    text = """f { p = f32[8] parameter(0) e = f32[8] exponential(p) n = f32[8] negate(e) s = f32[8] reverse(n), dimensions={0}
      a = f32[8] add(n, s) ROOT r = f32[8] add(a, e) }"""
    assert partitioned(text) == "f_r: s, a, r\nf_n: n\nf_e: p, e"


def test_forced_roots_begin_functions() -> None:
    text = "f { p = f32[4] parameter(0) a = f32[4] abs(p) b = f32[4] negate(a) ROOT r = f32[4] exponential(b) }"
    assert partitioned(text, "b", "a") == "f_r: r\nf_b: b\nf_a: p, a"


def test_a_long_function_is_not_cut() -> None:
    # Every second value is needed twice: cut in the middle, functions would call each other over and over.
    lines = [f"p{n} = f32[8] add(p{n - 1}, p{max(n - 2, 0)})" for n in range(1, 2500)]
    text = "f { p0 = f32[8] parameter(0) " + " ".join(lines) + " ROOT r = f32[8] negate(p2499) }"
    found = partition(read_fusion(text)[1].fused_computation)
    assert [len(subgraph.instructions) for subgraph in found.subgraphs] == [2501]


def test_functions_that_compute_nothing_are_marked() -> None:
    text = """f { p = f32[8,8] parameter(0) v = f32[8,8] reverse(p), dimensions={0} t = f32[8,8] transpose(v), dimensions={1,0}
      ROOT a = f32[8,8] add(v, t) }"""
    found = partition(read_fusion(text)[1].fused_computation)
    assert [(subgraph.name, subgraph.is_no_compute) for subgraph in found.subgraphs] == [("f_a", False), ("f_v", True)]


def test_names_are_symbols() -> None:
    assert function_name("wrapped-add.1_x") == "wrapped_add_1_x"
    assert function_name("1st") == "_1st"
