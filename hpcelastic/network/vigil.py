"""What the signs of one neighbour amount to, and when to dial it. Pure: time is passed in, in seconds.

A refusal counts only from a port at which the neighbour itself has answered before, and only while there is no link.
A lost packet, a pause of either side, a cut or a firewall's ICMP message can't be told from one another and prove
nothing: they end in silence, and then the neighbour's lease decides.
"""

from hpcelastic.network.peers import Heard, Refused, Silent

PULSE = 0.5
"""Between two pulses, and two repetitions of what is told."""

SILENCE = 1.5
"""Without a pulse, after which a neighbour is silent."""

PATIENCE = 3.0
"""Until a neighbour that was never linked counts as silent; and without a pulse, until a link is given up."""

HASTE = 0.05
"""Between two calls right after a link broke."""

HASTY = 1.0
"""How long after a link broke calls are made in haste."""

SLOW = 2.0
"""Between two calls to a neighbour that has not been reached for longer than ``PATIENCE``."""

_REFUSALS = 3
_REFUSED_FOR = 0.15


class Vigil:
    """The watch over the neighbour ``node``, from ``now`` on."""

    def __init__(self, node: str, now: float) -> None:
        self.node = node
        self.linked = False
        self.met = False
        """It has itself answered at its port; without this no refusal of that port counts."""

        self.silent = False
        self._ever = False
        self._since = now
        """When the neighbour was last new to us, or said goodbye."""

        self._heard = now
        self._broke: float | None = None
        """When the link was lost; None while there is one, and before the first."""

        self._refusals = 0
        """In a row."""

        self._refused_since = now
        self._told = float("-inf")
        self._due = now

    @property
    def due(self) -> float | None:
        """When to dial; None if there is no need."""
        return None if self.linked and self.met else self._due

    @property
    def refused(self) -> bool:
        """As many refusals have come as count."""
        return self._told > float("-inf")

    def dialled(self, now: float) -> None:
        """A call begins; the next follows at a pace that suits what happened."""
        self._due = now + self._pace(now)

    def answered(self) -> None:
        """The neighbour itself has answered at its port."""
        self.met = True

    def link(self, now: float) -> Heard | None:
        """There is a link, or a better one; the proof that it began with is a sign of life."""
        self.linked = self._ever = True
        self._broke = None
        self._doubt()
        return self.pulse(now)

    def pulse(self, now: float) -> Heard | None:
        """A pulse has come."""
        self._heard = now
        if not self.silent:
            return None
        self.silent = False
        return Heard(self.node)

    def part(self, now: float) -> None:
        """The link was ended by one of the two, on purpose."""
        self.linked = False
        self._since = now
        self._due = now + PULSE

    def lose(self, now: float) -> None:
        """The link broke."""
        self.linked = False
        self._broke = self._due = now

    def hang_up(self, now: float, began: float) -> None:
        """A call that was taken by the kernel and never answered has been reset; perhaps the last process is gone."""
        self._doubt()
        if self._ever and not self.linked and now - began >= PULSE:  # else two that accept and reset would keep us busy
            self._broke = self._due = now

    def fail(self) -> None:
        """A call has come to nothing, whatever that means."""
        self._doubt()

    def refuse(self, now: float) -> Refused | None:
        """The neighbour's kernel has refused a call; Refused when that is to be told."""
        if self.linked or not self.met:
            return None
        if not self._refusals:
            self._refused_since = now
        self._refusals += 1
        enough = self._refusals >= _REFUSALS and now - self._refused_since >= _REFUSED_FOR
        if not enough or now - self._told < PULSE * 0.9:
            return None
        self._told = now
        return Refused(self.node)

    def look(self, now: float) -> Silent | None:
        """Asked at every pulse of ours: Silent when that is to be told."""
        if now - self._heard <= (SILENCE if self._ever else PATIENCE) or self.refused:
            return None
        self.silent = True
        return Silent(self.node)

    def lapsed(self, now: float) -> bool:
        """There is a link, and so long without a pulse that another may serve better."""
        return self.linked and now - self._heard > PATIENCE

    def quiet(self, now: float) -> bool:
        """Pulses are missed."""
        return now - self._heard > SILENCE

    def excuse(self, seconds: float) -> None:
        """We ourselves stood still for ``seconds``, in which nobody could be heard."""
        self._heard += seconds

    def _doubt(self) -> None:
        self._refusals = 0
        self._told = float("-inf")

    def _pace(self, now: float) -> float:
        if self._broke is not None:
            return HASTE if now - self._broke < HASTY else PULSE
        return PULSE if now - self._since < PATIENCE else SLOW
