"""The accounts of a run: what every second of every node went into, and what that means. Pure.

Everything follows from the event logs of the agents, which may be torn, incomplete, or missing.
"""

from hpcelastic.accounting.account import Account, account, fold
from hpcelastic.accounting.categories import Category
from hpcelastic.accounting.folded import Fault, Fold
from hpcelastic.accounting.journal import Job, Journal, Log
from hpcelastic.accounting.segments import Segment

__all__ = ["Account", "Category", "Fault", "Fold", "Job", "Journal", "Log", "Segment", "account", "fold"]
