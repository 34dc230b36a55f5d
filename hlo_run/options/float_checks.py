"""XLA's flags that look for unsafe floats: in the results of thunks, and in reductions."""

from __future__ import annotations

from hlo_run.errors import UsageError
from hlo_run.options.flag import FlagRecord, flag, flag_record

_PREFIX = "DETECTION_MODE_"
_MODES = ("NONE", "WARNING", "FAIL", "DUMP")
_NONE = _PREFIX + "NONE"


@flag_record
class FloatChecks(FlagRecord):
    """The checks of floats after every thunk of a run."""

    xla_gpu_detect_nan: str = flag(
        _NONE, "Look for NaNs in what each thunk writes. warning: report the instruction; fail: then stop with an error.", "MODE"
    )
    xla_gpu_detect_inf: str = flag(
        _NONE,
        "Look for infinities in what each thunk writes. warning: report the instruction; fail: then stop with an error.",
        "MODE",
    )
    xla_gpu_experimental_thunk_buffer_debug_module_outputs: bool = flag(
        False,
        "Let the texts about thunks show XLA's checks of the result. A run does not do them; --localize looks at every thunk.",
    )
    xla_gpu_log_minmax: bool = flag(False, "Print the least and the largest float that each thunk writes.")

    @property
    def nan_check(self) -> str:
        """The reaction to NaNs: `NONE`, `WARNING` or `FAIL`. Raises UsageError for another word."""
        return _mode("xla_gpu_detect_nan", self.xla_gpu_detect_nan)

    @property
    def inf_check(self) -> str:
        """The reaction to infinities; see `nan_check`."""
        return _mode("xla_gpu_detect_inf", self.xla_gpu_detect_inf)

    @property
    def checks_floats(self) -> bool:
        """True if some flag checks the floats of thunks."""
        return self.xla_gpu_log_minmax or self.nan_check != "NONE" or self.inf_check != "NONE"


@flag_record
class ReductionChecks(FlagRecord):
    """The checks for reductions that sum in floats of fewer than 32 bits."""

    xla_detect_unstable_reductions: str = flag(
        _NONE,
        "Look for reductions that compute in floats of fewer than 32 bits, before optimisation. warning: report them; fail: then "
        "stop with an error.",
        "MODE",
    )
    xla_detect_unstable_reductions_post_optimizations: str = flag(
        _NONE, "With xla_detect_unstable_reductions: look again after optimisation.", "MODE"
    )

    @property
    def reduction_check(self) -> str:
        """The reaction to such reductions: `NONE`, `WARNING` or `FAIL`. Raises UsageError for another word."""
        return _mode("xla_detect_unstable_reductions", self.xla_detect_unstable_reductions)

    @property
    def checks_reductions_again(self) -> bool:
        """True if the optimised module is checked, too."""
        name = "xla_detect_unstable_reductions_post_optimizations"
        return _mode(name, self.xla_detect_unstable_reductions_post_optimizations) != "NONE"


def _mode(name: str, value: str) -> str:
    mode = value.upper().removeprefix(_PREFIX)
    if mode not in _MODES:
        raise UsageError(f"--{name}: unknown mode '{value}'", hint="choose from none, warning, fail")
    if mode == "DUMP":
        raise UsageError(f"--{name}=dump is not supported", hint="--localize writes a reproducer of the thunk that goes wrong")
    return mode
