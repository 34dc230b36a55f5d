"""`hlo-tool completion`: the scripts that shells read."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from hlo_run.options.programs import FLAGS
from hlo_run.tool import TOOLS, run_tool


def _script(shell: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert run_tool(["completion", shell]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_flag_and_tool_is_there(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    script = _script(shell, capsys)
    assert all(name in script for name in (*FLAGS.fields, *TOOLS))


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("hlo-run --v_form", "--v_format="),
        ("hlo-run --v_format=", "full diff"),
        ("hlo-run --stage=ptx --print_lit", "--print_literals"),
        ("hlo-opt --v_format=d", "diff"),
        ("hlo-run --stage=memo", "memory-usage-report"),
        ("hlo-run --stage memo", "memory-usage-report"),
        ("hlo-run --only=dce,call-inl", "dce,call-inliner dce,call-inliner-4 dce,call-inliner-2 dce,call-inliner-3"),
        ("hlo-run --platform=H", "Host"),
        ("hlo-opt --platform=g", "gpu"),
        ("hlo-run --target=b2", "b200"),
        ("hlo-run --golden_stages=hlo,num", "hlo,numbers"),
        ("hlo-run --ptxas_opt_level=", "0 1 2 3"),
        ("hlo-tool red", "reduce"),
        ("hlo-tool print-", "print-indexing"),
        ("hlo-tool reduce --trial", "--trial_seconds="),
        ("hlo-tool completion z", ""),
        ("hlo-tool fuzz --host_engine j", "jit"),
        ("hlo-tool fuzz --as", "--as_is"),
        ("hlo-fuzz --against=host,xla-g", "host,xla-gpu-compile"),
    ],
)
def test_bash_completes(line: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    function = "_" + line.partition(" ")[0].replace("-", "_")
    # `compopt` works only while bash completes.
    call = f"compopt() {{ :; }}; COMP_LINE='{line}'; COMP_POINT={len(line)}; {function}; echo \"${{COMPREPLY[@]}}\""
    done = subprocess.run(["bash", "-c", f"{_script('bash', capsys)}\n{call}"], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == words


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_parse_their_script(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = shutil.which(shell)
    if path is None:
        pytest.skip(f"{shell} is not installed")
    subprocess.run([path, "-n"], input=_script(shell, capsys), text=True, check=True)


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("hlo-run --stage=memo", ["--stage=memory-usage-report"]),
        ("hlo-run --stage memo", ["memory-usage-report"]),
        ("hlo-run --host_check=bounds,ali", ["--host_check=bounds,align"]),
        ("hlo-tool red", ["reduce"]),
        ("hlo-tool bisect --slow", ["--slower_than"]),
        ("hlo-fuzz --host_engine j", ["jit"]),
    ],
)
def test_fish_completes(line: str, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    call = f"{_script('fish', capsys)}\ncomplete -C '{line}'"
    done = subprocess.run(["fish", "--no-config", "-c", call], capture_output=True, text=True, check=True)
    assert [word.partition("\t")[0] for word in done.stdout.splitlines()] == words
