"""Run the tuning loop: rounds over tasks within a budget, recorded measurements, a verified schedule per task."""

from felixlike.tuning.budget import Budget
from felixlike.tuning.choice import Choice, How, at_hand, check_ahead, choose, choose_safely
from felixlike.tuning.history import History
from felixlike.tuning.predictions import Predictions
from felixlike.tuning.session import Event, Session
from felixlike.tuning.state import TaskState
from felixlike.tuning.threads import one_thread

__all__ = [
    "Budget",
    "Choice",
    "Event",
    "History",
    "How",
    "Predictions",
    "Session",
    "TaskState",
    "at_hand",
    "check_ahead",
    "choose",
    "choose_safely",
    "one_thread",
]
