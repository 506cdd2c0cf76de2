"""Draws the diagrams of docs/protocol.md from the tables in `hpcelastic.protocol.transitions`.

``python docs/make_diagram.py`` writes them anew, between the comments that mark their places.
"""

import re
from pathlib import Path

from hpcelastic.protocol.transitions import NODE_EDGES, RUN_EDGES, NodeEdge, RunEdge

PAGE = Path(__file__).with_name("protocol.md")
RUN, NODE = "run", "node"


def run_diagram() -> str:
    """The phases of a run, in mermaid; several causes of one step share its arrow."""
    return _diagram(RUN_EDGES, first="joining")


def node_diagram() -> str:
    """The states of a node, in mermaid."""
    return _diagram(NODE_EDGES, first="ready")


def drawn(page: str) -> str:
    """``page`` with its diagrams drawn anew."""
    for name, diagram in ((RUN, run_diagram()), (NODE, node_diagram())):
        begin, end = f"<!-- diagram {name}: made by docs/make_diagram.py -->\n", f"<!-- end of diagram {name} -->"
        page, places = re.subn(f"{begin}.*?{end}", lambda _, text=begin + diagram + end: text, page, flags=re.DOTALL)
        if places != 1:
            raise ValueError(f"the page has {places} places for the diagram {name!r}, not one")
    return page


def _diagram(edges: tuple[RunEdge, ...] | tuple[NodeEdge, ...], first: str) -> str:
    whens: dict[tuple[str, str], list[str]] = {}
    for edge in edges:
        whens.setdefault((edge.source.value, edge.target.value), []).append(edge.when)
    arrows = [f"    {source} --> {target}: {'<br>or '.join(when)}" for (source, target), when in whens.items()]
    return "\n".join(["```mermaid", "stateDiagram-v2", f"    [*] --> {first}", *arrows, "```", ""])


if __name__ == "__main__":
    PAGE.write_text(drawn(PAGE.read_text()))
