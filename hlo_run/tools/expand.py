"""`hlo-tool expand`: replaces instructions that stand for algorithms by the algorithms."""

from __future__ import annotations

import click

from hlo_run.errors import UsageError
from hlo_run.execution.console import Console
from hlo_run.options import CompileOptions
from hlo_run.pass_support.hlo_pass import HloPass, PassContext
from hlo_run.target import DEFAULT_TARGET, preset
from hlo_run.tools.convert import FORMATS, write_module
from hlo_run.tools.read import read


def _expanders() -> dict[str, HloPass]:
    from hlo_run.hlo_passes.expanders.batchnorm_expander import BatchNormExpander
    from hlo_run.hlo_passes.linalg.cholesky_expander import CholeskyExpander
    from hlo_run.hlo_passes.rng.rng_bit_generator_expander import RngBitGeneratorExpander
    from hlo_run.hlo_passes.rng.rng_expander import RngExpander

    return {
        "batch_norm_expander": BatchNormExpander(),
        "cholesky_expander": CholeskyExpander(),
        "rng_expander": RngExpander(),
        "rng_bit_generator_expander": RngBitGeneratorExpander(),
    }


@click.command("expand", help="Replace instructions of FILE by the algorithms that they stand for, and print the module.")
@click.argument("file")
@click.option("--expand_all", is_flag=True, help="Run all expanders below.")
@click.option("--batch_norm_expander", is_flag=True, help="Expand batch-norm-training, -inference and -grad.")
@click.option("--cholesky_expander", is_flag=True, help="Expand cholesky.")
@click.option("--rng_expander", is_flag=True, help="Expand rng.")
@click.option("--rng_bit_generator_expander", is_flag=True, help="Expand rng-bit-generator.")
@click.option("--verify_hlo", is_flag=True, help="Check the module afterwards.")
@click.option("--output_file", "-o", default="", metavar="FILE", help="Write here instead of stdout.")
@click.option("--output_format", default="", type=click.Choice(("", *FORMATS)), help="Write this format [hlo].")
@click.pass_obj
def command(
    console: Console, file: str, expand_all: bool, verify_hlo: bool, output_file: str, output_format: str, **chosen: bool
) -> None:
    """Print or write the expanded module. Raises UsageError if no expander is chosen."""
    expanders = _expanders()
    if not expand_all and not any(chosen.values()):
        raise UsageError("no expander is chosen", hint=f"--expand_all, or one of {', '.join(f'--{name}' for name in expanders)}")
    module = read(file)
    ctx = PassContext(preset(DEFAULT_TARGET), CompileOptions())
    for name, expander in expanders.items():
        if expand_all or chosen[name]:
            expander.apply(ctx, module)
    if verify_hlo:
        from hlo_run.ops.verify import READING, verify

        verify(module, READING)
    write_module(console, module, output_file, output_format)
