"""Names of kernels, against those of real XLA:GPU (released, `--xla_disable_all_hlo_passes`) for these instructions in order."""

from hlo_run.hlo.names import NameUniquer, kernel_name

NAMES = {
    "_-": "a_", "Q-r": "Q_r", "w_": "w_", "z.": "z_", "_.3": "a_3", "a_": "a___1", "_1": "_1", "_x": "_x", "_": "a___2"
}  # fmt: skip


def test_kernels_have_xlas_names() -> None:
    taken = NameUniquer("__")
    assert {name: taken.unique(kernel_name(name)) for name in NAMES} == NAMES
