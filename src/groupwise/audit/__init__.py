"""The audit of a run: checks of what the model wrote, and a page to label completions by hand.

Reads a run directory and writes only below its folder `audit/`. The audit judges the verifier, so it never runs one.
Nothing imports torch.
"""

from __future__ import annotations

from groupwise.audit.agreement import Agreement, agreement
from groupwise.audit.audit_checks import AuditExample, AuditFinding
from groupwise.audit.chains import Chain
from groupwise.audit.held_out_gain import HeldOutGain
from groupwise.audit.labels import Label, LabelError, merge_labels, read_labels
from groupwise.audit.show_audit import show_agreement, show_audit
from groupwise.audit.survey import Audit, AuditError, audit_run

__all__ = [
    "Agreement",
    "Audit",
    "AuditError",
    "AuditExample",
    "AuditFinding",
    "Chain",
    "HeldOutGain",
    "Label",
    "LabelError",
    "agreement",
    "audit_run",
    "merge_labels",
    "read_labels",
    "show_agreement",
    "show_audit",
]
