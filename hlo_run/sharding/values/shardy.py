"""Read Shardy's attributes from their text: meshes, shardings over the axes of a mesh, and manual axes.

{mesh = #sdy.mesh<["x"=2, "y"=4]>}   #sdy.sharding<@mesh, [{"x", ?}, {"y":(1)2}], unreduced={"z"}>
#sdy.sharding_per_value<[<@mesh, [{"x"}]>]>   #sdy<manual_axes{"x"}>
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from hlo_run.hlo.values.mesh import AxisRef, Mesh
from hlo_run.hlo.values.sharding import DimSharding, NamedSharding

MESHES, SHARDING = "xla.sdy.meshes", "xla.sdy.sharding"
IN_SHARDINGS, OUT_SHARDINGS, MANUAL_AXES = "xla.sdy.in_shardings", "xla.sdy.out_shardings", "xla.sdy.manual_axes"
PREFIX = "xla.sdy."

_TOKEN = re.compile(r'\s*(?:"(?P<string>[^"]*)"|(?P<mark>[\[\]{}<>()=,?:])|(?P<word>[^\s"\[\]{}<>()=,?:]+))')
_GROUPS = ("replicated", "unreduced")


class _Reader:
    """The tokens of one attribute. Raises ValueError where the text is not as Shardy prints it."""

    def __init__(self, text: str) -> None:
        # HLO text may keep the quotes escaped.
        text = text.replace('\\"', '"').rstrip()
        self.text, self.position = text, 0
        self.tokens: list[tuple[str, str]] = []
        place = 0
        while place < len(text):
            found = _TOKEN.match(text, place)
            if found is None:
                raise ValueError(f"a Shardy attribute is cut off: {text}")
            kind = found.lastgroup or ""
            self.tokens.append((kind, found[kind]))
            place = found.end()

    def at(self, mark: str) -> bool:
        """True if the next token is this mark or word."""
        here = self.position < len(self.tokens)
        return here and self.tokens[self.position][0] != "string" and self.tokens[self.position][1] == mark

    def take(self, mark: str) -> bool:
        """Skip this mark or word if it comes next."""
        found = self.at(mark)
        self.position += found
        return found

    def expect(self, mark: str) -> None:
        """Skip this mark or word, which must come next."""
        if not self.take(mark):
            raise ValueError(f"a Shardy attribute needs '{mark}' after {self.position} words: {self.text}")

    def next(self, kind: str) -> str:
        """Return the next token, which must be of this kind."""
        if self.position == len(self.tokens) or self.tokens[self.position][0] != kind:
            raise ValueError(f"a Shardy attribute needs a {kind} after {self.position} words: {self.text}")
        self.position += 1
        return self.tokens[self.position - 1][1]

    def number(self) -> int:
        """Return the next token as a number."""
        word = self.next("word")
        if not word.isdecimal():
            raise ValueError(f"a Shardy attribute has {word} in place of a number: {self.text}")
        return int(word)

    def end(self) -> None:
        """Raise ValueError if words are left."""
        if self.position < len(self.tokens):
            raise ValueError(f"a Shardy attribute has more than it should after {self.position} words: {self.text}")

    def mesh(self) -> Mesh:
        """Read `<["x"=2], device_ids=[1, 0]>`, or `<[], device_ids=[1]>`, one device, or `<[]>`, which divides nothing."""
        self.expect("<")
        self.expect("[")
        axes: list[tuple[str, int]] = []
        while not self.take("]"):
            name = self.next("string")
            self.expect("=")
            axes.append((name, self.number()))
            self.take(",")
        devices: list[int] = []
        if self.take(","):
            self.expect("device_ids")
            self.expect("=")
            self.expect("[")
            while not self.take("]"):
                devices.append(self.number())
                self.take(",")
        self.expect(">")
        if not axes:
            return Mesh((), maximal_device=devices[0]) if devices else Mesh(())
        if any(size < 1 for _, size in axes):
            raise ValueError(f"a mesh has an axis without devices: {self.text}")
        mesh = Mesh(tuple(axes), tuple(devices) or None)
        if problem := mesh.problem():
            raise ValueError(f"{problem}: {self.text}")
        return mesh

    def axes(self, mesh: Mesh) -> DimSharding:
        """Read `{"x", "y":(1)2, ?}p1`."""
        self.expect("{")
        refs: list[AxisRef] = []
        is_closed = True
        while not self.take("}"):
            if self.take("?"):
                is_closed = False
            else:
                refs.append(self._axis(mesh))
            self.take(",")
        priority: int | None = None
        if self.position < len(self.tokens) and re.fullmatch(r"p\d+", self.tokens[self.position][1]):
            priority = int(self.next("word")[1:])
        return DimSharding(tuple(refs), is_closed, priority)

    def _axis(self, mesh: Mesh) -> AxisRef:
        name = self.next("string")
        number = next((n for n, (known, _) in enumerate(mesh.axes) if known == name), None)
        if number is None:
            raise ValueError(f"the mesh has no axis '{name}': {self.text}")
        if not self.take(":"):
            return AxisRef(number)
        self.expect("(")
        pre_size = self.number()
        self.expect(")")
        return AxisRef(number, pre_size, self.number())

    def sharding(self, meshes: Mapping[str, Mesh]) -> NamedSharding:
        """Read `<@mesh, [{"x"}], replicated={"y"}>`; the mesh may be written in place of its name."""
        self.expect("<")
        if self.take("mesh") or self.take("#sdy.mesh"):
            mesh = self.mesh()
        else:
            name = self.next("word").removeprefix("@")
            if name not in meshes:
                raise ValueError(f"the module has no mesh '{name}': {self.text}")
            mesh = meshes[name]
        dims: list[DimSharding] = []
        groups: dict[str, tuple[AxisRef, ...]] = {}
        self.expect(",")
        self.expect("[")
        while not self.take("]"):
            dims.append(self.axes(mesh))
            self.take(",")
        while self.take(","):
            kind = self.next("word")
            if kind not in _GROUPS:
                raise ValueError(f"a sharding with {kind} axes is unknown: {self.text}")
            self.expect("=")
            groups[kind] = self.axes(mesh).axes
        self.expect(">")
        found = NamedSharding(mesh, tuple(dims), groups.get("replicated", ()), groups.get("unreduced", ()))
        if problem := found.problem():
            raise ValueError(f"{problem}: {self.text}")
        return found


def read_meshes(text: str) -> dict[str, Mesh]:
    """Return the meshes of a module by name, from `{mesh = #sdy.mesh<["x"=2]>, ..}`. Raises ValueError for other text."""
    reader = _Reader(text)
    reader.expect("{")
    meshes: dict[str, Mesh] = {}
    while not reader.take("}"):
        name = reader.tokens[reader.position][1] if reader.position < len(reader.tokens) else ""
        reader.position += 1
        reader.expect("=")
        reader.expect("#sdy.mesh")
        meshes[name] = reader.mesh()
        reader.take(",")
    reader.end()
    return meshes


def read_shardings(text: str, meshes: Mapping[str, Mesh]) -> tuple[NamedSharding, ...]:
    """Return the shardings of `#sdy.sharding<..>` (one) or `#sdy.sharding_per_value<[..]>`. Raises ValueError for other text."""
    reader = _Reader(text)
    found: list[NamedSharding] = []
    if reader.take("#sdy.sharding_per_value"):
        reader.expect("<")
        reader.expect("[")
        while not reader.take("]"):
            found.append(reader.sharding(meshes))
            reader.take(",")
        reader.expect(">")
    else:
        reader.expect("#sdy.sharding")
        found.append(reader.sharding(meshes))
    reader.end()
    return tuple(found)


def read_manual_axes(text: str) -> tuple[str, ...]:
    """Return the names of `#sdy<manual_axes{"x", "y"}>`. Raises ValueError for other text."""
    reader = _Reader(text)
    for mark in ("#sdy", "<", "manual_axes", "{"):
        reader.expect(mark)
    names: list[str] = []
    while not reader.take("}"):
        names.append(reader.next("string"))
        reader.take(",")
    reader.expect(">")
    reader.end()
    return tuple(names)
