"""The input formats of the command, for fuzzing: per format its seeds, its mutation, and command lines that read it.

`corpus` makes the seeds with the command itself: kernel IR, LLVM IR, PTX, protos and saved executables of small modules.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import io
import random
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import input_mutations as mutations
import numpy as np
import text_mutations
from input_instructions import custom_call_module, instruction_module

from hlo_run.cli import run
from hlo_run.options.programs import FLAGS, OPT_FLAGS

DATA = Path(__file__).resolve().parent / "data"
_EXAMPLES = DATA.parent.parent / "examples"
MODULES = (
    "sort_u8",
    "reduce_or",
    "gather_collapsed",
    "gpu__scatter__overwrite",
    "cond_switch",
    "raw_while_trip_count",
    "complex_pow",
)
_COMMON = ("--cache=off", "--compile_processes=1")
_EMULATED = ("--platform=Host", "--host_engine=emulator", "--timeout=3")
_LONGEST_SEED = 8000
# A run takes as long as its arrays are large. Larger modules are only compiled.
_MOST_ELEMENTS = 5000
_ARRAY = re.compile(r"\b[a-z]+\d*\w*\[([^\]]*)\]")


@dataclass(frozen=True)
class Case:
    """One call of the command: its files by name, its arguments, the environment, and the file that was mutated, if any."""

    arguments: tuple[str, ...]
    files: Mapping[str, bytes] = field(default_factory=dict[str, bytes])
    subject: str = ""
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    program: str = "hlo-run"
    stdin: bytes = b""

    @property
    def size(self) -> int:
        """The bytes of the mutated file, or of the arguments if they were mutated."""
        return len(self.files[self.subject]) if self.subject else sum(map(len, (*self.arguments, *self.environment.values())))


@dataclass(frozen=True)
class Corpus:
    """The seeds: HLO texts, and the files made of small modules. `made` has the files of an extension, by stem."""

    texts: tuple[str, ...]
    modules: Mapping[str, str]
    made: Mapping[str, Mapping[str, bytes]]

    def of(self, extension: str) -> list[tuple[str, bytes]]:
        """Return (stem, content) of all files with this extension."""
        return list(self.made.get(extension, {}).items())


def hlo_texts(folders: Iterable[Path] = ()) -> tuple[str, ...]:
    """Return the seeds of HLO text: the project's own, and the `.hlo` files below more folders."""
    files = [*text_mutations.FOLDER.glob("*.hlo"), *(DATA / "xla_cpu").glob("*.hlo"), *_EXAMPLES.glob("*.hlo")]
    files += [file for name in ("ops", "hlo_passes", "codegen") for file in (DATA.parent / name).rglob("*.hlo")]
    files += [file for folder in folders for file in folder.rglob("*.hlo")]
    texts = (text for file in sorted(files) for text in file.read_text(encoding="utf-8").split("// -----"))
    return tuple(text for text in texts if len(text) < _LONGEST_SEED and not _must_fail(text))


def _must_fail(text: str) -> bool:
    """True for a section of a test that must fail, which makes a poor seed."""
    return "// ERROR" in text


def make_corpus(folder: Path, names: Sequence[str] = MODULES, more: Iterable[Path] = ()) -> Corpus:
    """Compile the modules `names` of tests/data/xla_cpu in `folder`, and return the seeds."""
    modules = {name: (DATA / "xla_cpu" / f"{name}.hlo").read_text(encoding="utf-8") for name in names}
    made: dict[str, dict[str, bytes]] = {}
    for name, text in modules.items():
        file = folder / f"{name}.hlo"
        file.write_text(text, encoding="utf-8")
        inputs = folder / f"{name}.npz"
        dumps = ("--xla_dump_to=" + str(folder / name), "--dump_kernel_rows", "--xla_dump_emitter_re=.*")
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            run([str(file), *_COMMON, *_EMULATED, *dumps, f"--save_inputs={inputs}"])
            run([str(file), *_COMMON, f"--output={folder / name}.hlox"])
        for written in (inputs, folder / f"{name}.hlox", *sorted((folder / name).iterdir())):
            if written.suffix in (".mlir", ".ll", ".ptx", ".npz", ".hlox"):
                made.setdefault(written.suffix[1:], {})[f"{name}/{written.stem}"] = written.read_bytes()
    for npz in dict(made.get("npz", {})):
        for number, content in enumerate(mutations.members(made["npz"][npz])):
            made.setdefault("npy", {})[f"{npz}/{number}"] = content[1]
    _add_xla_formats(modules, made)
    return Corpus(hlo_texts(more), modules, made)


def _add_xla_formats(modules: Mapping[str, str], made: dict[str, dict[str, bytes]]) -> None:
    """Add the protos and the StableHLO of the modules, if jaxlib is installed."""
    if any(importlib.util.find_spec(package) is None for package in ("jaxlib", "google.protobuf")):
        return
    from hlo_run.formats.write import module_to_bytes
    from hlo_run.ops.parse import parse

    mlir: Any = importlib.import_module("jaxlib._jax").mlir
    for name, text in modules.items():
        for kind in ("pb", "pbtxt", "stablehlo"):
            made.setdefault(kind, {})[name] = module_to_bytes(parse(text, name), kind)
        stablehlo = made["stablehlo"][name].decode()
        if "mhlo.fusion" not in stablehlo:  # the bytecode has no fusions
            made.setdefault("mlirbc", {})[name] = mlir.serialize_portable_artifact(stablehlo, "1.0.0")


Maker = Callable[[random.Random, Corpus], Case]


def _is_small(text: str) -> bool:
    """True if no array of a text has so many elements, or a loop so many steps, that a run takes long."""
    for dims in _ARRAY.findall(text):
        elements = 1
        for size in re.findall(r"\d+", dims):
            elements *= int(size[:20])
        if elements > _MOST_ELEMENTS:
            return False
    return all(len(number) < 4 for number in re.findall(r"\d+", text))


_STAGES = (
    ("--stage=hlo-input",) * 4
    + ("--stage=hlo",) * 6
    + ("--stage=ptx",) * 3
    + ("--stage=llvm", "--stage=fusion-analysis", "--explain=fusion")
)
_RUNS = (
    ("--platform=Interpreter", "--reference_platform=", "--timeout=3"),
    _EMULATED,
    (*_EMULATED, "--host_check"),
    ("--platform=Host", "--timeout=3"),
)
_PASSES = "algsimp dce cse reshape-mover layout-assignment priority-fusion while-loop-simplifier constant_folding call-inliner"


def _hlo(rng: random.Random, corpus: Corpus) -> Case:
    text = rng.choice(corpus.texts)
    if rng.random() < 0.7:
        steps = [(rng.randrange(1 << 16), rng.randrange(1 << 32)) for _ in range(rng.choice((1, 1, 2, 3)))]
        text = text_mutations.mutate(text, steps)
    else:
        text = mutations.mutate_text(rng, text, corpus.texts)
    files = {"m.hlo": mutations.encode(rng, text)}
    if rng.random() < 0.1:
        passes = ",".join(rng.sample(_PASSES.split(), 3))
        return Case(("m.hlo", f"--passes={passes}", *_COMMON[:1]), files, "m.hlo", program="hlo-opt")
    if rng.random() < 0.25 and _is_small(text):
        return Case(("m.hlo", *_COMMON, *rng.choice(_RUNS)), files, "m.hlo")
    return Case(("m.hlo", *_COMMON, rng.choice(_STAGES), *(("--verify=every",) if rng.random() < 0.3 else ())), files, "m.hlo")


_TYPES = (
    *(
        "f32[2,3]{1,0}",
        "bf16[]",
        "(f32[2], (s32[], token[]), pred[4]{0})",
        "s4[8]{0:E(4)}",
        "f32[<=4,2]",
        "f8e4m3fn[16]",
        "c64[2]",
    ),
    *("f32[4,4]{1,0:T(8,128)(2,1)S(1)}", "u2[3,5]{0,1:E(2)}", "token[]", "opaque[]", "f32[?,2]", "f4e2m1fn[2,2]", "b(f32[4]{0})"),
    *(
        "s32[4]{0:D(D)}",
        "f32[2]{0:L(512)S(5)}",
        "f32[2,2]{1,0:T(2,2)#(s32)*(s8)P(f32[2])M(64)}",
        "()",
        "(s32[])",
        "f32[2]{:S(3)}",
    ),
)


def _types(rng: random.Random, corpus: Corpus) -> Case:
    del corpus
    given, taken = (mutations.mutate_text(rng, rng.choice(_TYPES), _TYPES) for _ in range(2))
    taken = given if rng.random() < 0.8 else taken
    text = f"HloModule t\nENTRY e {{\n  p = {given} parameter(0)\n  ROOT r = {taken} copy(p)\n}}\n"
    stage = rng.choice(("--stage=hlo-input", "--stage=hlo-input", "--stage=hlo", "--stage=ptx"))
    return Case(("t.hlo", *_COMMON, stage), {"t.hlo": mutations.encode(rng, text)}, "t.hlo")


def _mutated(rng: random.Random, corpus: Corpus, extension: str) -> tuple[str, bytes]:
    """Return the stem of a seed of this extension, and its mutated text as bytes."""
    seeds = corpus.of(extension)
    stem, data = rng.choice(seeds)
    others = [other.decode() for _, other in rng.sample(seeds, min(4, len(seeds)))]
    return stem, mutations.encode(rng, mutations.mutate_text(rng, data.decode(), others))


def _module_of(corpus: Corpus, stem: str) -> bytes:
    return corpus.modules[stem.partition("/")[0]].encode()


def _kernel_ir(rng: random.Random, corpus: Corpus) -> Case:
    stem, data = _mutated(rng, corpus, "mlir")
    if rng.random() < 0.7:
        stage = rng.choice(("--stage=ptx", "--stage=llvm", "--stage=lower-tensors", "--verify=off"))
        return Case(
            ("k.mlir", *_COMMON, stage, *(("--stage=ptx",) if stage == "--verify=off" else ())), {"k.mlir": data}, "k.mlir"
        )
    files = {"m.hlo": _module_of(corpus, stem), "k.mlir": data}
    way = _EMULATED if rng.random() < 0.5 else ("--stage=ptx",)
    return Case(("m.hlo", "--kernel_ir_file=k.mlir", *_COMMON, *way), files, "k.mlir")


def _llvm_ir(rng: random.Random, corpus: Corpus) -> Case:
    stem, data = _mutated(rng, corpus, "ll")
    files = {"m.hlo": _module_of(corpus, stem), "k.ll": data}
    way = _EMULATED if rng.random() < 0.3 else ("--stage=ptx",)
    return Case(("m.hlo", "--xla_gpu_llvm_ir_file=k.ll", *_COMMON, *way), files, "k.ll")


def _ptx(rng: random.Random, corpus: Corpus) -> Case:
    stem, data = _mutated(rng, corpus, "ptx")
    files = {"m.hlo": _module_of(corpus, stem), "k.ptx": data}
    check = rng.choice(((), ("--host_check",), ("--host_check=bounds,init",)))
    return Case(("m.hlo", "--xla_gpu_ptx_file=k.ptx", *_COMMON, *_EMULATED, *check), files, "k.ptx")


def _module_file(extension: str, is_text: bool, rng: random.Random, corpus: Corpus) -> Case:
    """Return a case of a file that XLA's own code converts: protos and StableHLO."""
    if is_text:
        _, data = _mutated(rng, corpus, extension)
    else:
        seeds = [data for _, data in corpus.of(extension)]
        data = mutations.mutate_bytes(rng, rng.choice(seeds), seeds)
    name = f"m.{extension}"
    return Case((name, *_COMMON, rng.choice(("--stage=hlo-input", "--stage=hlo-input", "--stage=hlo"))), {name: data}, name)


def _npz(rng: random.Random, corpus: Corpus) -> Case:
    seeds = corpus.of("npz")
    stem, data = rng.choice(seeds)
    files = {"m.hlo": _module_of(corpus, stem), "a.npz": mutations.mutate_npz(rng, data, [other for _, other in seeds])}
    flag = rng.choice(("--inputs=a.npz", "--inputs=a.npz", "--infeed=a.npz", "--expected_output=a.npz"))
    if flag.startswith("--infeed"):
        files["m.hlo"] = _INFEED
    way = ("--platform=Interpreter", "--reference_platform=") if flag == "--inputs=a.npz" else _EMULATED
    return Case(("m.hlo", flag, *_COMMON, *way), files, "a.npz")


_INFEED = b"""HloModule i
ENTRY e {
  t = token[] after-all()
  i = ((u8[17], u8[]), token[]) infeed(t)
  ROOT r = (u8[17], u8[]) get-tuple-element(i), index=0
}
"""


def _type_of_npy(data: bytes) -> str:
    array: Any = np.load(io.BytesIO(data))
    letter = {"b": "pred", "i": "s", "u": "u", "f": "f", "c": "c"}[array.dtype.kind]
    bits = "" if letter == "pred" else str(8 * array.dtype.itemsize)
    return f"{letter}{bits}[{','.join(map(str, array.shape))}]"


def _npy(rng: random.Random, corpus: Corpus) -> Case:
    seeds = [data for _, data in corpus.of("npy")]
    seed = rng.choice(seeds)
    dtype = (
        _type_of_npy(seed)
        if rng.random() < 0.7
        else rng.choice(("u8[17]", "f32[]", "bf16[4]", "s4[8]", "pred[2,3]", "(f32[2], f8e4m3fn[3])", "token[]", "c64[2]"))
    )
    module = f"HloModule n\nENTRY e {{\n  p = {dtype} parameter(0)\n  ROOT r = {dtype} copy(p)\n}}\n"
    files = {"m.hlo": module.encode(), "a.npy": mutations.mutate_npy(rng, seed, seeds)}
    inputs = rng.choice(("a.npy", "a.npy", "a.npy,a.npy", "a.npy,,b.npy"))
    return Case(("m.hlo", f"--inputs={inputs}", *_COMMON, "--platform=Interpreter", "--reference_platform="), files, "a.npy")


def _hlox(rng: random.Random, corpus: Corpus) -> Case:
    seeds = [data for _, data in corpus.of("hlox")]
    files = {"m.hlox": mutations.mutate_bytes(rng, rng.choice(seeds), seeds)}
    return Case(("m.hlox", *_EMULATED), files, "m.hlox")


_FLAG_LINES = (
    'xla_gpu_enable_command_buffer: FUSION\nxla_dump_to: ""\nxla_backend_optimization_level: 2\n# a comment\nxla_unknown: {}\n',
    'xla_disable_hlo_passes: "cse"\nxla_fuel: "algsimp=3"\nstrict_flags: false\nxla_gpu_deterministic_ops: true\ntimeout: 1.5\n',
    'xla_dump_hlo_pass_re: "a\\"b"\nseed: 3\niterations: 2\nplatform: "Host"\nstage: "hlo"\ntarget: "h100"\n',
)
_FLAG_TOKENS = (
    "--xla_dump_to= --xla_backend_optimization_level=2 --xla_unknown=3 --timeout=1.5 'quoted --v=1' --xla_disable_hlo_passes=cse",
    "--xla_fuel=algsimp=3 --seed=4 --stage=hlo --target=a100 --strict_flags=false --xla_gpu_deterministic_ops",
    '--xla_enable_hlo_passes_only="cse,dce" --verify=every --host_check=race\n--abs_error_bound=0.5 # --v=3',
)
_TARGET = """gpu_device_info {
  threads_per_block_limit: 1024
  threads_per_warp: 32
  shared_memory_per_block: 49152
  shared_memory_per_core: 233472
  threads_per_core_limit: 2048
  core_count: 132
  fpus_per_core: 128
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  memory_bandwidth: 3352320000000
  l2_cache_size: 52428800
  clock_rate_ghz: 1.98
  device_memory_size: 84978434048
  shared_memory_per_block_optin: 232448
  cuda_compute_capability {
    major: 9
  }
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
}
platform_name: "CUDA"
dnn_version_info {
  major: 9
}
device_description_str: "NVIDIA H100 80GB HBM3"
"""


def _small_module(corpus: Corpus, rng: random.Random) -> bytes:
    return rng.choice(list(corpus.modules.values())).encode()


def _debug_options(rng: random.Random, corpus: Corpus) -> Case:
    data = mutations.encode(rng, mutations.mutate_text(rng, rng.choice(_FLAG_LINES), _FLAG_LINES))
    files = {"m.hlo": _small_module(corpus, rng), "flags.txt": data}
    return Case(("m.hlo", "--debug_options_file=flags.txt", *_COMMON, "--stage=hlo"), files, "flags.txt")


def _flags_file(rng: random.Random, corpus: Corpus) -> Case:
    data = mutations.encode(rng, mutations.mutate_text(rng, rng.choice(_FLAG_TOKENS), _FLAG_TOKENS))
    files = {"m.hlo": _small_module(corpus, rng), "flags.txt": data}
    return Case(("m.hlo", *_COMMON, "--stage=hlo"), files, "flags.txt", {"XLA_FLAGS": rng.choice(("flags.txt", " flags.txt"))})


def _target_config(rng: random.Random, corpus: Corpus) -> Case:
    data = mutations.encode(rng, mutations.mutate_text(rng, _TARGET, [_TARGET]))
    files = {"m.hlo": _small_module(corpus, rng), "gpu.txt": data}
    stage = rng.choice(("--stage=hlo", "--stage=ptx"))
    return Case(("m.hlo", "--xla_gpu_target_config_filename=gpu.txt", *_COMMON, stage), files, "gpu.txt")


_FILES = (
    "m.hlo",
    "missing.hlo",
    ".",
    "m.npz",
    "nowhere/x.npz",
    "/dev/null",
    "-",
    "",
    "x.hlox",
    "out.npz",
    "a.npy",
    "x.json",
    "d",
    "m.hlo,m.hlo",
)
_WORDS = (
    *(
        "Host",
        "CUDA",
        "Interpreter",
        "gpu",
        "default",
        "hlo",
        "hlo-input",
        "ptx",
        "llvm",
        "fusion-analysis",
        "all",
        "race",
        "bounds",
    ),
    *(
        "h100",
        "a100",
        "v100",
        "b200",
        "cse",
        "dce,cse",
        "algsimp=1",
        "algsimp=-1",
        "algsimp=x",
        "=",
        "fusion",
        "fusion:r",
        "fusion:a,b,c",
    ),
    *(
        "(",
        "[",
        ".*",
        "*",
        "+WHILE,-FUSION",
        "FUSION",
        "bf16,2",
        "f32,-1",
        "f32,nan",
        ",",
        " ",
        "off",
        "on",
        "true",
        "\udcff",
        "\n",
        "-",
    ),
    *(
        "x" * 5000,
        "\u00e9",
        "emit-kernels",
        "lower-tensors",
        "priority-fusion",
        "transforms",
        "s32,1",
        "f8e4m3fn,99999999999999999999",
    ),
)
# Their values decide how long a command runs, or which programs it starts.
_REPEATS = frozenset(("iterations", "num_repeats", "num_replicas", "num_partitions", "compile_processes"))
_NOT_TRIED = frozenset(("xla_diff", "custom_calls", "cache"))


def _value(rng: random.Random, name: str, kind: str, choices: Sequence[str]) -> str:
    if name in _REPEATS:
        return rng.choice(("0", "1", "2", "-1", "-99999999999999999999", "x", "1.0", ""))
    if rng.random() < 0.1:
        return rng.choice((*_WORDS, *mutations.NUMBERS))
    if choices:
        return rng.choice(choices)
    if kind == "bool":
        return rng.choice(("true", "false", "1", "0", "yes", "TRUE", "maybe", ""))
    if kind in ("int", "float"):
        return rng.choice(mutations.NUMBERS)
    return rng.choice((*_WORDS, *_FILES))


def _command_line(rng: random.Random, corpus: Corpus) -> Case:
    program = "hlo-opt" if rng.random() < 0.25 else "hlo-run"
    flags = OPT_FLAGS if program == "hlo-opt" else FLAGS
    names = [name for name in (*flags.fields, *flags.short_names) if name not in _NOT_TRIED]
    arguments = ["--cache=off", *(("--platform=Host", "--timeout=3") if program == "hlo-run" else ())]
    for name in rng.sample(names, min(len(names), rng.choice((1, 1, 2, 2, 3, 4, 6, 10, 30)))):
        info = flags.fields[flags.short_names.get(name, name)]
        value = _value(rng, name, str(info.type), info.metadata["choices"])
        spelled = name.replace("_", "-") if rng.random() < 0.1 else name
        bare = rng.random() < 0.05 or (info.type == "bool" and rng.random() < 0.5)
        arguments.append(f"--{spelled}" if bare else f"--{spelled}={value}")
    if rng.random() < 0.1:
        place = rng.randrange(len(arguments))
        arguments[place] = mutations.mutate_text(rng, arguments[place], arguments).replace("\0", "")
    if rng.random() < 0.05:
        arguments.append(rng.choice(("--help", "--version", "--", "-", "", "---", "-h", "--=", "\udc80")))
    if program == "hlo-run" and not any("stage" in argument for argument in arguments) and rng.random() < 0.5:
        arguments.append("--stage=hlo")
    rng.shuffle(arguments)
    arguments.insert(rng.randint(0, len(arguments)), rng.choice(("m.hlo",) * 8 + ("m.hlox", "-", *_FILES)))
    stem = rng.choice([stem for stem, _ in corpus.of("hlox")])
    files = {
        "m.hlo": _module_of(corpus, stem),
        "m.hlox": corpus.made["hlox"][stem],
        "m.npz": rng.choice(corpus.of("npz"))[1],
        "a.npy": rng.choice(corpus.of("npy"))[1],
    }
    # No value may leave the folder of the case.
    kept = tuple(argument if argument.endswith("=/dev/null") else argument.replace("/..", "") for argument in arguments)
    return Case(kept, files, program=program, stdin=files["m.hlo"])


def _instruction(text_of: Callable[[random.Random], str], rng: random.Random, _corpus: Corpus) -> Case:
    """Compile and run a module of one instruction that may not fit."""
    arguments = ("m.hlo", *_COMMON, "--platform=Host", "--timeout=3", f"--verify={rng.choice(('ends', 'every'))}")
    return Case(arguments, {"m.hlo": text_of(rng).encode()}, "m.hlo")


FORMATS: dict[str, Maker] = {
    "hlo": _hlo,
    "instructions": functools.partial(_instruction, instruction_module),
    "custom-calls": functools.partial(_instruction, custom_call_module),
    "types": _types,
    "kernel-ir": _kernel_ir,
    "llvm-ir": _llvm_ir,
    "ptx": _ptx,
    "pb": functools.partial(_module_file, "pb", False),
    "pbtxt": functools.partial(_module_file, "pbtxt", True),
    "stablehlo": functools.partial(_module_file, "stablehlo", True),
    "mlirbc": functools.partial(_module_file, "mlirbc", False),
    "npz": _npz,
    "npy": _npy,
    "hlox": _hlox,
    "debug-options": _debug_options,
    "flags-file": _flags_file,
    "target-config": _target_config,
    "command-line": _command_line,
}
XLA_FORMATS = frozenset(("pb", "pbtxt", "stablehlo", "mlirbc"))


def make_case(name: str, seed: int, index: int, corpus: Corpus) -> Case:
    """Return the case number `index` of a format. The same numbers and seeds give the same case."""
    return FORMATS[name](random.Random(f"{seed}:{name}:{index}"), corpus)
