"""Writes the file of `--xla_dump_fusion_visualization`: a page with the frames of a computation, in a program that shows it.

As in XLA the file is a zip archive that Python runs. The page loads nothing, and needs no server.
"""

from __future__ import annotations

import html
import io
import json
import zipfile
from collections.abc import Sequence

from hlo_run.analysis.fusion.fusion_frames import Frame

_STYLE = """
body { font: 14px sans-serif; display: flex; margin: 0; height: 100vh }
#frames { width: 40%; overflow: scroll; margin: 0; padding: 8px 8px 8px 40px; border-right: 1px solid }
#nodes { flex: 1; overflow: scroll; padding: 8px; font-family: monospace; white-space: pre }
.shown { background: #e0e0e0 } .consumer { background: #d0ebff } .producer { background: #ffa8a8 }
"""
_SCRIPT = """
const list = document.getElementById('frames'), nodes = document.getElementById('nodes');
const add = (parent, kind, text, name) => {
  const made = document.createElement(kind);
  made.textContent = text;
  if (name) made.className = name;
  parent.appendChild(made);
  return made;
};
const current = () => Math.min(Math.max(parseInt(location.hash.substring(6)) || 0, 0), frames.length - 1);
const show = () => {
  const [, consumer, producer, members] = frames[current()];
  [...list.children].forEach((item, i) => item.className = i == current() ? 'shown' : '');
  list.children[current()].scrollIntoView({ block: 'nearest' });
  nodes.replaceChildren();
  for (const [name, text, operands] of members)
    add(nodes, 'div', `${name} = ${text}(${operands.join(', ')})`, { [consumer]: 'consumer', [producer]: 'producer' }[name]);
};
frames.forEach(([label], i) => add(add(list, 'li', ''), 'a', label).href = `#frame${i}`);
addEventListener('hashchange', show);
addEventListener('keydown', event => {
  const step = { j: 1, k: -1 }[event.key];
  if (step) location.hash = `#frame${(current() + step + frames.length) % frames.length}`;
});
show();
"""

_PAGE = "viewer.html"
# The program: `python FILE.pyz` opens the page in a browser, `python FILE.pyz PAGE.html` writes it.
_PROGRAM = f"""import pathlib, sys, tempfile, webbrowser, zipfile

page = zipfile.ZipFile(sys.argv[0]).read("{_PAGE}")
path = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp() + "/{_PAGE}").resolve()
path.write_bytes(page)
print(path)
if len(sys.argv) < 2:
    webbrowser.open(path.as_uri())
"""


def program(page: str) -> bytes:
    """Return the archive with the page. Equal pages give equal bytes."""
    data = io.BytesIO(b"#!/usr/bin/env python3\n")
    data.seek(0, io.SEEK_END)
    with zipfile.ZipFile(data, "a", zipfile.ZIP_DEFLATED) as archive:
        for name, text in (("__main__.py", _PROGRAM), (_PAGE, page)):
            archive.writestr(zipfile.ZipInfo(name), text, zipfile.ZIP_DEFLATED)
    return data.getvalue()


def page(title: str, frames: Sequence[Frame]) -> str:
    """Return the page: a list of the frames, and the nodes of the chosen one (j and k choose the next and the last)."""
    rows = [[f.label, f.consumer, f.highlighted, [[n.name, n.text, n.operands] for n in f.nodes]] for f in frames]
    data = json.dumps(rows).replace("</", "<\\/")
    return f"""<!DOCTYPE html>
<html><head><meta charset="utf-8"><title>{html.escape(title)}</title><style>{_STYLE}</style></head>
<body><ol id="frames" start="0"></ol><div id="nodes"></div>
<script>
const frames = {data};
{_SCRIPT}</script></body></html>
"""
