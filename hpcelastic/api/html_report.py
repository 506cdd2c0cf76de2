"""The report of a run as one HTML file: figures, a timeline of the nodes, and each fault with its cause and cost.

The file needs no other file and no script. Browsers show it in light or dark colours, also on a phone.
"""

import html
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

from hpcelastic.accounting import Account, Category, Segment, account
from hpcelastic.accounting.journal import SECOND
from hpcelastic.agent.old_rounds import read_fold
from hpcelastic.api.accounts import read_journal
from hpcelastic.api.figures import date, duration, percent
from hpcelastic.api.goodput import MEANINGS, Goodput, goodput
from hpcelastic.api.why import Why, explained_round
from hpcelastic.backends.connect import RunReader
from hpcelastic.rendezvous.run import read_state

_COLOURS = {
    Category.USEFUL: "#1a9850",
    Category.CHECKPOINT: "#4575b4",
    Category.REDONE: "#f46d43",
    Category.RESTORE: "#fdae61",
    Category.LAUNCH: "#fee090",
    Category.RENDEZVOUS: "#b2abd2",
    Category.STOP: "#8073ac",
    Category.DETECTION: "#d73027",
    Category.HANG: "#a50026",
    Category.START: "#c7eae5",
    Category.SPARE: "#80cdc1",
    Category.QUEUE: "#bababa",
    Category.UNKNOWN: "#666666",
}
"""Colours that people with a colour vision deficiency can tell apart as well as possible. Source: ColorBrewer."""

_WIDTH = 1000
"""Width of the timeline, in its own units."""

_MAX_CELLS = 24_000
"""Parts of the timeline at most, so that the file of a large run is not larger than 1 MB."""

_MAX_FAULTS = 200
"""Faults that are shown: the newest ones."""

_STYLE = """
:root{color-scheme:light dark;--fg:#1b1b1b;--bg:#fff;--soft:#666;--line:#ddd;--card:#f6f6f6}
@media(prefers-color-scheme:dark){:root{--fg:#e8e8e8;--bg:#161616;--soft:#a0a0a0;--line:#333;--card:#202020}}
body{font:15px/1.5 system-ui,sans-serif;color:var(--fg);background:var(--bg);margin:0 auto;padding:1rem;max-width:70rem}
h1{font-size:1.4rem}h2{font-size:1.1rem;margin-top:2rem}
.figures{display:flex;flex-wrap:wrap;gap:.6rem}
.figures div{background:var(--card);border-radius:.5rem;padding:.6rem .9rem;flex:1 1 8rem}
.figures b{display:block;font-size:1.3rem}.figures span,.soft{color:var(--soft)}
.scroll{overflow-x:auto}svg{display:block;width:100%;min-width:30rem}
table{border-collapse:collapse;width:100%}td,th{text-align:left;padding:.25rem .6rem;vertical-align:top;
border-bottom:1px solid var(--line)}td.number{text-align:right;white-space:nowrap}
i{display:inline-block;width:.8rem;height:.8rem;border-radius:.2rem;margin-right:.4rem}
details{background:var(--card);border-radius:.5rem;padding:.5rem .9rem;margin:.5rem 0}summary{cursor:pointer}
pre{overflow-x:auto;font-size:.8rem}text{fill:var(--soft);font:10px system-ui,sans-serif}
"""


@dataclass(frozen=True)
class Report:
    """The report of a run. A notebook shows it in place."""

    html: str

    def save(self, path: str | PathLike[str]) -> Path:
        """Write the report to a file, and return its path. Raises OSError."""
        written = Path(path)
        written.write_text(self.html, encoding="utf-8")
        return written

    def _repr_html_(self) -> str:
        # In a frame, so that its style does not change the page.
        return f'<iframe srcdoc="{html.escape(self.html)}" style="width:100%;height:40rem;border:0"></iframe>'


def report_of(run: RunReader) -> Report:
    """Return the report of a run, up to now if it has not ended. Raises StoreError if its files cannot be read.

    It shows all rounds whose events are there. If those of the first rounds are removed, their account is used.
    """
    state = read_state(run.backend())
    journal = read_journal(run.paths, state)
    accounts = account(journal)
    if accounts.rounds and min(accounts.rounds) > 1:
        journal = read_journal(run.paths, state, before=read_fold(run.paths))
        accounts = account(journal)
    faults = [fault.round for fault in accounts.faults if fault.round in accounts.rounds][-_MAX_FAULTS:]
    explained = [explained_round(run.paths, journal, accounts, number) for number in faults]
    return Report(html_report(accounts, goodput(run.paths.root.name, accounts), explained))


def html_report(accounts: Account, figures: Goodput, faults: Sequence[Why]) -> str:
    """Return the report of a run. ``faults`` has the explanations of the rounds that a fault has ended."""
    return "".join(
        (
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width,initial-scale=1">',
            f"<title>{_text(figures.name)}</title><style>{_STYLE}</style></head><body>",
            *_head(figures),
            "<h2>What the time of the nodes went into</h2>",
            _bar(accounts),
            *_categories(accounts),
            "<h2>Timeline</h2>",
            *_timeline(accounts),
            *_losses(accounts),
            "<h2>Faults</h2>",
            *_faults(faults),
            "<h2>Rounds</h2>",
            *_rounds(accounts),
            "</body></html>\n",
        )
    )


def _head(figures: Goodput) -> Iterator[str]:
    state = "has ended" if figures.final else "has no agent left" if figures.abandoned else "goes on"
    when = f"{date(figures.begin)} to {date(figures.end)}"
    yield f'<h1>{_text(figures.name)}</h1><p class="soft">{when}; the run {state}</p><div class="figures">'
    yield _figure("goodput", percent(figures.goodput), f"of {duration(figures.allocated)} of node time")
    yield _figure("ETTR", percent(figures.ettr), f"of {duration(figures.end - figures.begin)}")
    mean = "none" if figures.mttf is None else f"one in {duration(figures.mttf)}"
    yield _figure("faults", str(figures.fault_count), mean)
    if figures.save_cost is not None and figures.save_interval is not None:
        best = figures.best_save_interval
        advice = "" if best is None else f"; {duration(best)} loses least"
        yield _figure("saves", duration(figures.save_cost), f"each, one in {duration(figures.save_interval)}{advice}")
    if figures.at_risk is not None:
        yield _figure("at risk", str(figures.at_risk), "steps that are not saved")
    yield "</div>"
    if not figures.marked:
        yield '<p class="soft">The script writes no progress marks, so its steps are unknown.</p>'


def _figure(name: str, value: str, remark: str) -> str:
    return f"<div><span>{name}</span><b>{_text(value)}</b><span>{_text(remark)}</span></div>"


def _bar(accounts: Account) -> str:
    """Return a bar of all categories."""
    parts, x = [], 0.0
    for category in MEANINGS:
        width = _WIDTH * accounts.categories[category] / accounts.total if accounts.total else 0.0
        if width:
            place = f'x="{x:.1f}" width="{width:.1f}" height="24" fill="{_COLOURS[category]}"'
            parts.append(f"<rect {place}><title>{category.value}</title></rect>")
        x += width
    attributes = f'viewBox="0 0 {_WIDTH} 24" preserveAspectRatio="none" role="img" aria-label="Node time by category"'
    return f"<svg {attributes}>{''.join(parts)}</svg>"


def _categories(accounts: Account) -> Iterator[str]:
    yield '<div class="scroll"><table>'
    for category, meaning in MEANINGS.items():
        micros = accounts.categories[category]
        if micros:
            share, time = percent(micros / accounts.total), duration(micros / SECOND)
            yield f'<tr><td><i style="background:{_COLOURS[category]}"></i>{category.value}</td>'
            yield f'<td class="number">{share}</td><td class="number">{time}</td><td class="soft">{meaning}</td></tr>'
    yield "</table></div>"


def _timeline(accounts: Account) -> Iterator[str]:
    """Yield a lane for each node, and a line for each fault."""
    lanes = _lanes(accounts.segments)
    if not lanes or accounts.end <= accounts.begin:
        yield '<p class="soft">No agent has started.</p>'
        return
    cells = max(40, min(_WIDTH, _MAX_CELLS // len(lanes)))
    height = 14 if len(lanes) <= 40 else 3
    paths: dict[Category, list[str]] = {}
    labels = []
    for lane, (name, segments) in enumerate(lanes.items()):
        y = 14 + lane * (height + 1)
        if height > 8:
            labels.append(f'<text x="0" y="{y + height - 3}">{_text(name)}</text>')
        for begin, end, category in _runs(segments, accounts, cells):
            x, width = 100 + 900 * begin // cells, max(1, 900 * (end - begin) // cells)
            paths.setdefault(category, []).append(f"M{x} {y}h{width}v{height}h-{width}z")
    bottom = 14 + len(lanes) * (height + 1)
    marks = []
    for fault in accounts.faults[-_MAX_FAULTS:]:
        x = 100 + 900 * (fault.time - accounts.begin) // (accounts.end - accounts.begin)
        marks.append(f'<path d="M{x} 2v{bottom}" stroke="#d73027"><title>{_text(fault.reason)}</title></path>')
    drawn = (f'<path d="{"".join(path)}" fill="{_COLOURS[category]}"/>' for category, path in paths.items())
    ends = f'<text x="100" y="10">{date(accounts.begin / SECOND)}</text>'
    ends += f'<text x="1000" y="10" text-anchor="end">{date(accounts.end / SECOND)}</text>'
    yield f'<div class="scroll"><svg viewBox="0 0 {_WIDTH} {bottom + 4}" role="img" aria-label="Timeline of the nodes">'
    yield "".join((ends, *labels, *drawn, *marks))
    yield "</svg></div>"


def _lanes(segments: Iterable[Segment]) -> Mapping[str, list[Segment]]:
    """Return the segments of each node, of all its agents one after the other."""
    lanes: dict[str, list[Segment]] = {}
    for segment in segments:
        if segment.node:
            lanes.setdefault(segment.node.rpartition("@")[0], []).append(segment)
    return dict(sorted(lanes.items()))


def _runs(segments: Sequence[Segment], accounts: Account, cells: int) -> list[tuple[int, int, Category]]:
    """Return the first cell, the end and the category of each part of a lane. The longest part of a cell counts."""
    length = accounts.end - accounts.begin
    longest: dict[int, tuple[int, Category]] = {}
    for segment in segments:
        first = (segment.begin - accounts.begin) * cells // length
        last = min(cells - 1, (segment.end - 1 - accounts.begin) * cells // length)
        for cell in range(first, last + 1):
            begin, end = accounts.begin + cell * length // cells, accounts.begin + (cell + 1) * length // cells
            part = min(end, segment.end) - max(begin, segment.begin)
            if part > longest.get(cell, (0, segment.category))[0]:
                longest[cell] = part, segment.category
    runs: list[tuple[int, int, Category]] = []
    for cell in sorted(longest):
        category = longest[cell][1]
        if runs and runs[-1][1:] == (cell, category):
            runs[-1] = runs[-1][0], cell + 1, category
        else:
            runs.append((cell, cell + 1, category))
    return runs


def _losses(accounts: Account) -> Iterator[str]:
    """Yield the curve of the loss over the steps, one line for each round, if the script has told any."""
    rounds = [each.training.losses for each in accounts.rounds.values() if each.training and each.training.losses]
    points = [(step, loss) for losses in rounds for step, loss in losses if math.isfinite(loss)]
    if len(points) < 2:
        return
    steps, values = [step for step, _ in points], [loss for _, loss in points]
    width, height = max(steps) - min(steps) or 1.0, max(values) - min(values) or 1.0
    lines = []
    for losses in rounds:
        places = (
            f"{60 + 930 * (step - min(steps)) / width:.1f},{12 + 150 * (max(values) - loss) / height:.1f}"
            for step, loss in losses
            if math.isfinite(loss)
        )
        lines.append(f'<polyline points="{" ".join(places)}" fill="none" stroke="#4575b4" stroke-width="1.5"/>')
    yield f'<h2>Loss</h2><div class="scroll"><svg viewBox="0 0 {_WIDTH} 180" role="img" aria-label="Loss by step">'
    yield f'<text x="0" y="16">{max(values):.4g}</text><text x="0" y="164">{min(values):.4g}</text>'
    yield f'<text x="60" y="178">step {min(steps):.0f}</text>'
    yield f'<text x="990" y="178" text-anchor="end">step {max(steps):.0f}</text>{"".join(lines)}</svg></div>'


def _faults(faults: Sequence[Why]) -> Iterator[str]:
    if not faults:
        yield '<p class="soft">No fault has ended a round.</p>'
    for fault in reversed(faults[-_MAX_FAULTS:]):
        cost = duration(sum(fault.node_seconds.values()))
        yield f"<details><summary><b>Round {fault.round}</b>: {_text(fault.cause)} "
        yield f'<span class="soft">{fault.blame} {_text(fault.node)}; {cost} of node time</span></summary>'
        yield f"<pre>{_text(str(fault))}</pre></details>"


def _rounds(accounts: Account) -> Iterator[str]:
    yield '<div class="scroll"><table><tr><th>round</th><th>nodes</th><th>began</th><th>steps</th><th>step time</th>'
    yield "<th>state from</th><th>ended</th></tr>"
    for number, each in list(accounts.rounds.items())[-_MAX_FAULTS:]:
        training = each.training
        time = training.time_of_steps / SECOND / each.steps if training and each.steps else None
        began = "" if each.began is None else date(each.began / SECOND)
        values = (
            str(number),
            str(len(each.members) or ""),
            began,
            str(each.steps or ""),
            "" if time is None else f"{time * 1000:.1f} ms",
            (training.source if training else "") or "",
            each.reason if each.ended is not None else "",
        )
        yield "<tr>" + "".join(f"<td>{_text(value)}</td>" for value in values) + "</tr>"
    yield "</table></div>"


def _text(text: str) -> str:
    return html.escape(text)
