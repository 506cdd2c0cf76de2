"""The blocks of code of the pages."""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])

_FENCE = re.compile(
    r"(?:^<!-- not run: (?P<reason>[^\n]+?) -->\n\n?)?"
    r"^(?P<indent> *)```(?P<language>\w*)(?: title=\"(?P<title>[^\"]+)\")?\n(?P<text>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    """A block of code of a page."""

    page: Path
    line: int
    language: str
    title: str
    """The name of the file whose content it is; empty for none."""

    text: str
    reason: str
    """Why it is not run; empty if it is, or if the page does not say."""

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text()
    return [
        Block(
            page,
            text.count("\n", 0, found.start("language")) + 1,
            found["language"],
            found["title"] or "",
            re.sub(rf"^{found['indent']}", "", found["text"], flags=re.MULTILINE),
            found["reason"] or "",
        )
        for found in _FENCE.finditer(text)
    ]


def commands(text: str) -> list[str]:
    """Return the lines of a block of shell without comments. A line that ends with a backslash is continued."""
    lines = text.replace("\\\n", " ").splitlines()
    return [found for line in lines if (found := re.sub(r"(^|\s)#.*$", "", line).strip())]
