"""The run directory: the interface between training and everything that reads its results.

Training writes it through `RunLog`, holding a `RunLock`; reports, dashboard, doctor and sweeps read it through `Run`.
Nothing here imports torch. `layout.py` has the layout, `catalogue.py` the metrics, their meanings and their charts.
"""

from groupwise.runs.catalogue import METRICS as METRICS
from groupwise.runs.files import RunLogError as RunLogError
from groupwise.runs.files import RunReadError as RunReadError
from groupwise.runs.lock import RunLock as RunLock
from groupwise.runs.lock import read_holder as read_holder
from groupwise.runs.reader import Run as Run
from groupwise.runs.reader import last_turn as last_turn
from groupwise.runs.records import group_from_json as group_from_json
from groupwise.runs.writer import RunLog as RunLog
