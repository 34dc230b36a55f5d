"""Write the function `run`, which takes blocks through their phases, and with it the whole module of a kernel.

While all threads of a block are at one phase, the phase runs in a loop over them that LLVM may vectorise. After they diverged,
phases run thread by thread. The lowest phase runs first, and threads at a meeting run when all threads that it needs are there.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from hlo_run.backends.host.emulator.memory import POISON
from hlo_run.backends.host.jit.body import CANCELLED, Body
from hlo_run.backends.host.jit.builder import Builder, ModuleText
from hlo_run.backends.host.jit.emitters import EMITTERS
from hlo_run.backends.host.jit.llvm import host_processor, vector_bits
from hlo_run.backends.host.jit.phases import Phase, function_phase
from hlo_run.backends.host.jit.plan import CANCEL, CHOSEN, FAULT, LOCAL, PLACES, SHARED, SLOTS, LaunchShape, Plan
from hlo_run.backends.host.jit.threads import write_exchange
from hlo_run.backends.host.jit.uniform_paths import find_uniform_paths
from hlo_run.backends.host.ptx.control_flow import Invoke, KernelGraph
from hlo_run.backends.host.ptx.instruction_set import Operation
from hlo_run.backends.host.ptx.specs import ActiveMask, Barrier
from hlo_run.backends.host.ptx.syntax import Register
from hlo_run.backends.host.ptx.unroll import unroll
from hlo_run.target import WARP_THREADS

_CTA = "i32 %ctax, i32 %ctay, i32 %ctaz"
_MIXED = -2
# Fewer threads are not worth vectors.
_WORTH_VECTORS = 8
_ENDED = -1


def write_module(graph: KernelGraph, shape: LaunchShape, *, vectors: bool = True) -> tuple[str, Plan]:
    """Return the LLVM IR of a kernel launched with a shape, and its plan. Raises Unsupported.

    Without `vectors` all code is scalar.
    """
    vectors = vectors and shape.threads >= _WORTH_VECTORS
    plan = Plan(unroll(graph) if vectors else graph, shape)
    module = ModuleText()
    versions: dict[int, list[_Version]] = {}
    exchanges: set[int] = set()
    for phase in plan.phases:
        versions[phase.number] = _write_phase(plan, module, phase, vectors=vectors)
        if write_exchange(plan, module, phase):
            exchanges.add(phase.number)
    for function in plan.graph.functions.values():
        phase = function_phase(plan.graph, function)
        module.functions.append(Body(plan, module, phase, EMITTERS, jumps=True, called=function).write())
    _Driver(plan, module, versions, exchanges).write()
    name, features = host_processor()
    width = vector_bits()
    attributes = f'nounwind "target-cpu"="{name}" "target-features"="{features}" "prefer-vector-width"="{width}"'
    module.trailer += [
        f"attributes #0 = {{ {attributes} }}",
        "!1 = distinct !{}",
        "!2 = !{}",
        '!3 = !{!"llvm.loop.parallel_accesses", !1}',
    ]
    return str(module), plan


class _Version(Struct, frozen=True):
    """One function of a phase: name suffix, whether its threads are independent, whether vectors pay, whether to inline it."""

    ending: str
    is_parallel: bool
    pays: bool
    inline: bool = True


def _write_phase(plan: Plan, module: ModuleText, phase: Phase, *, vectors: bool) -> list[_Version]:
    """Write a phase. If only its uniform paths pay as vectors, also write each of them. The last version is the whole phase."""
    has_calls = any(isinstance(plan.graph.blocks[index].terminator, Invoke) for index in phase.blocks)
    if has_calls or (not vectors and plan.threads >= _WORTH_VECTORS):
        module.functions.append(Body(plan, module, phase, EMITTERS, jumps=True).write())
        return [_Version("", False, False, inline=False)]
    whole = _write_version(plan, module, phase, "", {})
    if whole.pays or not whole.is_parallel or not vectors:
        return [whole]
    paths = find_uniform_paths(plan, phase)
    if paths is None:
        return [whole]
    count = len(module.functions)
    found = [
        _write_version(plan, module, paths.phase(phase, plan, number), f".{number}", taken)
        for number, taken in enumerate(paths.taken)
    ]
    if not any(version.pays and version.is_parallel for version in found):
        del module.functions[count:]
        return [whole]
    numbers = "".join(f"\\{number:02X}" for number in paths.of_block)
    module.functions.append(f'@paths{phase.number} = internal constant [{len(paths.of_block)} x i8] c"{numbers}"')
    return [*found, whole]


def _write_version(plan: Plan, module: ModuleText, phase: Phase, ending: str, decided: Mapping[int, int]) -> _Version:
    path = (ending, decided)
    body = Body(plan, module, phase, EMITTERS, path=path)
    text = body.write()
    if not (body.pays_as_vectors and body.is_parallel):
        text = Body(plan, module, phase, EMITTERS, jumps=True, path=path).write()
    module.functions.append(text)
    return _Version(ending, body.is_parallel, body.pays_as_vectors)


class _Driver:
    def __init__(self, plan: Plan, module: ModuleText, versions: dict[int, list[_Version]], exchanges: set[int]) -> None:
        self._plan = plan
        self._module = module
        self._versions = versions
        self._exchanges = exchanges
        self._may_part = any(not phase.is_uniform for phase in plan.phases)
        self.b = Builder(module)
        self._pointers: dict[int, str] = {}

    def write(self) -> None:
        b, plan = self.b, self._plan
        b.label("entry")
        b.do("%fault = alloca i32")
        b.do("store i32 0, ptr %fault")
        pointers = self._pointers
        pointers |= {index: b.op(f"load ptr, ptr {b.pointer('%st', str(8 * index))}") for index in range(CHOSEN + 1)}
        b.jump("next")
        b.label("next")
        b.do("%block = phi i64 [ %first, %entry ], [ %following, %finished ]")
        flag = b.op(f"load volatile i32, ptr {pointers[CANCEL]}, align 4")
        b.branch(b.compare("eq", "i32", flag, "0"), "begin", "cancelled")
        b.label("cancelled")
        b.do(f"store i32 {CANCELLED}, ptr {pointers[FAULT]}")
        b.do("ret void")
        b.label("begin")
        self._coordinates()
        self._poison(SHARED, plan.shape.shared_bytes)
        self._poison(LOCAL, plan.local_stride * plan.threads)
        b.jump("phase0")
        for phase in plan.phases:
            self._together(phase)
        if self._may_part:
            self._apart()
        b.label("finished")
        b.do("%following = add nuw nsw i64 %block, 1")
        b.branch(b.compare("slt", "i64", "%following", "%last"), "next", "done")
        b.label("done")
        b.do("ret void")
        self._fault_exit()
        # `dereferenceable` lets LLVM load the pointers early. Otherwise it leaves these loads in branches inside loops.
        state = f"ptr noalias dereferenceable({8 * self._plan.state_words}) align 8 %st"
        head = f"define void @run(i64 %first, i64 %last, {state}) #0 {{"
        self._module.functions.append("\n".join([head, *b.lines, "}"]))
        if self._may_part:
            self._helpers()

    def _coordinates(self) -> None:
        b = self.b
        x, y, z = self._plan.shape.grid
        b.do("%flat = trunc i64 %block to i32")
        if y * z == 1:
            b.do("%ctax = add nuw nsw i32 %flat, 0")
        else:
            b.do(f"%ctax = urem i32 %flat, {x}")
        rest = b.binary("udiv", "i32", "%flat", str(x)) if y * z > 1 else "0"
        b.do(f"%ctay = urem i32 {rest}, {y}")
        b.do(f"%ctaz = udiv i32 {rest}, {y}")

    def _poison(self, index: int, size: int) -> None:
        """Fill memory that a block finds uninitialised. The buffers have room for whole words."""
        if not size:
            return
        words = -(-size // 4)
        pattern = int(POISON) | int(POISON) << 16
        with self.b.loop(str(words), "poison") as word:
            offset = self.b.op(f"mul nuw nsw i64 {self.b.resize(word.index, 'i32', 'i64')}, 4")
            place = self.b.pointer(self._pointers[index], offset)
            self.b.do(f"store i32 {pattern - (1 << 32)}, ptr {place}, align 4")

    # ---- all threads at one phase -------------------------------------------------------------------------------

    def _together(self, phase: Phase) -> None:
        b = self.b
        b.label(f"phase{phase.number}")
        self._look_whether_to_stop()
        if phase.number in self._exchanges:
            b.do(f"call void @exchange{phase.number}(ptr %st)")
        self._one_way(phase)
        b.branch(b.compare("eq", "i32", b.op("load i32, ptr %fault"), "0"), f"fine{phase.number}", "failed")
        b.label(f"fine{phase.number}")
        if phase.is_uniform:
            b.jump(f"phase{phase.successors[0]}" if phase.successors else "finished")
        else:
            place = b.op(f"call i32 @common_place(ptr {self._pointers[PLACES]})")
            self._dispatch(place, "parted")

    def _look_whether_to_stop(self) -> None:
        """Test for cancellation, so that a kernel that loops between its phases can be stopped."""
        if self._plan.shape.interruptible:
            flag = self.b.op(f"load volatile i32, ptr {self._pointers[CANCEL]}, align 4")
            on = self.b.fresh("on")
            self.b.branch(self.b.compare("eq", "i32", flag, "0"), on, "cancelled")
            self.b.label(on)

    def _dispatch(self, place: str, mixed: str) -> None:
        """Jump to the phase at which all threads are, or to `mixed`."""
        cases = [f"i32 {phase.number}, label %phase{phase.number}" for phase in self._plan.phases[1:]]
        cases.append(f"i32 {_ENDED}, label %finished")
        self.b.do(f"switch i32 {place}, label %{mixed} [ {' '.join(cases)} ]")

    def _one_way(self, phase: Phase) -> None:
        """Run all threads on the path of their block."""
        b, (*paths, whole) = self.b, self._versions[phase.number]
        if not paths:
            self._all_threads(phase, whole)
            return
        number = b.op(f"load i8, ptr {b.pointer(f'@paths{phase.number}', '%block')}")
        labels, together = [b.fresh("path") for _ in paths], b.fresh("together")
        cases = " ".join(f"i8 {path}, label %{label}" for path, label in enumerate(labels[1:], 1))
        b.do(f"switch i8 {number}, label %{labels[0]} [ {cases} ]")
        for label, version in zip(labels, paths, strict=True):
            b.label(label)
            self._all_threads(phase, version)
            b.jump(together)
        b.label(together)

    def _all_threads(self, phase: Phase, version: _Version) -> None:
        threads = self._plan.threads
        if threads == 1:
            self._call(phase, "0", "0", "alwaysinline" if version.inline else "noinline")
            return
        if self._plan.is_one_loop:
            self._one_loop(phase, version)
            return
        warps, rest = divmod(threads, WARP_THREADS)
        if warps:
            with self.b.loop(str(warps), "w") as warp:
                self._lanes(phase, warp.index, str(WARP_THREADS), version)
        if rest:
            self._lanes(phase, str(warps), str(rest), version)

    def _one_loop(self, phase: Phase, version: _Version) -> None:
        """Loop over the threads of the block that have an effect."""
        b, plan = self.b, self._plan
        if plan.guard is None:
            self._lanes(phase, "0", str(plan.threads), version)
            return
        before = b.binary("mul", "i32", "%ctax", str(plan.threads))
        left = b.binary("sub", "i32", str(plan.guard.threads), before)
        count = b.math("smin", "i32", left, str(plan.threads))
        some, none = b.fresh("some"), b.fresh("none")
        b.branch(b.compare("sgt", "i32", count, "0"), some, none)
        b.label(some)
        self._lanes(phase, "0", count, version)
        b.jump(none)
        b.label(none)

    def _lanes(self, phase: Phase, warp: str, count: str, version: _Version) -> None:
        with self.b.loop(count, "lane") as lane:
            self._call(phase, warp, lane.index, "alwaysinline" if version.inline else "noinline", ending=version.ending)
            lane.metadata = self._module.parallel_loop(vectors=version.pays) if version.is_parallel else ""

    def _call(self, phase: Phase, warp: str, lane: str, how: str, fault: str = "%fault", ending: str = "") -> None:
        self.b.do(f"call void @phase{phase.number}{ending}(ptr %st, ptr {fault}, i32 {warp}, i32 {lane}, {_CTA}) {how}")

    def _fault_exit(self) -> None:
        b = self.b
        b.label("failed")
        fault = self._pointers[FAULT]
        b.do(f"store i32 {b.op('load i32, ptr %fault')}, ptr {fault}")
        b.jump("failed_apart")
        b.label("failed_apart")
        b.do(f"store i64 %block, ptr {b.pointer(fault, '8')}")
        b.do("ret void")

    # ---- threads at different phases ----------------------------------------------------------------------------

    def _apart(self) -> None:
        """Find a phase whose threads may continue, the lowest first. Without one the threads are in a deadlock."""
        b = self.b
        places, chosen = self._pointers[PLACES], self._pointers[CHOSEN]
        b.label("parted")
        self._look_whether_to_stop()
        for phase in self._plan.phases[1:]:
            mask, slot = self._members(phase)
            scope = _scope(phase.meeting)
            arguments = f"ptr {places}, ptr {chosen}, i32 {phase.number}, i32 {scope}, i32 {mask}, ptr {slot}"
            any_ready = b.op(f"call i32 @choose(i32 {self._plan.threads}, {arguments})")
            ready, other = f"apart{phase.number}", b.fresh("other")
            b.branch(b.compare("ne", "i32", any_ready, "0"), ready, other)
            b.label(other)
        line = self._plan.phases[1].meeting.line if len(self._plan.phases) > 1 and self._plan.phases[1].meeting else 1
        b.do(f"store i32 {line}, ptr {self._pointers[FAULT]}")
        b.jump("failed_apart")
        for phase in self._plan.phases[1:]:
            self._one_by_one(phase)

    def _members(self, phase: Phase) -> tuple[str, str]:
        """Return (mask, slot): the members of a warp-wide meeting, or the slot with each thread's own mask."""
        op = phase.meeting
        assert op is not None, "only the first phase begins without a meeting"
        if _scope(op) != 1:
            return "-1", "null"
        members = op.operands[-1]
        affine = self._plan.pure.affine_of(members)
        if affine is not None and not affine.terms:
            return str((affine.constant & 0xFFFFFFFF) - (1 << 32 if affine.constant >> 31 & 1 else 0)), "null"
        if not isinstance(members, Register):
            raise op.unsupported()
        return "-1", self.b.pointer(self._pointers[SLOTS], str(self._plan.slots[members.name]))

    def _one_by_one(self, phase: Phase) -> None:
        b = self.b
        b.label(f"apart{phase.number}")
        if phase.number in self._exchanges:
            b.do(f"call void @exchange{phase.number}(ptr %st)")
        with b.loop(str(self._plan.threads), "t") as thread:
            offset = b.op(f"mul nuw nsw i64 {b.resize(thread.index, 'i32', 'i64')}, 4")
            runs = b.op(f"load i32, ptr {b.pointer(self._pointers[CHOSEN], offset)}")
            go, skip = b.fresh("go"), b.fresh("skip")
            b.branch(b.compare("ne", "i32", runs, "0"), go, skip)
            b.label(go)
            warp, lane = b.binary("lshr", "i32", thread.index, "5"), b.binary("and", "i32", thread.index, "31")
            self._call(phase, warp, lane, "noinline", self._pointers[FAULT])
            b.jump(skip)
            b.label(skip)
        fault = b.op(f"load i32, ptr {self._pointers[FAULT]}")
        fine = b.fresh("fine")
        b.branch(b.compare("eq", "i32", fault, "0"), fine, "failed_apart")
        b.label(fine)
        self._dispatch(b.op(f"call i32 @common_place(ptr {self._pointers[PLACES]})"), "parted")

    def _helpers(self) -> None:
        self._module.functions += [_common_place(self._module, self._plan.threads), _choose(self._module)]


def _scope(op: Operation | None) -> int:
    """Return the threads that must be there: 0 none, 1 a warp, 2 the block."""
    if op is None or isinstance(op.spec, ActiveMask):
        return 0
    return 2 if isinstance(op.spec, Barrier) and not op.spec.is_warp else 1


def _word(b: Builder, array: str, index: str) -> str:
    offset = b.op(f"mul nuw nsw i64 {b.resize(index, 'i32', 'i64')}, 4")
    return b.pointer(array, offset)


def _add_to(b: Builder, place: str, operation: str, value: str) -> None:
    b.do(f"store i32 {b.binary(operation, 'i32', b.op(f'load i32, ptr {place}'), value)}, ptr {place}")


def _common_place(module: ModuleText, threads: int) -> str:
    """Write a function: the phase at which all threads of the block are; -1 if all have ended, -2 for several phases."""
    b = Builder(module)
    b.label("entry")
    first = b.op("load i32, ptr %places")
    different = b.op("alloca i32")
    b.do(f"store i32 0, ptr {different}")
    with b.loop(str(threads), "t") as thread:
        own = b.op(f"load i32, ptr {_word(b, '%places', thread.index)}")
        _add_to(b, different, "or", b.binary("xor", "i32", own, first))
    differs = b.compare("ne", "i32", b.op(f"load i32, ptr {different}"), "0")
    b.do(f"ret i32 {b.select(differs, 'i32', str(_MIXED), first)}")
    return "\n".join(["define internal i32 @common_place(ptr %places) noinline #0 {", *b.lines, "}"])


def _choose(module: ModuleText) -> str:
    """Write a function: choose the threads of phase `number` that may run. Scope 0: all; else complete warps or blocks."""
    b = Builder(module)
    b.label("entry")
    any_chosen, members, waiting, missing = (b.op("alloca i32") for _ in range(4))
    b.do(f"store i32 0, ptr {any_chosen}")
    is_block = b.compare("eq", "i32", "%scope", "2")
    warps = b.binary("lshr", "i32", b.binary("add", "i32", "%threads", "31"), "5")
    groups = b.select(is_block, "i32", "1", warps)
    size = b.select(is_block, "i32", "%threads", "32")
    with b.loop(groups, "g") as group:
        first = b.op(f"shl i32 {group.index}, 5")
        count = b.math("umin", "i32", size, b.binary("sub", "i32", "%threads", first))
        b.do(f"store i32 %mask, ptr {members}")
        for place in (waiting, missing):
            b.do(f"store i32 0, ptr {place}")
        with b.loop(count, "m") as lane:
            _read_mask(b, b.binary("add", "i32", first, lane.index), members)
        with b.loop(count, "l") as lane:
            place = b.op(f"load i32, ptr {_word(b, '%places', b.binary('add', 'i32', first, lane.index))}")
            here = b.compare("eq", "i32", place, "%number")
            alive = b.compare("ne", "i32", place, "-1")
            mask = b.op(f"load i32, ptr {members}")
            bit = b.binary("and", "i32", b.binary("lshr", "i32", mask, b.binary("and", "i32", lane.index, "31")), "1")
            named = b.binary("or", "i1", is_block, b.compare("ne", "i32", bit, "0"))
            away = b.binary("and", "i1", alive, b.binary("xor", "i1", here, "true"))
            _add_to(b, waiting, "or", b.resize(here, "i1", "i32"))
            _add_to(b, missing, "or", b.resize(b.binary("and", "i1", named, away), "i1", "i32"))
        nobody_needed = b.compare("eq", "i32", "%scope", "0")
        complete = b.compare("eq", "i32", b.op(f"load i32, ptr {missing}"), "0")
        ready = b.resize(b.binary("or", "i1", nobody_needed, complete), "i1", "i32")
        ready = b.binary("and", "i32", ready, b.op(f"load i32, ptr {waiting}"))
        _add_to(b, any_chosen, "or", ready)
        with b.loop(count, "c") as lane:
            thread = b.binary("add", "i32", first, lane.index)
            place = b.op(f"load i32, ptr {_word(b, '%places', thread)}")
            here = b.resize(b.compare("eq", "i32", place, "%number"), "i1", "i32")
            b.do(f"store i32 {b.binary('and', 'i32', ready, here)}, ptr {_word(b, '%chosen', thread)}")
    b.do(f"ret i32 {b.op(f'load i32, ptr {any_chosen}')}")
    parameters = "i32 %threads, ptr %places, ptr %chosen, i32 %number, i32 %scope, i32 %mask, ptr %masks"
    return "\n".join([f"define internal i32 @choose({parameters}) noinline #0 {{", *b.lines, "}"])


def _read_mask(b: Builder, thread: str, members: str) -> None:
    """Use the mask of a waiting thread as the mask of its warp."""
    place = b.op(f"load i32, ptr {_word(b, '%places', thread)}")
    has_own = b.compare("ne", "ptr", "%masks", "null")
    uses = b.binary("and", "i1", has_own, b.compare("eq", "i32", place, "%number"))
    yes, after = b.fresh("own"), b.fresh("kept")
    b.branch(uses, yes, after)
    b.label(yes)
    own = b.op(f"load i32, ptr {_word(b, '%masks', thread)}")
    b.do(f"store i32 {own}, ptr {members}")
    b.jump(after)
    b.label(after)
